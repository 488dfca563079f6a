"""The latent site of attention over the edges of a graph."""

from __future__ import annotations

import torch
from torch import Tensor

from probattn.sites.bayesian import BayesianAttention
from probattn.sites.edges import Edges
from probattn.sites.posterior import SitePosterior
from probattn.sites.site import LatentSite, SiteSpec
from probattn.sites.upward import UpwardChain

EdgePosterior = SitePosterior
"""The posterior over edges is that over pairs, with :class:`Edges` for its layout."""


class EdgeAttentionSite(LatentSite):
    r"""Attention over the edges of a graph whose unnormalised weights S are latent.

    :class:`probattn.sites.AttentionSite` with the incoming edges of a node instead of the keys of a query:

    .. math::
        S_{ij} &\sim \mathrm{Gamma}(\alpha_{ij}, \beta), \qquad
            \alpha_{i\cdot} = \mathrm{softmax}_{j \to i}(f_2(\mathrm{ReLU}(f_1(k_j)))) \\
        W_{ij} &= S_{ij} / \textstyle\sum_{j' \to i} S_{ij'}

    and the Weibull posterior of Zhang et al. 2021, section 3.2, from the scores of the edges. Pyro sees S as one datum
    ``[1, H, 1, E]``, outside all plates. The handlers around a call decide what it does, as for every site.

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
            weights: Tensor = self._weights(name, maps, key, edges, call, observations)
            return weights[0, :, 0].t().to(scores.dtype)

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
