"""Tasks that fine-tune a pretrained network with a task head (output layer).

In the methods of :class:`HeadTask`, columns are tensors ``[N, ...]`` by name with one row per example, from which
measures are computed; an answer is the prediction for one example as a dictionary.
"""

from typing import Any

from probattn.tasks.fine_tuning.choices import Choices
from probattn.tasks.fine_tuning.encoding import Batch, Encoded
from probattn.tasks.fine_tuning.images import Images
from probattn.tasks.fine_tuning.labels import Labels
from probattn.tasks.fine_tuning.language import Language
from probattn.tasks.fine_tuning.recipe import ExamplesSection, HeadRecipe
from probattn.tasks.fine_tuning.regression import Regression
from probattn.tasks.fine_tuning.sequences import Sequences
from probattn.tasks.fine_tuning.spans import Spans
from probattn.tasks.fine_tuning.task import HeadTask
from probattn.tasks.fine_tuning.texts import TextsSection
from probattn.tasks.fine_tuning.tokens import Tokens
from probattn.tasks.task import Task

FINE_TUNING: list[type[Task[Any, Any]]] = [
    Choices,
    Images,
    Labels,
    Language,
    Regression,
    Sequences,
    Spans,
    Tokens,
]
"""All tasks that fine-tune a pretrained network with a task head, except text classification."""

__all__ = ["FINE_TUNING", "Batch", "Choices", "Encoded", "ExamplesSection", "HeadRecipe", "HeadTask"]
__all__ += ["Images", "Labels", "Language", "Regression", "Sequences", "Spans", "TextsSection", "Tokens"]
