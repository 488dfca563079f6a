"""Classes of the words of a text: named entities, slots, parts of speech."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from transformers import AutoModelForTokenClassification

from probattn.checks import shown
from probattn.data import DataError
from probattn.data.files import data_file, read_text
from probattn.data.identity import Split
from probattn.inference.posterior import Posterior
from probattn.models.program import IGNORED
from probattn.options import Filled
from probattn.report import Listing, ModelKey
from probattn.report.bootstrap import Columns
from probattn.report.record import BESIDE
from probattn.tasks.answering import DIGITS
from probattn.tasks.errors import RunError
from probattn.tasks.fine_tuning.answering import Entropies, HeadDeciding
from probattn.tasks.fine_tuning.encoding import Answer, Batch, Encoded
from probattn.tasks.fine_tuning.predicted_tokens import token_columns, token_figures
from probattn.tasks.fine_tuning.recipe import Examples, ExamplesSection, HeadRecipe, Rows, refuse_written_list
from probattn.tasks.fine_tuning.task import ENTROPIES, HeadTask
from probattn.tasks.measures import ACCURACY, ECE, number, share
from probattn.tasks.networks import output_names
from probattn.tasks.sections.base import key

OUTSIDE = "O"
"""The tag of a word in no span."""
OTHER_SCHEMES = ("E-", "S-", "L-", "U-")
"""Prefixes of BIOES and BILOU that BIO does not have."""
WORD = re.compile(r"\w+(?:[.,:'’]\w+)*|[^\w\s]")
"""A word of a text that is not split yet: letters and digits, with marks between them, or a single mark."""

Span = tuple[str, int, int]
"""Type, first word and the word behind the last."""


def restaurant8k(split: Split) -> Rows:
    """Utterances of RESTAURANTS-8K (Coope et al. 2020) as words with tags of their slots."""
    for where, text, slots in restaurant_utterances(split):
        words = list(WORD.finditer(text))
        tags = [OUTSIDE] * len(words)
        for slot, start, end in slots:
            inside = [index for index, word in enumerate(words) if word.start() < end and word.end() > start]
            for index in inside:
                tags[index] = f"{'B' if index == inside[0] else 'I'}-{slot}"
        if words:
            yield where, {"tokens": [word[0] for word in words], "tags": tags}


def restaurant_utterances(split: Split) -> Iterator[tuple[str, str, list[tuple[str, int, int]]]]:
    """Location, text and slots (name, first and end character) of utterances; a tenth of training validates."""
    name = "test" if split == "test" else "train"
    origin = "https://github.com/PolyAI-LDN/task-specific-datasets"
    path = data_file("restaurant8k", f"restaurant8k/{name}.json", origin=origin)
    utterances = json.loads(read_text(path))
    cut = len(utterances) - len(utterances) // 10
    first, last = {"train": (0, cut), "validation": (cut, len(utterances)), "test": (0, len(utterances))}[
        split
    ]
    for number_of, utterance in enumerate(utterances[first:last], start=first):
        slots = [
            (item["slot"], item["valueSpan"].get("startIndex", 0), item["valueSpan"]["endIndex"])
            for item in utterance.get("labels", ())
        ]
        yield f"{path} utterance {number_of + 1}", utterance["userInput"]["text"], slots


class TokensSection(ExamplesSection):
    """Texts as words with one tag each, in the BIO scheme for spans (`B-person`, `I-person`, `O`) or plain classes.

    Files .conll, .bio and .txt have one word and its tag per line, and a blank line between texts. `restaurant8k` is
    built in: slots of restaurant bookings (Coope et al. 2020).
    """

    named: ClassVar[Any] = {"restaurant8k": restaurant8k}
    suffixes: ClassVar[tuple[str, ...]] = ("conll", "bio", "txt")
    input_keys: ClassVar[tuple[str, ...]] = ("tokens",)
    answer_keys: ClassVar[tuple[str, ...]] = ("tags",)

    tokens: Filled = key("tokens", "Column of the list of words of each text.")
    tags: Filled = key("tags", "Column of the list of the words' tags.")
    max_length: int = key(
        128, "Maximum number of tokens; words beyond are left out of training and predicted as `O`.", ge=3
    )

    def example(self, fields: Mapping[str, Any], where: str) -> Mapping[str, Any]:
        """Words and their tags."""
        words, tags = (_list(fields.get(name), name, where) for name in (self.tokens, self.tags))
        if not words or len(words) != len(tags):
            raise DataError(
                f"{where}: expected a tag for each word, got {len(words)} words and {len(tags)} tags"
            )
        return {"words": words, "tags": tags}

    @property
    def columns_read(self) -> tuple[str, str | None]:
        """Column of texts that a user names."""
        return "text", None

    def unlabelled(self, text: str, pair: str | None) -> Mapping[str, Any]:
        """The words of a text."""
        words = WORD.findall(text)
        if not words:
            raise RunError(f"expected a text with words, got {shown(text)}")
        return {"words": words}

    def unlabelled_columns(self) -> Collection[str]:
        """The words."""
        return (self.tokens,)

    def unlabelled_row(self, fields: Mapping[str, Any], where: str) -> Mapping[str, Any]:
        """The words of a row."""
        return {"words": _list(fields[self.tokens], self.tokens, where)}

    def identity(self, example: Mapping[str, Any]) -> str:
        """The words."""
        return " ".join(example["words"])

    def read_file(self, path: Path) -> Rows:
        """Sentences of a file with a word a line: the word first, its tag last, a blank line between sentences."""
        words: list[str] = []
        tags: list[str] = []
        first = 1
        for line, content in enumerate([*read_text(path).split("\n"), ""], start=1):
            fields = content.split()
            if fields and len(fields) < 2:
                raise DataError(f"{path} line {line}: expected a word and its tag, got {shown(content)}")
            if fields and fields[0] != "-DOCSTART-":
                words.append(fields[0])
                tags.append(fields[-1])
            elif words:
                yield f"{path} line {first}", {self.tokens: words, self.tags: tags}
                words, tags = [], []
            first = first if words else line + 1


class TokensRecipe(HeadRecipe):
    """All that a run on words with tags depends on."""

    tokens: TokensSection = Field(description="The texts, as words with tags.")


class TagsAnswer(Entropies):
    """What is stored of the tags of a text."""

    tags: list[str]
    probability: list[float | None]


class TokensDeciding(HeadDeciding):
    """Decisions about all spans of a text together."""

    record = TagsAnswer
    wrong_when = "a span of the text is wrong, missing or too many"

    def read(self, answer: Mapping[str, Any]) -> Mapping[str, Any]:
        """With 1 less the probability of the least confident tag, 0 of words that the network did not read."""
        return {**answer, "uncertainty": 1 - min((p or 0.0 for p in answer["probability"]), default=0.0)}

    def wrong(self, answer: Mapping[str, Any], truth: Any) -> bool:
        """Whether any span differs, by its type or its ends."""
        return set(spans(answer["tags"])) != set(spans(truth))

    def truth(self, example: Mapping[str, Any]) -> Any:
        """Its tags."""
        return example["tags"]


class Tokens(HeadTask):
    """Token classification: a tag for each word, and spans of words."""

    section = "tokens"
    recipe_class = TokensRecipe
    decides = TokensDeciding
    unit = "texts"
    auto = AutoModelForTokenClassification
    measures: ClassVar[Any] = {
        "f1": share(
            "F1 of spans",
            "Harmonic mean of precision and recall of whole spans, type and ends right",
            short="F1",
        ),
        "precision": share("Precision of spans", "Share of the predicted spans that are right"),
        "recall": share("Recall of spans", "Share of the true spans that are found"),
        "accuracy": ACCURACY,
        "nll": number("Negative log-likelihood", "Of the true tag, nats per word", short="NLL"),
        "ece": ECE,
    }
    headings: ClassVar[Any] = {"text": "Text", "truth": "True spans", "spans": "Predicted", **ENTROPIES}

    def label_names(self) -> Sequence[str]:
        """The tags of the training texts, sorted, "O" first."""
        tags = {tag for example in self.examples["train"] for tag in example["tags"]}
        other = next(
            (tag for tag in sorted(tags) if tag[:2] in OTHER_SCHEMES and f"I-{tag[2:]}" in tags), None
        )
        if other is not None:
            raise DataError(
                f"{self.section_of_examples.train}: expected tags in the BIO scheme, got {other!r} as well as "
                f"'I-{other[2:]}'; write I- instead of E- and L-, and B- instead of S- and U-"
            )
        return sorted(tags, key=lambda tag: (tag != OUTSIDE, tag))

    def program_options(self) -> Mapping[str, Any]:
        """The mean number of labelled words, so the objective is in nats per word."""
        lengths = [sum(label != IGNORED for label in row["labels"]) for row in self.data.train]
        return {"mean_length": sum(lengths) / len(lengths)}

    def validation_metrics(self, program: nn.Module, batch: Any) -> Mapping[str, Tensor]:
        """For each text, the share of words with the right tag."""
        labelled = batch["labels"] != IGNORED
        right = (program(batch).argmax(dim=-1) == batch["labels"]) & labelled
        return {"accuracy": right.sum(dim=1) / labelled.sum(dim=1).clamp_min(1)}

    def encode(self, codec: Any, examples: Examples) -> list[Encoded]:
        """Tokens of texts; the first token of each word has the tag of the word as its label."""
        index = {name: number for number, name in enumerate(self.label_names())}
        tokens = codec(
            [list(example["words"]) for example in examples],
            is_split_into_words=True,
            truncation=True,
            max_length=self.section_of_examples.max_length,
        )
        encoded = []
        for row, example in enumerate(examples):
            inputs = {name: values[row] for name, values in tokens.items()}
            words = tokens.word_ids(row)
            first = [
                word if word is not None and word not in words[:index] else None
                for index, word in enumerate(words)
            ]
            if "tags" in example:
                unknown = next((tag for tag in example["tags"] if tag not in index), None)
                if unknown is not None:
                    raise DataError(
                        f"{self.section_of_examples.train}: expected tags of the training texts "
                        f"({', '.join(index)}), got {unknown!r}; add such a text to them"
                    )
                inputs["labels"] = [
                    IGNORED if word is None else index[example["tags"][word]] for word in first
                ]
            encoded.append(Encoded([inputs], first))
        return encoded

    def record(self, posterior: Posterior, batch: Batch) -> Columns:
        """Columns of numbers of spans by type, and of sums over words."""
        names, size = output_names(batch.config), len(batch.examples)
        types = span_types(names)
        labels = batch.tensors["labels"]
        probabilities = posterior.mean_probabilities.double()
        counts = torch.zeros(size, len(types), 3)
        for row, (tags, example) in enumerate(
            zip(self._tags(probabilities, batch), batch.examples, strict=True)
        ):
            true_spans, found_spans = set(spans(example["tags"])), set(spans(tags))
            for column, some in enumerate((true_spans & found_spans, found_spans, true_spans)):
                for kind, _, _ in some:
                    counts[row, types.index(kind), column] += 1

        return {"spans": counts, **token_columns(posterior, labels, self.recipe.report.bins)}

    def figures(self, columns: Columns) -> dict[str, float | None]:
        """Measures of the texts in ``columns``."""
        precision, recall, f1 = span_scores(columns["spans"].sum(dim=(0, 1)))
        tokens = token_figures(columns)
        del tokens["perplexity"]
        return {"f1": f1, "precision": precision, "recall": recall, **tokens}

    def listings(self, columns: Mapping[ModelKey, Columns]) -> Iterable[Listing]:
        """Table of precision, recall and F1 of each type of span, for the run's network."""
        names, headings = span_types(self.label_names()), ("Type", "True spans")
        yield scores_listing("By type", headings, names, columns, "spans")

    def answer(self, posterior: Posterior, batch: Batch) -> list[Answer]:
        """Tags and spans of each text, and the largest entropy of its words."""
        probabilities = posterior.mean_probabilities
        entropy, information = posterior.entropy, posterior.mutual_information
        answers = []
        for row, (example, tags) in enumerate(
            zip(batch.examples, self._tags(probabilities, batch), strict=True)
        ):
            words = example["words"]
            read = {word: index for index, word in enumerate(batch.encoded[row].notes) if word is not None}
            indices, confidence = list(read.values()), probabilities[row].max(dim=-1).values
            answers.append(
                {
                    "text": " ".join(words),
                    "spans": spans_in_words(words, spans(tags)),
                    "tags": tags,
                    "probability": [
                        round(confidence[read[word]].item(), DIGITS) if word in read else None
                        for word in range(len(words))
                    ],
                    "entropy": entropy[row, indices].max().item() if indices else 0.0,
                    "mutual_information": information[row, indices].max().item() if indices else 0.0,
                }
            )
        return answers

    def _tags(self, probabilities: Tensor, batch: Batch) -> list[list[str]]:
        """The most probable tag of each word; "O" beyond the longest text."""
        names, best = output_names(batch.config), probabilities.argmax(dim=-1)
        tags_of_texts = []
        for row, (example, encoded) in enumerate(zip(batch.examples, batch.encoded, strict=True)):
            tags = [OUTSIDE] * len(example["words"])
            for index, word in enumerate(encoded.notes):
                if word is not None:
                    tags[word] = names[int(best[row, index])]
            tags_of_texts.append(tags)
        return tags_of_texts

    def truth(self, example: Mapping[str, Any]) -> str:
        """The true spans."""
        return spans_in_words(example["words"], spans(example["tags"]))


