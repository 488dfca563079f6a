"""Node classification on one graph as a Pyro program."""

from __future__ import annotations

from collections.abc import Mapping

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor

from probattn.checks import check_integer
from probattn.data import NodeGraph
from probattn.models.graph.layer import is_mostly_zero, matrix
from probattn.models.graph.network import GraphAttentionNetwork
from probattn.models.program import Program, check_classes
from probattn.sites import Edges
from probattn.sites.handlers import is_handled


class NodeClassifier(Program):
    r"""A graph network with observed labels of some nodes.

    .. math:: y_i \sim \mathrm{Categorical}(\mathrm{softmax}(f(X, G, S)_i)), \quad i \in \text{labelled nodes}

    The graph belongs to the program; a batch names nodes. One call runs the whole graph once, samples its attention
    sites, which are one latent variable each for the whole graph and stand outside the plate ``"data"``, and the site
    ``"label"`` of the nodes in the batch. Without labels in the batch they are values to predict. The objective is a
    mean over labelled nodes.

    Args:
        net: the network.
        graph: with self loops, if a node is to see itself, and features as the network is to have them.
        num_data: number of labelled nodes to learn from, if batches hold a part of them. Default: the batch is the
            data.
        label_name: key of the labels in a batch.

    Raises:
        ValueError: ``num_data`` below 1, or features of another width than the network's.

    Example:
        >>> mask = torch.tensor([True, False])
        >>> graph = NodeGraph(
        ...     features=torch.eye(2),
        ...     labels=torch.tensor([0, 1]),
        ...     edge_index=torch.tensor([[0, 1, 0, 1], [1, 0, 0, 1]]),
        ...     train_mask=mask,
        ...     validation_mask=~mask,
        ...     test_mask=torch.zeros(2, dtype=torch.bool),
        ...     label_names=("a", "b"),
        ...     source="two nodes",
        ... )
        >>> model = NodeClassifier(GraphAttentionNetwork(2, 2), graph).eval()
        >>> model({"nodes": torch.tensor([1])}).shape
        torch.Size([1, 2])
    """

    draws_per_pass = 1
    """A draw is one of the whole graph, so draws cannot share a pass."""

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
        """Features of the nodes, ``[N, F]``; sparse (COO) where few are not 0."""
        indices, values = self._feature_indices, self._feature_values
        return values if indices is None else matrix(indices, values, self._shape)

    @property
    def edges(self) -> Edges:
        """The graph's edges, where the network is."""
        return Edges(self.edge_index, self._shape[0])

    def forward(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Runs the graph once; outside Pyro's handlers it only answers, announcing nothing.

        Args:
            batch: int64 ``[B]`` node numbers under ``"nodes"``, and labels int64 ``[B]`` under ``label_name``.

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
            pyro.sample(
                "label",
                dist.Categorical(logits=logits.float()),
                obs=labels,
                infer={"prediction": labels is None},
            )
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
