"""The graph attention network of Velickovic et al. 2018, as a Pyro program, and how its attention looks."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from probattn.checks import check_integer
from probattn.data import NodeGraph
from probattn.models.gat_options import GATOptions
from probattn.models.graph.layer import GraphAttention, drop, is_mostly_zero, matrix
from probattn.models.hosts.calls import Layers, layer_numbers
from probattn.models.program import Link, Program, check_classes, evaluating
from probattn.sites import AlignmentAttention, AlignmentFactor, BayesianAttention, Edges, UpwardChain
from probattn.sites.handlers import is_handled
from probattn.sites.method import Observed, observed

LAYERS = ("hidden", "output")
"""Names of the layers; their sites are ``hidden.attention`` and ``output.attention``."""

ALIGNED_NODES = 512
"""Nodes that stand for a graph's queries and keys in a divergence where the options say nothing: pairs of all nodes
would not fit memory."""


class LayerPass(NamedTuple):
    """One layer in a forward pass: name of its site, input features ``[N, F]`` and attention weights ``[E, H]``."""

    site: str
    inputs: Tensor
    weights: Tensor


class GraphAttentionNetwork(nn.Module):
    """Two graph attention layers with an exponential linear unit (ELU) between them; returns logits of every node.

    Args:
        in_features: number F of features of a node.
        num_classes: number C of classes.
        options: sizes and dropout rates. Default: ``GATOptions()``.
        attention: options of latent attention; None for deterministic attention.
        alignment: options of alignment between queries and keys of the nodes; None for no alignment. Its
            ``max_tokens`` counts nodes; None means 512.
        layers: which layers are latent and aligned: "all", "first", "last", or numbers (0, 1; negative from the end);
            ``alignment.layers``, if set, takes precedence for alignment.

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
        hidden = (in_features, options.features, options.heads)
        output = (options.heads * options.features, num_classes, options.output_heads)
        form: dict[str, Any] = {"negative_slope": options.negative_slope}
        form["dropout"] = options.attention_dropout
        self.hidden = GraphAttention(*hidden, concat=True, align=factors.get(0), **form)
        self.output = GraphAttention(*output, concat=False, align=factors.get(1), **form)
        # A chain's calls have maps of one shape: layers with different numbers of heads cannot share one.
        self.chain = UpwardChain()
        together = options.heads == options.output_heads
        if attention is not None:
            for number in pick_layers(layers):  # after both layers: these begin alike, latent or not
                layer = (self.hidden, self.output)[number]
                layer.make_latent(attention, self.chain if together else UpwardChain())

    def forward(self, features: Tensor, edges: Edges, *, observations: int = 1) -> Tensor:
        """Computes the logits of all nodes.

        Args:
            features: features of the nodes, ``[N, F]``, dense or coalesced sparse (COO).
            edges: edges between the nodes. A node attends to itself only if it has a self-loop.
            observations: number of labelled nodes; see :meth:`GraphAttention.forward`.

        Returns:
            Logits ``[N, C]``.

        Raises:
            RuntimeError: a latent or aligned layer trains (training mode, gradients enabled) outside Pyro's handlers.
            ValueError: features of the wrong width or number.
        """
        return self._run(features, edges, observations)[0]

    @torch.no_grad()
    def passes(self, features: Tensor, edges: Edges) -> list[LayerPass]:
        """Runs in evaluation mode; returns inputs and weights of both layers, latent ones at their expectation."""
        with evaluating(self):
            return self._run(features, edges, 1)[1]

    def attention(self, features: Tensor, edges: Edges) -> dict[str, Tensor]:
        """Returns the attention weights ``[E, H]`` of :meth:`passes` by the name of the site."""
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
    form: dict[str, Any] = {"num_sites": len(numbers), "generator": source}
    return {number: AlignmentFactor(alignment, *sizes[number], **form) for number in numbers}


def pick_layers(layers: Layers) -> tuple[int, ...]:
    """Numbers of the layers, sorted; ``ValueError`` for an unknown word, no number or a layer that does not exist."""
    if not (isinstance(layers, str) or layers):
        raise ValueError("layers: expected at least one number, got none")
    return tuple(sorted(set(layer_numbers(len(LAYERS), layers))))


