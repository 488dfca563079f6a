"""Measures of texts about graphs, and what they are computed from."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from probattn.data import GraphTexts
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
from probattn.report.measures import MeasureText
from probattn.tasks.measures import number, share

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
