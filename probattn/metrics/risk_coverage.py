"""Risk-coverage curve and the areas under it, accumulated."""

from typing import Any

import matplotlib.pyplot as plt
import torch
from torch import Tensor
from torchmetrics.utilities.plot import _AX_TYPE, _PLOT_OUT_TYPE

from probattn.metrics.base import ScoredExamples
from probattn.metrics.functional.inputs import InputKind, kept_examples, mean_probabilities
from probattn.metrics.functional.risk_coverage import (
    RiskCoverage,
    area_under_risk_coverage,
    excess_area_under_risk_coverage,
    risk_coverage_curve,
)
from probattn.metrics.functional.uncertainty import UncertaintyKind, check_uncertainty_kind, uncertainty


class SelectiveMetric(ScoredExamples):
    """Keeps the uncertainty and the error of every prediction; subclasses say what to compute of them.

    In a ``torchmetrics.MetricCollection`` such metrics share their states.

    Args:
        score: uncertainty by which predictions are left out, see :func:`probattn.metrics.functional.uncertainty`.
        inputs: what predictions are, ``"probabilities"`` or ``"logits"``.
        ignore_index: label of examples that do not count.
        validate_args: whether to check the values of every batch.
        **kwargs: torchmetrics' own options.

    Raises:
        ValueError: ``score`` or ``inputs`` is unknown.

    Example:
        >>> issubclass(RiskCoverageCurve, SelectiveMetric)
        True
    """

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
        check_uncertainty_kind(score)
        super().__init__(
            inputs=inputs,
            validate_args=validate_args,
            update_options={"score": score, "ignore_index": ignore_index},
            **kwargs,
        )
        self.score_kind: UncertaintyKind = score
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
        mean = mean_probabilities(preds, inputs=self.inputs, validate_args=self.validate_args)  # [N, C]
        kept = kept_examples(
            target, *mean.shape, ignore_index=self.ignore_index, validate_args=self.validate_args
        )
        values = uncertainty(preds, self.score_kind, inputs=self.inputs, validate_args=False)
        self._keep(values, mean.argmax(dim=-1) != target, kept)


class RiskCoverageCurve(SelectiveMetric):
    """Error rate of the predictions that remain when the least certain ones are left out.

    See :func:`probattn.metrics.functional.risk_coverage_curve`.

    Args:
        score: uncertainty by which predictions are left out: ``"least_confidence"``, ``"predictive_entropy"``,
            ``"expected_entropy"`` or ``"mutual_information"``.
        inputs: what predictions are, ``"probabilities"`` or ``"logits"``.
        ignore_index: label of examples that do not count.
        validate_args: whether to check the values of every batch.
        **kwargs: torchmetrics' own options.

    Raises:
        ValueError: ``score`` or ``inputs`` is unknown.

    Example:
        >>> metric = RiskCoverageCurve()
        >>> metric.update(torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([0, 1]))
        >>> metric.compute()
        RiskCoverage(coverage=tensor([0.5000, 1.0000]), risk=tensor([0.0000, 0.5000]))
    """

    def compute(self) -> RiskCoverage:
        """The curve of all batches and processes.

        Returns:
            Coverage and risk ``[N]``. torchmetrics makes 0-d tensors of a single example.
        """
        return risk_coverage_curve(*self._all())

    def plot(self, val: RiskCoverage | None = None, ax: _AX_TYPE | None = None) -> _PLOT_OUT_TYPE:
        """Draws the curve with matplotlib.

        Args:
            val: result of ``compute``; ``None`` calls it.
            ax: matplotlib axes to draw into; ``None`` makes a figure.

        Returns:
            Figure and axes.
        """
        curve = self.compute() if val is None else val
        figure, axes = plt.subplots() if ax is None else (ax.get_figure(), ax)
        coverage, risk = (torch.atleast_1d(values).cpu().numpy() for values in curve)
        axes.plot(coverage, risk)
        axes.set(xlabel="coverage", ylabel="risk", xlim=(0, 1))
        return figure, axes


class AreaUnderRiskCoverage(SelectiveMetric):
    """Area under the risk-coverage curve (AURC); lower is better.

    See :func:`probattn.metrics.functional.area_under_risk_coverage`.

    Args:
        score: uncertainty by which predictions are left out.
        inputs: what predictions are, ``"probabilities"`` or ``"logits"``.
        ignore_index: label of examples that do not count.
        validate_args: whether to check the values of every batch.
        **kwargs: torchmetrics' own options.

    Raises:
        ValueError: ``score`` or ``inputs`` is unknown.

    Example:
        >>> metric = AreaUnderRiskCoverage()
        >>> metric.update(torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([0, 1]))
        >>> metric.compute()
        tensor(0.2500)
    """

    plot_upper_bound: float = 1.0

    def compute(self) -> Tensor:
        """AURC of all batches and processes.

        Returns:
            0-d float32; NaN without any example.
        """
        return area_under_risk_coverage(*self._all())


class ExcessAreaUnderRiskCoverage(SelectiveMetric):
    """Excess AURC, the distance to the best ranking of the same errors; lower is better.

    See :func:`probattn.metrics.functional.excess_area_under_risk_coverage`.

    Args:
        score: uncertainty by which predictions are left out.
        inputs: what predictions are, ``"probabilities"`` or ``"logits"``.
        ignore_index: label of examples that do not count.
        validate_args: whether to check the values of every batch.
        **kwargs: torchmetrics' own options.

    Raises:
        ValueError: ``score`` or ``inputs`` is unknown.

    Example:
        >>> metric = ExcessAreaUnderRiskCoverage()
        >>> metric.update(torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([1, 0]))
        >>> metric.compute()
        tensor(0.5000)
    """

    plot_upper_bound: float = 1.0

    def compute(self) -> Tensor:
        """Excess AURC of all batches and processes.

        Returns:
            0-d float32; NaN without any example.
        """
        return excess_area_under_risk_coverage(*self._all())
