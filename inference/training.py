"""Training of a Pyro program: its gradients, updates, evaluations and their records, and the state of all that."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from pyro.infer import ELBO
from torch import Tensor, nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from probattn.checks import PlainWarning
from probattn.inference.compiled import CompiledNetworks
from probattn.inference.configuration import (
    kl_reduction_label,
    model_configuration,
    optimizer_configuration,
    options_configuration,
)
from probattn.inference.elbo import AttentionELBO
from probattn.inference.loop import (
    Meter,
    NonFiniteThrough,
    StepCheck,
    StepTerms,
    accumulate_gradients,
    evaluate,
    mean_diagnostics,
)
from probattn.inference.optimizers import Clipping, SchedulerOptions, build_optimizer, learning_rates
from probattn.inference.options import RunOptions
from probattn.inference.particle_update import ParticleUpdate
from probattn.inference.records import Record
from probattn.inference.run import Training
from probattn.inference.session import (
    capture_random_state,
    preserved_random_state,
    restore_random_state,
    seed_generators,
)
from probattn.inference.sharding import TrainedObjective
from probattn.inference.sources import Step, source_of

EVALUATION = 1
"""Third word of the seed of an evaluation's noise: the same at every evaluation, and apart from training's."""


class Update:
    """One update, given the gradients: clipping, directions of particles, the optimiser."""

    def __init__(
        self, options: RunOptions, guide: Any, trained: TrainedObjective, particles: ParticleUpdate | None
    ) -> None:
        self.trained, self.objective, self.particles = trained, trained.objective, particles
        self.guide = guide if trained.whole is trained.objective else trained.objective.guide
        scaled = options.precision == "fp16"
        self.optimizer = build_optimizer(options.optimizer, trained.whole, scaled=scaled)
        trained.adopt(self.optimizer)
        self._clipping, self._limit = Clipping(trained.objective), options.max_grad_norm

    def weigh_kl(self, weight: float) -> None:
        """Sets the weight of the KL; a guide that takes none has weight 1, which the driver has made sure of."""
        if hasattr(self.guide, "kl_weight"):
            self.guide.kl_weight = weight

    def norms(self) -> tuple[Tensor, Tensor]:
        """Measures the gradients: those of alignment's networks apart from all others."""
        return self._clipping.measure()

    def direct(self, step: int, *, measure: bool = False) -> None:
        """Clips measured gradients, then makes those of particles directions; ``measure`` fills their diagnostics."""
        if self._limit is not None:
            self._clipping.clip(self._limit)
        if self.particles is not None:
            if getattr(self.objective, "summed", False):
                self.particles.refuse_sum()
            self.particles.direct(step, measure=measure)