@dataclass(frozen=True)
class LayerMeasures:
    """Measures of one layer's attention on a graph.

    Attributes:
        site: name of the attention site.
        from_uniform: mean of ``|weight * degree - 1|`` over edges and heads, where degree is the number of incoming
            edges of the target node: 0 for uniform attention.
        query_norm: Euclidean norm of a query, mean over nodes and heads.
        key_norm: Euclidean norm of a key, mean over nodes and heads.
        value_norm: Euclidean norm of a value, mean over nodes and heads, to which the other norms can be compared.
    """

    site: str
    from_uniform: float
    query_norm: float
    key_norm: float
    value_norm: float


def distance_from_uniform(weights: Tensor, edges: Edges) -> Tensor:
    """Computes the mean of ``|weight * degree - 1|`` over edges and heads; 0 for uniform attention.

    Args:
        weights: attention weights, ``[E, H]``.
        edges: E edges; degree is the number of incoming edges of an edge's target node.

    Returns:
        The mean, a tensor without dimensions.

    Example:
        >>> edges = Edges(torch.tensor([[0, 1, 1], [0, 0, 1]]), num_nodes=2)
        >>> distance_from_uniform(torch.tensor([[0.75], [0.25], [1.0]]), edges)
        tensor(0.3333)
    """
    return (weights * edges.degree[edges.target].unsqueeze(1) - 1).abs().mean()


@torch.no_grad()
def measure_attention(net: GraphAttentionNetwork, features: Tensor, edges: Edges) -> list[LayerMeasures]:
    """Measures the attention of both layers in evaluation mode; latent weights are at their posterior expectation.

    Args:
        net: the network.
        features: features of the nodes, ``[N, F]``, dense or sparse (COO).
        edges: edges between the N nodes.

    Returns:
        The measures of the hidden layer and of the output layer.
    """
    records = []
    passes = net.passes(features, edges)
    for layer, (site, inputs, weights) in zip((net.hidden, net.output), passes, strict=True):
        value, query, key = layer.features(inputs)
        norms = (float(item.norm(dim=-1).mean()) for item in (query, key, value))
        records.append(LayerMeasures(site, float(distance_from_uniform(weights, edges)), *norms))
    return records


