"""One model's predictions of one data set as columns, one row an example, from which measures are computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from probattn.inference.report.class_measures import class_measure
from probattn.inference.report.record import ClassMeasure, Measure
from probattn.metrics.functional import (
    BinSums,
    area_under_risk_coverage,
    bin_sums,
    brier_score,
    calibration_error_from_sums,
    least_confidence,
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
