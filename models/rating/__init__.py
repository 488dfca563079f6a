"""Ratings of a network's input words: by its attention, and by its knowledge of each word alone."""

from probattn.models.rating.own_head import own_head
from probattn.models.rating.proxy import ProxyProgram
from probattn.models.rating.rated import RatedWords
from probattn.models.rating.saliency import word_saliency
from probattn.models.rating.words import WordRatings, rate_words

__all__ = [
    "ProxyProgram",
    "RatedWords",
    "WordRatings",
    "own_head",
    "rate_words",
    "word_saliency",
]
