"""Translation as a probabilistic program: a Transformer or LSTM encoder-decoder, its likelihood, and beam search."""

from probattn.models.heads.sequences import Translator, token_measures
from probattn.models.translation.network import TransformerSize, build_transformer
from probattn.models.translation.recurrent.configuration import RecurrentTranslationConfig
from probattn.models.translation.recurrent.network import RecurrentForTranslation, RecurrentModel
from probattn.models.translation.search import SearchOptions, translate
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
