"""Options of a run: schedule of the KL, early stopping, and all other options of a driver."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from accelerate.tracking import GeneralTracker
from torch import Tensor, nn

from probattn.inference.batches import Collate
from probattn.inference.optimizers import (
    OptimizerFactory,
    OptimizerOptions,
    SchedulerFactory,
    SchedulerOptions,
)
from probattn.inference.progress import StepObserver
from probattn.inference.records import Record
from probattn.inference.session import Precision
from probattn.options import Count, Natural, NonNegative, Options, Positive, Share

KLScheduleKind = Literal["constant", "linear", "sigmoid"]

FINE_TUNING_WEIGHT = 1e-3
"""Weight of the KL with which fine-tuning a pretrained network comes to the likelihood of the deterministic one."""


@dataclass(frozen=True)
class KLSchedule(Options):
    r"""Weight of the KL (Kullback-Leibler divergence of posterior from prior) in the loss, as a function of the step.

    With t = min(step / W, 1), W the number of warm-up updates, and s the logistic function:

    .. math::
        w_\text{constant} = \text{final}, \quad
        w_\text{linear} = \text{final} \cdot t, \quad
        w_\text{sigmoid} = \text{final} \cdot \frac{s(a(2t - 1)) - s(-a)}{s(a) - s(-a)}

    Zhang et al. 2021a (section 3.3) anneal the weight "from a small value to one". The logistic curve is that of Bowman
    et al. 2016, shifted and stretched to start at exactly 0 and end at ``final``.

    Args:
        kind: how the KL weight rises from 0 during the warm-up; "constant" has no warm-up.
        final: weight after the warm-up, >= 0; 1 gives the ELBO with ``BayesianAttention(kl_reduction="sum")``.
        warmup_steps: updates W in which the KL weight rises, >= 0; None for the share ``warmup_fraction``.
        warmup_fraction: share of the updates in which the KL weight rises, in [0, 1], if ``warmup_steps`` is None.
        steepness: a in the equation of "sigmoid", > 0.

    Raises:
        ValueError: an unknown kind or a number out of its range.

    Example:
        >>> schedule = KLSchedule("linear", warmup_steps=10)
        >>> [schedule.weight(step, total_steps=100) for step in (0, 5, 10, 99)]
        [0.0, 0.5, 1.0, 1.0]
    """

    kind: KLScheduleKind = "linear"
    final: NonNegative = 1.0
    warmup_steps: Natural | None = None
    warmup_fraction: Share = 0.5
    steepness: Positive = 6.0

    def warmup(self, total_steps: int) -> float:
        """W, the number of warm-up updates in a run of ``total_steps`` updates (a fraction is possible)."""
        return self.warmup_fraction * total_steps if self.warmup_steps is None else self.warmup_steps

    def weight(self, step: int, total_steps: int) -> float:
        """Weight in [0, ``final``] of the next update, after ``step`` of ``total_steps`` updates are completed.

        Raises:
            ValueError: a negative ``step``, or ``total_steps`` below 1.
        """
        if step < 0 or total_steps < 1:
            raise ValueError(
                f"KLSchedule.weight: expected step >= 0 and total_steps >= 1, got {step} and {total_steps}"
            )
        warmup = self.warmup(total_steps)
        if self.kind == "constant" or step >= warmup:
            return self.final
        progress = step / warmup
        if self.kind == "linear":
            return self.final * progress
        low, high = _logistic(-self.steepness), _logistic(self.steepness)
        return self.final * (_logistic(self.steepness * (2 * progress - 1)) - low) / (high - low)


def _logistic(x: float) -> float:
    return 0.5 * (1 + math.tanh(x / 2))  # does not overflow


Mode = Literal["min", "max"]


@dataclass(frozen=True)
class EarlyStopping(Options):
    """Stops when a validation metric has not improved for some evaluations; the best weights are restored.

    Args:
        metric: validation metric, such as "loss", "log_likelihood" or "accuracy".
        patience: consecutive evaluations without improvement after which training stops, >= 1.
        mode: whether a smaller ("min") or larger ("max") metric is better.
        min_delta: change that a metric must exceed to count as improved, >= 0.
        also: further metrics and their modes, such as ``{accuracy: max}``; None for none. With them, a metric is good
            in an evaluation if it equals or beats its best value so far (with ``min_delta`` > 0, beats it by more than
            that). Patience restarts when any metric is good; the weights of the last evaluation in which all were good
            are restored (Velickovic et al. 2018 use loss and accuracy).

    Raises:
        ValueError: a number out of its range, an unknown mode, or a metric named twice.

    Example:
        >>> state, rule = StoppingState(), EarlyStopping("accuracy", patience=1, mode="max")
        >>> [state.update(rule, {"accuracy": value}, step) for step, value in enumerate((0.5, 0.7, 0.6))]
        [True, True, False]
        >>> state.exhausted(rule), state.best_step
        (True, 1)
    """

    metric: str = "loss"
    patience: Count = 3
    mode: Mode = "min"
    min_delta: NonNegative = 0.0
    also: Mapping[str, Mode] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.metric in (self.also or {}):
            raise ValueError(f"EarlyStopping.also: expected metrics other than {self.metric!r}")

    @property
    def modes(self) -> dict[str, Mode]:
        """All metrics with their modes, ``metric`` first."""
        return {self.metric: self.mode, **(self.also or {})}

    def values(self, means: Mapping[str, float]) -> dict[str, float]:
        """Selects from the results of an evaluation the metrics of this rule, in the order of :attr:`modes`.

        Raises:
            ValueError: a metric is not among the results.
        """
        for name in self.modes:
            if name not in means:
                where = "metric" if name == self.metric else "also"
                raise ValueError(
                    f"EarlyStopping.{where}: no validation metric is called {name!r}; there are {', '.join(means)}"
                )
        return {name: means[name] for name in self.modes}


@dataclass
class StoppingState:
    """The best evaluation so far, the evaluations since the patience restarted, and each metric's best value."""

    best: float | None = None
    best_step: int | None = None
    since_best: int = 0
    marks: dict[str, float] = field(default_factory=dict)

    def update(self, rule: EarlyStopping, values: Mapping[str, float], step: int) -> bool:
        """Takes in an evaluation; True if it is the best so far. A value that is not a number never is."""
        good = {name: self._is_good(rule, name, value) for name, value in values.items()}
        for name, value in values.items():
            if good[name] and (name not in self.marks or _less(rule, name, value, self.marks[name])):
                self.marks[name] = value
        self.since_best = 0 if any(good.values()) else self.since_best + 1
        best = all(good.values())
        if best:
            self.best, self.best_step = values[rule.metric], step
        return best

    def exhausted(self, rule: EarlyStopping) -> bool:
        """True when the patience is used up."""
        return self.since_best >= rule.patience

    def _is_good(self, rule: EarlyStopping, name: str, value: float) -> bool:
        """True if a metric improves on its mark; next to other metrics, also if it equals it."""
        if math.isnan(value) or name not in self.marks:
            return not math.isnan(value)
        mark = self.marks[name]
        if rule.also and rule.min_delta == 0 and value == mark:
            return True
        return _less(rule, name, value, mark, rule.min_delta)


