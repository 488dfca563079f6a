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
    r"""Weight of the KL in the objective as a pure function of the step.

    With t = min(step / W, 1), W the length of the warm-up in steps and s the logistic function:

    .. math::
        w_\text{constant} = \text{final}, \quad
        w_\text{linear} = \text{final} \cdot t, \quad
        w_\text{sigmoid} = \text{final} \cdot \frac{s(a(2t - 1)) - s(-a)}{s(a) - s(-a)}

    "We add a weight to the KL term and anneal it from a small value to one" (Zhang et al. 2021, section 3.3, after
    Bowman et al. 2016, whose logistic curve is shifted and stretched here so that it starts at exactly 0 and ends at
    exactly ``final``).

    Args:
        kind: course of the KL weight from 0 in its warm-up; "constant" has no warm-up.
        final: weight after the warm-up, >= 0; 1 is the evidence lower bound as each site's reduction defines it.
        warmup_steps: updates W in which the KL weight rises, >= 0; None for the share ``warmup_fraction``.
        warmup_fraction: share of the updates in which the KL weight rises, in [0, 1], if ``warmup_steps`` is None.
        steepness: a > 0 of the sigmoid.

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
        """Length of the warm-up in steps, W, of a run of ``total_steps``."""
        return self.warmup_fraction * total_steps if self.warmup_steps is None else self.warmup_steps

    def weight(self, step: int, total_steps: int) -> float:
        """Weight in [0, ``final``] for the update that follows ``step`` of ``total_steps`` completed ones.

        "linear" and "sigmoid" start at exactly 0.

        Raises:
            ValueError: a negative step or a run without steps.
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
        min_delta: change beyond which a better metric counts as an improvement, >= 0.
        also: further metrics and their modes, such as ``{accuracy: max}``; None for none. The patience then restarts
            whenever one metric is at least as good as ever; the weights restored are those of the last evaluation with
            all metrics at least as good as ever (Velickovic et al. 2018 use loss and accuracy).

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
        """All metrics with their modes, the first one first."""
        return {self.metric: self.mode, **(self.also or {})}

    def values(self, means: Mapping[str, float]) -> dict[str, float]:
        """The metrics among an evaluation's means, in the order of :attr:`modes`.

        Raises:
            ValueError: no record has that name.
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
    """Options of a run, which :class:`SVIDriver` and the drivers derived from it take as keyword arguments.

    Args:
        optimizer: options, or a function from parameter groups to any torch optimiser.
        scheduler: options, a function of optimiser and number of steps to any torch scheduler, or None. A
            ``ReduceLROnPlateau`` steps on each validation loss, others on each update.
        kl_schedule: weight of the KL.
        batch_size: examples in a micro-batch on one device, also in evaluations, >= 1.
        collate: rows to batch; torch's default stacks tensors.
        shuffle: whether to permute the rows again in each epoch.
        drop_last: whether to leave out an epoch's incomplete last step.
        length_pool: batches hold rows of similar length, sorted within this many updates' rows, >= 1, so that they
            need little padding; the data then have a method ``lengths()``, or their rows ``input_ids``. None for rows
            at random.
        num_workers: processes that load data.
        precision: mixed precision by autocast, "bf16" or "fp16" (needs a GPU); "no" computes in the parameters' type.
        cpu: stay on the CPU where there is a GPU.
        compile: whether the network, one of transformers or of this library, is compiled by ``torch.compile``. The
            first batches then take minutes; results are equal up to rounding.
        accumulation: micro-batches whose gradients are accumulated for one update, >= 1.
        max_grad_norm: norm to which larger gradients are clipped, > 0; None for none. Alignment's networks are clipped
            separately.
        seed: of data order, noise and dropout, >= 0. The model's initial weights are the caller's.
        log_every: updates between entries of the training log, >= 1.
        eval_every: updates between evaluations; None for once an epoch. The last update is always evaluated.
        checkpoint_every: updates between checkpoints; None for once an epoch. The last update always has one.
        keep_last: newest checkpoints that are kept, >= 1; early stopping also keeps the best one.
        early_stopping: the rule, or None.
        validation_metrics: function of model and batch that gives further metrics, per row or as means.
        folder: where ``metrics.jsonl`` and ``checkpoints/`` go; None keeps nothing on disk.
        trackers: names or instances that accelerate knows.
        callbacks: called with every record.
        observers: look at the model after chosen updates.
        fingerprint: further plain values that a resumed run must match (a data file's digest, a network's name).
        progress: whether to show a bar.
        title: the first text of the bar, to distinguish two of them ("baseline 1/2").
        find_unused_parameters: set it if several processes complain about parameters without gradient.

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
