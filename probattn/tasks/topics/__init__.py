"""Topics of a report: what the methods of a network ask to be measured besides predictions.

A topic has a file here that measures it and one in :mod:`probattn.report` with its records and its section. Every task
hands over a :class:`TopicData` and keeps what :func:`measure_topics` returns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from probattn.sites.method import Measured
from probattn.tasks.networks import Network, measured
from probattn.tasks.topics.alignment import measure_alignment
from probattn.tasks.topics.data import TopicData
from probattn.tasks.topics.heads import measure_heads
from probattn.tasks.topics.posterior import measure_posterior

TOPICS: Mapping[Measured, tuple[str, Callable[[Sequence[Network[Any]], TopicData], Any]]] = MappingProxyType(
    {
        "posterior": ("health", measure_posterior),
        "alignment": ("alignment", measure_alignment),
        "heads": ("heads", measure_heads),
    }
)
"""Field of the records and measuring function, by what a method names in ``measured``."""


def measure_topics(networks: Sequence[Network[Any]], data: TopicData) -> dict[str, Any]:
    """Records of the topics that the methods of the run's network ask for, by field of the results.

    Args:
        networks: the deterministic baseline, if there is one, and the run's own last.
        data: test examples.
    """
    topics = measured(networks[-1].net)
    return {field: measure(networks, data) for name, (field, measure) in TOPICS.items() if name in topics}


__all__ = ["TOPICS", "TopicData", "measure_topics"]