class NodeClassifier(Program):
    r"""Program of a graph network that classifies nodes, some of which have labels.

    .. math:: y_i \sim \mathrm{Categorical}(\mathrm{softmax}(f(X, G, S)_i)), \quad i \in \text{labelled nodes}

    with features X and edges G of the graph and attention weights S. The graph is a part of the program; a batch has
    numbers of nodes. Every call runs the whole graph. Under Pyro's handlers it contains the attention sites, each one
    latent variable of the whole graph outside the plate ``"data"``, and in the plate the site ``"label"`` of the nodes
    in the batch, which is sampled if the batch has no labels. The objective is a mean over labelled nodes.

    Args:
        net: the network.
        graph: features and edges, preprocessed. A node attends to itself only if it has a self-loop.
        num_data: number of nodes in the training set, if batches have only a part of them. Default: the batch size.
        label_name: key of the labels in a batch.

    Raises:
        ValueError: ``num_data`` below 1, or the graph's number of features is not the network's.

    Example:
        >>> mask = torch.tensor([True, False])
        >>> labels, edges = torch.tensor([0, 1]), torch.tensor([[0, 1, 0, 1], [1, 0, 0, 1]])
        >>> masks = {"train_mask": mask, "validation_mask": ~mask, "test_mask": torch.zeros(2, dtype=torch.bool)}
        >>> words = {"label_names": ("a", "b"), "source": "two nodes"}
        >>> graph = NodeGraph(features=torch.eye(2), labels=labels, edge_index=edges, **masks, **words)
        >>> model = NodeClassifier(GraphAttentionNetwork(2, 2), graph).eval()
        >>> model({"nodes": torch.tensor([1])}).shape
        torch.Size([1, 2])
    """

    link: ClassVar[Link] = "softmax"
    draws_per_pass = 1
    """Posterior samples per forward pass: 1, since a sample is of the whole graph."""

    def __init__(
        self,
        net: GraphAttentionNetwork,
        graph: NodeGraph,
        *,
        num_data: int | None = None,
        label_name: str = "labels",
    ) -> None:
        super().__init__()
        if num_data is not None:
            check_integer("NodeClassifier", "num_data", num_data, minimum=1)
        if graph.num_features != net.in_features:
            raise ValueError(
                f"NodeClassifier: the network takes features of width {net.in_features}, those of "
                f"{graph.source!r} have {graph.num_features}"
            )
        self.net = net
        self.num_data = num_data
        self.label_name = label_name
        self._shape = (graph.num_nodes, graph.num_features)
        # The graph moves with the network and is no part of its weights. Sparse features are kept in two dense parts,
        # which any number of processes can share.
        indices, values = None, graph.features
        if is_mostly_zero(graph.features):
            entries = graph.features.to_sparse().coalesce()
            indices, values = entries.indices(), entries.values()
        self.register_buffer("_feature_indices", indices, persistent=False)
        self.register_buffer("_feature_values", values, persistent=False)
        self.register_buffer("edge_index", graph.edge_index, persistent=False)

    @property
    def features(self) -> Tensor:
        """Features of the nodes, ``[N, F]``; sparse (COO) if less than 20% are not 0."""
        indices, values = self._feature_indices, self._feature_values
        return values if indices is None else matrix(indices, values, self._shape)

    @property
    def edges(self) -> Edges:
        """Edges of the graph, on the device of the program."""
        return Edges(self.edge_index, self._shape[0])

    def forward(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Runs the network on the whole graph once.

        Args:
            batch: node numbers, int64 ``[B]``, under ``"nodes"``; optionally labels int64 ``[B]`` under ``label_name``.

        Returns:
            Logits ``[B, C]`` of the nodes in the batch.

        Raises:
            ValueError: no nodes, a node that is not in the graph, or labels outside 0..C-1.
        """
        nodes, labels = self._nodes(batch), batch.get(self.label_name)
        if not is_handled():
            return self._logits(nodes, 1)
        size = self.num_data or len(nodes)
        logits = self._logits(nodes, size)
        with pyro.plate("data", size, subsample=None if self.num_data is None else nodes):
            if labels is not None:
                check_classes(self, "labels", labels, logits.shape[:1], logits.shape[1])
            law = dist.Categorical(logits=logits.float())
            pyro.sample("label", law, obs=labels, infer={"prediction": labels is None})
        return logits

    def _logits(self, nodes: Tensor, observations: int) -> Tensor:
        logits: Tensor = self.net(self.features, self.edges, observations=observations)
        return logits.index_select(0, nodes)

    def _nodes(self, batch: Mapping[str, Tensor]) -> Tensor:
        nodes = batch.get("nodes")
        if nodes is None or nodes.dim() != 1 or nodes.dtype != torch.int64 or not len(nodes):
            got = f"keys {sorted(batch)}" if nodes is None else f"{nodes.dtype} {list(nodes.shape)}"
            raise ValueError(f"NodeClassifier: expected int64 node numbers [B] under 'nodes', got {got}")
        first, last, count = int(nodes.min()), int(nodes.max()), self._shape[0]
        if first < 0 or last >= count:
            raise ValueError(f"NodeClassifier: expected nodes 0..{count - 1}, got {first}..{last}")
        return nodes


@observed.register
def _observed(model: NodeClassifier, draws: bool) -> Observed:
    """The model, or a copy that shares its weights and whose deterministic layers attend by sites, as they did."""
    if any(getattr(model.net, name).latent is None for name in LAYERS):
        if draws:
            raise ValueError(
                "expected latent attention in all layers, got a network with layers without; leave num_samples out"
            )
        model = copy.deepcopy(
            model, {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
        )
        for layer in (getattr(model.net, name) for name in LAYERS):
            if layer.latent is None:
                layer.make_latent(BayesianAttention.bam(prior="constant"))
    return Observed(model)
