"""From translations to the records of a report."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from probattn.inference.records import Record
from probattn.inference.report.claims import bootstrap_p
from probattn.inference.report.curves import training_curves
from probattn.inference.report.measurements import Curve
from probattn.inference.report.record import ModelKey
from probattn.inference.report.translation_records import BleuDifference, TranslationScores
from probattn.metrics.functional import bleu_from_counts

QUANTITIES = ("loss", "cross_entropy", "token_accuracy", "kl_nats", "factors")
"""What a report of translation shows of the records of training, where it is there."""


def translation_scores(
    model: ModelKey, counts: Tensor, tokens: Mapping[str, float], records: Sequence[Record] = ()
) -> TranslationScores:
    """Scores of one model.

    Args:
        model: which.
        counts: ``[N, 10]``, as :func:`probattn.metrics.functional.bleu_counts` gives them.
        tokens: sums over the test pairs of ``nll``, ``tokens`` and ``correct``.
        records: of its training, for the time of an update.
    """
    found = bleu_from_counts(counts)
    return TranslationScores(
        model=model,
        bleu=found.score,
        precisions=found.precisions,
        brevity_penalty=found.brevity_penalty,
        hypothesis_length=found.hypothesis_length,
        reference_length=found.reference_length,
        perplexity=perplexity(tokens["nll"], tokens["tokens"]),
        token_accuracy=tokens["correct"] / tokens["tokens"],
        subwords=int(tokens["tokens"]),
        step_seconds=step_seconds(records),
    )


def perplexity(nll: float, tokens: float) -> float | None:
    """exp(nll / tokens); None where that is not finite.

    Example:
        >>> perplexity(2.0, 1.0)
        7.38905609893065
    """
    return math.exp(nll / tokens) if nll / tokens < 700 else None


def step_seconds(records: Sequence[Record]) -> float | None:
    """Median time of an update over the records of training; evaluations and checkpoints fall into few of them."""
    rates = []
    before = 0
    for record in records:
        if record.get("kind") != "train":
            continue
        step = int(record["step"])
        if step > before and isinstance(record.get("seconds"), (int, float)):
            rates.append(float(record["seconds"]) / (step - before))
        before = step
    return statistics.median(rates) if rates else None


def bleu_difference(
    model: ModelKey,
    counts: Tensor,
    baseline: Tensor,
    *,
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> BleuDifference:
    """BLEU of a model minus that of the baseline, with a percentile interval of a paired bootstrap (Koehn 2004).

    It is the only comparison of the model, so that there is nothing to correct its p value for.

    Args:
        model: which.
        counts: of its translations, ``[N, 10]``.
        baseline: of the baseline's translations of the same sentences.
        resamples: how often N sentences are drawn with replacement.
        level: of the interval.
        seed: of the draws.
    """
    generator = torch.Generator().manual_seed(seed)
    draws = torch.empty(resamples, dtype=torch.float64)
    for number in range(resamples):
        rows = torch.randint(len(counts), (len(counts),), generator=generator)
        draws[number] = bleu_from_counts(counts[rows]).score - bleu_from_counts(baseline[rows]).score
    tail = (1 - level) / 2
    low, high = draws.quantile(torch.tensor([tail, 1 - tail], dtype=torch.float64)).tolist()
    value = bleu_from_counts(counts).score - bleu_from_counts(baseline).score
    p = bootstrap_p(draws.tolist())
    return BleuDifference(
        model=model, value=value, low=low, high=high, level=level, p=p, corrected=p, resamples=resamples
    )


def translation_curves(records: Sequence[Record], model: ModelKey) -> list[Curve]:
    """Training curves, with cross-entropy (nats) and accuracy per token of the validation pairs."""
    derived = []
    for record in records:
        means = {}
        if record.get("tokens"):
            means = {
                name: None if record.get(part) is None else record[part] / record["tokens"]
                for name, part in (("cross_entropy", "nll"), ("token_accuracy", "correct"))
            }
        derived.append({**record, **means})
    return training_curves(derived, model, quantities=QUANTITIES)
