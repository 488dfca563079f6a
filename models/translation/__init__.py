"""Translation as a probabilistic program: a Transformer or LSTM encoder-decoder, its likelihood, and beam search."""

from probattn.models.heads.sequences import Translator, token_measures
from probattn.models.translation.network import SearchOptions, TransformerSize, build_transformer, translate
from probattn.models.translation.recurrent.attention import RecurrentTranslationConfig
from probattn.models.translation.recurrent.network import RecurrentForTranslation, RecurrentModel
from probattn.models.translation.variational import AlignmentGuide, VariationalTranslator

__all__ = [
    "AlignmentGuide",
    "RecurrentForTranslation",
    "RecurrentModel",
    "RecurrentTranslationConfig",
    "SearchOptions",
    "TransformerSize",
    "Translator",
    "VariationalTranslator",
    "build_transformer",
    "token_measures",
    "translate",
]
