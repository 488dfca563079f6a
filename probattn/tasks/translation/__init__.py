"""Translation by an encoder-decoder that is trained from random weights."""

from probattn.tasks.translation.page import headline, render, translation_table
from probattn.tasks.translation.results import (
    BleuDifference,
    TranslationResults,
    TranslationSample,
    TranslationScores,
    bleu_difference,
    perplexity,
    step_seconds,
    translation_curves,
    translation_scores,
)
from probattn.tasks.translation.task import Translation

__all__ = [
    "BleuDifference",
    "Translation",
    "TranslationResults",
    "TranslationSample",
    "TranslationScores",
    "bleu_difference",
    "headline",
    "perplexity",
    "render",
    "step_seconds",
    "translation_curves",
    "translation_scores",
    "translation_table",
]