def spans(tags: Sequence[str]) -> list[Span]:
    """Spans of BIO tags, read as conlleval does (Tjong Kim Sang and De Meulder 2003); other tags are spans of a word.

    Example:
        >>> spans(["O", "B-date", "I-date", "I-time", "B-time"])
        [('date', 1, 3), ('time', 3, 4), ('time', 4, 5)]
    """
    merged: list[Span] = []
    for index, tag in enumerate(tags):
        if tag == OUTSIDE:
            continue
        prefix, dash, kind = tag.partition("-")
        bio = dash and prefix in ("B", "I")
        kind = kind if bio else tag
        if bio and prefix == "I" and merged and merged[-1][0] == kind and merged[-1][2] == index:
            merged[-1] = (kind, merged[-1][1], index + 1)
        else:
            merged.append((kind, index, index + 1))
    return merged


def span_types(tags: Iterable[str]) -> list[str]:
    """Types of the spans that tags can make, sorted."""
    return sorted({kind for tag in tags for kind, _, _ in spans([tag])})


def span_scores(counts: Tensor) -> tuple[float | None, float | None, float | None]:
    """Precision, recall and F1 from the numbers of right, predicted and true spans; None where there is none."""
    right, predicted, true = counts.tolist()
    return (
        right / predicted if predicted else None,
        right / true if true else None,
        2 * right / (predicted + true) if predicted + true else None,
    )


