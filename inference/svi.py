"""The driver of stochastic variational inference."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from accelerate.tracking import GeneralTracker
from pyro.infer import ELBO
from pyro.infer.autoguide import AutoGuide
from torch import nn

from probattn.inference.batches import Collate, as_rows
from probattn.inference.configuration import refuse_unsupported, refuse_unwrapped
from probattn.inference.early_stopping import EarlyStopping
from probattn.inference.elbo import AttentionELBOModule
from probattn.inference.ensembles.ensemble import ParticleEnsemble
from probattn.inference.ensembles.objective import EnsembleObjective
from probattn.inference.guide import AttentionGuide
from probattn.inference.loop import Precision, ValidationMetrics, accelerator_session
from probattn.inference.observer import StepObserver
from probattn.inference.optimizers import (
    OptimizerFactory,
    OptimizerOptions,
    SchedulerFactory,
    SchedulerOptions,
)
from probattn.inference.particle_update import ParticleUpdate
from probattn.inference.program_elbo import bind
from probattn.inference.random_states import preserved_random_state, seed_generators
from probattn.inference.records import Record
from probattn.inference.result import FitResult
from probattn.inference.run import Run
from probattn.inference.schedules import KLSchedule
from probattn.inference.storage import Resume
from probattn.sites.repulsive import repulsive_heads

Callback = Callable[[Record, nn.Module], None]
"""Called on the main process with every record, once it is written, and the model."""


@dataclass(eq=False)
class SVIDriver:
    r"""Fits the posterior of a model's attention by stochastic variational inference.

    Minimises :math:`-\frac{1}{N} (\log p(y \mid x, S) - w \sum_l r_l\, \mathrm{KL}_l)` with S drawn from the
    posterior, one forward pass per micro-batch (Zhang et al. 2021, section 3.3), with accelerate underneath: the
    device, mixed precision and several processes are what ``accelerate launch`` or ``torchrun`` give. Ranks start
    from the same parameters and draw different noise.

    A run is a pure function of its options, the data and the initial weights: the order of the data depends on
    (seed, epoch), noise and dropout on (seed, rank), and evaluations draw from streams of their own. A run that was
    killed and resumed therefore repeats the uninterrupted one, on a CPU bit for bit (data sets that draw random
    numbers in worker processes excepted). The caller's own random generators are left as they were.

    Args:
        model: a Pyro model that is an ``nn.Module``; ``model(batch)`` announces the sites, with the labels observed.
        guide: by default ``AttentionGuide(model)``. For a model with other latent sites any guide of Pyro's that is an
            ``nn.Module``: it is trained and kept in checkpoints. Unless it has an attribute ``kl_weight``, the
            ``kl_schedule`` must be 1 throughout: ``KLSchedule("constant")``.
        elbo: by default ``AttentionELBO()``; with a guide of one's own one of Pyro's ``Trace_ELBO``,
            ``TraceMeanField_ELBO``, ``TraceGraph_ELBO`` or ``TraceEnum_ELBO``.
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
        find_unused_parameters: set it if several processes complain about parameters without gradient.

    Raises:
        TypeError: model or guide is no ``nn.Module``, or the estimator is not known.
        ValueError: an option out of its range, or a KL weight that the guide does not take.

    Example:
        >>> import probattn, pyro
        >>> import pyro.distributions as dist
        >>> class Regression(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.attention = probattn.MultiheadAttention(4, 2, batch_first=True)
        ...     def forward(self, batch):
        ...         with pyro.plate("data", len(batch["x"])):
        ...             output, _ = self.attention(batch["x"], batch["x"], batch["x"])
        ...             pyro.sample("y", dist.Normal(output, 1.0).to_event(2), obs=batch["y"])
        >>> data = {"x": torch.randn(6, 5, 4), "y": torch.randn(6, 5, 4)}
        >>> driver = SVIDriver(Regression(), batch_size=2, scheduler=None, progress=False, cpu=True)
        >>> driver.fit(data, epochs=1).step
        3
    """

    model: nn.Module
    _: KW_ONLY
    guide: AttentionGuide | nn.Module | None = None
    elbo: ELBO | None = None
    optimizer: OptimizerOptions | OptimizerFactory = field(default_factory=OptimizerOptions)
    scheduler: SchedulerOptions | SchedulerFactory | None = field(default_factory=SchedulerOptions)
    kl_schedule: KLSchedule = field(default_factory=KLSchedule)
    batch_size: int = 16
    collate: Collate | None = None
    shuffle: bool = True
    drop_last: bool = False
    length_pool: int | None = None
    num_workers: int = 0
    precision: Precision = "no"
    cpu: bool = False
    accumulation: int = 1
    max_grad_norm: float | None = 1.0
    seed: int = 0
    log_every: int = 10
    eval_every: int | None = None
    checkpoint_every: int | None = None
    keep_last: int = 2
    early_stopping: EarlyStopping | None = None
    validation_metrics: ValidationMetrics | None = None
    folder: Path | str | None = None
    trackers: Sequence[str | GeneralTracker] = ()
    callbacks: Sequence[Callback] = ()
    observers: Sequence[StepObserver] = ()
    fingerprint: Mapping[str, Any] = field(default_factory=dict)
    progress: bool = True
    find_unused_parameters: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.model, nn.Module):
            raise TypeError(
                f"SVIDriver.model: expected a torch.nn.Module, got {type(self.model).__name__}; wrap the function in a "
                "module (pyro.nn.PyroModule) that holds its parameters"
            )
        refuse_unwrapped(self.model)
        for name in ("batch_size", "accumulation", "log_every", "keep_last"):
            _require_at_least(1, name, getattr(self, name))
        for name in ("eval_every", "checkpoint_every", "length_pool"):
            if getattr(self, name) is not None:
                _require_at_least(1, name, getattr(self, name))
        for name in ("seed", "num_workers"):
            _require_at_least(0, name, getattr(self, name))
        if self.precision not in get_args(Precision):
            raise ValueError(
                f"SVIDriver.precision: expected one of {', '.join(get_args(Precision))}, got {self.precision!r}"
            )
        if self.max_grad_norm is not None and not self.max_grad_norm > 0:
            raise ValueError(
                f"SVIDriver.max_grad_norm: expected a number > 0 or None, got {self.max_grad_norm}"
            )
        self._check_guide()
        self._resume: Resume = False

    def resume(self, folder: Path | str) -> SVIDriver:
        """Makes the next :meth:`fit` continue the run in ``folder``.

        Returns:
            The driver itself: ``driver.resume("runs/a").fit(data, epochs=3)``.
        """
        self.folder = folder
        self._resume = True
        return self

    def fit(
        self,
        train_data: Any,
        validation_data: Any = None,
        *,
        steps: int | None = None,
        epochs: int | None = None,
        resume: bool | Literal["auto"] = False,
    ) -> FitResult:
        """Trains the model in place and leaves it on its device in evaluation mode.

        Args:
            train_data: a mapping of tensors ``[N, ...]`` or a data set with ``len()`` and ``[row]``.
            validation_data: the same; needed by early stopping.
            steps: updates of the whole run, >= 1; give either this or ``epochs``.
            epochs: passes over the data, >= 1.
            resume: True continues from the folder's newest checkpoint and refuses a corrupt one; "auto" also begins
                anew where there is none and falls back, with a warning, from a corrupt one to the one before.

        Returns:
            What came out; the model holds the weights of the last step, or of the best one with early stopping.

        Raises:
            CheckpointError: nothing to resume, or a checkpoint that is corrupt, of another configuration or cannot be
                written.
            FileExistsError: the folder holds a run and ``resume`` is False.
            NonFiniteError: the loss or its gradient is not finite; the message says where.
            TypeError: data that cannot be read by row.
            ValueError: neither or both of steps and epochs; early stopping without validation data or on a metric that
                is not there.
        """
        resume = resume or self._resume
        self._resume = False
        self._check_call(validation_data, steps, epochs, resume)
        train = as_rows(train_data, "train_data")
        validation = None if validation_data is None else as_rows(validation_data, "validation_data")
        refuse_unsupported(self.model)
        with (
            accelerator_session(
                precision=self._checked_precision(),
                cpu=self.cpu,
                trackers=self.trackers,
                folder=None if self.folder is None else Path(self.folder),
                find_unused_parameters=self.find_unused_parameters,
            ) as accelerator,
            preserved_random_state(accelerator.device),
            _frozen_parameters(),
        ):
            seed_generators(self.seed, accelerator.process_index)
            run = Run(self, accelerator, train, validation, steps=steps, epochs=epochs)
            return run.train(resume)

    def objective(self) -> tuple[Any, AttentionELBOModule | EnsembleObjective]:
        """The guide, whose KL weight a run sets, and the module that gives a batch's :class:`ELBOTerms`."""
        guide = AttentionGuide(self.model) if self.guide is None else self.guide
        return guide, bind(self.model, guide, self.elbo)

    def particles(self, num_data: int) -> ParticleUpdate | None:
        """What turns gradients into directions before each update; nothing here.

        Raises:
            ValueError: the model is an ensemble, or has repulsive heads, whose repulsion this driver would leave out.
        """
        if isinstance(self.model, ParticleEnsemble):
            raise ValueError(
                f"{type(self).__name__}: the model is an ensemble of particles; train it with "
                "probattn.inference.SVGDDriver"
            )
        if repulsive_heads(self.model):
            raise ValueError(
                f"{type(self).__name__}: the model has repulsive heads, and their repulsion would be left out; train "
                "with probattn.inference.SVGDDriver"
            )
        return None

    def _check_guide(self) -> None:
        guide = self.guide
        if guide is None or isinstance(guide, AttentionGuide):
            return
        if not isinstance(guide, nn.Module):
            raise TypeError(
                f"{type(self).__name__}.guide: expected an AttentionGuide or a torch.nn.Module, whose parameters are "
                f"trained, got {type(guide).__name__}; wrap a function in a module (pyro.nn.PyroModule)"
            )
        if isinstance(guide, AutoGuide) and guide.prototype_trace is None:
            raise ValueError(
                f"{type(self).__name__}.guide: this {type(guide).__name__} has no parameters yet; call it once on a "
                "batch before"
            )
        constant = self.kl_schedule.kind == "constant" and self.kl_schedule.final == 1
        if not hasattr(guide, "kl_weight") and not constant:
            raise ValueError(
                f"{type(self).__name__}.kl_schedule: the guide has no attribute kl_weight, so that its KL has weight 1 "
                'throughout; set kl_schedule=KLSchedule("constant")'
            )

    def _check_call(
        self, validation_data: Any, steps: int | None, epochs: int | None, resume: Resume
    ) -> None:
        if (steps is None) == (epochs is None):
            raise ValueError(
                f"SVIDriver.fit: expected one of steps and epochs, got steps={steps}, epochs={epochs}"
            )
        _require_at_least(
            1, "fit(steps)" if epochs is None else "fit(epochs)", steps if epochs is None else epochs
        )
        if self.early_stopping is not None and validation_data is None:
            raise ValueError(
                f"SVIDriver.fit: early stopping on {self.early_stopping.metric!r} needs validation_data"
            )
        if resume and self.folder is None:
            raise ValueError(
                "SVIDriver.fit: resuming needs the folder of the run; give SVIDriver(folder=...)"
            )

    def _checked_precision(self) -> Precision:
        if self.precision == "fp16" and (self.cpu or not torch.accelerator.is_available()):
            raise ValueError("SVIDriver.precision: 'fp16' needs a GPU; use 'bf16' or 'no' on a CPU")
        return self.precision


@contextmanager
def _frozen_parameters() -> Iterator[None]:
    """Lets parameters be frozen without Pyro's warning, one a parameter, that they are not in its store."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*not registered in the param store because requires_grad")
        yield


def _require_at_least(least: int, name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"SVIDriver.{name}: expected an integer >= {least}, got {value!r}")
