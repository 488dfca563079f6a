"""How a network rates the words of its input: by its attention, and by what it knows about each word alone."""

from probattn.models.rating.own_head import own_head, own_states
from probattn.models.rating.rated import RatedWords
from probattn.models.rating.words import WordRatings, rate_words

__all__ = ["RatedWords", "WordRatings", "own_head", "own_states", "rate_words"]
