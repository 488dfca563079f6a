"""Measures of one model on one data set, computed from columns with one row an example, and their bootstrap."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

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
from probattn.report.bootstrap import Rows, paired_bootstrap
from probattn.report.measures import CLASS_MEASURES
from probattn.report.record import ClassMeasure, DataSet, Difference, ModelKey

P_VALUE = 0.05
"""Below this p-value a prediction counts as certain."""


@dataclass(frozen=True)
class Columns:
    """One row an example, from which measures are computed; columns of labels are None without labels."""

    entropy: Tensor  # predictive, nats, [N]
    uncertainty: Tensor  # one minus the confidence, [N]
    confidence: Tensor  # the largest probability, [N]
    correct: Tensor | None  # whether the predicted class is the label, [N]
    means: Tensor  # columns whose means are measures, [N, K]
    names: tuple[str, ...]  # of those measures
    classes: Tensor | None  # predicted and true, [N, 2]
    extra_measures: tuple[ClassMeasure, ...]  # further measures of the classes
    num_classes: int
    num_bins: int  # of the calibration and overconfidence errors

    def measures(self, rows: Tensor | None) -> dict[str, float | None]:
        """The measures that need labels, over some rows or all; None where one is infinite."""
        if self.correct is None:
            return {}
        means = _at(self.means, rows).mean(dim=0).tolist()
        measures: dict[str, float | None] = dict(zip(self.names, means, strict=True))
        assert self.classes is not None
        predicted, labels = _at(self.classes, rows).unbind(dim=-1)
        for name in self.extra_measures:
            measures[name] = class_measure(name, predicted, labels, self.num_classes)
        sums = self.bin_sums(rows)
        measures["ece"] = calibration_error_from_sums(sums, "l1").item()
        measures["overconfidence"] = overconfidence_error_from_sums(sums).item()
        measures["aurc"] = area_under_risk_coverage(
            _at(self.uncertainty, rows), ~_at(self.correct, rows)
        ).item()
        return {
            measure: value if value is not None and value < float("inf") else None
            for measure, value in measures.items()
        }

    def detection(
        self, in_domain: Columns, rows: Tensor | None = None, known_rows: Tensor | None = None
    ) -> dict[str, float | None]:
        """AUROC and FPR95 of the entropy, which detects these examples among those of ``in_domain``."""
        ood, reference = _at(self.entropy, rows), _at(in_domain.entropy, known_rows)
        return {"auroc": ood_auroc(reference, ood).item(), "fpr95": ood_fpr(reference, ood).item()}

    def bin_sums(self, rows: Tensor | None) -> BinSums:
        """Sums over the reliability bins."""
        assert self.correct is not None
        confidence, correct = _at(self.confidence, rows), _at(self.correct, rows)
        # The bins know of a prediction only its winning probability and whether it was right: two columns, the
        # first of which always wins and is the label when it was, stand for all C.
        pair = torch.stack([confidence, torch.zeros_like(confidence)], dim=-1)
        return bin_sums(pair, (~correct).long(), n_bins=self.num_bins, validate_args=False)


def _at(column: Tensor, rows: Tensor | None) -> Tensor:
    return column if rows is None else column[rows]


def columns(
    probabilities: Tensor,
    draws: Tensor | None,
    labels: Tensor | None,
    num_bins: int,
    extra_measures: Sequence[ClassMeasure] = (),
) -> Columns:
    """Computes the columns."""
    probabilities = probabilities.detach().cpu().double()
    confidence, predicted_class = probabilities.max(dim=-1)
    means: dict[str, Tensor] = {}
    correct = None
    if labels is not None:
        labels = labels.cpu()
        correct = predicted_class == labels
        means = {
            "accuracy": correct.double(),
            "nll": negative_log_likelihood(probabilities, labels),
            "brier": brier_score(probabilities, labels),
        }
        if draws is not None:
            draws = draws.detach().cpu()
            right = draws.mean(dim=0).argmax(dim=-1) == labels
            means["pavpu"] = (right == (top_two_p_value(draws) < P_VALUE)).double()
    return Columns(
        entropy=predictive_entropy(probabilities),
        uncertainty=least_confidence(probabilities),
        confidence=confidence,
        correct=correct,
        means=torch.stack(list(means.values()), dim=-1)
        if means
        else probabilities.new_zeros(len(confidence), 0),
        names=tuple(means),
        classes=None if labels is None else torch.stack([predicted_class, labels], dim=-1),
        extra_measures=tuple(extra_measures),
        num_classes=probabilities.shape[1],
        num_bins=num_bins,
    )


def class_measure(name: ClassMeasure, predicted: Tensor, labels: Tensor, num_classes: int) -> float:
    """One measure over some examples."""
    if name == "matthews":
        return matthews_correlation(predicted, labels).item()
    # torchmetrics takes most of a second to import.
    from torchmetrics.functional.classification import binary_f1_score, multiclass_f1_score

    if num_classes == 2:
        return binary_f1_score(predicted, labels, validate_args=False).item()
    return multiclass_f1_score(predicted, labels, num_classes, average="macro", validate_args=False).item()


Table = Mapping[tuple[str, ModelKey], Columns]


def paired_intervals(
    data: Sequence[DataSet], table: Table, in_domain: str, *, resamples: int, level: float, seed: int
) -> tuple[Difference, ...]:
    """Differences to the deterministic baseline with percentile intervals of a paired bootstrap; see ``evaluate``."""
    if resamples < 1 or not 0 < level < 1:
        raise ValueError(f"evaluate: expected resamples >= 1 and 0 < level < 1, got {resamples} and {level}")
    data_sets = {item.key: item for item in data}

    def figures(key: str, model: ModelKey, rows: Rows) -> Mapping[str, float | None]:
        item, reference = data_sets[key], table.get((in_domain, model))
        values = measured(item, table[key, model], reference, rows.get(key), rows.get(in_domain))
        return {name: values[name] for name in CLASS_MEASURES if name in values}

    sizes = {key: item.size for key, item in data_sets.items()}
    return paired_bootstrap(list(table), figures, sizes, resamples=resamples, level=level, seed=seed)


def measured(
    item: DataSet,
    scored: Columns,
    in_domain: Columns | None,
    rows: Tensor | None = None,
    known_rows: Tensor | None = None,
) -> dict[str, float | None]:
    """All measures of one model, those of detection outside the domain; over some rows of both sets or all."""
    means = scored.measures(rows)
    if item.role != "in_domain" and in_domain is not None:
        means |= scored.detection(in_domain, rows, known_rows)
    return means
