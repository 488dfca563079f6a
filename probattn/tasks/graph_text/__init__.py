"""Texts about knowledge graphs, by GraphWriter trained from random weights."""

from probattn.tasks.graph_text.results import GraphTextResults, GraphTextSample, Piece
from probattn.tasks.graph_text.task import GraphTextTask

__all__ = ["GraphTextResults", "GraphTextSample", "GraphTextTask", "Piece"]
