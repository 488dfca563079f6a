"""Results of a run of texts about graphs: the records of ``metrics.json``, the texts it shows, and their measures."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor

from probattn.data import DataError, GraphText, GraphTexts, GraphVocabulary
from probattn.data.graph_texts import read_row
from probattn.metrics.functional import (
    bleu_counts,
    bleu_from_counts,
    meteor,
    name_coverage,
    repeated_clauses,
    repeated_ngrams,
    rouge,
)
from probattn.metrics.functional.texts import ROUGE
from probattn.report import ModelKey, Results
from probattn.report.measures import MeasureText
from probattn.report.record import Record
from probattn.tasks.errors import as_run_error
from probattn.tasks.measures import number, share


class Piece(Record):
    """Words of a text that belong together: a copied entity, or what stands between two of them."""

    words: str
    entity: int | None = None


class GraphTextSample(Record):
    """A test text with its graph (relations: entity, name, entity), and what each model wrote."""

    title: str
    entities: tuple[str, ...]
    types: tuple[str, ...]
    relations: tuple[tuple[int, str, int], ...]
    reference: tuple[Piece, ...]
    texts: Mapping[ModelKey, tuple[Piece, ...]]


class GraphTextResults(Results):
    """Everything that the report shows; ``signature`` says how BLEU and METEOR were computed."""

    signature: str = ""
    samples: tuple[GraphTextSample, ...] = ()


def pieces(tokens: list[str | int], row: GraphText) -> tuple[Piece, ...]:
    """Pieces of a text, from words and numbers of entities."""
    spans: list[Piece] = []
    between: list[str] = []
    for token in [*tokens, None]:
        if isinstance(token, str):
            between.append(token)
            continue
        if between:
            spans.append(Piece(words=" ".join(between)))
            between = []
        if token is not None:
            spans.append(Piece(words=row.entities[token], entity=token))
    return tuple(spans)


Written = list[list[str | int]]
"""Words and numbers of entities of each text."""


def row_to_write(line: str, vocabulary: GraphVocabulary) -> GraphText:
    """A line to write about; ``RunError`` where it is none."""
    with as_run_error(DataError):
        row = read_row(line, vocabulary.relations, "a line to write about", written=False)
        GraphTexts((row,), vocabulary.relations, "predict").check_types(vocabulary.types)
    return row


def digested(texts: Mapping[str, GraphTexts]) -> Iterator[str]:
    """What a fingerprint of the data is made of."""
    for role, dataset in texts.items():
        yield f"{role}\0{dataset.relations}\1"
        yield from (f"{row}\1" for row in dataset.rows)


def surfaces(texts: GraphTexts, written: Written) -> list[str]:
    """Written texts with the entities' words."""
    return [row.named(tokens) for row, tokens in zip(texts.rows, written, strict=True)]


def samples_of(
    test: GraphTexts, written: Mapping[ModelKey, Written], number: int
) -> tuple[GraphTextSample, ...]:
    """A fixed choice of test texts, whatever was written."""
    return tuple(
        GraphTextSample(
            title=row.title,
            entities=row.entities,
            types=row.types,
            relations=tuple((head, test.relations[kind], tail) for head, kind, tail in row.relations),
            reference=pieces(row.tokens(), row),
            texts={key: pieces(texts[index], row) for key, texts in written.items()},
        )
        for index, row in ((index, test.rows[index]) for index in (test.choice(number) if number else ()))
    )


RUN = 4
"""Words of a repeated n-gram."""
SYSTEM = "of the written texts with one reference each"

MEASURES: Mapping[str, MeasureText] = {
    "bleu4": share("BLEU-4", f"BLEU of n-grams up to 4 words, {SYSTEM}"),
    **{
        f"bleu{order}": share(f"BLEU-{order}", f"BLEU of n-grams up to {order} word{'s' * (order > 1)}")
        for order in (3, 2, 1)
    },
    "meteor": share("METEOR", "Words in common, their stems and synonyms, mean over texts"),
    "rouge1": share("ROUGE-1", "F of the words in common, mean over texts"),
    "rouge2": share("ROUGE-2", "F of the pairs of words in common, mean over texts"),
    "rougeL": share("ROUGE-L", "F of the longest common subsequence, mean over texts"),
    "perplexity": number("Perplexity", "Per token of the true texts, given those before it"),
    "entities": share(
        "Entities named",
        "Share of a graph's entities that the text has, word for word",
        short="share of entities named",
    ),
    "repeated_runs": share(
        "Repeated 4-grams",
        "Share of the runs of 4 words that stand in the same text before",
        short="share of repeated 4-grams",
        better=False,
    ),
    "repeated_clauses": share(
        "Repeated clauses",
        "Share of the clauses that stand in the same text before",
        short="share of repeated clauses",
        better=False,
    ),
}


def text_columns(written: Sequence[str], texts: GraphTexts, wordnet: Any) -> dict[str, Tensor]:
    """What the measures of written texts are computed from, a row a text; ``ImportError`` without a package."""
    references = [row.surface for row in texts.rows]
    return {
        "counts": bleu_counts(written, references),
        "rouge": rouge(written, references),
        "meteor": meteor(written, references, wordnet),
        "entities": name_coverage(written, [row.entities for row in texts.rows]),
        "repeated_runs": repeated_ngrams(written, RUN),
        "repeated_clauses": repeated_clauses(written),
    }


def figures(columns: Mapping[str, Tensor]) -> dict[str, float | None]:
    """The measures of some texts: of :func:`text_columns`, with what :func:`token_columns` gives beside them."""
    counts = columns["counts"]
    values: dict[str, float | None] = {
        f"bleu{order}": bleu_from_counts(counts, order).score / 100 for order in (4, 3, 2, 1)
    }
    means = ("meteor", "entities", "repeated_runs", "repeated_clauses")
    values |= {name: columns[name].mean().item() for name in means}
    values |= {name: columns["rouge"][:, index, 2].mean().item() for index, name in enumerate(ROUGE)}
    nll, tokens = columns["nll"].sum().item(), columns["tokens"].sum().item()
    values["perplexity"] = math.exp(nll / tokens) if nll / tokens < 700 else None
    values["token_accuracy"] = columns["correct"].sum().item() / tokens
    values["words"] = counts[:, -2].double().mean().item()
    return {name: values[name] for name in (*MEASURES, "token_accuracy", "words")}


def token_columns(log_probabilities: Tensor, correct: Tensor, real: Tensor) -> dict[str, Tensor]:
    """Columns of perplexity and token accuracy, ``[B]``, of draws ``[P, B, T]``; ``real`` is False at padding."""
    mean = log_probabilities.double().logsumexp(dim=0) - math.log(len(log_probabilities))
    return {
        "nll": -(mean * real).sum(dim=-1),
        "tokens": real.sum(dim=-1).double(),
        "correct": (correct & real).sum(dim=-1).double(),
    }
