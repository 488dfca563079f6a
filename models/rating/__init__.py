"""Ratings of a network's input words: by its attention, and by its knowledge of each word alone."""

from probattn.models.rating.rated import ProxyProgram, RatedWords
from probattn.models.rating.words import WordRatings, own_head, rate_words, word_saliency

__all__ = ["ProxyProgram", "RatedWords", "WordRatings", "own_head", "rate_words", "word_saliency"]
