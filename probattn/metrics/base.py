"""Bases of the metrics: states that sum exactly, ranked scores; and the means over examples."""

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import Module
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat
from torchmetrics.utilities.plot import _AX_TYPE, _PLOT_OUT_TYPE

from probattn.checks import optional
from probattn.metrics import functional
from probattn.metrics.functional.examples import UncertaintyKind
from probattn.metrics.functional.inputs import (
    InputKind,
    accumulation_dtype,
    check_option,
    example_mask,
    label_mask,
    prediction_shape,
)


class UncertaintyMetric(Metric):
    """A torchmetrics metric of probabilities or logits; states are summed or concatenated over processes."""

    # Floating-point sums are kept in float64 (float32 on devices without it), so that a value does not depend on how
    # the data were cut into batches. A ``torchmetrics.MetricCollection`` lets metrics share one state when their states
    # are close after the first batch, which happens by chance: with one draw the expected entropy is the predictive
    # entropy. Here the name of a state contains what adds a batch (``update``, ``_add``) and ``update_options``, so
    # that metrics share one exactly if they update it alike.

    is_differentiable: bool = False
    full_state_update: bool = False
    plot_lower_bound: float = 0.0
    _draw: Callable[[Any, Any], None] | None = None
    """Draws a result of ``compute`` that is a diagram into axes."""

    def __init__(
        self,
        *,
        inputs: InputKind = "probabilities",
        validate_args: bool = True,
        update_options: Mapping[str, object] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_option("inputs", inputs, InputKind)
        self.inputs: InputKind = inputs
        self.validate_args = validate_args
        options = {"inputs": inputs, **(update_options or {})}
        text = ", ".join(f"{name}={value!r}" for name, value in options.items())
        # A class that overrides ``update`` adds otherwise than its parent.
        adds = (type(self).update, getattr(type(self), "_add", type(self).update))
        names = " ".join(dict.fromkeys(add.__qualname__ for add in adds))
        self.add_state(f"{names}({text})", torch.zeros(()), dist_reduce_fx="sum")

    @property
    def _checks(self) -> dict[str, Any]:
        return {"inputs": self.inputs, "validate_args": self.validate_args}

    def plot(self, val: Any = None, ax: _AX_TYPE | None = None) -> _PLOT_OUT_TYPE:
        """Plots a value, or one value per step, with matplotlib; for a diagram its bars or curves.

        Args:
            val: result of ``forward`` or ``compute``, or a list of such results that are numbers; ``None`` calls
                ``compute``.
            ax: matplotlib axes to draw into; ``None`` makes a figure.

        Returns:
            Figure and axes.

        Raises:
            MissingPackageError: matplotlib (extra ``report``) is not installed.
        """
        plt = optional(f"{type(self).__name__}.plot", "matplotlib.pyplot", "report")
        if self._draw is None:
            return self._plot(val, ax)
        figure, axes = plt.subplots() if ax is None else (ax.get_figure(), ax)
        self._draw(axes, self.compute() if val is None else val)
        return figure, axes

    def _add_sum_state(self, name: str, *shape: int, dtype: torch.dtype = torch.float64) -> None:
        self.add_state(name, torch.zeros(shape, dtype=dtype), dist_reduce_fx="sum")

    def _apply(self, fn: Callable[[Tensor], Tensor], exclude_state: Sequence[str] = "") -> Module:
        """Moves the states; float64 becomes float32 where the device has no float64."""

        @wraps(fn)  # torchmetrics tells conversions of dtype by the name of the function
        def move(state: Tensor) -> Tensor:
            if state.dtype == torch.float64:
                device = fn(torch.zeros(0, device=state.device)).device
                state = state.to(accumulation_dtype(device))
            return fn(state)

        return super()._apply(move, exclude_state)


class LabelledMetric(UncertaintyMetric):
    """A metric of predictions and labels; examples with label ``ignore_index`` are ignored."""

    _add: Callable[[Tensor, Tensor], None]

    def __init__(self, *, ignore_index: int | None = None, **kwargs: Any) -> None:
        options = {"ignore_index": ignore_index, **kwargs.pop("update_options", {})}
        super().__init__(update_options=options, **kwargs)
        self.ignore_index = ignore_index

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Adds a batch.

        Args:
            preds: ``[P, N, C]`` for P draws, which are averaged, or ``[N, C]``; :class:`PAvPU` needs draws, whose
                number may differ between batches.
            target: integer labels ``[N]``.

        Raises:
            TypeError: ``preds`` is not floating-point or ``target`` not of an integer type.
            ValueError: a shape, label or value is not as described.
        """
        self._add(preds, target)


class ExampleMean(UncertaintyMetric):
    """Mean over all examples of a quantity that each example has; a subclass names the quantity's function."""

    is_differentiable: bool = True
    _quantity: ClassVar[Callable[..., Tensor]]
    total: Tensor
    count: Tensor

    def __init__(self, **kwargs: Any) -> None:
        options = {"quantity": self._quantity.__name__, **kwargs.pop("update_options", {})}
        super().__init__(update_options=options, **kwargs)
        self._add_sum_state("total")
        self._add_sum_state("count", dtype=torch.int64)

    def _accumulate(self, values: Tensor, mask: Tensor) -> None:
        """Adds values [N] where the mask [N] is True."""
        values = torch.where(mask, values, 0.0)
        self.total = self.total + values.sum(dtype=self.total.dtype)
        self.count = self.count + mask.sum()

    def compute(self) -> Tensor:
        """Mean over the examples of all batches and processes: 0-d float32; NaN without any example."""
        return (self.total / self.count).float()


class ScoredExamples(UncertaintyMetric):
    """Uncertainty and a companion value of every example, 8 bytes in all, for measures that rank them in float32."""

    score: list[Tensor]
    companion: list[Tensor]

    def __init__(self, *, score: UncertaintyKind, **kwargs: Any) -> None:
        check_option("uncertainty", score, UncertaintyKind)
        options = {"score": score, **kwargs.pop("update_options", {})}
        super().__init__(update_options=options, **kwargs)
        self.score_kind: UncertaintyKind = score
        self.add_state("score", [], dist_reduce_fx="cat")
        self.add_state("companion", [], dist_reduce_fx="cat")

    def _keep(self, score: Tensor, companion: Tensor) -> None:
        """Appends in float32 throughout, which is what a process without data contributes."""
        self.score.append(score.float())
        self.companion.append(companion.float())

    def _scores_and_companions(self) -> tuple[Tensor, Tensor]:
        """Scores and companions [N] of all batches and processes."""
        if isinstance(self.score, list) and not self.score:
            return torch.zeros(0, device=self.device), torch.zeros(0, device=self.device)
        return dim_zero_cat(self.score), dim_zero_cat(self.companion)


class MeanUncertainty(ExampleMean):
    """Mean of an uncertainty that needs no label."""

    def update(self, preds: Tensor, mask: Tensor | None = None) -> None:
        """Adds a batch.

        Args:
            preds: ``[P, N, C]`` for P draws, or ``[N, C]`` (not for the mutual information).
            mask: bool ``[N]``, True where the example counts; ``None``: all count.

        Raises:
            TypeError: ``preds`` is not floating-point or ``mask`` not bool.
            ValueError: a shape or value is not as described.
        """
        values = self._quantity(preds, **self._checks)
        self._accumulate(values, example_mask(mask, values.shape[0], values.device))


class PredictiveEntropy(MeanUncertainty):
    """Mean over examples of the predictive entropy (total uncertainty), in nats.

    Options as for :func:`probattn.metrics.functional.predictive_entropy`, which computes the value of each example.

    Example:
        >>> import torch
        >>> metric = PredictiveEntropy()
        >>> metric.update(torch.tensor([[[0.9, 0.1]], [[0.1, 0.9]]]))
        >>> metric.compute()
        tensor(0.6931)
    """

    _quantity = staticmethod(functional.predictive_entropy)


class ExpectedEntropy(MeanUncertainty):
    """Mean over examples of the expected entropy (aleatoric uncertainty), in nats.

    Options as for :func:`probattn.metrics.functional.expected_entropy`, which computes the value of each example.

    Example:
        >>> import torch
        >>> metric = ExpectedEntropy()
        >>> metric.update(torch.tensor([[[0.9, 0.1]], [[0.1, 0.9]]]))
        >>> metric.compute()
        tensor(0.3251)
    """

    _quantity = staticmethod(functional.expected_entropy)


class MutualInformation(MeanUncertainty):
    """Mean over examples of the mutual information (epistemic uncertainty: disagreement of the draws), in nats.

    Options as for :func:`probattn.metrics.functional.mutual_information`, which computes the value of each example.

    Example:
        >>> import torch
        >>> metric = MutualInformation()
        >>> metric.update(torch.tensor([[[0.9, 0.1]], [[0.1, 0.9]]]))
        >>> metric.compute()
        tensor(0.3681)
    """

    _quantity = staticmethod(functional.mutual_information)


class MeanScore(LabelledMetric, ExampleMean):
    """Mean of a score of predictions against labels."""

    higher_is_better: bool = False

    def _add(self, preds: Tensor, target: Tensor) -> None:
        mask = label_mask(
            target, *prediction_shape(preds), ignore_index=self.ignore_index, validate_args=self.validate_args
        )
        label = torch.where(mask, target, 0)
        values = self._quantity(preds, label, **self._checks)
        self._accumulate(values, mask)


class NegativeLogLikelihood(MeanScore):
    """Mean over examples of the negative log-likelihood of the label, in nats, after averaging over draws.

    Options as for :func:`probattn.metrics.functional.negative_log_likelihood`, which computes the value of each
    example; ``ignore_index`` is the label of examples that are ignored.

    Example:
        >>> metric = NegativeLogLikelihood()
        >>> metric.update(torch.tensor([[0.25, 0.75], [0.25, 0.75]]), torch.tensor([1, 0]))
        >>> metric.compute()
        tensor(0.8370)
    """

    _quantity = staticmethod(functional.negative_log_likelihood)


class BrierScore(MeanScore):
    """Mean over examples of the Brier score, in [0, 2], after averaging over draws.

    Options as for :func:`probattn.metrics.functional.brier_score`, which computes the value of each example;
    ``ignore_index`` is the label of examples that are ignored.

    Example:
        >>> metric = BrierScore()
        >>> metric.update(torch.tensor([[0.25, 0.75], [0.25, 0.75]]), torch.tensor([1, 0]))
        >>> metric.compute()
        tensor(0.6250)
    """

    _quantity = staticmethod(functional.brier_score)
