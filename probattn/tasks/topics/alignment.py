"""Distances of the queries and keys of a run's networks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from probattn.models import inspect
from probattn.report import Alignment, clouds, gather, head_bandwidths, site_alignments
from probattn.tasks.networks import Network
from probattn.tasks.topics.data import TopicData


def measure_alignment(networks: Sequence[Network[Any]], data: TopicData) -> Alignment | None:
    """Distances of queries and keys at the calls that conversion changed; None where no examples are asked for.

    The bandwidth of the kernel is the baseline's, so that it does not move with what is measured; without a baseline it
    is the network's own.
    """
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