def scores_listing(
    title: str,
    headings: tuple[str, str],
    names: Sequence[str],
    columns: Mapping[ModelKey, Columns],
    column: str,
) -> Listing:
    """Precision, recall, F1 and number of each class, by a column of counts ``[N, C, 3]`` of the run's own network."""
    model = next(key for key in reversed(list(columns)) if key not in BESIDE)
    rows = []
    for name, counts in zip(names, columns[model][column].sum(dim=0), strict=True):
        cells = ["" if value is None else f"{value:.3f}" for value in span_scores(counts)]
        rows.append((name, *cells, f"{int(counts[2]):,}"))
    first, last = headings
    return Listing(title=title, headings=(first, "Precision", "Recall", "F1", last), rows=tuple(rows))


def spans_in_words(words: Sequence[str], labelled: Iterable[Span]) -> str:
    """Spans as text: their type and words."""
    return "; ".join(f"{kind}: {' '.join(words[start:end])}" for kind, start, end in labelled) or "none"


def _list(value: Any, name: str, where: str) -> list[str]:
    if isinstance(value, str):  # in a file without lists
        refuse_written_list(value, name, where)
        value = value.split()
    if not isinstance(value, list) or not all(isinstance(item, (str, int)) for item in value):
        raise DataError(f"{where}: expected a list of words in {name!r}, got {shown(value)}")
    return [str(item) for item in value]
