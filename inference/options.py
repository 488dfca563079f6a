"""What a run is asked for: all options of a driver but the model and its objective."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from accelerate.tracking import GeneralTracker
from torch import Tensor, nn

from probattn.inference.batches import Collate
from probattn.inference.early_stopping import EarlyStopping
from probattn.inference.optimizers import (
    OptimizerFactory,
    OptimizerOptions,
    SchedulerFactory,
    SchedulerOptions,
)
from probattn.inference.progress import StepObserver
from probattn.inference.records import Record
from probattn.inference.schedules import KLSchedule
from probattn.inference.session import Precision
from probattn.options import Count, Natural, Options, Positive

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
        batch_size: rows per micro-batch and process, >= 1; of evaluations too.
        collate: rows to batch; torch's default stacks tensors.
        shuffle: whether to permute the rows anew each epoch.
        drop_last: whether to leave out an epoch's incomplete last step.
        length_pool: steps, >= 1, whose rows are sorted by length together, so that batches need little padding; the
            data then have a method ``lengths()``. None leaves batches to chance.
        num_workers: processes that load data.
        precision: "no" for the parameters' own, "bf16" or "fp16" for autocast ("fp16" needs a GPU).
        cpu: stay on the CPU where there is a GPU.
        accumulation: micro-batches per update, >= 1.
        max_grad_norm: joint 2-norm at which gradients are clipped, > 0, or None; the networks of alignment factors are
            clipped apart from all others.
        seed: of data order, noise and dropout, >= 0. The model's initial weights are the caller's.
        log_every: updates between records, >= 1.
        eval_every: updates between evaluations; None for once an epoch. The last update is always evaluated.
        checkpoint_every: updates between checkpoints; None for once an epoch. The last update always has one.
        keep_last: newest checkpoints to keep, >= 1; the best one of early stopping is kept besides.
        early_stopping: the rule, or None.
        validation_metrics: function of model and batch that gives further metrics, per row or as means.
        folder: where ``metrics.jsonl`` and ``checkpoints/`` go; None keeps nothing on disk.
        trackers: names or instances that accelerate knows.
        callbacks: called with every record.
        observers: look at the model after chosen updates.
        fingerprint: further plain values that a resumed run must match (a data file's digest, a network's name).
        progress: whether to show a bar.
        title: what the bar says first, to tell two of them apart ("baseline 1/2").
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
