"""How the heads of a run's networks differ, and what each is good for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from probattn.models import AttentionCalls, HeadRedundancy, head_redundancy, inspect
from probattn.models.hosts.methods import head_lengths
from probattn.report import (
    MODEL_LABELS,
    HeadDrops,
    Heads,
    HeadsKey,
    SiteHeads,
    site_heads,
)
from probattn.tasks.networks import Network, on_device
from probattn.tasks.progress import counting
from probattn.tasks.topics.data import TopicData


def measure_heads(networks: Sequence[Network[Any]], data: TopicData) -> Heads | None:
    """Compares the heads of networks, with those before training beside them.

    Args:
        networks: the deterministic baseline, if there is one, and the run's own last.
        data: test examples.

    Returns:
        The records; None where nothing is to be compared, or no call has two heads.
    """
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
        texts=len(examples),
        sites=tuple(sites),
        rows=tuple(data.rows(calls)),
        **_drops(networks, data, calls),
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
