"""Classification of the nodes of a graph."""

from probattn.tasks.graphs.task import Graphs

__all__ = ["Graphs"]
