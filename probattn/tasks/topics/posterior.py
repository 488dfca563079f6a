"""The state of the posterior at each site."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

from probattn.models.hosts.convert import conversion
from probattn.report.sites import SiteHealth, site_health, weight_spreads
from probattn.sites.bayesian import KLReduction
from probattn.tasks.networks import Network
from probattn.tasks.topics.data import TopicData

HEALTH_BATCHES = 4
"""Batches over which the spread of the weights is averaged."""
HEALTH_CHUNK = 2
"""Draws per pass while all sites' weights are looked at: a pass holds them all."""


def measure_posterior(networks: Sequence[Network[Any]], data: TopicData) -> tuple[SiteHealth, ...]:
    """The spread of the weights of the run's network over a few batches, and the last records of its training."""
    network, prediction = networks[-1], data.prediction
    examples = data.take(HEALTH_BATCHES * prediction.batch_size)
    batches = (network.program.inputs(network.moved(batch)) for batch in data.batches(network, examples))
    return health(network, batches, prediction, chunk_size=prediction.chunk_size)


def health(
    network: Network[Any],
    batches: Iterable[Any],
    options: Any,
    *,
    reduction: KLReduction | None = None,
    chunk_size: int | None = None,
) -> tuple[SiteHealth, ...]:
    """The state of the posterior at each site; empty without latent attention, and where training recorded none.

    Args:
        network: any.
        batches: inputs; the spread of the weights is averaged over the first :data:`HEALTH_BATCHES`.
        options: with ``num_samples`` and ``seed``.
        reduction: how a site's KL enters the objective, of networks whose sites do not come from ``convert``.
        chunk_size: draws that go through the network at once; :data:`HEALTH_CHUNK` by default.
    """
    record = conversion(network.net)
    if record is not None and record.method is not None:
        reduction = record.method.kl_reduction
    with_sites = [step["sites"] for step in network.records if step.get("sites")]
    if reduction is None or not with_sites:
        return ()
    spreads = weight_spreads(
        network.program,
        network.tracked(list(islice(batches, HEALTH_BATCHES)), "spread of the attention weights"),
        max(2, options.num_samples),  # one draw has no spread
        seed=options.seed,
        chunk_size=chunk_size or HEALTH_CHUNK,
        device=network.device,
    )
    return tuple(site_health(spreads, with_sites[-1], reduction))
