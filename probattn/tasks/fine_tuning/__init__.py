"""Tasks of pretrained networks with a head, each in a file of its own: regression, spans, tokens."""

from typing import Any

from probattn.tasks.fine_tuning.regression import Regression
from probattn.tasks.fine_tuning.spans import Spans
from probattn.tasks.fine_tuning.tokens import Tokens
from probattn.tasks.task import Task

FINE_TUNING: list[type[Task[Any, Any]]] = [Regression, Spans, Tokens]
"""The tasks of this folder."""

__all__ = ["FINE_TUNING", "Regression", "Spans", "Tokens"]