def _less(rule: EarlyStopping, name: str, value: float, mark: float, by: float = 0.0) -> bool:
    """Returns True if a value is better than a mark by more than ``by``."""
    sign = 1 if rule.modes[name] == "min" else -1
    return sign * value < sign * mark - by


Callback = Callable[[Record, nn.Module], None]
"""Called on the main process with every record, once it is written, and the model."""
ValidationMetrics = Callable[[nn.Module, Any], Mapping[str, Tensor]]
"""Called with the model and a batch; gives each metric's values per row ``[B]`` or their mean."""


@dataclass(eq=False, kw_only=True)
class RunOptions(Options):
    """Options of a run, which :class:`SVIDriver` and :class:`SVGDDriver` take as keyword arguments.

    Args:
        optimizer: options, or a function from a list of parameter groups to a torch optimiser.
        scheduler: options, a function from optimiser and number of updates to a torch scheduler, or None. A
            ``ReduceLROnPlateau`` steps after each evaluation with the validation loss, others after each update.
        kl_schedule: weight of the KL by update.
        batch_size: number of examples in a micro-batch on one device, also in evaluations, >= 1.
        collate: function from a list of rows to a batch; None for torch's default, which stacks tensors.
        shuffle: whether to permute the rows again in each epoch.
        drop_last: whether to leave out the last update of an epoch if it would have fewer rows than the others.
        length_pool: number of updates, >= 1, whose rows are sorted by number of tokens before they are batched, to
            reduce padding; the data need a method ``lengths()``, or rows with ``input_ids``. None for random batches.
        num_workers: number of processes that load data.
        precision: mixed precision by autocast, "bf16" or "fp16" (needs a GPU); "no" computes in the parameters' type.
        cpu: whether to use the CPU although there is a GPU.
        compile: whether to compile the network, one of transformers or of this library, with ``torch.compile``. The
            first batches then take minutes; results are equal up to rounding.
        shard: whether processes share parameters, gradients and states of the optimizer (FSDP2), each of them holding a
            part. The whole model must fit into the memory of one device for evaluations; while it is trained, it is on
            the CPU. Without effect in a single process.
        accumulation: number of micro-batches whose gradients are accumulated for one update, >= 1.
        max_grad_norm: norm to which larger gradients are clipped, > 0; None for no clipping. The gradients of the
            networks of alignment attention are clipped separately.
        seed: seed of data order, noise and dropout, >= 0. It does not affect the model's initial weights.
        log_every: number of updates between training records, >= 1.
        eval_every: number of updates between evaluations; None for one each epoch. There is one after the last update.
        checkpoint_every: number of updates between checkpoints; None for one each epoch. The last update has one too.
        keep_last: number of newest checkpoints that are not deleted, >= 1; with early stopping the best one stays too.
        early_stopping: rule of early stopping, or None.
        validation_metrics: function from model and batch to further metrics by name, each ``[B]`` or a mean.
        folder: folder for ``metrics.jsonl`` and ``checkpoints/``; None to save nothing.
        trackers: experiment trackers of accelerate, by name ("tensorboard", ...) or as instances.
        callbacks: functions that are called with every record and the model.
        observers: see :class:`StepObserver`.
        fingerprint: further values that must be equal when a run is resumed (a data file's digest, a network's name).
        progress: whether to show a progress bar.
        title: title of the progress bar ("baseline 1/2").
        find_unused_parameters: option of torch's ``DistributedDataParallel``, for parameters without gradient.

    Raises:
        ValueError: an option out of its range.
    """

    optimizer: OptimizerOptions | OptimizerFactory = field(default_factory=OptimizerOptions)
    scheduler: SchedulerOptions | SchedulerFactory | None = field(default_factory=SchedulerOptions)
    kl_schedule: KLSchedule = field(default_factory=KLSchedule)
    batch_size: Count = 16
    collate: Collate | None = None
    shuffle: bool = True
    drop_last: bool = False
    length_pool: Count | None = None
    num_workers: Natural = 0
    precision: Precision = "no"
    cpu: bool = False
    compile: bool = False
    shard: bool = False
    accumulation: Count = 1
    max_grad_norm: Positive | None = 1.0
    seed: Natural = 0
    log_every: Count = 10
    eval_every: Count | None = None
    checkpoint_every: Count | None = None
    keep_last: Count = 2
    early_stopping: EarlyStopping | None = None
    validation_metrics: ValidationMetrics | None = None
    folder: Path | str | None = None
    trackers: Sequence[str | GeneralTracker] = ()
    callbacks: Sequence[Callback] = ()
    observers: Sequence[StepObserver] = ()
    fingerprint: Mapping[str, Any] = field(default_factory=dict)
    progress: bool = True
    title: str = "training"
    find_unused_parameters: bool = False
