"""Attention over the edges of a graph: each target node attends to the sources of its incoming edges."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from probattn.sites.bayesian import BayesianAttention, KLReduction
from probattn.sites.layout import Layout
from probattn.sites.posterior import SitePosterior
from probattn.sites.site import LatentSite, SiteSpec
from probattn.sites.upward import UpwardChain


@dataclass(frozen=True, eq=False)
class Edges(Layout):
    """Directed edges and what is summed over the incoming edges of each node.

    Where attention over pairs is normalised over the keys of a query, attention over edges is normalised over the
    incoming edges of a target. The last dimension of every map is the edges'; a site's is one datum of one row,
    ``[1, H, 1, E]``.

    Args:
        index: int64 ``[2, E]``, sources above targets; the same edge may stand several times.
        num_nodes: N.

    Raises:
        TypeError: the index is not int64.
        ValueError: it is not ``[2, E]``, or an edge leads from or to a node outside 0..N-1.

    Example:
        >>> edges = Edges(torch.tensor([[0, 1, 2, 2], [0, 0, 0, 2]]), num_nodes=3)
        >>> edges.degree
        tensor([3, 0, 1])
        >>> edges.softmax(torch.zeros(4))
        tensor([0.3333, 0.3333, 0.3333, 1.0000])
    """

    index: Tensor
    num_nodes: int
    keys_last: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.index.dtype != torch.int64:
            raise TypeError(f"Edges.index: expected int64, got {self.index.dtype}")
        if self.index.dim() != 2 or self.index.shape[0] != 2:
            raise ValueError(
                f"Edges.index: expected [2, E], sources above targets, got {list(self.index.shape)}"
            )
        outside = ((self.index < 0) | (self.index >= self.num_nodes)).any(dim=0)
        if bool(outside.any()):
            edge = int(outside.nonzero()[0, 0])
            raise ValueError(
                f"Edges.index: edge {edge} leads from node {int(self.index[0, edge])} to node "
                f"{int(self.index[1, edge])}, but the nodes are 0..{self.num_nodes - 1}"
            )

    def __len__(self) -> int:
        return self.index.shape[1]

    @property
    def source(self) -> Tensor:
        """Node from which each edge leads, ``[E]``: the keys' side."""
        return self.index[0]

    @property
    def target(self) -> Tensor:
        """Node to which each edge leads, ``[E]``: the queries' side."""
        return self.index[1]

    @cached_property
    def degree(self) -> Tensor:
        """Number of incoming edges of each node, int64 ``[N]``."""
        return torch.bincount(self.target, minlength=self.num_nodes)

    @cached_property
    def num_targets(self) -> int:
        """Number of nodes with an incoming edge."""
        return int((self.degree > 0).sum())

    def sum(self, values: Tensor) -> Tensor:
        """Sums over the incoming edges of each node: ``[..., E]`` to ``[..., N]``."""
        zeros = values.new_zeros((*values.shape[:-1], self.num_nodes))
        return zeros.index_add(-1, self.target, values)

    def log_softmax(self, scores: Tensor) -> Tensor:
        """Scores ``[..., E]`` less the log of the sum of their exponentials over the edges with the same target."""
        shifted = scores - self._largest(scores)
        return shifted - self.sum(shifted.exp()).index_select(-1, self.target).log()

    def softmax(self, scores: Tensor) -> Tensor:
        """Weights ``[..., E]`` that sum to 1 over the incoming edges of each node that has any."""
        powers = (scores - self._largest(scores)).exp()
        return powers / self.sum(powers).index_select(-1, self.target)

    def over_keys(self, values: Tensor, num_heads: int) -> Tensor:
        """Log-softmax over incoming edges of the values ``[N, H]`` of their sources, ``[1, H, 1, E]``."""
        return self.log_softmax(values.t().index_select(1, self.source))[None, :, None]

    def without(self, nodes: Tensor) -> Edges:
        """The edges of which those that leave some nodes, bool ``[N]``, have weight 0."""
        return _Remaining(self.index, self.num_nodes, ~nodes[self.source])

    def count(self, reduction: KLReduction, shape: torch.Size) -> int:
        """Edges ("mean"), or nodes with an incoming edge ("keys"), times heads."""
        return max(1, shape[1] * (len(self) if reduction == "mean" else self.num_targets))

    def _largest(self, scores: Tensor) -> Tensor:
        """The largest score among the edges with the same target, at each edge; a constant to the gradient."""
        scores = scores.detach()
        largest = scores.new_zeros((*scores.shape[:-1], self.num_nodes))
        target = self.target.expand_as(scores)
        return largest.scatter_reduce(-1, target, scores, "amax", include_self=False).gather(-1, target)


@dataclass(frozen=True, eq=False)
class _Remaining(Edges):
    """Edges of which some, ``valid`` ``[E]``, are normalised together, and the others have weight 0."""

    valid: Tensor

    def softmax(self, scores: Tensor) -> Tensor:
        target = torch.where(self.valid, self.target, self.num_nodes)  # the others lead to one more node
        apart = Edges(torch.stack([self.source, target]), self.num_nodes + 1)
        return apart.softmax(scores).masked_fill(~self.valid, 0.0)


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

    Arguments are those of :class:`probattn.sites.AttentionSite`; the upward path mixes heads.

    Raises:
        ValueError: ``upward="positions"``: nodes have no positions; or ``width_scores="separate"``.

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
        if method.width_scores == "separate":
            raise ValueError(
                "width_scores='separate' maps queries and keys, and the edges of a graph have scores alone; leave it "
                "'shared'"
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
