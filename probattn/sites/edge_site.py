"""The latent site of attention over the edges of a graph."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from pyro.poutine.runtime import am_i_wrapped
from torch import Tensor

from probattn.distributions import Gamma, LogNormal, Weibull
from probattn.sites.bayesian import BayesianAttention
from probattn.sites.edges import Edges
from probattn.sites.noise import Noise
from probattn.sites.posterior import PosteriorInputs, SitePosterior
from probattn.sites.prior import prior_distribution
from probattn.sites.shared import SharedUpward
from probattn.sites.site import LatentSite, SiteSpec, log_weights
from probattn.sites.upward import UpwardChain


class EdgePosterior(SitePosterior):
    """q(S) over the edges of one graph, batch shape ``[1, H, 1, E]``: one datum whose one row holds all edges.

    Args:
        method: the options.
        make: computes what the posterior is made of.
        prior: the prior, same batch shape.
        edges: the edges, whose targets weights are normalised over.
        observations: number of data that the graph explains.
    """

    def __init__(
        self,
        method: BayesianAttention,
        make: Callable[[SharedUpward | None, int], PosteriorInputs],
        prior: Gamma | LogNormal,
        edges: Edges,
        observations: int = 1,
    ) -> None:
        super().__init__(method, make, prior, None)
        self.edges = edges
        self.observations = observations

    def weights(self, log_value: Tensor) -> Tensor:
        """Attention weights from log S ``[..., E]``, normalised over the incoming edges of each node."""
        return self.edges.softmax(log_value)

    def _draw_weights(self, noise: Noise) -> Tensor | None:
        return None  # the rows of a graph are not the last dimension

    def reduction_factor(self) -> float:
        """What the KL summed over the graph is multiplied by.

        "sum" gives 1, the exact ELBO. "mean" (over edges and heads) and "keys" (sum over a node's incoming edges, mean
        over nodes and heads) are averages; they count once for each observation, as in a batch of that many data.
        """
        heads = self.prior.batch_shape[1]
        if self.method.kl_reduction == "sum":
            return 1.0
        counted = len(self.edges) if self.method.kl_reduction == "mean" else self.edges.num_targets
        return self.observations / max(1, heads * counted)


class EdgeAttentionSite(LatentSite):
    r"""Attention over the edges of a graph whose unnormalised weights S are latent.

    :class:`probattn.sites.AttentionSite` with the incoming edges of a node in the place of the keys of a query:

    .. math::
        S_{ij} &\sim \mathrm{Gamma}(\alpha_{ij}, \beta), \qquad
            \alpha_{i\cdot} = \mathrm{softmax}_{j \to i}(f_2(\mathrm{ReLU}(f_1(k_j)))) \\
        W_{ij} &= S_{ij} / \textstyle\sum_{j' \to i} S_{ij'}

    and the Weibull posterior of Zhang et al. 2021, section 3.2, from the scores of the edges. Pyro sees S as one datum
    ``[1, H, 1, E]``, outside all plates. Who watches decides what a call does, as for every site.

    Args:
        method: the options; the upward path mixes heads.
        spec: heads, and size of a key.
        chain: upward chain shared with calls of the same number of heads; each must be added with :meth:`join`.
            Default: a chain of this call alone.

    Raises:
        ValueError: ``upward="positions"``: nodes have no positions.

    Example:
        >>> edges = Edges(torch.tensor([[0, 1, 1], [0, 0, 1]]), num_nodes=2)
        >>> site = EdgeAttentionSite(BayesianAttention(), SiteSpec(num_heads=2, head_dim=4)).eval()
        >>> site("site", torch.zeros(3, 2), torch.zeros(2, 2, 4), edges)
        tensor([[0.5000, 0.5000],
                [0.5000, 0.5000],
                [1.0000, 1.0000]])
    """

    def __init__(self, method: BayesianAttention, spec: SiteSpec, chain: UpwardChain | None = None) -> None:
        if method.has_upward_path and method.upward == "positions":
            raise ValueError(
                "upward='positions' mixes queries by their positions, and the nodes of a graph have none; use "
                "upward='heads'"
            )
        super().__init__(method, spec, chain)

    def forward(
        self, name: str, scores: Tensor, key: Tensor, edges: Edges, *, call: int = 0, observations: int = 1
    ) -> Tensor:
        """Weights of the edges.

        Args:
            name: name of the Pyro site.
            scores: Phi, ``[E, H]``, finite.
            key: features of the nodes as sources, ``[N, H, D]``; the contextual prior reads them.
            edges: E edges between N nodes.
            call: which of this module's calls in a forward pass this is.
            observations: number of data (labelled nodes) that the graph explains: the averages "mean" and "keys" of
                the KL count once for each of them.

        Returns:
            W, ``[E, H]``, in the scores' type.

        Raises:
            RuntimeError: training without a driver, or under ``torch.nn.DataParallel``.
            ValueError: shapes that do not fit, a given S of the wrong shape, or a negative one.
        """
        self._refuse_unsupported(name)
        self._check(name, scores, key, edges)
        with torch.autocast(scores.device.type, enabled=False):
            maps = scores if scores.dtype == torch.float64 else scores.float()
            maps = maps.t().contiguous()[None, :, None]  # [1, H, 1, E]
            if am_i_wrapped():
                logits = self._announce(name, maps, key, edges, call, observations)
            else:
                logits = self._expectation(maps, edges, call)
            return edges.softmax(logits)[0, :, 0].t().to(scores.dtype)

    def posterior(self, scores: Tensor, edges: Edges, call: int = 0) -> Weibull | LogNormal:
        """q(S) from scores ``[1, H, 1, E]``; batch shape that of the scores."""
        self._begin(call, scores, None, edges.softmax)
        return self._posterior_inputs(scores, edges, call).distribution(self.method)

    def _posterior_inputs(
        self, scores: Tensor, edges: Edges, call: int, shared: SharedUpward | None = None, draws: int = 1
    ) -> PosteriorInputs:
        upward = self._rise(call, scores, None, edges.softmax, shared, draws)
        return PosteriorInputs(
            scores, upward, edges.log_softmax if self.method.scores == "normalised" else None
        )

    def _expectation(self, scores: Tensor, edges: Edges, call: int) -> Tensor:
        if not self.method.learns_scale:
            return scores  # E[S] is exp(scores) up to a factor per node
        return self.posterior(scores, edges, call).log_mean

    def _announce(
        self, name: str, scores: Tensor, key: Tensor, edges: Edges, call: int, observations: int
    ) -> Tensor:
        self._begin(call, scores, None, edges.softmax)
        prior = prior_distribution(self.method, self._log_alpha(scores, key, edges), scores.shape)
        make = partial(self._posterior_inputs, scores, edges, call)
        posterior = EdgePosterior(self.method, make, prior, edges, observations)
        return log_weights(name, self._sample(name, prior, posterior)).to(scores.dtype)

    def _log_alpha(self, scores: Tensor, key: Tensor, edges: Edges) -> Tensor:
        if self.prior is None:
            return scores.new_tensor(self.method.prior_concentration).log().view(1, 1, 1, 1)
        logits = self.prior.logits(key).to(scores.dtype).t()  # [H, N]
        return edges.log_softmax(logits.index_select(1, edges.source))[None, :, None]

    def _check(self, name: str, scores: Tensor, key: Tensor, edges: Edges) -> None:
        heads, size = self.spec.num_heads, self.spec.head_dim
        if scores.shape != (len(edges), heads):
            raise ValueError(
                f"site {name!r}: expected scores [{len(edges)}, {heads}] of edges and heads, got {list(scores.shape)}"
            )
        if key.shape != (edges.num_nodes, heads, size):
            raise ValueError(
                f"site {name!r}: expected keys [{edges.num_nodes}, {heads}, {size}], got {list(key.shape)}"
            )
