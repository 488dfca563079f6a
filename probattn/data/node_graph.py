"""A graph whose nodes are classified: features, labels, edges and splits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from probattn.data.errors import DataError

UNKNOWN = -1
"""Label of a node whose class is unknown."""


@dataclass(frozen=True, eq=False)
class NodeGraph:
    """A graph for transductive node classification: all nodes and edges are visible in training, but only some labels.

    Args:
        features: features of the nodes, float ``[N, F]``.
        labels: classes of the nodes, int64 ``[N]``; -1 (``UNKNOWN``) for unknown classes.
        edge_index: edges, int64 ``[2, E]``, first row sources, second row targets; an undirected edge is listed in both
            directions.
        train_mask: bool ``[N]``, training nodes.
        validation_mask: bool ``[N]``, validation nodes.
        test_mask: bool ``[N]``, test nodes.
        label_names: names of the C classes.
        source: description of the graph in messages and reports.
        licence: licence of the data, if known.

    Raises:
        DataError: shapes do not fit, an edge refers to a node that does not exist, a label is not a class, or a node of
            a split has no label or is in two splits.

    Example:
        >>> first, second = torch.tensor([True, False]), torch.tensor([False, True])
        >>> graph = NodeGraph(
        ...     features=torch.eye(2),
        ...     labels=torch.tensor([0, 1]),
        ...     edge_index=torch.tensor([[0, 1], [1, 0]]),
        ...     train_mask=first,
        ...     validation_mask=second,
        ...     test_mask=torch.zeros(2, dtype=torch.bool),
        ...     label_names=("a", "b"),
        ...     source="two nodes",
        ... )
        >>> graph.with_self_loops().edge_index
        tensor([[0, 1, 0, 1],
                [1, 0, 0, 1]])
    """

    features: Tensor
    labels: Tensor
    edge_index: Tensor
    train_mask: Tensor
    validation_mask: Tensor
    test_mask: Tensor
    label_names: tuple[str, ...]
    source: str
    licence: str = "not stated"

    def __post_init__(self) -> None:
        if self.features.dim() != 2 or not self.features.is_floating_point():
            raise self._shape_error("features", "floating [N, F]", self.features)
        if self.labels.shape != (self.num_nodes,) or self.labels.dtype != torch.int64:
            raise self._shape_error("labels", f"int64 [{self.num_nodes}]", self.labels)
        for name in ("train_mask", "validation_mask", "test_mask"):
            mask = getattr(self, name)
            if mask.shape != (self.num_nodes,) or mask.dtype != torch.bool:
                raise self._shape_error(name, f"bool [{self.num_nodes}]", mask)
        self._check_edges()
        self._check_labels()

    @property
    def num_nodes(self) -> int:
        """N, number of nodes."""
        return self.features.shape[0]

    @property
    def num_features(self) -> int:
        """F, number of features."""
        return self.features.shape[1]

    @property
    def num_edges(self) -> int:
        """E, number of directed edges."""
        return self.edge_index.shape[1]

    @property
    def num_classes(self) -> int:
        """C, number of classes."""
        return len(self.label_names)

    def rows(self, role: Literal["train", "validation", "test"]) -> dict[str, Tensor]:
        """Nodes of a split and their labels, int64 ``[B]`` each, for :class:`probattn.models.graph.NodeClassifier`."""
        mask: Tensor = getattr(self, f"{role}_mask")
        return {"nodes": mask.nonzero().flatten(), "labels": self.labels[mask]}

    def with_self_loops(self) -> NodeGraph:
        """The same graph with exactly one edge from every node to itself, listed after all other edges."""
        edges = self.edge_index[:, self.edge_index[0] != self.edge_index[1]]
        nodes = torch.arange(self.num_nodes)
        return replace(self, edge_index=torch.cat([edges, torch.stack([nodes, nodes])], dim=1))

    def with_normalised_rows(self) -> NodeGraph:
        """The same graph with each node's features divided by their sum; features with sum 0 are unchanged."""
        total = self.features.sum(dim=1, keepdim=True)
        return replace(self, features=self.features / torch.where(total == 0, 1.0, total))

    def _check_edges(self) -> None:
        if self.edge_index.dim() != 2 or len(self.edge_index) != 2 or self.edge_index.dtype != torch.int64:
            raise self._shape_error("edge_index", "int64 [2, E]", self.edge_index)
        missing = ((self.edge_index < 0) | (self.edge_index >= self.num_nodes)).any(dim=0).nonzero()
        if len(missing):
            source, target = self.edge_index[:, missing[0, 0]].tolist()
            raise DataError(
                f"{self.source}: an edge to a missing node: {source} to {target}, but the nodes are "
                f"0..{self.num_nodes - 1}"
            )

    def _check_labels(self) -> None:
        classes = self.num_classes
        if self.num_nodes and not UNKNOWN <= int(self.labels.min()) <= int(self.labels.max()) < classes:
            raise DataError(
                f"{self.source}: expected labels 0..{classes - 1} ({UNKNOWN} for none), got "
                f"{int(self.labels.min())}..{int(self.labels.max())}"
            )
        purposes = self.train_mask.long() + self.validation_mask.long() + self.test_mask.long()
        if bool((purposes > 1).any()):
            raise DataError(
                f"{self.source}: node {int((purposes > 1).nonzero()[0])} is in two of the training, validation and "
                "test sets"
            )
        nameless = (purposes > 0) & (self.labels == UNKNOWN)
        if bool(nameless.any()):
            raise DataError(
                f"{self.source}: node {int(nameless.nonzero()[0])} is to be learned from or measured on, "
                "but has no label"
            )

    def _shape_error(self, name: str, expected: str, got: Tensor) -> DataError:
        return DataError(f"{self.source}: expected {name} {expected}, got {got.dtype} {list(got.shape)}")
