"""Translation as a probabilistic program: a Transformer encoder-decoder, its likelihood, and beam search."""

from probattn.models.translation.network import TransformerSize, build_transformer
from probattn.models.translation.search import SearchOptions, translate
from probattn.models.translation.translator import Translator, token_measures

__all__ = [
    "SearchOptions",
    "TransformerSize",
    "Translator",
    "build_transformer",
    "token_measures",
    "translate",
]
