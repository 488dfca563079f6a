"""Measures of predicted classes, computed from columns with one row an example."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import scipy
import torch
from torch import Tensor

from probattn.metrics import functional
from probattn.report.bootstrap import Columns
from probattn.report.record import ClassMeasure, Entropy, PAvPUPoint, ReliabilityBin, RiskCoverage

P_VALUE = 0.05
"""Below this p-value a prediction counts as certain."""

THRESHOLDS = (0.001, 0.01, 0.05, 0.1, 0.2, 0.5)
"""p-values of the PAvPU curve."""

LEVELS = 101
"""Quantiles kept of an entropy distribution: 0%, 1%, ..., 100%."""

DRAWN_POINTS = 200
"""Points kept of a risk-coverage curve."""


def class_columns(probabilities: Tensor, draws: Tensor | None, labels: Tensor | None) -> dict[str, Tensor]:
    """Columns ``[N]`` of the scored prediction ``[N, C]``, with those that draws ``[P, N, C]`` and labels allow."""
    probabilities = probabilities.detach().cpu().double()
    confidence, predicted = probabilities.max(dim=-1)
    columns = {
        "uncertainty": functional.predictive_entropy(probabilities),
        "doubt": functional.least_confidence(probabilities),
        "confidence": confidence,
        "predicted": predicted,
    }
    if labels is not None:
        labels = labels.cpu()
        columns |= {
            "label": labels,
            "right": predicted == labels,
            "nll": functional.negative_log_likelihood(probabilities, labels),
            "brier": functional.brier_score(probabilities, labels),
        }
    if draws is not None:
        draws = draws.detach().cpu()
        columns["information"] = functional.mutual_information(draws)
        if labels is not None:
            columns["right_of_draws"] = draws.mean(dim=0).argmax(dim=-1) == labels
            columns["p_value"] = functional.top_two_p_value(draws)
    return columns


@dataclass(frozen=True)
class ClassMeasures:
    """Measures of the columns of :func:`class_columns`; ``thresholds`` are p-values of the PAvPU curve.

    ``further`` are measures of the predicted classes, "matthews" and "f1", which need ``num_classes``.
    """

    num_bins: int = 10
    thresholds: Sequence[float] = THRESHOLDS
    further: Sequence[ClassMeasure] = ()
    num_classes: int = 0

    def figures(self, columns: Columns) -> dict[str, float | None]:
        """The measures, and the mean mutual information, of some examples; None where one is infinite."""
        information = columns.get("information")
        return {
            **(self._labelled(columns) if "label" in columns else {}),
            "mutual_information": None if information is None else max(0.0, information.mean().item()),
        }

    def _labelled(self, columns: Columns) -> dict[str, float | None]:
        right = columns["right"]
        values: dict[str, float | None] = {
            "accuracy": right.double().mean().item(),
            "nll": columns["nll"].mean().item(),
            "brier": columns["brier"].mean().item(),
        }
        if "p_value" in columns:
            certain = columns["p_value"] < P_VALUE
            values["pavpu"] = (columns["right_of_draws"] == certain).double().mean().item()
        for name in self.further:
            values[name] = class_measure(name, columns["predicted"], columns["label"], self.num_classes)
        sums = self._sums(columns)
        values["ece"] = functional.calibration_error_from_sums(sums, "l1").item()
        values["overconfidence"] = functional.overconfidence_error_from_sums(sums).item()
        values["aurc"] = functional.area_under_risk_coverage(columns["doubt"], ~right).item()
        return {
            name: value if value is not None and value < float("inf") else None
            for name, value in values.items()
        }

    def curves(self, columns: Columns) -> dict[str, Any]:
        """Fields of :class:`Scores` for charts."""
        fields: dict[str, Any] = {"entropy": entropy_record(columns["uncertainty"])}
        if "label" in columns:
            fields["reliability"] = reliability_bins(self._sums(columns))
            fields["risk_coverage"] = drawn_risk_coverage(columns["doubt"], ~columns["right"])
        if "p_value" in columns:
            fields["pavpu_curve"] = tuple(_pavpu_point(columns, threshold) for threshold in self.thresholds)
        return fields

    def _sums(self, columns: Columns) -> functional.BinSums:
        """Sums over the reliability bins, as ``bin_sums`` has them after checks that a resample does not need."""
        confidence, right = columns["confidence"].double().unsqueeze(-1), columns["right"].unsqueeze(-1)
        members = functional.bin_index(confidence, self.num_bins) == torch.arange(self.num_bins)  # [N, M]
        values = (members, members & right, confidence * members)
        return functional.BinSums(*(value.sum(dim=0) for value in values))


def detection(in_domain: Tensor, outside: Tensor) -> dict[str, float]:
    """AUROC and FPR95 of an uncertainty, ``[N]`` and ``[M]``, that detects the examples outside among the others."""
    return {
        "auroc": functional.ood_auroc(in_domain, outside).item(),
        "fpr95": functional.ood_fpr(in_domain, outside).item(),
    }


def class_measure(name: ClassMeasure, predicted: Tensor, labels: Tensor, num_classes: int) -> float:
    """One measure over some examples."""
    if name == "matthews":
        return functional.matthews_correlation(predicted, labels).item()
    # torchmetrics takes most of a second to import.
    from torchmetrics.functional.classification import binary_f1_score, multiclass_f1_score

    if num_classes == 2:
        return binary_f1_score(predicted, labels, validate_args=False).item()
    return multiclass_f1_score(predicted, labels, num_classes, average="macro", validate_args=False).item()


def entropy_record(values: Tensor) -> Entropy:
    """Mean and quantiles of the entropies of examples."""
    levels = torch.linspace(0, 1, LEVELS, dtype=values.dtype)
    # An observed value at every level, so that the curve is the empirical distribution function.
    quantiles = values.quantile(levels, interpolation="lower")
    return Entropy(mean=values.mean().item(), quantiles=tuple(quantiles.tolist()))


def reliability_bins(sums: functional.BinSums) -> tuple[ReliabilityBin, ...]:
    """Records of the bins of a reliability diagram, the empty ones left out."""
    bins = functional.reliability_from_sums(sums)
    edges = [
        round(edge, 12) for edge in torch.linspace(0, 1, len(sums.counts) + 1, dtype=torch.float64).tolist()
    ]
    records = []
    for index, (count, correct) in enumerate(zip(sums.counts.tolist(), sums.correct.tolist(), strict=True)):
        if count:
            interval = scipy.stats.binomtest(correct, count).proportion_ci(method="wilson")
            records.append(
                ReliabilityBin(
                    low=edges[index],
                    high=edges[index + 1],
                    count=count,
                    confidence=min(1.0, bins.confidence[index].item()),
                    accuracy=bins.accuracy[index].item(),
                    accuracy_low=max(0.0, float(interval.low)),
                    accuracy_high=min(1.0, float(interval.high)),
                )
            )
    return tuple(records)


def drawn_risk_coverage(uncertainty: Tensor, wrong: Tensor) -> RiskCoverage:
    """Error among the most confident inputs, at most :data:`DRAWN_POINTS` points."""
    curve = functional.risk_coverage_curve(uncertainty, wrong)
    size = len(curve.risk)
    drawn = sorted({round(index) for index in torch.linspace(0, size - 1, min(size, DRAWN_POINTS)).tolist()})
    return RiskCoverage(
        coverage=tuple((index + 1) / size for index in drawn),
        risk=tuple(curve.risk[index].item() for index in drawn),
    )


def _pavpu_point(columns: Columns, threshold: float) -> PAvPUPoint:
    p_value = columns["p_value"]
    certain = p_value < torch.tensor(threshold, dtype=p_value.dtype)
    agree = columns["right_of_draws"] == certain
    return PAvPUPoint(
        threshold=threshold, value=agree.double().mean().item(), certain=certain.double().mean().item()
    )
