"""Selective prediction and certainty, accumulated."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from probattn.metrics import functional
from probattn.metrics.base import Diagram, ScoredExamples, UncertaintyMetric
from probattn.metrics.functional import CertaintyCriterion, InputKind, RiskCoverage, UncertaintyKind
from probattn.metrics.functional.inputs import label_mask
from probattn.metrics.functional.selective import check_thresholds


class SelectiveMetric(ScoredExamples):
    """Keeps the uncertainty and the error of every prediction, which all such metrics of a collection share."""

    higher_is_better: bool = False

    def __init__(
        self,
        *,
        score: UncertaintyKind = "least_confidence",
        inputs: InputKind = "probabilities",
        ignore_index: int | None = None,
        validate_args: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            score=score,
            inputs=inputs,
            validate_args=validate_args,
            update_options={"ignore_index": ignore_index},
            **kwargs,
        )
        self.ignore_index = ignore_index

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Adds a batch.

        Args:
            preds: ``[P, N, C]`` for P draws, or ``[N, C]``.
            target: integer labels ``[N]``.

        Raises:
            TypeError: ``preds`` is not floating-point or ``target`` not of an integer type.
            ValueError: a shape, label or value is not as described.
        """
        mean = functional.mean_probabilities(
            preds, inputs=self.inputs, validate_args=self.validate_args
        )  # [N, C]
        mask = label_mask(
            target, *mean.shape, ignore_index=self.ignore_index, validate_args=self.validate_args
        )
        values = functional.uncertainty(preds, self.score_kind, inputs=self.inputs, validate_args=False)
        wrong = mean.argmax(dim=-1) != target
        self._keep(values[mask], wrong[mask])


class RiskCoverageCurve(Diagram, SelectiveMetric):
    """Error rate of the predictions that remain when the least certain ones are left out.

    See :func:`probattn.metrics.functional.risk_coverage_curve`; the loss of a prediction is 1 where it is wrong.

    Args:
        score: uncertainty by which predictions are left out: ``"least_confidence"``, ``"predictive_entropy"``,
            ``"expected_entropy"`` or ``"mutual_information"``, see :func:`probattn.metrics.functional.uncertainty`.
        ignore_index: label of examples that do not count.

    Example:
        >>> metric = RiskCoverageCurve()
        >>> metric.update(torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([0, 1]))
        >>> metric.compute()
        RiskCoverage(coverage=tensor([0.5000, 1.0000]), risk=tensor([0.0000, 0.5000]))
    """

    def compute(self) -> RiskCoverage:
        """The curve of all batches and processes; torchmetrics makes 0-d tensors of a single example."""
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
        """AURC of all batches and processes: 0-d float32; NaN without any example."""
        return functional.area_under_risk_coverage(*self._scores_and_companions())


class ExcessAreaUnderRiskCoverage(SelectiveMetric):
    """Excess AURC, the distance to the best ranking of the same errors; lower is better.

    See :func:`probattn.metrics.functional.excess_area_under_risk_coverage`. Options as for :class:`RiskCoverageCurve`.

    Example:
        >>> metric = ExcessAreaUnderRiskCoverage()
        >>> metric.update(torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([1, 0]))
        >>> metric.compute()
        tensor(0.5000)
    """

    plot_upper_bound: float = 1.0

    def compute(self) -> Tensor:
        """Excess AURC of all batches and processes: 0-d float32; NaN without any example."""
        return functional.excess_area_under_risk_coverage(*self._scores_and_companions())


class PAvPU(UncertaintyMetric):
    """Share of predictions that are accurate and certain, or inaccurate and uncertain; higher is better.

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
        inputs: InputKind = "probabilities",
        ignore_index: int | None = None,
        validate_args: bool = True,
        **kwargs: Any,
    ) -> None:
        thresholds = check_thresholds(threshold, criterion)
        super().__init__(
            inputs=inputs,
            validate_args=validate_args,
            update_options={"thresholds": thresholds, "criterion": criterion, "ignore_index": ignore_index},
            **kwargs,
        )
        self.thresholds = thresholds
        self.criterion: CertaintyCriterion = criterion
        self.ignore_index = ignore_index
        self._add_sum_state("counts", len(thresholds), 2, 2, dtype=torch.int64)

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Adds a batch.

        Args:
            preds: draws ``[P, N, C]``; P may differ between batches.
            target: integer labels ``[N]``.

        Raises:
            TypeError: ``preds`` is not floating-point or ``target`` not of an integer type.
            ValueError: there is no dimension of draws, or a label or value is not as described.
        """
        self.counts = self.counts + functional.certainty_counts(
            preds,
            target,
            thresholds=self.thresholds,
            criterion=self.criterion,
            inputs=self.inputs,
            ignore_index=self.ignore_index,
            validate_args=self.validate_args,
        )

    def compute(self) -> Tensor:
        """PAvPU of all batches and processes, float32 ``[K]``; NaN without any example.

        0-d for a single threshold, also one in a sequence, as torchmetrics returns single values.
        """
        return functional.pavpu_from_counts(self.counts)
