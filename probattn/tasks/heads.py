"""How the heads of a run's networks differ, and what each is good for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor

from probattn.inference.report import (
    MODEL_LABELS,
    HeadDrops,
    HeadRows,
    Heads,
    HeadsKey,
    ModelKey,
    SiteHeads,
    site_heads,
)
from probattn.models import AttentionCalls, head_redundancy, inspect
from probattn.models.hosts import HeadRedundancy
from probattn.models.hosts.projections import head_lengths
from probattn.tasks.programs import Network
from probattn.tasks.progress import counting

AnyNetwork = Network[Any]


def compared_calls(network: AnyNetwork) -> AttentionCalls:
    """The calls with two heads or more, of those that conversion changed."""
    return AttentionCalls(call for call in inspect(network.net) if call.num_heads > 1)


def measure_heads(
    networks: Sequence[AnyNetwork],
    start: AnyNetwork | None,
    batches: Callable[[AnyNetwork], Iterable[Mapping[str, Tensor]]],
    accuracy: Callable[[AnyNetwork], Callable[[], float]],
    *,
    texts: int,
    masked: int,
    rows: Sequence[HeadRows] = (),
) -> Heads | None:
    """Compares the heads of networks, with those before training beside them.

    Args:
        networks: the deterministic baseline, if there is one, and the run's own last.
        start: the network before training; None where it is not there any more.
        batches: inputs on which the heads of a network are compared.
        accuracy: gives what measures a network, which is called with all heads and without each.
        texts: number of inputs in ``batches``; 0 for no comparison.
        masked: number of inputs behind ``accuracy``; 0 for no such measures.
        rows: where each head looks in single texts.

    Returns:
        The records; None where nothing is to be compared, or no call has two heads.
    """
    calls = compared_calls(networks[-1])
    if not texts or not calls:
        return None
    compared: dict[HeadsKey, AnyNetwork] = {} if start is None else {"start": start}
    compared.update((each.key, each) for each in networks)
    sites: list[SiteHeads] = []
    for key, each in compared.items():
        doing = "comparison of heads" + (" before training" if key == "start" else "")
        inputs = each.tracked(batches(each), doing)
        sites += site_heads(each.captured(inputs, calls), key, head_lengths(each.net, calls))
    whole: dict[ModelKey, float] = {}
    drops: list[HeadDrops] = []
    for each in networks if masked else ():
        accuracies = _without_heads(each, accuracy(each), calls)
        whole[each.key] = accuracies.whole
        drops += [
            HeadDrops(model=each.key, site=site, accuracy=values)
            for site, values in accuracies.masked.items()
        ]
    return Heads(
        texts=texts,
        sites=tuple(sites),
        masked_texts=masked if drops else 0,
        whole=whole,
        drops=tuple(drops),
        rows=tuple(rows),
    )


def _without_heads(
    network: AnyNetwork, accuracy: Callable[[], float], calls: AttentionCalls
) -> HeadRedundancy:
    """The accuracy of a network with all heads and without each."""
    title = f"{MODEL_LABELS[network.key]} attention: accuracy without each head"
    with counting(title, 1 + sum(call.num_heads for call in calls)) as done:

        def measured() -> float:
            value = accuracy()
            done()
            return value

        return head_redundancy(network.net, measured, calls)
