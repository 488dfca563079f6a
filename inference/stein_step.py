"""Single updates outside a run, in the form of ``pyro.infer.SVGD.step``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from probattn.inference.clipping import Clipping
from probattn.inference.optimizers import build_optimizer

if TYPE_CHECKING:
    from probattn.inference.svgd import SVGDDriver


class SteinStep:
    """Objective, optimiser and particles of a driver, kept from step to step.

    Args:
        driver: the options.
        num_data: size of the data of which the batches are samples.
    """

    def __init__(self, driver: SVGDDriver, num_data: int) -> None:
        self.num_data = num_data
        guide, self._objective = driver.objective()
        guide.kl_weight = driver.kl_schedule.final
        self._limit = driver.max_grad_norm
        self._optimizer = build_optimizer(driver.optimizer, self._objective)
        self._clipping = Clipping(self._objective)
        self._particles = driver.particles(num_data)
        self._step = 0

    def __call__(self, batch: Any) -> dict[str, float]:
        """One update; returns the mean squared gradient of the particles by name, as the optimiser saw it."""
        self._optimizer.zero_grad()
        self._objective(batch).loss.backward()
        if self._limit is not None:
            self._clipping.measure()
            self._clipping.clip(self._limit)
        self._particles.direct(self._step)
        found = self._particles.mean_squared_gradients()
        self._optimizer.step()
        self._step += 1
        return found
