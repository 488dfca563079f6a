"""The two-layer graph attention network of Velickovic et al. 2018, and how its attention looks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from probattn.models.gat_options import GATOptions
from probattn.models.graph.layer import GraphAttention, drop
from probattn.models.hosts.calls import Layers, layer_numbers
from probattn.models.program import evaluating
from probattn.sites import AlignmentAttention, AlignmentFactor, BayesianAttention, Edges, UpwardChain

LAYERS = ("hidden", "output")
"""Names of the layers; their sites are ``hidden.attention`` and ``output.attention``."""

ALIGNED_NODES = 512
"""Nodes that stand for a graph's queries and keys in a divergence where the options say nothing: pairs of all nodes
would not fit memory."""


class LayerPass(NamedTuple):
    """One layer's part in a pass: the site's name, what the layer was given ``[N, F]``, its weights ``[E, H]``."""

    site: str
    inputs: Tensor
    weights: Tensor


class GraphAttentionNetwork(nn.Module):
    """Two graph attention layers with ELU between them: logits of every node.

    Args:
        in_features: F.
        num_classes: C.
        options: sizes and regularisation.
        attention: options of latent attention; None for deterministic attention.
        alignment: options of a divergence between the queries and the keys of the nodes; None for none. Its
            ``max_tokens`` counts nodes; None takes 512.
        layers: which layers are latent or aligned: "all", "first", "last", or numbers (0, 1; negative from the end);
            ``alignment.layers`` is heard first.

    Raises:
        ValueError: a layer that does not exist, or options that do not suit a graph.

    Example:
        >>> net = GraphAttentionNetwork(5, 3).eval()
        >>> net(torch.randn(4, 5), Edges(torch.arange(4).repeat(2, 1), num_nodes=4)).shape
        torch.Size([4, 3])
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        options: GATOptions | None = None,
        *,
        attention: BayesianAttention | None = None,
        alignment: AlignmentAttention | None = None,
        layers: Layers = "all",
    ) -> None:
        super().__init__()
        self.options = options = GATOptions() if options is None else options
        self.in_features = in_features
        factors = _factors(alignment, layers, options, num_classes)
        sizes = (
            (in_features, options.features, options.heads, True),
            (options.heads * options.features, num_classes, options.output_heads, False),
        )
        made: list[GraphAttention] = []
        for number, (inputs, outputs, heads, concat) in enumerate(sizes):
            layer = GraphAttention(
                inputs,
                outputs,
                heads,
                concat=concat,
                negative_slope=options.negative_slope,
                dropout=options.attention_dropout,
                align=factors.get(number),
            )
            made.append(layer)
        self.hidden, self.output = made
        # A chain's calls have maps of one shape: layers with different numbers of heads cannot share one.
        self.chain = UpwardChain()
        together = options.heads == options.output_heads
        if attention is not None:
            for number in pick_layers(layers):  # after both layers: these begin alike, latent or not
                made[number].make_latent(attention, self.chain if together else UpwardChain())

    def forward(self, features: Tensor, edges: Edges, *, observations: int = 1) -> Tensor:
        """Logits of all nodes.

        Args:
            features: ``[N, F]``, dense or coalesced sparse (COO).
            edges: with a self loop at every node, if a node is to see itself.
            observations: number of labels that the graph explains.

        Returns:
            ``[N, C]``.

        Raises:
            RuntimeError: training latent or aligned attention without a driver.
            ValueError: features of the wrong width.
        """
        return self._run(features, edges, observations)[0]

    @torch.no_grad()
    def passes(self, features: Tensor, edges: Edges) -> list[LayerPass]:
        """What each layer is given and how it attends, in evaluation mode; with posterior-mean weights if latent."""
        with evaluating(self):
            return self._run(features, edges, 1)[1]

    def attention(self, features: Tensor, edges: Edges) -> dict[str, Tensor]:
        """Attention weights ``[E, H]`` by site, as :meth:`passes` finds them."""
        return {layer.site: layer.weights for layer in self.passes(features, edges)}

    def _run(self, features: Tensor, edges: Edges, observations: int) -> tuple[Tensor, list[LayerPass]]:
        self.chain.clear()  # of a pass that ended early
        passes: list[LayerPass] = []
        state = features
        for name, layer in zip(LAYERS, (self.hidden, self.output), strict=True):
            if passes:
                state = F.elu(state)
            inputs = drop(state, self.options.dropout, self.training)
            site = f"{name}.attention"
            state, weights = layer(site, inputs, edges, observations=observations)
            passes.append(LayerPass(site, inputs, weights))
        return state, passes


