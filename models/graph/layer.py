"""One layer of graph attention, deterministic, latent or aligned, on features that may be mostly zeros."""

from __future__ import annotations

import warnings
from contextlib import nullcontext

import pyro
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from probattn.checks import check_integer, check_share
from probattn.sites import AlignmentFactor, BayesianAttention, EdgeAttentionSite, Edges, SiteSpec, UpwardChain
from probattn.sites.handlers import is_handled

try:
    with warnings.catch_warnings():
        # It compiles some of its modules with torch.jit as it is imported, which torch says is going away.
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", FutureWarning)
        from torch_geometric.nn import MessagePassing
except ModuleNotFoundError as error:
    raise ImportError(
        f"probattn.models.graph needs torch-geometric: pip install 'probattn[graph]' ({error})"
    ) from error


SPARSE_BELOW = 0.2
"""Share of entries other than 0 below which leaving out zeros saves time (Cora 1%, Pubmed 10%)."""


def is_mostly_zero(features: Tensor) -> bool:
    """Whether a dense matrix has so few entries that the sparse form is the faster one."""
    return int(features.count_nonzero()) < SPARSE_BELOW * features.numel()


def drop(features: Tensor, share: float, training: bool) -> Tensor:
    """Dropout of features ``[N, F]``, dense or coalesced COO; of sparse ones, of their entries: a zero stays 0."""
    if not features.is_sparse:
        return F.dropout(features, share, training)
    if not training or share == 0:
        return features
    return matrix(features.indices(), F.dropout(features.values(), share), tuple(features.shape))


def project(features: Tensor, weight: Tensor) -> Tensor:
    """``features @ weight.T``: ``[N, F]``, dense or sparse, and ``[D, F]`` to dense ``[N, D]``."""
    if not features.is_sparse:
        return F.linear(features, weight)
    return torch.sparse.mm(features, weight.t().contiguous())  # a third faster than strided


def matrix(index: Tensor, values: Tensor, shape: tuple[int, ...]) -> Tensor:
    """A sparse matrix whose entries are sorted and stand once each."""
    return torch.sparse_coo_tensor(index, values, shape, is_coalesced=True, check_invariants=False)


