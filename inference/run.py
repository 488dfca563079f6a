"""One run of a driver: updates, records, evaluations and checkpoints, in their order."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accelerate import Accelerator
from accelerate.utils import gather_object

from probattn.inference.batches import DataOrder, Share, load_batches, row_lengths
from probattn.inference.checkpoint import Checkpoint
from probattn.inference.configuration import options_configuration
from probattn.inference.early_stopping import StoppingState
from probattn.inference.loop import StepTerms
from probattn.inference.meter import NonFiniteError, describe_failure, unhealthy_gradients, unhealthy_sites
from probattn.inference.observer import observe_step
from probattn.inference.progress import TrainingProgress
from probattn.inference.random_states import RandomState, capture_random_state, restore_random_state
from probattn.inference.reporter import Reporter, mean_diagnostics
from probattn.inference.result import FitResult
from probattn.inference.storage import Resume, RunStorage
from probattn.inference.training_state import TrainingState
from probattn.inference.validation import Validation

if TYPE_CHECKING:
    from probattn.inference.svi import SVIDriver


class Run:
    """One fit, made inside an accelerator session; :meth:`train` may be called once.

    Args:
        driver: the options.
        accelerator: the session's.
        rows: training data by row.
        validation: validation data by row, or None.
        steps: updates of the whole run, or None for ``epochs``.
        epochs: passes over the data, or None for ``steps``.
    """

    def __init__(
        self,
        driver: SVIDriver,
        accelerator: Accelerator,
        rows: Any,
        validation: Any,
        *,
        steps: int | None,
        epochs: int | None,
    ) -> None:
        self._driver, self._accelerator = driver, accelerator
        self._rows = rows
        self._order = DataOrder(
            len(rows),
            batch_size=driver.batch_size,
            accumulation=driver.accumulation,
            num_processes=accelerator.num_processes,
            seed=driver.seed,
            shuffle=driver.shuffle,
            drop_last=driver.drop_last,
            length_pool=driver.length_pool,
            lengths=None if driver.length_pool is None else row_lengths(rows),
        )
        self._total = steps if steps is not None else (epochs or 0) * self._order.steps_per_epoch
        self._particles = driver.particles(len(rows))
        self._state = TrainingState(driver, accelerator, self._total)
        self._validation: Validation | None = None
        if validation is not None:
            self._validation = Validation(driver, accelerator, self._state.guarded, validation)
        self._storage: RunStorage | None = None
        if driver.folder is not None:
            self._storage = RunStorage(Path(driver.folder), driver.keep_last, accelerator)
        self._reporter = Reporter(driver, accelerator, self._storage, self._order.steps_per_epoch)
        self._stopping = StoppingState()
        self._step = 0
        self._kl_weight = 0.0
        self._rates: dict[str, float] = {}
        self._gradient_norm = 0.0
        self._best_weights: dict[str, Any] | None = None
        self._earlier_seconds = 0.0
        self._started = time.monotonic()

    def train(self, resume: Resume) -> FitResult:
        """Takes the run to its end, from a checkpoint if asked to."""
        if self._validation is not None:
            self._validation.check_stopping()
        configuration = self._configuration()
        checkpoint = None if self._storage is None else self._storage.open(resume, configuration)
        try:
            if checkpoint is not None:
                self._restore(checkpoint)
            self._reporter.start_trackers(configuration)
            self._state.module.train()
            self._state.optimizer.zero_grad()
            if self._step == 0:
                self._observe()
            with self._progress() as progress:
                while not self._finished():
                    self._train_epoch(progress)
            self._settle()
        finally:
            if self._storage is not None:
                self._storage.close()
        return self._result()

    def _train_epoch(self, progress: TrainingProgress) -> None:
        for shares, batches in self._rest_of_epoch():
            terms = self._update(shares, batches)
            progress.update(self._step, terms, self._kl_weight)
            self._after_update()
            if self._finished():
                return

    def _rest_of_epoch(self) -> Iterator[tuple[list[Share], Iterator[Any]]]:
        driver, rank = self._driver, self._accelerator.process_index
        epoch, _ = self._order.position(self._step)
        steps = list(self._order.epoch_shares(self._step, rank))[: self._total - self._step]
        loader = load_batches(
            self._rows,
            [share.rows for shares in steps for share in shares],
            collate=driver.collate,
            num_workers=driver.num_workers,
            seed=(driver.seed, epoch, rank),
        )
        batches = iter(loader)
        for shares in steps:
            yield shares, itertools.islice(batches, len(shares))

    def _update(self, shares: list[Share], batches: Iterator[Any]) -> StepTerms:
        before = None if self._storage is None else capture_random_state(self._accelerator.device)
        self._kl_weight = self._driver.kl_schedule.weight(self._step, self._total)
        self._state.weigh_kl(self._kl_weight)
        terms, self._gradient_norm = self._state.gradients([share.weight for share in shares], batches)
        self._require_finite(terms, before)
        self._rates = self._state.apply(self._direct)
        self._step += 1
        self._reporter.meter.add(terms)
        return terms

    def _direct(self) -> None:
        """Turns the gradients of particles into directions; measures them where a record follows."""
        if self._particles is not None:
            self._particles.direct(self._step, measure=self._recorded(self._step + 1))

    def _recorded(self, step: int) -> bool:
        return step == self._total or step % self._driver.log_every == 0

    def _require_finite(self, terms: StepTerms, before: RandomState | None) -> None:
        norm_matters = (
            self._accelerator.scaler is None
        )  # a gradient scaler skips such updates and tries again
        if math.isfinite(sum(terms)) and (math.isfinite(self._gradient_norm) or not norm_matters):
            return
        sites = gather_object(unhealthy_sites(self._state.bare.diagnostics()))
        complaint = self._state.guarded.complaint
        complaints = gather_object([] if complaint is None else [complaint])
        if before is not None and self._step > self._saved_step():
            self._save(before)
        epoch, index = self._order.position(self._step)
        raise NonFiniteError(
            describe_failure(
                where=f"the loss of step {self._step + 1} (epoch {epoch + 1}, its step {index + 1})",
                terms=terms,
                gradient_norm=self._gradient_norm,
                sites=list(dict.fromkeys(sites)),
                gradients=unhealthy_gradients(self._state.bare),
                complaints=list(dict.fromkeys(complaints)),
                checkpoint=None if self._storage is None else self._storage.latest,
            )
        )

    def _after_update(self) -> None:
        ended = self._step == self._total
        if self._recorded(self._step):
            diagnostics = mean_diagnostics(gather_object([self._state.bare.diagnostics()]))
            details: dict[str, Any] = {"learning_rates": self._rates, "gradient_norm": self._gradient_norm}
            if self._particles is not None:
                details["particles"] = self._particles.diagnostics
            self._reporter.training(self._step, self._kl_weight, {**details, "sites": diagnostics})
        improved = False
        if self._validation is not None and (ended or self._due(self._driver.eval_every)):
            improved = self._evaluate()
        self._observe()
        if self._storage is None:
            if improved:
                self._best_weights = self._state.weights()
        elif improved or self._finished() or self._due(self._driver.checkpoint_every):
            self._save(capture_random_state(self._accelerator.device))

    def _observe(self) -> None:
        if self._accelerator.is_main_process:
            device, last = self._accelerator.device, self._step > 0 and self._finished()
            observe_step(self._driver.observers, self._step, self._driver.model, device, last=last)

    def _due(self, every: int | None) -> bool:
        return self._step % (self._order.steps_per_epoch if every is None else every) == 0

    def _evaluate(self) -> bool:
        """Evaluates and records; whether early stopping's metric is the best so far."""
        assert self._validation is not None
        driver = self._driver
        weight = driver.kl_schedule.final  # so that values of different steps can be compared
        self._state.weigh_kl(weight)
        means = self._validation.means()
        self._reporter.validation(self._step, weight, means)
        self._state.validated(means["loss"])
        rule = driver.early_stopping
        return rule is not None and self._stopping.update(rule, rule.values(means), self._step)

    def _finished(self) -> bool:
        return self._step >= self._total or self._stopped_early()

    def _stopped_early(self) -> bool:
        rule = self._driver.early_stopping
        return rule is not None and self._stopping.exhausted(rule)

    def _saved_step(self) -> int:
        return (self._storage.latest_step if self._storage is not None else None) or 0

    def _save(self, random_state: RandomState) -> None:
        assert self._storage is not None
        epoch, index = self._order.position(self._step)
        state = {
            "step": self._step,
            "epoch": epoch,
            "step_in_epoch": index,
            "kl_weight": self._kl_weight,
            "seconds": self._seconds(),
            "early_stopping": self._stopping.state_dict(),
            "reporter": self._reporter.state_dict(),
            "configuration": self._configuration(),
        }
        parts = self._state.parts()
        parts["training"]["random"] = gather_object([random_state])  # of every rank
        best = self._stopping.best_step
        self._storage.save(self._step, state, parts, protect=() if best is None else (best,))

    def _restore(self, checkpoint: Checkpoint) -> None:
        self._state.load_parts(checkpoint.parts)
        self._step = checkpoint.step
        self._kl_weight = checkpoint.state["kl_weight"]
        self._earlier_seconds = checkpoint.state["seconds"]
        self._stopping.load_state_dict(checkpoint.state["early_stopping"])
        self._reporter.load_state_dict(checkpoint.state["reporter"])
        states = checkpoint.parts["training"]["random"]
        restore_random_state(states[self._accelerator.process_index], self._accelerator.device)

    def _settle(self) -> None:
        """Leaves the model with the weights to keep, in evaluation mode, under the final KL weight."""
        best = self._stopping.best_step
        if best is not None and best != self._step:
            weights = self._best_weights if self._storage is None else self._storage.store.load(best).parts
            assert weights is not None
            self._state.load_weights(weights)
        self._state.weigh_kl(self._driver.kl_schedule.final)
        self._state.module.eval()

    def _configuration(self) -> dict[str, Any]:
        driver = self._driver
        rule = driver.early_stopping
        return {
            "steps": self._total,
            "data": self._order.configuration(),
            "precision": driver.precision,
            "max_grad_norm": driver.max_grad_norm,
            "kl_schedule": options_configuration(driver.kl_schedule),
            "early_stopping": None if rule is None else asdict(rule) | {"eval_every": driver.eval_every},
            **self._state.configuration(),
            **({} if self._particles is None else self._particles.configuration()),
            "fingerprint": dict(driver.fingerprint),
        }

    def _progress(self) -> TrainingProgress:
        return TrainingProgress(
            total=self._total,
            done=self._step,
            reduction=self._reporter.reduction,
            shown=self._driver.progress and self._accelerator.is_main_process,
        )

    def _seconds(self) -> float:
        return self._earlier_seconds + time.monotonic() - self._started

    def _result(self) -> FitResult:
        return FitResult(
            step=self._step,
            total_steps=self._total,
            stopped_early=self._stopped_early() and self._step < self._total,
            best=self._stopping.best,
            best_step=self._stopping.best_step,
            seconds=self._seconds(),
            train=self._reporter.last.get("train"),
            validation=self._reporter.last.get("validation"),
            folder=None if self._storage is None else self._storage.folder,
        )
