"""Classification of texts and of pairs of texts."""

from typing import TYPE_CHECKING

from probattn.checks import imported_when_used

if TYPE_CHECKING:
    from probattn.tasks.classification.task import Classification

__all__ = ["Classification"]

__getattr__ = imported_when_used(__name__, __all__, ("task",), options=())