class GraphAttention(MessagePassing):
    r"""Graph attention layer (Velickovic et al. 2018, section 2.1) on torch-geometric's message passing.

    .. math::
        \Phi_{ij} &= \mathrm{LeakyReLU}(a_{dst}^\top W h_i + a_{src}^\top W h_j), \quad j \to i \\
        h'_i &= \sum_{j \to i} w_{ij} W h_j + b, \qquad w = \mathrm{softmax}_{j \to i}(\Phi)

    for each head and the edges :math:`j \to i` into node i, with features h. With ``method`` the weights are latent:
    :math:`w = S / \sum S` with the S of :class:`probattn.sites.EdgeAttentionSite`. The features have the roles of
    queries :math:`a_{dst} \odot W h_i` and keys :math:`a_{src} \odot W h_j`, whose sums over D are the two terms of
    :math:`\Phi`; the prior of S depends on the keys, and ``align`` acts on queries and keys.

    Args:
        in_features: number F of input features of a node.
        out_features: number D of output features of an attention head.
        heads: number H of attention heads.
        concat: whether to concatenate the outputs of the heads, ``[N, H * D]``, or to average them, ``[N, D]``.
        negative_slope: negative slope of the leaky ReLU.
        dropout: dropout rate of attention weights, latent ones too: each node then sees a random subset of neighbours.
        method: options of latent attention; None for deterministic attention.
        chain: the :class:`probattn.sites.UpwardChain` (upward path) that this layer shares with other layers of H
            heads, whose posteriors it connects. Default: a chain for this layer alone.
        align: alignment factor of queries and keys; None for no alignment.

    Raises:
        ValueError: a size below 1, a rate outside [0, 1), ``upward="positions"`` or ``width_scores="separate"``.

    Example:
        >>> edges = Edges(torch.tensor([[0, 1, 1], [0, 0, 1]]), num_nodes=2)
        >>> layer = GraphAttention(3, 4, heads=2)
        >>> output, weights = layer("layer", torch.randn(2, 3), edges)
        >>> output.shape, weights.shape
        (torch.Size([2, 8]), torch.Size([3, 2]))
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        heads: int = 1,
        *,
        concat: bool = True,
        negative_slope: float = 0.2,
        dropout: float = 0.0,
        method: BayesianAttention | None = None,
        chain: UpwardChain | None = None,
        align: AlignmentFactor | None = None,
    ) -> None:
        super().__init__(aggr="add", node_dim=0)
        for name, size in (("in_features", in_features), ("out_features", out_features), ("heads", heads)):
            check_integer("GraphAttention", name, size, minimum=1)
        check_share("GraphAttention", "dropout", dropout, one=False)
        self.in_features, self.out_features, self.heads = in_features, out_features, heads
        self.concat, self.negative_slope, self.dropout = concat, negative_slope, dropout
        self.weight = nn.Parameter(torch.empty(heads * out_features, in_features))
        self.attend_source = nn.Parameter(torch.empty(heads, out_features))
        self.attend_target = nn.Parameter(torch.empty(heads, out_features))
        self.bias = nn.Parameter(torch.empty(heads * out_features if concat else out_features))
        self.latent: EdgeAttentionSite | None = None
        self.align = align
        self.reset_parameters()
        if method is not None:
            self.make_latent(method, chain)

    def reset_parameters(self) -> None:
        """Draws new weights (uniform, Glorot and Bengio 2010) and sets biases to 0, except in sites and factors."""
        super().reset_parameters()
        for parameter in (self.weight, self.attend_source, self.attend_target):
            nn.init.xavier_uniform_(parameter)
        nn.init.zeros_(self.bias)

    def make_latent(self, method: BayesianAttention, chain: UpwardChain | None = None) -> None:
        """Makes the attention weights latent.

        Args:
            method: options of latent attention.
            chain: shared upward chain, as in the constructor.

        Raises:
            ValueError: ``upward="positions"`` or ``width_scores="separate"``.
        """
        self.latent = EdgeAttentionSite(method, SiteSpec(self.heads, self.out_features), chain)

    def features(self, nodes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        r"""Computes values :math:`W h`, queries and keys of the nodes, each ``[N, H, D]``."""
        value = project(nodes, self.weight).view(len(nodes), self.heads, self.out_features)
        return value, self.attend_target * value, self.attend_source * value

    def forward(
        self, name: str, nodes: Tensor, edges: Edges, *, observations: int = 1
    ) -> tuple[Tensor, Tensor]:
        """Computes the layer's output.

        Args:
            name: name of the Pyro site of latent weights; the alignment factor is ``name`` followed by ``.alignment``.
            nodes: features of the nodes, ``[N, F]``, dense or sparse (COO).
            edges: E edges between the N nodes.
            observations: number of labelled nodes, factor of alignment and, with ``kl_reduction`` "mean" or "keys", of
                the KL: their weight relative to the mean log-likelihood is the same for any number of labels.

        Returns:
            Output ``[N, H * D]`` or ``[N, D]``, and attention weights ``[E, H]`` before dropout.

        Raises:
            RuntimeError: a latent or aligned layer trains (training mode, gradients enabled) outside Pyro's handlers.
            ValueError: features of the wrong width or number.
        """
        if nodes.shape != (edges.num_nodes, self.in_features):
            raise ValueError(
                f"{name}: expected features [{edges.num_nodes}, {self.in_features}] of nodes, got {list(nodes.shape)}"
            )
        value, query, key = self.features(nodes)
        if self.align is not None:
            self._align(self.align, name, query, key, observations)
        by_target = query.sum(dim=-1).index_select(0, edges.target)
        by_source = key.sum(dim=-1).index_select(0, edges.source)
        scores = F.leaky_relu(by_target + by_source, self.negative_slope)  # [E, H]
        if self.latent is None:
            weights = edges.softmax(scores.t()).t()
        else:
            weights = self.latent(name, scores, key, edges, observations=observations)
        dropped = F.dropout(weights, self.dropout, self.training)
        output = self.propagate(edges.index, x=value, weights=dropped)  # [N, H, D]
        output = output.flatten(1) if self.concat else output.mean(dim=1)
        return output + self.bias, weights

    def _align(self, align: AlignmentFactor, name: str, query: Tensor, key: Tensor, labels: int) -> None:
        """Announces the factor of queries and keys ``[N, H, D]`` as that of one datum, ``[1, H, N, D]``."""
        if align.weight == 0:  # not even the order in which gradients are summed may depend on it
            query, key = query.detach(), key.detach()
        scaled = pyro.poutine.scale(scale=float(labels)) if is_handled() else nullcontext()
        with scaled:
            align(name, query.transpose(0, 1)[None], key.transpose(0, 1)[None])

    def message(self, x_j: Tensor, weights: Tensor) -> Tensor:
        """Multiplies the values of the edges' source nodes, ``[E, H, D]``, by the weights ``[E, H]``."""
        return x_j * weights.unsqueeze(-1)

    def extra_repr(self) -> str:
        """Returns the sizes that ``print(network)`` shows."""
        return f"{self.in_features}, {self.out_features}, heads={self.heads}, concat={self.concat}"

    def __repr__(self) -> str:
        return nn.Module.__repr__(self)
