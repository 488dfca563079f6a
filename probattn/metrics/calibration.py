"""Calibration in bins of confidence, accumulated."""

from typing import Any

import torch
from torch import Tensor

from probattn.metrics import functional
from probattn.metrics.base import Diagram, UncertaintyMetric
from probattn.metrics.functional import BinSums, CalibrationNorm, InputKind, ReliabilityBins
from probattn.metrics.functional.calibration import check_n_bins
from probattn.metrics.functional.inputs import check_option


class BinnedMetric(UncertaintyMetric):
    """Sums over the bins of a reliability diagram, which all such metrics of a collection share."""

    counts: Tensor
    correct: Tensor
    confidence: Tensor

    def __init__(
        self,
        *,
        inputs: InputKind = "probabilities",
        n_bins: int = 10,
        ignore_index: int | None = None,
        validate_args: bool = True,
        **kwargs: Any,
    ) -> None:
        check_n_bins(n_bins)
        super().__init__(
            inputs=inputs,
            validate_args=validate_args,
            update_options={"n_bins": n_bins, "ignore_index": ignore_index},
            **kwargs,
        )
        self.n_bins = n_bins
        self.ignore_index = ignore_index
        self._add_sum_state("counts", n_bins, dtype=torch.int64)
        self._add_sum_state("correct", n_bins, dtype=torch.int64)
        self._add_sum_state("confidence", n_bins)

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Adds a batch.

        Args:
            preds: ``[P, N, C]`` for P draws, which are averaged, or ``[N, C]``.
            target: integer labels ``[N]``.

        Raises:
            TypeError: ``preds`` is not floating-point or ``target`` not of an integer type.
            ValueError: a shape, label or value is not as described.
        """
        sums = functional.bin_sums(
            preds,
            target,
            inputs=self.inputs,
            n_bins=self.n_bins,
            ignore_index=self.ignore_index,
            validate_args=self.validate_args,
        )
        self.counts = self.counts + sums.counts
        self.correct = self.correct + sums.correct
        self.confidence = self.confidence + sums.confidence

    @property
    def sums(self) -> BinSums:
        """The sums over bins so far."""
        return BinSums(self.counts, self.correct, self.confidence)


class ReliabilityDiagram(Diagram, BinnedMetric):
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
        """The bars of all batches and processes; torchmetrics makes 0-d tensors of a single bin."""
        return functional.reliability_from_sums(self.sums)

    def _draw(self, axes: Any, value: ReliabilityBins) -> None:
        edges: Any = value.edges.cpu().numpy()
        accuracy, confidence = (
            torch.atleast_1d(bar).cpu().numpy() for bar in (value.accuracy, value.confidence)
        )
        axes.bar(edges[:-1], accuracy, width=edges[1:] - edges[:-1], align="edge", edgecolor="white")
        axes.plot([0, 1], [0, 1], linestyle="--", color="grey", label="calibrated")
        axes.plot(confidence, accuracy, "o", color="black", markersize=4, label="mean confidence of the bin")
        axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="confidence", ylabel="accuracy")
        axes.legend()


class CalibrationError(BinnedMetric):
    """Expected calibration error (ECE) on the predicted class, also for two classes.

    Options as for :func:`probattn.metrics.functional.calibration_error`. The state is three numbers a bin, whatever
    the data.

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

    def __init__(
        self,
        *,
        inputs: InputKind = "probabilities",
        n_bins: int = 10,
        norm: CalibrationNorm = "l1",
        ignore_index: int | None = None,
        validate_args: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            inputs=inputs, n_bins=n_bins, ignore_index=ignore_index, validate_args=validate_args, **kwargs
        )
        check_option("norm", norm, CalibrationNorm)
        self.norm: CalibrationNorm = norm

    def compute(self) -> Tensor:
        """Calibration error of all batches and processes: 0-d float32 in [0, 1]; NaN without any example."""
        return functional.calibration_error_from_sums(self.sums, self.norm)


class OverconfidenceError(BinnedMetric):
    """Overconfidence error (OE): confidence above accuracy, weighted by the confidence.

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
        """Overconfidence error of all batches and processes: 0-d float32 in [0, 1]; NaN without any example."""
        return functional.overconfidence_error_from_sums(self.sums)
