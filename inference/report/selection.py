"""Which single inputs a report shows: the most uncertain ones and the most confident mistakes."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from probattn.inference.report.evaluation import PredictedData, Predictions
from probattn.inference.report.examples import Example
from probattn.inference.report.record import SINGLE, ModelKey
from probattn.metrics.functional import predictive_entropy

SHOWN_DRAWS = 100
"""Draws kept of an example."""


def describe(
    item: PredictedData,
    rows: Sequence[int],
    texts: Sequence[str],
    classes: Sequence[str],
    pairs: Sequence[str] | None = None,
) -> list[Example]:
    """Records of single inputs, as the run's own network predicts them: the mean over draws, or one pass.

    Args:
        item: predictions with ``"bayesian_mean"``, draws among them, or of a network of one pass, or else
            ``"deterministic"``, which is otherwise shown beside it if there.
        rows: indices of the inputs.
        texts: all N inputs of the data set, as text.
        classes: names of the C classes.
        pairs: the second texts of all N inputs, where they are pairs.

    Returns:
        One record a row.

    Raises:
        ValueError: no such predictions, or the numbers of texts, second texts or classes do not fit.
    """
    predictions = _own(item)
    expected = tuple(predictions.probabilities.shape)
    if (len(texts), len(classes)) != expected:
        raise ValueError(
            f"describe: expected {expected[0]} texts and {expected[1]} class names for {item.data.key!r}, "
            f"got {len(texts)} and {len(classes)}"
        )
    if pairs is not None and len(pairs) != len(texts):
        raise ValueError(
            f"describe: expected {len(texts)} second texts for {item.data.key!r}, got {len(pairs)}"
        )
    return [_example(item, row, texts[row], None if pairs is None else pairs[row], classes) for row in rows]


def _example(item: PredictedData, row: int, text: str, pair: str | None, classes: Sequence[str]) -> Example:
    predictions, baseline = _own(item), item.models.get("deterministic")
    if baseline is predictions:
        baseline = None
    probabilities = predictions.probabilities[row].double().cpu().clamp(0, 1)
    winner = int(probabilities.argmax())
    draws = torch.zeros(0, dtype=torch.float64)
    if predictions.source == "posterior" and predictions.draws is not None:
        draws = predictions.draws[:, row, winner].double().cpu().clamp(0, 1)
    base = None if baseline is None else baseline.probabilities[row].double().cpu().clamp(0, 1)
    return Example(
        data=item.data.key,
        index=row,
        text=text,
        pair=pair,
        label=None if item.labels is None else classes[int(item.labels[row])],
        predicted=classes[winner],
        probability=probabilities[winner].item(),
        spread=draws.std().item() if len(draws) > 1 else 0.0,
        entropy=predictive_entropy(probabilities[None], validate_args=False).item(),
        draws=tuple(draws[:SHOWN_DRAWS].tolist()),
        baseline_predicted=None if base is None else classes[int(base.argmax())],
        baseline_probability=None if base is None else base.max().item(),
        baseline_same=None if base is None else base[winner].item(),
    )


def _own(item: PredictedData) -> Predictions:
    """What the run's own network predicted, not its baseline."""
    preferred: tuple[ModelKey, ...] = ("bayesian_mean", *SINGLE, "deterministic")
    own = next((item.models[model] for model in preferred if model in item.models), None)
    if own is None or ("bayesian_mean" in item.models and own.draws is None):
        raise ValueError(
            f"describe: expected predictions of {item.data.key!r}, Bayesian ones with their posterior draws, got none"
        )
    return own


def most_uncertain(item: PredictedData, count: int) -> list[int]:
    """Rows with the highest predictive entropy, the highest first; ties in order of rows."""
    entropy = predictive_entropy(_own(item).probabilities.double())
    return entropy.argsort(descending=True, stable=True)[:count].tolist()


def confident_mistakes(item: PredictedData, count: int) -> list[int]:
    """Rows predicted wrongly with the highest probability, the highest first; none without labels."""
    if item.labels is None:
        return []
    confidence, winner = _own(item).probabilities.double().cpu().max(dim=-1)
    wrong = torch.nonzero(winner != item.labels.cpu()).flatten()
    return wrong[confidence[wrong].argsort(descending=True, stable=True)][:count].tolist()
