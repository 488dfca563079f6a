"""Classification of texts and of pairs of texts."""

from probattn.tasks.classification.task import Classification

__all__ = ["Classification"]
