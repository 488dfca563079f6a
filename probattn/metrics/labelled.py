"""Metrics of predictions against labels: calibration in bins of confidence, selective prediction, certainty."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from probattn.checks import check_integer
from probattn.metrics import functional
from probattn.metrics.base import LabelledMetric, ScoredExamples
from probattn.metrics.functional import (
    BinSums,
    CalibrationNorm,
    CertaintyCriterion,
    ReliabilityBins,
    RiskCoverage,
    UncertaintyKind,
)
from probattn.metrics.functional.inputs import check_option, label_mask
from probattn.metrics.functional.selective import check_thresholds


class BinnedMetric(LabelledMetric):
    """Stores sums over the bins of a reliability diagram; such metrics in one collection share this state."""

    counts: Tensor
    correct: Tensor
    confidence: Tensor

    def __init__(self, *, n_bins: int = 10, **kwargs: Any) -> None:
        check_integer(type(self).__name__, "n_bins", n_bins, minimum=1)
        super().__init__(update_options={"n_bins": n_bins}, **kwargs)
        self.n_bins = n_bins
        self._add_sum_state("counts", n_bins, dtype=torch.int64)
        self._add_sum_state("correct", n_bins, dtype=torch.int64)
        self._add_sum_state("confidence", n_bins)

    def _add(self, preds: Tensor, target: Tensor) -> None:
        options: dict[str, Any] = {"n_bins": self.n_bins, "ignore_index": self.ignore_index, **self._checks}
        sums = functional.bin_sums(preds, target, **options)
        self.counts = self.counts + sums.counts
        self.correct = self.correct + sums.correct
        self.confidence = self.confidence + sums.confidence

    @property
    def sums(self) -> BinSums:
        """The sums over bins so far."""
        return BinSums(self.counts, self.correct, self.confidence)


class ReliabilityDiagram(BinnedMetric):
    """Accuracy and mean confidence of the predicted class in bins of confidence.

    Options as for :func:`probattn.metrics.functional.reliability_diagram`.

    Example:
        >>> import torch
        >>> metric = ReliabilityDiagram(n_bins=2)
        >>> metric.update(torch.tensor([[0.1, 0.9], [0.3, 0.7]]), torch.tensor([1, 0]))
        >>> metric.compute().accuracy
        tensor([   nan, 0.5000])
    """

    def compute(self) -> ReliabilityBins:
        """The diagram over all batches and processes; with one bin torchmetrics returns 0-d tensors."""
        return functional.reliability_from_sums(self.sums)

    def _draw(self, axes: Any, value: ReliabilityBins) -> None:
        edges: Any = value.edges.cpu().numpy()
        accuracy, confidence = (torch.atleast_1d(bar).cpu().numpy() for bar in value[2:])
        axes.bar(edges[:-1], accuracy, width=edges[1:] - edges[:-1], align="edge", edgecolor="white")
        axes.plot([0, 1], [0, 1], linestyle="--", color="grey", label="calibrated")
        axes.plot(confidence, accuracy, "o", color="black", markersize=4, label="mean confidence of the bin")
        axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="confidence", ylabel="accuracy")
        axes.legend()


class CalibrationError(BinnedMetric):
    """Expected calibration error (ECE) of the predicted class, also for two classes.

    Options as for :func:`probattn.metrics.functional.calibration_error`. The state has three numbers per bin.

    Example:
        >>> import torch
        >>> metric = CalibrationError()
        >>> metric.update(torch.tensor([[0.2, 0.8], [0.3, 0.7]]), torch.tensor([1, 0]))
        >>> metric.update(torch.tensor([[0.9, 0.1]]), torch.tensor([0]))
        >>> metric.compute()
        tensor(0.3333)
    """

    higher_is_better: bool = False
    plot_upper_bound: float = 1.0

    def __init__(self, *, norm: CalibrationNorm = "l1", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_option("norm", norm, CalibrationNorm)
        self.norm: CalibrationNorm = norm

    def compute(self) -> Tensor:
        """Calibration error over all batches and processes: 0-d float32 in [0, 1]; NaN without any example."""
        return functional.calibration_error_from_sums(self.sums, self.norm)


class OverconfidenceError(BinnedMetric):
    """Overconfidence error (OE): excess of confidence over accuracy, weighted by the confidence.

    Options as for :func:`probattn.metrics.functional.overconfidence_error`.

    Example:
        >>> import torch
        >>> metric = OverconfidenceError()
        >>> metric.update(torch.tensor([[0.2, 0.8], [0.2, 0.8]]), torch.tensor([0, 1]))
        >>> metric.compute()
        tensor(0.2400)
    """

    higher_is_better: bool = False
    plot_upper_bound: float = 1.0

    def compute(self) -> Tensor:
        """Overconfidence error over all batches and processes: 0-d float32 in [0, 1]; NaN without any example."""
        return functional.overconfidence_error_from_sums(self.sums)


class SelectiveMetric(LabelledMetric, ScoredExamples):
    """Stores the uncertainty and the error of every prediction; such metrics in one collection share this state."""

    higher_is_better: bool = False

    def __init__(self, *, score: UncertaintyKind = "least_confidence", **kwargs: Any) -> None:
        super().__init__(score=score, **kwargs)

    def _add(self, preds: Tensor, target: Tensor) -> None:
        mean = functional.mean_probabilities(preds, **self._checks)  # [N, C]
        mask = label_mask(
            target, *mean.shape, ignore_index=self.ignore_index, validate_args=self.validate_args
        )
        values = functional.uncertainty(preds, self.score_kind, inputs=self.inputs, validate_args=False)
        wrong = mean.argmax(dim=-1) != target
        self._keep(values[mask], wrong[mask])


class RiskCoverageCurve(SelectiveMetric):
    """Error rate of the predictions that remain if the least certain ones are left out.

    See :func:`probattn.metrics.functional.risk_coverage_curve`; the loss of a prediction is 1 if it is wrong, else 0.
    ``inputs`` and ``validate_args`` are options as for :func:`probattn.metrics.functional.uncertainty`; examples with
    the label ``ignore_index`` are ignored.

    Args:
        score: uncertainty by which predictions are left out: ``"least_confidence"``, ``"predictive_entropy"``,
            ``"expected_entropy"`` or ``"mutual_information"``, see :func:`probattn.metrics.functional.uncertainty`.

    Example:
        >>> metric = RiskCoverageCurve()
        >>> metric.update(torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([0, 1]))
        >>> metric.compute()
        RiskCoverage(coverage=tensor([0.5000, 1.0000]), risk=tensor([0.0000, 0.5000]))
    """

    def compute(self) -> RiskCoverage:
        """The curve over all batches and processes; with one example torchmetrics returns 0-d tensors."""
        return functional.risk_coverage_curve(*self._scores_and_companions())

    def _draw(self, axes: Any, value: RiskCoverage) -> None:
        coverage, risk = (torch.atleast_1d(values).cpu().numpy() for values in value)
        axes.plot(coverage, risk)
        axes.set(xlabel="coverage", ylabel="risk", xlim=(0, 1))


class AreaUnderRiskCoverage(SelectiveMetric):
    """Area under the risk-coverage curve (AURC); lower is better.

    See :func:`probattn.metrics.functional.area_under_risk_coverage`. Options as for :class:`RiskCoverageCurve`.

    Example:
        >>> metric = AreaUnderRiskCoverage()
        >>> metric.update(torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([0, 1]))
        >>> metric.compute()
        tensor(0.2500)
    """

    plot_upper_bound: float = 1.0

    def compute(self) -> Tensor:
        """AURC over all batches and processes: 0-d float32; NaN without any example."""
        return functional.area_under_risk_coverage(*self._scores_and_companions())


class ExcessAreaUnderRiskCoverage(SelectiveMetric):
    """Excess AURC: AURC minus that of the best ranking of the same errors; lower is better.

    See :func:`probattn.metrics.functional.excess_area_under_risk_coverage`. Options as for :class:`RiskCoverageCurve`.

    Example:
        >>> metric = ExcessAreaUnderRiskCoverage()
        >>> metric.update(torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([1, 0]))
        >>> metric.compute()
        tensor(0.5000)
    """

    plot_upper_bound: float = 1.0

    def compute(self) -> Tensor:
        """Excess AURC over all batches and processes: 0-d float32; NaN without any example."""
        return functional.excess_area_under_risk_coverage(*self._scores_and_companions())


class PAvPU(LabelledMetric):
    """PAvPU, the share of predictions that are accurate and certain, or inaccurate and uncertain; higher is better.

    Options as for :func:`probattn.metrics.functional.pavpu`. After ``update``, ``counts[k, accurate, certain]`` holds
    the number of predictions in each of the four cases at the k-th threshold.

    Example:
        >>> metric = PAvPU(threshold=[0.001, 0.05])
        >>> draws = torch.tensor([[[0.9, 0.1], [0.7, 0.3]], [[0.8, 0.2], [0.4, 0.6]]])
        >>> metric.update(draws, torch.tensor([0, 1]))
        >>> metric.compute()
        tensor([0.5000, 1.0000])
    """

    higher_is_better: bool = True
    plot_upper_bound: float = 1.0
    counts: Tensor

    def __init__(
        self,
        *,
        threshold: float | Sequence[float] | None = None,
        criterion: CertaintyCriterion = "p_value",
        **kwargs: Any,
    ) -> None:
        thresholds = check_thresholds(threshold, criterion)
        super().__init__(update_options={"thresholds": thresholds, "criterion": criterion}, **kwargs)
        self.thresholds = thresholds
        self.criterion: CertaintyCriterion = criterion
        self._add_sum_state("counts", len(thresholds), 2, 2, dtype=torch.int64)

    def _add(self, preds: Tensor, target: Tensor) -> None:
        options: dict[str, Any] = {"ignore_index": self.ignore_index, **self._checks}
        self.counts = self.counts + functional.certainty_counts(
            preds, target, thresholds=self.thresholds, criterion=self.criterion, **options
        )

    def compute(self) -> Tensor:
        """PAvPU over all batches and processes, float32 ``[K]`` for K thresholds; NaN without any example.

        For a single threshold the result is 0-d, also if it was given in a sequence, because torchmetrics squeezes it.
        """
        return functional.pavpu_from_counts(self.counts)
