"""Measures of one model on one data set, computed from columns with one row an example, and their bootstrap."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torchmetrics.functional.classification import binary_f1_score, multiclass_f1_score

from probattn.inference.report.claims import bootstrap_p, corrected
from probattn.inference.report.record import (
    MEASURES,
    MODELS,
    ClassMeasure,
    DataSet,
    Difference,
    Measure,
    ModelKey,
)
from probattn.metrics.functional import (
    BinSums,
    area_under_risk_coverage,
    bin_sums,
    brier_score,
    calibration_error_from_sums,
    least_confidence,
    matthews_correlation,
    negative_log_likelihood,
    ood_auroc,
    ood_fpr,
    overconfidence_error_from_sums,
    predictive_entropy,
    top_two_p_value,
)

P_VALUE = 0.05
"""Below this p-value a prediction counts as certain."""


@dataclass(frozen=True)
class Columns:
    """What the measures need to know of each example; labels' columns are None without labels.

    Attributes:
        entropy: predictive entropy ``[N]``, nats.
        doubt: one minus the winning probability ``[N]``.
        winner: the winning probability ``[N]``.
        correct: whether the winning class is the label ``[N]``.
        means: columns ``[N, K]`` whose means are measures.
        names: names of those measures.
        classes: predicted and true class ``[N, 2]``.
        asked: further measures of the classes.
        num_classes: C.
        num_bins: bins of the calibration and overconfidence errors.
    """

    entropy: Tensor
    doubt: Tensor
    winner: Tensor
    correct: Tensor | None
    means: Tensor
    names: tuple[Measure, ...]
    classes: Tensor | None
    asked: tuple[ClassMeasure, ...]
    num_classes: int
    num_bins: int

    def measures(self, rows: Tensor | None) -> dict[Measure, float | None]:
        """The measures that need labels, over some rows (with repetition) or all; empty without labels.

        A measure that is infinite is None.
        """
        if self.correct is None:
            return {}
        means = (self.means if rows is None else self.means[rows]).mean(dim=0).tolist()
        found: dict[Measure, float | None] = dict(zip(self.names, means, strict=True))
        assert self.classes is not None
        predicted, labels = (self.classes if rows is None else self.classes[rows]).unbind(dim=-1)
        for name in self.asked:
            found[name] = class_measure(name, predicted, labels, self.num_classes)
        sums = self.bin_sums(rows)
        doubt, wrong = (
            (self.doubt, ~self.correct) if rows is None else (self.doubt[rows], ~self.correct[rows])
        )
        found["ece"] = calibration_error_from_sums(sums, "l1").item()
        found["overconfidence"] = overconfidence_error_from_sums(sums).item()
        found["aurc"] = area_under_risk_coverage(doubt, wrong).item()
        return {
            measure: value if value is not None and value < float("inf") else None
            for measure, value in found.items()
        }

    def detection(
        self, home: Columns, rows: Tensor | None = None, home_rows: Tensor | None = None
    ) -> dict[Measure, float | None]:
        """How well the entropy tells these examples from those of ``home``."""
        foreign = self.entropy if rows is None else self.entropy[rows]
        native = home.entropy if home_rows is None else home.entropy[home_rows]
        return {"auroc": ood_auroc(native, foreign).item(), "fpr95": ood_fpr(native, foreign).item()}

    def bin_sums(self, rows: Tensor | None) -> BinSums:
        """Sums over the reliability bins."""
        assert self.correct is not None
        winner, correct = (
            (self.winner, self.correct) if rows is None else (self.winner[rows], self.correct[rows])
        )
        # The bins know of a prediction only its winning probability and whether it was right: two columns, the
        # first of which always wins and is the label when it was, stand for all C.
        pair = torch.stack([winner, torch.zeros_like(winner)], dim=-1)
        return bin_sums(pair, (~correct).long(), n_bins=self.num_bins, validate_args=False)


def columns(
    probabilities: Tensor,
    draws: Tensor | None,
    labels: Tensor | None,
    num_bins: int,
    asked: Sequence[ClassMeasure] = (),
) -> Columns:
    """Computes the columns.

    Args:
        probabilities: ``[N, C]``, what is scored.
        draws: ``[P, N, C]`` or None; with draws and labels PAvPU is among the measures.
        labels: integer ``[N]`` or None.
        num_bins: bins of the calibration errors.
        asked: further measures of the predicted classes.

    Raises:
        TypeError: types are not as described.
        ValueError: shapes or values are not as described; the message says which.
    """
    probabilities = probabilities.detach().cpu().double()
    winner, winning_class = probabilities.max(dim=-1)
    kept: dict[Measure, Tensor] = {}
    correct = None
    if labels is not None:
        labels = labels.cpu()
        correct = winning_class == labels
        kept = {
            "accuracy": correct.double(),
            "nll": negative_log_likelihood(probabilities, labels),
            "brier": brier_score(probabilities, labels),
        }
        if draws is not None:
            draws = draws.detach().cpu()
            right = draws.mean(dim=0).argmax(dim=-1) == labels
            kept["pavpu"] = (right == (top_two_p_value(draws) < P_VALUE)).double()
    return Columns(
        entropy=predictive_entropy(probabilities),
        doubt=least_confidence(probabilities),
        winner=winner,
        correct=correct,
        means=torch.stack(list(kept.values()), dim=-1) if kept else probabilities.new_zeros(len(winner), 0),
        names=tuple(kept),
        classes=None if labels is None else torch.stack([winning_class, labels], dim=-1),
        asked=tuple(asked),
        num_classes=probabilities.shape[1],
        num_bins=num_bins,
    )


def class_measure(name: ClassMeasure, predicted: Tensor, labels: Tensor, num_classes: int) -> float:
    """One measure over some examples.

    Args:
        name: "matthews", the Matthews correlation; or "f1", of the second class where there are two, else the mean
            over classes.
        predicted: classes ``[N]``.
        labels: true classes ``[N]``.
        num_classes: C.

    Returns:
        The value; F1 is 0 where the class neither occurs nor is predicted.

    Example:
        >>> import torch
        >>> class_measure("f1", torch.tensor([1, 1, 0]), torch.tensor([1, 0, 0]), 2)
        0.666...
    """
    if name == "matthews":
        return matthews_correlation(predicted, labels).item()
    if num_classes == 2:
        return binary_f1_score(predicted, labels, validate_args=False).item()
    return multiclass_f1_score(predicted, labels, num_classes, average="macro", validate_args=False).item()


Table = Mapping[tuple[str, ModelKey], Columns]


Key = tuple[str, ModelKey, Measure]


def paired_intervals(
    data: Sequence[DataSet], table: Table, home: str, *, resamples: int, level: float, seed: int
) -> tuple[Difference, ...]:
    """Differences to the deterministic baseline with percentile intervals of a paired bootstrap (Efron 1979).

    A resample draws as many examples as each data set has, with replacement, and measures every model on the same
    ones; for detection, in-domain and foreign examples are drawn anew. Calibration errors are biased upwards on a
    resample, more so where they are small: percentile intervals then err towards no difference. Each interval is of its
    comparison alone; its p value comes from the same resamples (:func:`~.claims.bootstrap_p`) and is corrected by
    Holm's method over all comparisons of its model, whatever the measure and the data set. The chance that covers is
    that of the examples, given the two networks that one seed gave.

    Args:
        data: the data sets.
        table: columns by data set and model.
        home: key of the in-domain set that foreign inputs are told from.
        resamples: R.
        level: of the intervals.
        seed: of the resampling.

    Returns:
        One difference per measure, Bayesian model and data set where both models have it.

    Raises:
        ValueError: ``resamples`` below 1, or ``level`` outside (0, 1).
    """
    if resamples < 1 or not 0 < level < 1:
        raise ValueError(f"evaluate: expected resamples >= 1 and 0 < level < 1, got {resamples} and {level}")
    values = _differences(data, table, home, None)
    generator = torch.Generator().manual_seed(seed)
    found: dict[Key, list[float]] = {key: [] for key in values}
    for _ in range(resamples if values else 0):
        rows = {item.key: torch.randint(item.size, (item.size,), generator=generator) for item in data}
        for key, difference in _differences(data, table, home, rows).items():
            if key in found:
                found[key].append(difference)
    tails = [(1 - level) / 2, (1 + level) / 2]
    records = []
    for (name, model, measure), value in values.items():
        resampled = found[name, model, measure]
        low, high = np.quantile(resampled, tails).tolist()
        p = bootstrap_p(resampled)
        records.append(
            Difference(
                measure=measure,
                model=model,
                data=name,
                value=value,
                low=low,
                high=high,
                level=level,
                p=p,
                corrected=p,
                resamples=resamples,
            )
        )
    return corrected(records)


def _differences(
    data: Sequence[DataSet], table: Table, home: str, rows: Mapping[str, Tensor] | None
) -> dict[Key, float]:
    found: dict[Key, float] = {}
    for item in data:
        measured = {
            model: _measures(item, table[item.key, model], table.get((home, model)), home, rows)
            for model in MODELS
            if (item.key, model) in table
        }
        base = measured.pop("deterministic", {})
        for model, own in measured.items():
            for measure in MEASURES:
                ours, theirs = own.get(measure), base.get(measure)
                if ours is not None and theirs is not None:
                    found[item.key, model, measure] = ours - theirs
    return found


def _measures(
    item: DataSet, own: Columns, native: Columns | None, home: str, rows: Mapping[str, Tensor] | None
) -> dict[Measure, float | None]:
    mine = rows[item.key] if rows else None
    measured = own.measures(mine)
    if item.role != "in_domain" and native is not None:
        measured |= own.detection(native, mine, rows[home] if rows else None)
    return measured
