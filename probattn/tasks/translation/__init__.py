"""Translation by an encoder-decoder that is trained from random weights."""

from probattn.tasks.translation.results import TranslationResults, TranslationSample
from probattn.tasks.translation.task import Translation

__all__ = ["Translation", "TranslationResults", "TranslationSample"]
