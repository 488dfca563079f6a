"""Tasks of pretrained networks with a head, each in a file of its own."""

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
"""The tasks of this folder."""

__all__ = ["FINE_TUNING", "Batch", "Choices", "Encoded", "ExamplesSection", "HeadRecipe", "HeadTask"]
__all__ += ["Images", "Labels", "Language", "Regression", "Sequences", "Spans", "TextsSection", "Tokens"]
