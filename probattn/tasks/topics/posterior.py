"""The state of the posterior at each site."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from probattn.report.sites import SiteHealth
from probattn.tasks.programs import HEALTH_BATCHES, Network, health
from probattn.tasks.topics.data import TopicData


def measure_posterior(networks: Sequence[Network[Any]], data: TopicData) -> tuple[SiteHealth, ...]:
    """The spread of the weights of the run's network over a few batches, and the last records of its training."""
    own, prediction = networks[-1], data.prediction
    examples = data.take(HEALTH_BATCHES * prediction.batch_size)
    batches = (own.program.inputs(own.moved(batch)) for batch in data.batches(own, examples))
    return health(own, batches, prediction, chunk_size=prediction.chunk_size)
