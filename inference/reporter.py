"""Where a run's records go: the file, trackers, callbacks."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from accelerate import Accelerator

from probattn.inference.checkpoint import flatten
from probattn.inference.configuration import kl_reduction_label
from probattn.inference.meter import Meter
from probattn.inference.records import Record
from probattn.inference.storage import RunStorage

if TYPE_CHECKING:
    from probattn.inference.svi import SVIDriver


class Reporter:
    """Makes records and hands them on.

    Args:
        driver: trackers, callbacks and the model.
        accelerator: the session's.
        storage: the run's folder, or None.
        steps_per_epoch: to tell the epoch of a step.
    """

    def __init__(
        self, driver: SVIDriver, accelerator: Accelerator, storage: RunStorage | None, steps_per_epoch: int
    ) -> None:
        self._driver = driver
        self._accelerator = accelerator
        self._storage = storage
        self._steps_per_epoch = steps_per_epoch
        self._recorded = time.monotonic()
        self.reduction = kl_reduction_label(driver.model)
        self.meter = Meter()
        self.last: dict[str, Record] = {}

    def start_trackers(self, configuration: Mapping[str, Any]) -> None:
        """Opens accelerate's trackers with the run's configuration as hyper-parameters."""
        if self._driver.trackers:
            plain = {
                name: value if isinstance(value, (bool, int, float, str)) else str(value)
                for name, value in flatten(configuration).items()
            }
            self._accelerator.init_trackers("probattn", config=plain)

    def training(self, step: int, kl_weight: float, details: Mapping[str, Any]) -> None:
        """Records the means since the last training record, and ``details`` of the step."""
        now = time.monotonic()
        record = self._labelled("train", step, self.meter.take()._asdict(), kl_weight)
        record |= details
        record["seconds"] = round(now - self._recorded, 4)
        self._recorded = now
        self._publish(record)

    def validation(self, step: int, kl_weight: float, means: Mapping[str, float]) -> None:
        """Records an evaluation."""
        self._publish(self._labelled("validation", step, means, kl_weight))

    def _labelled(self, kind: str, step: int, values: Mapping[str, Any], kl_weight: float) -> Record:
        """Values with their step and with what the KL among them means."""
        return {
            "kind": kind,
            "step": step,
            "epoch": round(step / self._steps_per_epoch, 6),
            **values,
            "kl_reduction": self.reduction,
            "kl_weight": kl_weight,
        }

    def _publish(self, record: Record) -> None:
        self.last[record["kind"]] = record
        if self._storage is not None:
            self._storage.append(record)
        if self._accelerator.trackers:
            numbers = {
                f"{record['kind']}/{name}": value
                for name, value in flatten(record).items()
                if isinstance(value, (int, float)) and name != "step"
            }
            self._accelerator.log(numbers, step=record["step"])
        if self._accelerator.is_main_process:
            for callback in self._driver.callbacks:
                callback(record, self._driver.model)

    def state_dict(self) -> dict[str, Any]:
        """Plain values for a checkpoint."""
        return {"meter": self.meter.state_dict(), "last": self.last}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes over what :meth:`state_dict` returned."""
        self.meter.load_state_dict(state["meter"])
        self.last = dict(state["last"])


def mean_diagnostics(ranks: Sequence[Mapping[str, Mapping[str, float]]]) -> dict[str, dict[str, float]]:
    """Each site's figures, averaged over the ranks.

    Example:
        >>> mean_diagnostics([{"layer": {"cv": 0.25}}, {"layer": {"cv": 0.75}}])
        {'layer': {'cv': 0.5}}
    """
    return {
        site: {name: sum(rank[site][name] for rank in ranks) / len(ranks) for name in figures}
        for site, figures in ranks[0].items()
    }