class ProgramTraining(Training):
    """Training of the program ``model`` on ``rows`` by the objective of ``update``, as :class:`SVIDriver` says."""

    def __init__(
        self,
        options: RunOptions,
        accelerator: Accelerator,
        model: nn.Module,
        elbo: ELBO | None,
        update: Update,
        *,
        rows: Any,
        validation: Any,
        steps: int | None,
        epochs: int | None,
    ) -> None:
        self._options, self._accelerator, self._update = options, accelerator, update
        ranks = accelerator.process_index, accelerator.num_processes
        self._elbo, self._source = elbo, source_of(rows, options, *ranks)
        self._validation = None if validation is None else source_of(validation, options, *ranks)
        total = self._source.total(steps, epochs)
        super().__init__(model, total, self._source.steps_per_epoch or total)
        self._optimizer_configuration = optimizer_configuration(update.optimizer)  # a scheduler changes rates
        scheduler = options.scheduler
        build = scheduler.build if isinstance(scheduler, SchedulerOptions) else scheduler
        self._scheduler = None if build is None else build(update.optimizer, total)
        noisy = set() if update.particles is None else update.particles.noisy
        if noisy and build is not None and isinstance(update.optimizer, torch.optim.SGD):
            warnings.warn(
                f"the noise of {min(noisy)} has the posterior's variance at a constant learning rate of 1; this one "
                f"follows a schedule ({scheduler}); set scheduler=None to sample",
                PlainWarning,
                stacklevel=3,
            )
        graphs = CompiledNetworks("compile", model) if options.compile else None
        trained = self._trained = update.trained
        sharded = trained.whole is not update.objective
        self._guarded = NonFiniteThrough(update.objective, graphs, repeatable=not sharded)
        self._evaluated = NonFiniteThrough(trained.whole) if sharded else self._guarded
        self._module = trained.prepare(accelerator, self._guarded)
        self._optimizer = accelerator.prepare(update.optimizer)
        self._has_callbacks = any(gather_object([bool(options.callbacks)]))  # of any process
        self._reduction, self._meter = kl_reduction_label(model), Meter()
        objective, weight = update.objective, options.kl_schedule.final
        self._check = StepCheck(
            accelerator, self._guarded, objective, objective.diagnostics, kl_weight=weight
        )
        self._batches: Iterator[Step] = iter(())
        self._terms, self._norm, self._kl_weight = StepTerms(*[math.nan] * 5), math.nan, 0.0
        self._rates: dict[str, float] = {}
        self._recorded = time.monotonic()

    def configuration(self) -> dict[str, Any]:
        """Settings that a resumed run must share, besides its fingerprint."""
        options, rule = self._options, self._options.early_stopping
        described = {
            "steps": self.total,
            "data": self._source.configuration(),
            "precision": options.precision,
            "max_grad_norm": options.max_grad_norm,
            "kl_schedule": options_configuration(options.kl_schedule),
            "early_stopping": None if rule is None else asdict(rule) | {"eval_every": options.eval_every},
            "model": model_configuration(self.model),
            "optimizer": self._optimizer_configuration,
            "scheduler": options_configuration(options.scheduler),
        }
        if isinstance(self._update.guide, nn.Module):
            described["guide"] = model_configuration(self._update.guide)
        if type(self._elbo) not in (type(None), AttentionELBO):
            described["elbo"] = options_configuration(self._elbo)
        described |= {name: True for name in ("compile", "shard") if getattr(options, name)}
        particles = self._update.particles
        return described | ({} if particles is None else particles.configuration())

    def begin(self, step: int) -> None:
        """Prepares the update that follows ``step`` completed ones."""
        self._batches = self._source.steps(step, self.total)
        self._module.train()
        self._optimizer.zero_grad()

    def update(self, step: int, rescue: Callable[[], Path | None]) -> None:
        """Makes one update; raises :class:`NonFiniteError` before it where loss or gradient is not finite."""
        device = self._accelerator.device
        before = None if self._options.folder is None else capture_random_state(device)
        weights, batches = next(self._batches)
        self._kl_weight = self._options.kl_schedule.weight(step, self.total)
        self._update.weigh_kl(self._kl_weight)
        sums = accumulate_gradients(self._accelerator, self._module, weights, batches)
        self._accelerator.unscale_gradients()  # once: a gradient scaler refuses a second time
        self._terms, self._norm = self._check.terms(sums, self._update.norms())

        def checkpoint() -> Path | None:
            if before is not None:
                restore_random_state(before, device)
            return rescue()

        epoch, index = self._source.position(step)
        where = f" (epoch {epoch + 1}, its step {index + 1})"
        self._check.check(step, self._terms, self._norm, where, checkpoint)
        self._update.direct(step, measure=self._is_recorded(step + 1))
        self._optimizer.step()
        self._rates = learning_rates(self._optimizer)
        skipped = self._accelerator.optimizer_step_was_skipped  # by a gradient scaler, which overflowed
        if not (self._scheduler is None or isinstance(self._scheduler, ReduceLROnPlateau) or skipped):
            self._scheduler.step()
        self._optimizer.zero_grad()
        self._meter.add(self._terms)

    def words(self) -> str:
        """Text of a progress bar about the last update."""
        terms = self._terms
        words = f"loss {terms.loss:.4g}"
        if terms.kl or terms.kl_nats or terms.factors:
            words += f"  log-likelihood {terms.log_likelihood:.4g}"
        if terms.kl or terms.kl_nats:
            words += f"  KL {terms.kl:.3g} ({self._reduction}, weight {self._kl_weight:.3g}; {terms.kl_nats:.3g} nats)"
        return words

    def records(self, step: int, *, last: bool, seconds: float) -> Iterator[Record]:
        """Records that are due after ``step`` updates."""
        if step == 0:
            return
        if self._is_recorded(step):
            if self._has_callbacks:
                self._trained.pull()
            yield self._training_record(step)
        every = self._options.eval_every or self.steps_per_epoch
        if self._validation is not None and (last or step % every == 0):
            weight = self._options.kl_schedule.final  # so that values of different steps can be compared
            self._update.weigh_kl(weight)
            means = self._evaluate()
            yield self._record("validation", step, means, weight)
            if isinstance(self._scheduler, ReduceLROnPlateau):
                self._scheduler.step(means["loss"])

    def _is_recorded(self, step: int) -> bool:
        return step == self.total or step % self._options.log_every == 0

    def _training_record(self, step: int) -> Record:
        """The means since the last training record, and what is known of the step alone."""
        sites = mean_diagnostics(gather_object([self._update.objective.diagnostics()]))
        now = time.monotonic()
        record = self._record("train", step, self._meter.take()._asdict(), self._kl_weight)
        record |= {"learning_rates": self._rates, "gradient_norm": self._norm}
        if self._update.particles is not None:
            record["particles"] = self._update.particles.diagnostics
        record |= {"sites": sites, "seconds": round(now - self._recorded, 4)}
        self._recorded = now
        return record

    def _record(self, kind: str, step: int, values: Mapping[str, Any], kl_weight: float) -> Record:
        """Values with their step and with what the KL among them means."""
        record = {"kind": kind, "step": step, "epoch": self._source.epoch(step), **values}
        return record | {"kl_reduction": self._reduction, "kl_weight": kl_weight}

    def _evaluate(self, limit: int | None = None) -> dict[str, float]:
        """Means over all validation rows, or ``limit`` batches, with the same noise every time and without a trace."""
        accelerator, metrics = self._accelerator, self._options.validation_metrics
        assert self._validation is not None
        with preserved_random_state(accelerator.device):
            seed = (self._options.seed, accelerator.process_index, EVALUATION)
            seed_generators(*seed)
            measured = None if metrics is None else partial(metrics, self.model)
            with self._trained.ready():
                batches = self._validation.evaluation(seed, limit)
                return evaluate(accelerator, self._evaluated, batches, measured)

    def check_stopping(self) -> None:
        """Refuses early stopping on a metric that is not there; the user's own are known from a first batch."""
        rule = self._options.early_stopping
        if rule is not None and rule.modes.keys() - set(StepTerms._fields):
            rule.values(self._evaluate(limit=1))

    def state(self, step: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """Plain values and parts of a checkpoint."""
        epoch, index = self._source.position(step)
        plain: dict[str, Any] = {"epoch": epoch, "step_in_epoch": index, "kl_weight": self._kl_weight}
        plain["reporter"] = {"meter": asdict(self._meter), "last": self.last}
        scaler = self._accelerator.scaler
        tensors: dict[str, Any] = {
            **self.weights(),
            "training": {
                "optimizer": self._optimizer.state_dict(),
                "scheduler": None if self._scheduler is None else self._scheduler.state_dict(),
                "scaler": None if scaler is None else scaler.state_dict(),
                "random": gather_object([capture_random_state(self._accelerator.device)]),  # of every rank
            },
        }
        return plain, tensors

    def weights(self) -> dict[str, Mapping[str, Tensor]]:
        """The weights of the model, and of a guide that has any."""
        self._trained.pull()
        guide = self._update.guide
        return super().weights() | ({"guide": guide.state_dict()} if isinstance(guide, nn.Module) else {})

    def load_state(self, state: Mapping[str, Any], tensors: Mapping[str, Any]) -> None:
        """Takes over what :meth:`state` returned."""
        self.load_weights(tensors)
        training, scaler = tensors["training"], self._accelerator.scaler
        self._optimizer.load_state_dict(training["optimizer"])
        if self._scheduler is not None:
            self._scheduler.load_state_dict(training["scheduler"])
        if scaler is not None:
            scaler.load_state_dict(training["scaler"])
        self._source.restore(state["step"], state["epoch"], state["step_in_epoch"])
        self._kl_weight = state["kl_weight"]
        self._meter, self.last = Meter(**state["reporter"]["meter"]), dict(state["reporter"]["last"])
        rank, device = self._accelerator.process_index, self._accelerator.device
        restore_random_state(training["random"][rank], device)

    def load_weights(self, tensors: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Takes over the weights among ``tensors``."""
        super().load_weights(tensors)
        self._trained.push()
        if isinstance(self._update.guide, nn.Module):
            self._update.guide.load_state_dict(tensors["guide"])

    def finish(self) -> None:
        """Leaves the model in evaluation mode, under the final KL weight."""
        self._update.weigh_kl(self._options.kl_schedule.final)
        self._trained.pull()
        self._module.eval()
        self.model.eval()
