"""What an update changes: module, optimiser and scheduler, prepared by accelerate, and their state dictionaries."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from accelerate import Accelerator
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from probattn.inference.clipping import Clipping
from probattn.inference.configuration import (
    model_configuration,
    optimizer_configuration,
    options_configuration,
)
from probattn.inference.elbo import AttentionELBO
from probattn.inference.loop import NonFiniteThrough, StepTerms, accumulate_gradients
from probattn.inference.optimizers import (
    SchedulerOptions,
    build_optimizer,
    learning_rates,
)

if TYPE_CHECKING:
    from probattn.inference.svi import SVIDriver


class TrainingState:
    """Module, optimiser and scheduler of one run.

    Args:
        driver: the options.
        accelerator: the session's.
        total_steps: updates of the whole run.
    """

    def __init__(self, driver: SVIDriver, accelerator: Accelerator, total_steps: int) -> None:
        self._driver = driver
        self._accelerator = accelerator
        self.guide, self.bare = driver.objective()
        optimizer = build_optimizer(driver.optimizer, self.bare)
        self._optimizer_configuration = optimizer_configuration(optimizer)  # a scheduler changes the rates
        self.scheduler = _build_scheduler(driver, optimizer, total_steps)
        self.guarded = NonFiniteThrough(self.bare)
        self.module, self.optimizer = accelerator.prepare(self.guarded, optimizer)
        self._clipping = Clipping(self.bare)

    def configuration(self) -> dict[str, Any]:
        """Model, optimiser and scheduler as a resumed run must find them."""
        described = {
            "model": model_configuration(self._driver.model),
            "optimizer": self._optimizer_configuration,
            "scheduler": options_configuration(self._driver.scheduler),
        }
        if isinstance(self.guide, torch.nn.Module):
            described["guide"] = model_configuration(self.guide)
        if type(self._driver.elbo) not in (type(None), AttentionELBO):
            described["elbo"] = options_configuration(self._driver.elbo)
        return described

    def weigh_kl(self, weight: float) -> None:
        """Sets the weight of the KL; a guide that takes none has weight 1, which the driver has made sure of."""
        if hasattr(self.guide, "kl_weight"):
            self.guide.kl_weight = weight

    def gradients(self, weights: Sequence[float], batches: Iterator[Any]) -> tuple[StepTerms, float]:
        """One step's gradients.

        Args:
            weights: of this rank's micro-batches.
            batches: as many batches.

        Returns:
            The means of the objective's parts and the gradient's norm, without the networks of alignment factors unless
            theirs is not finite.
        """
        sums = accumulate_gradients(self._accelerator, self.module, weights, batches)
        self._accelerator.unscale_gradients()  # once: a gradient scaler refuses a second time
        norms = [norm.to(sums).reshape(1) for norm in self._clipping.measure()]
        *values, norm, other = torch.cat([sums, *norms]).tolist()
        return StepTerms(*values), norm if math.isfinite(other) else other

    def apply(self, direct: Callable[[], None] | None = None) -> dict[str, float]:
        """Clips and makes the update, clears the gradients; returns the learning rates it was made with.

        Args:
            direct: changes clipped gradients before the optimiser sees them.
        """
        limit = self._driver.max_grad_norm
        if limit is not None:
            self._clipping.clip(limit)
        if direct is not None:
            direct()
        self.optimizer.step()
        rates = learning_rates(self.optimizer)
        skipped = self._accelerator.optimizer_step_was_skipped  # by a gradient scaler, which overflowed
        if self.scheduler is not None and not isinstance(self.scheduler, ReduceLROnPlateau) and not skipped:
            self.scheduler.step()
        self.optimizer.zero_grad()
        return rates

    def validated(self, loss: float) -> None:
        """Tells a scheduler that waits for validation losses."""
        if isinstance(self.scheduler, ReduceLROnPlateau):
            self.scheduler.step(loss)

    def parts(self) -> dict[str, Any]:
        """State dictionaries for a checkpoint; "model" fits the model itself."""
        scaler = self._accelerator.scaler
        parts = {
            "model": self._driver.model.state_dict(),
            "training": {
                "optimizer": self.optimizer.state_dict(),
                "scheduler": None if self.scheduler is None else self.scheduler.state_dict(),
                "scaler": None if scaler is None else scaler.state_dict(),
            },
        }
        if isinstance(self.guide, torch.nn.Module):
            parts["guide"] = self.guide.state_dict()
        return parts

    def load_parts(self, parts: Mapping[str, Any]) -> None:
        """Takes over what :meth:`parts` returned."""
        self.load_weights(parts)
        training = parts["training"]
        self.optimizer.load_state_dict(training["optimizer"])
        if self.scheduler is not None:
            self.scheduler.load_state_dict(training["scheduler"])
        if self._accelerator.scaler is not None:
            self._accelerator.scaler.load_state_dict(training["scaler"])

    def weights(self) -> dict[str, Any]:
        """A copy of the weights, on the CPU, that later updates leave alone."""
        return {
            name: {key: value.detach().to("cpu", copy=True) for key, value in part.items()}
            for name, part in self.parts().items()
            if name in ("model", "guide")
        }

    def load_weights(self, parts: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Takes over the weights among ``parts``."""
        self._driver.model.load_state_dict(parts["model"])
        if isinstance(self.guide, torch.nn.Module):
            self.guide.load_state_dict(parts["guide"])


def _build_scheduler(
    driver: SVIDriver, optimizer: Optimizer, total_steps: int
) -> LRScheduler | ReduceLROnPlateau | None:
    if driver.scheduler is None:
        return None
    if isinstance(driver.scheduler, SchedulerOptions):
        return driver.scheduler.build(optimizer, total_steps)
    return driver.scheduler(optimizer, total_steps)
