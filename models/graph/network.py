"""The two-layer graph attention network of Velickovic et al. 2018."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from probattn.models.gat_options import GATOptions
from probattn.models.graph.layer import GraphAttention
from probattn.models.graph.sparse import drop
from probattn.sites import AlignmentAttention, AlignmentFactor, BayesianAttention, Edges, UpwardChain

Layers = Literal["all", "first", "last"] | Sequence[int]
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
        training = [module for module in self.modules() if module.training]
        self.eval()
        try:
            return self._run(features, edges, 1)[1]
        finally:
            for module in training:
                module.training = True

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
    """Numbers of the chosen layers, sorted.

    Raises:
        ValueError: an unknown word, or a layer that does not exist.
    """
    count = len(LAYERS)
    if isinstance(layers, str):
        words = {"all": tuple(range(count)), "first": (0,), "last": (count - 1,)}
        if layers not in words:
            raise ValueError(f"layers: expected 'all', 'first', 'last' or numbers, got {layers!r}")
        return words[layers]
    if not layers:
        raise ValueError("layers: expected at least one number, got none")
    for layer in layers:
        if isinstance(layer, bool) or not isinstance(layer, int) or not -count <= layer < count:
            raise ValueError(f"layers: expected numbers from {-count} to {count - 1}, got {layer!r}")
    return tuple(sorted({layer % count for layer in layers}))
