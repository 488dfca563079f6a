"""Evaluations of a run on its validation data."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from accelerate import Accelerator

from probattn.inference.batches import load_batches
from probattn.inference.loop import StepTerms, evaluate
from probattn.inference.random_states import preserved_random_state, seed_generators

if TYPE_CHECKING:
    from torch import nn

    from probattn.inference.svi import SVIDriver

STREAM = 1
"""Third word of the seed of an evaluation's noise: the same at every evaluation, and apart from training's."""


class Validation:
    """Means over validation data, with the same noise every time and without a trace in that of training.

    Args:
        driver: the options.
        accelerator: the session's.
        module: not wrapped for distribution; gives :class:`probattn.inference.ELBOTerms`.
        rows: validation data by row.
    """

    def __init__(self, driver: SVIDriver, accelerator: Accelerator, module: nn.Module, rows: Any) -> None:
        self._driver, self._accelerator, self._module, self._rows = driver, accelerator, module, rows

    def means(self, most: int | None = None) -> dict[str, float]:
        """Means by name over all rows, or over ``most`` first batches of every rank."""
        driver, accelerator = self._driver, self._accelerator
        rows = list(range(accelerator.process_index, len(self._rows), accelerator.num_processes))
        parts = [rows[first : first + driver.batch_size] for first in range(0, len(rows), driver.batch_size)]
        parts, metrics = parts[:most], driver.validation_metrics
        with preserved_random_state(accelerator.device):
            seed = (driver.seed, accelerator.process_index, STREAM)
            seed_generators(*seed)
            loader = load_batches(
                self._rows, parts, collate=driver.collate, num_workers=driver.num_workers, seed=seed
            )
            return evaluate(
                accelerator,
                self._module,
                zip(loader, map(len, parts), strict=True),
                None if metrics is None else partial(metrics, driver.model),
            )

    def check_stopping(self) -> None:
        """Refuses early stopping on a metric that is not there; the user's own are known from a first batch.

        Raises:
            ValueError: there is none of a name.
        """
        rule = self._driver.early_stopping
        if rule is not None and rule.modes.keys() - set(StepTerms._fields):
            rule.values(self.means(most=1))
