"""What studies over seeds say of a method: means, and differences and ratios to another method of the same seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from probattn.metrics.functional import mean_interval

Run = Mapping[str, Any]


def means(own: Sequence[Run], measures: Sequence[str]) -> dict[str, Any]:
    """Mean and interval of each measure."""
    return {name: mean_interval(run[name] for run in own)._asdict() for name in measures}


def differences(own: Sequence[Run], others: Mapping[int, Run], measures: Sequence[str]) -> dict[str, Any]:
    """Mean and interval of each measure's difference to the other run of the same seed; nothing without such runs."""
    pairs = _pairs(own, others)
    return {
        name: mean_interval(run[name] - other[name] for run, other in pairs)._asdict()
        for name in (measures if pairs else ())
    }


def ratio(own: Sequence[Run], others: Mapping[int, Run], measure: str) -> dict[str, Any] | None:
    """Mean and interval of a measure over that of the other run of the same seed; None without such runs."""
    pairs = _pairs(own, others)
    return mean_interval(run[measure] / other[measure] for run, other in pairs)._asdict() if pairs else None


def _pairs(own: Sequence[Run], others: Mapping[int, Run]) -> list[tuple[Run, Run]]:
    return [(run, others[run["seed"]]) for run in own if run["seed"] in others]
