"""The topics that there are, and how they are measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from probattn.report import Listing
from probattn.tasks.networks import Network, measured
from probattn.tasks.topics.alignment import measure_alignment
from probattn.tasks.topics.data import TopicData
from probattn.tasks.topics.heads import measure_heads
from probattn.tasks.topics.posterior import measure_posterior

Measure = Callable[[Sequence[Network[Any]], TopicData], Any]
"""Measures networks, the deterministic baseline first if there is one, on test examples."""

TOPICS: dict[str, tuple[str, Measure]] = {
    "posterior": ("health", measure_posterior),
    "alignment": ("alignment", measure_alignment),
    "heads": ("heads", measure_heads),
}
"""Field of the records and measuring function, by what a method names in ``measured``."""


def register_topic(
    name: str, measure: Callable[[Sequence[Network[Any]], TopicData], Iterable[Listing]]
) -> None:
    """Adds a topic whose results are tables of the report.

    Args:
        name: what a method names in its ``measured``.
        measure: returns the tables of networks, the deterministic baseline first if there is one, and of test
            examples.

    Raises:
        ValueError: there is a topic of that name.
    """
    if name in TOPICS:
        raise ValueError(f"register_topic: expected a new name, got {name!r} ({', '.join(TOPICS)} are there)")
    TOPICS[name] = ("listings", measure)


def measure_topics(networks: Sequence[Network[Any]], data: TopicData) -> dict[str, Any]:
    """Records of the topics that the methods of the run's network ask for, by field of the results.

    Args:
        networks: the deterministic baseline, if there is one, and the run's own last.
        data: test examples.

    Raises:
        ValueError: a method names a topic that is not registered.
    """
    names = measured(networks[-1].net)
    if unknown := names - TOPICS.keys():
        raise ValueError(
            f"measured: expected topics among {', '.join(TOPICS)}, got {min(unknown)!r}; register_topic adds one"
        )
    records: dict[str, Any] = {}
    for name, (field, measure) in TOPICS.items():
        if name in names:
            record = measure(networks, data)
            records[field] = (*records.get(field, ()), *record) if field == "listings" else record
    return records
