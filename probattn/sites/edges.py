"""Attention over the edges of a graph: each target node attends to the sources of its incoming edges."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from probattn.host import at_least_float32
from probattn.sites.bayesian import BayesianAttention, KLReduction
from probattn.sites.layout import Layout
from probattn.sites.posterior import SitePosterior
from probattn.sites.site import LatentSite, SiteSpec
from probattn.sites.upward import UpwardChain


@dataclass(frozen=True, eq=False)
class Edges(Layout):
    """Directed edges of a graph, with sums and softmax over the incoming edges of each node.

    Attention over edges is normalised over the incoming edges of a target node, as attention over pairs is over the
    keys of a query. The last dimension of scores and weights runs over edges; at a site they are ``[1, H, 1, E]``.

    Args:
        index: int64 ``[2, E]``: source nodes in row 0, target nodes in row 1; an edge may occur several times.
        num_nodes: N, the number of nodes.

    Raises:
        TypeError: ``index`` is not int64.
        ValueError: ``index`` is not ``[2, E]``, or an edge leads from or to a node outside 0..N-1.

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
        """Source node of each edge, ``[E]``; it has the role of the key."""
        return self.index[0]

    @property
    def target(self) -> Tensor:
        """Target node of each edge, ``[E]``; it has the role of the query."""
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
        """The logarithm of :meth:`softmax`, ``[..., E]``."""
        shifted = scores - self._largest(scores)
        return shifted - self.sum(shifted.exp()).index_select(-1, self.target).log()

    def softmax(self, scores: Tensor) -> Tensor:
        """Softmax of scores ``[..., E]`` over the edges with the same target, ``[..., E]``."""
        powers = (scores - self._largest(scores)).exp()
        return powers / self.sum(powers).index_select(-1, self.target)

    def over_keys(self, values: Tensor, num_heads: int) -> Tensor:
        """For values ``[N, H]`` of nodes: log-softmax of the source's value over incoming edges, ``[1, H, 1, E]``."""
        return self.log_softmax(values.t().index_select(1, self.source))[None, :, None]

    def without(self, nodes: Tensor) -> Edges:
        """The same edges, of which those that start at a marked node (``nodes``, bool ``[N]``) get weight 0."""
        return _Remaining(self.index, self.num_nodes, ~nodes[self.source])

    def count(self, reduction: KLReduction, shape: torch.Size) -> int:
        """Divisor of the KL: heads times edges ("mean"), or heads times nodes with an incoming edge ("keys")."""
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
"""The posterior of attention over edges: :class:`SitePosterior` with :class:`Edges` as layout."""


class EdgeAttentionSite(LatentSite):
    r"""Attention over the edges of a graph whose unnormalised weights S are a latent Pyro variable.

    Like :class:`probattn.sites.AttentionSite`, but node i attends over its incoming edges j to i instead of over keys:

    .. math::
        S_{ij} &\sim \mathrm{Gamma}(\alpha_{ij}, \beta), \qquad
            \alpha_{i\cdot} = \mathrm{softmax}_{j \to i}(f_2(\mathrm{ReLU}(f_1(k_j)))) \\
        W_{ij} &= S_{ij} / \textstyle\sum_{j' \to i} S_{ij'}

    with the contextual prior (:math:`f_1`, :math:`f_2` linear maps, :math:`k_j` the features of node j) and the Weibull
    posterior of Zhang et al. 2021a, section 3.2, from the scores of the edges. S is ``[1, H, 1, E]``, one event outside
    all plates. Pyro's handlers determine S as in :class:`probattn.sites.AttentionSite`, whose arguments this class has.

    Raises:
        ValueError: ``upward="positions"``, since nodes have no positions, or ``width_scores="separate"``.

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
        """Computes the attention weights of the edges.

        Args:
            name: name of the Pyro site.
            scores: attention scores of the edges, ``[E, H]``, finite.
            key: features of the source nodes, ``[N, H, D]``, for the contextual prior.
            edges: E edges between N nodes.
            call: number of this call among this module's calls within a forward pass, from 0.
            observations: number of labelled nodes; with ``kl_reduction`` "mean" or "keys" the averaged KL is multiplied
                by it.

        Returns:
            W, ``[E, H]``, in the dtype of the scores.

        Raises:
            RuntimeError: the cases of :meth:`probattn.sites.AttentionSite.forward`.
            ValueError: shapes do not fit, or a value of S set by a handler is negative or of a wrong shape.
        """
        self._refuse_unsupported(name)
        self._check(name, scores, key, edges)
        with torch.autocast(scores.device.type, enabled=False):
            maps = at_least_float32(scores).t().contiguous()[None, :, None]  # [1, H, 1, E]
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
