"""Programs of networks with a head: what is observed of their output."""

from probattn.models.heads.classification import Classifier, MultiLabelClassifier, MultipleChoice, Regressor
from probattn.models.heads.sequences import Translator
from probattn.models.heads.tokens import (
    CausalLanguageModel,
    MaskedLanguageModel,
    SpanExtractor,
    TokenClassifier,
)

__all__ = [
    "CausalLanguageModel",
    "Classifier",
    "MaskedLanguageModel",
    "MultiLabelClassifier",
    "MultipleChoice",
    "Regressor",
    "SpanExtractor",
    "TokenClassifier",
    "Translator",
]
