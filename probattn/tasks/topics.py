"""Topics of a report: measurements besides predictions that the attention methods of a network request.

A function of this module measures each topic; :mod:`probattn.report` has its records and its section. Every task
provides a :class:`TopicData` and stores what :func:`measure_topics` returns. A further topic, whose results are tables,
is added by :func:`register_topic`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from torch import Tensor

from probattn.models import AttentionCalls, HeadRedundancy, head_redundancy, inspect
from probattn.models.hosts.convert import conversion
from probattn.models.hosts.methods import head_lengths
from probattn.report import (
    MODEL_LABELS,
    Alignment,
    HeadDrops,
    HeadRows,
    Heads,
    HeadsKey,
    Listing,
    SiteHeads,
    clouds,
    gather,
    head_bandwidths,
    site_alignments,
    site_heads,
)
from probattn.report.sites import SiteHealth, site_health, weight_spreads
from probattn.sites.bayesian import KLReduction
from probattn.tasks.networks import Network, measured, on_device
from probattn.tasks.progress import counting


@dataclass(frozen=True)
class TopicData:
    """Test examples of a run, with functions that the topics need.

    Attributes:
        take: returns the requested number of examples, or fewer if there are not enough.
        batches: returns the inputs of a network for examples, in batches.
        start: returns the program of the network before training; None if it is not available.
        report: the recipe's section on the report.
        prediction: object with ``num_samples``, ``seed``, ``chunk_size`` and ``batch_size`` of predictions, such as the
            recipe's section ``prediction``.
        accuracy: returns a function without arguments that measures a network on examples, in [0, 1]; None if the task
            has no such measure.
        measure: name of the measure of ``accuracy``.
        rows: returns the attention of the heads of some attention calls in single texts.
    """

    take: Callable[[int], Any]
    batches: Callable[[Network[Any], Any], Iterable[Mapping[str, Tensor]]]
    start: Callable[[], Any]
    report: Any
    prediction: Any
    accuracy: Callable[[Network[Any], Any], Callable[[], float]] | None = None
    measure: str = "accuracy"
    rows: Callable[[AttentionCalls], Iterable[HeadRows]] = lambda _: ()


HEALTH_BATCHES = 4
"""Number of batches over which :func:`health` averages the posterior standard deviation of weights."""
HEALTH_CHUNK = 2
"""Draws per forward pass of :func:`health`, which holds the weights of all sites in memory."""


def measure_posterior(networks: Sequence[Network[Any]], data: TopicData) -> tuple[SiteHealth, ...]:
    """State of the posterior of the run's network, by :func:`health`."""
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
    """State of the posterior at each site: variation of the weights over some batches, and the last training records.

    ``reduction`` is the reduction of the KL, for networks that :func:`probattn.convert` did not convert. The result is
    empty if attention is not latent or training recorded nothing about it.
    """
    record = conversion(network.net)
    if record is not None and record.method is not None:
        reduction = record.method.kl_reduction
    with_sites = [step["sites"] for step in network.records if step.get("sites")]
    if reduction is None or not with_sites:
        return ()
    spreads = weight_spreads(
        network.program,
        map(
            network.moved,
            network.tracked(list(islice(batches, HEALTH_BATCHES)), "spread of the attention weights"),
        ),
        max(2, options.num_samples),  # one draw has no spread
        seed=options.seed,
        chunk_size=chunk_size or HEALTH_CHUNK,
    )
    return tuple(site_health(spreads, with_sites[-1], reduction))


def measure_alignment(networks: Sequence[Network[Any]], data: TopicData) -> Alignment | None:
    """Distances of queries and keys at converted calls, by the first network's bandwidths; None without examples."""
    report = data.report
    if not report.alignment_examples:
        return None
    examples, net = data.take(report.alignment_examples), networks[-1].net
    calls = inspect(net)
    samples = {
        network.key: gather(
            network.captured(network.tracked(data.batches(network, examples), "queries and keys"), calls)
        )
        for network in networks
    }
    first = networks[0].key
    bandwidths = {name: head_bandwidths(sample) for name, sample in samples[first].items()}
    drawn = [call.name for call in inspect(net, layers=report.map_layers)]
    return Alignment(
        texts=len(examples),
        bandwidth_of=first,
        sites=tuple(
            record for key, sample in samples.items() for record in site_alignments(sample, bandwidths, key)
        ),
        projection=report.projection,
        clouds=tuple(
            cloud
            for key, sample in samples.items()
            for name in drawn
            for cloud in clouds(
                sample[name], key, name, projection=report.projection, seed=data.prediction.seed
            )
        ),
    )