def _factors(
    alignment: AlignmentAttention | None, layers: Layers, options: GATOptions, num_classes: int
) -> dict[int, AlignmentFactor]:
    """The factors of the aligned layers, by number."""
    if alignment is None:
        return {}
    if alignment.max_tokens is None:
        alignment = replace(alignment, max_tokens=ALIGNED_NODES)
    if alignment.attention == "cross":
        raise ValueError("AlignmentAttention.attention: a graph has no 'cross' attention; leave it out")
    numbers = pick_layers(layers if alignment.layers is None else alignment.layers)
    source = torch.Generator().manual_seed(alignment.seed)
    sizes = ((options.heads, options.features), (options.output_heads, num_classes))
    return {
        number: AlignmentFactor(alignment, *sizes[number], num_sites=len(numbers), generator=source)
        for number in numbers
    }


def pick_layers(layers: Layers) -> tuple[int, ...]:
    """Numbers of the layers, sorted; ``ValueError`` for an unknown word, no number or a layer that does not exist."""
    if not (isinstance(layers, str) or layers):
        raise ValueError("layers: expected at least one number, got none")
    return tuple(sorted(set(layer_numbers(len(LAYERS), layers))))


@dataclass(frozen=True)
class LayerMeasures:
    """What one layer's attention looks like on a graph, means over heads and edges or nodes.

    Attributes:
        site: name of the attention site.
        from_uniform: mean of ``|weight * degree - 1|`` over edges and heads, degree the number of incoming edges of the
            target: 0 for uniform attention.
        query_norm: mean 2-norm of the nodes' queries.
        key_norm: mean 2-norm of the nodes' keys.
        value_norm: mean 2-norm of the nodes' values, the scale to see the other two at.
    """

    site: str
    from_uniform: float
    query_norm: float
    key_norm: float
    value_norm: float


def distance_from_uniform(weights: Tensor, edges: Edges) -> Tensor:
    """Mean of ``|weight * degree - 1|``.

    Args:
        weights: ``[E, H]``.
        edges: E edges.

    Returns:
        A number.

    Example:
        >>> edges = Edges(torch.tensor([[0, 1, 1], [0, 0, 1]]), num_nodes=2)
        >>> distance_from_uniform(torch.tensor([[0.75], [0.25], [1.0]]), edges)
        tensor(0.3333)
    """
    return (weights * edges.degree[edges.target].unsqueeze(1) - 1).abs().mean()


@torch.no_grad()
def measure_attention(net: GraphAttentionNetwork, features: Tensor, edges: Edges) -> list[LayerMeasures]:
    """Measures both layers in evaluation mode; latent weights at their posterior expectation.

    Args:
        net: the network.
        features: ``[N, F]``, dense or sparse.
        edges: between the N nodes.

    Returns:
        One record a layer, the hidden one first.
    """
    records = []
    for layer, (site, inputs, weights) in zip(
        (net.hidden, net.output), net.passes(features, edges), strict=True
    ):
        value, query, key = layer.features(inputs)
        norms = (float(item.norm(dim=-1).mean()) for item in (query, key, value))
        records.append(LayerMeasures(site, float(distance_from_uniform(weights, edges)), *norms))
    return records