def measure_heads(networks: Sequence[Network[Any]], data: TopicData) -> Heads | None:
    """Diversity and importance of heads, also before training; None if no head is compared or no call has two heads."""
    last = networks[-1]
    calls = AttentionCalls(call for call in inspect(last.net) if call.num_heads > 1)
    if not data.report.head_examples or not calls:
        return None
    compared: dict[HeadsKey, Network[Any]] = {}
    if (untrained := data.start()) is not None:
        compared["start"] = Network(on_device(untrained), last.folder, "deterministic", last.codec)
    compared.update((network.key, network) for network in networks)
    examples = data.take(data.report.head_examples)
    sites: list[SiteHeads] = []
    for key, network in compared.items():
        doing = "comparison of heads" + (" before training" if key == "start" else "")
        inputs = network.tracked(data.batches(network, examples), doing)
        sites += site_heads(network.captured(inputs, calls), key, head_lengths(network.net, calls))
    return Heads(
        texts=len(examples), sites=tuple(sites), rows=tuple(data.rows(calls)), **_drops(networks, data, calls)
    )


def _drops(networks: Sequence[Network[Any]], data: TopicData, calls: AttentionCalls) -> dict[str, Any]:
    """Accuracy with all heads and without each, where the task has one."""
    if data.accuracy is None or not data.report.masked_examples:
        return {}
    examples = data.take(data.report.masked_examples)
    accuracies = {
        network.key: _without_heads(network, data.accuracy(network, examples), calls) for network in networks
    }
    return {
        "masked_texts": len(examples),
        "measure": data.measure,
        "whole": {key: accuracy.whole for key, accuracy in accuracies.items()},
        "drops": tuple(
            HeadDrops(model=key, site=site, accuracy=values)
            for key, accuracy in accuracies.items()
            for site, values in accuracy.masked.items()
        ),
    }


def _without_heads(
    network: Network[Any], accuracy: Callable[[], float], calls: AttentionCalls
) -> HeadRedundancy:
    """The accuracy of a network with all heads and without each."""
    title = f"{MODEL_LABELS[network.key]} attention: accuracy without each head"
    with counting(title, 1 + sum(call.num_heads for call in calls)) as done:

        def measured() -> float:
            value = accuracy()
            done()
            return value

        return head_redundancy(network.net, measured, calls)


Measure = Callable[[Sequence[Network[Any]], TopicData], Any]
"""Function that measures networks, the deterministic baseline first if there is one, on test examples."""

TOPICS: dict[str, tuple[str, Measure]] = {
    "posterior": ("health", measure_posterior),
    "alignment": ("alignment", measure_alignment),
    "heads": ("heads", measure_heads),
}
"""Field of the results and measuring function of each topic, by the name that methods list in ``measured``."""


def register_topic(
    name: str, measure: Callable[[Sequence[Network[Any]], TopicData], Iterable[Listing]]
) -> None:
    """Adds a topic whose results are tables of the report.

    Args:
        name: name of the topic, which methods list in ``measured``.
        measure: function of networks, the deterministic baseline first if there is one, and of test examples, that
            returns the tables.

    Raises:
        ValueError: a topic of this name exists already.
    """
    if name in TOPICS:
        raise ValueError(f"register_topic: expected a new name, got {name!r} ({', '.join(TOPICS)} are there)")
    TOPICS[name] = ("listings", measure)


def measure_topics(networks: Sequence[Network[Any]], data: TopicData) -> dict[str, Any]:
    """Measures the topics that the methods of the run's network list in ``measured``; returns fields of the results.

    Args:
        networks: the deterministic baseline, if there is one, and last the run's network.
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


__all__ = ["TOPICS", "TopicData", "measure_topics", "register_topic"]
