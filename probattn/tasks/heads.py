"""How the heads of a run's networks differ, and what each is good for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor

from probattn.models import AttentionCalls, head_redundancy, inspect
from probattn.models.hosts import HeadRedundancy
from probattn.models.hosts.projections import head_lengths
from probattn.report import (
    MODEL_LABELS,
    HeadDrops,
    HeadRows,
    Heads,
    HeadsKey,
    ModelKey,
    SiteHeads,
    site_heads,
)
from probattn.tasks.programs import Network, on_device
from probattn.tasks.progress import counting

AnyNetwork = Network[Any]


def measure_heads(
    networks: Sequence[AnyNetwork],
    take: Callable[[int], Any],
    *,
    texts: int,
    masked: int,
    start: Callable[[], Any],
    batches: Callable[[AnyNetwork, Any], Iterable[Mapping[str, Tensor]]],
    accuracy: Callable[[AnyNetwork, Any], Callable[[], float]],
    rows: Callable[[AttentionCalls], Iterable[HeadRows]] = lambda _: (),
) -> Heads | None:
    """Compares the heads of networks, with those before training beside them.

    Args:
        networks: the deterministic baseline, if there is one, and the run's own last.
        take: gives a number of test inputs.
        texts: on how many the heads of a network are compared; 0 for no comparison.
        masked: on how many the accuracy without each head is measured; 0 for no such measures.
        start: gives the program of the network before training; None where it is not there any more.
        batches: inputs in batches.
        accuracy: gives what measures a network on inputs, which is called with all heads and without each.
        rows: where each head of these calls looks in single texts.

    Returns:
        The records; None where nothing is to be compared, or no call has two heads.
    """
    own = networks[-1]
    calls = AttentionCalls(call for call in inspect(own.net) if call.num_heads > 1)
    if not texts or not calls:
        return None
    compared: dict[HeadsKey, AnyNetwork] = {}
    if (untrained := start()) is not None:
        compared["start"] = Network(on_device(untrained), own.folder, "deterministic", own.codec)
    compared.update((each.key, each) for each in networks)
    chosen, tried = take(texts), take(masked) if masked else ()
    sites: list[SiteHeads] = []
    for key, each in compared.items():
        doing = "comparison of heads" + (" before training" if key == "start" else "")
        inputs = each.tracked(batches(each, chosen), doing)
        sites += site_heads(each.captured(inputs, calls), key, head_lengths(each.net, calls))
    whole: dict[ModelKey, float] = {}
    drops: list[HeadDrops] = []
    for each in networks if masked else ():
        accuracies = _without_heads(each, accuracy(each, tried), calls)
        whole[each.key] = accuracies.whole
        drops += [
            HeadDrops(model=each.key, site=site, accuracy=values)
            for site, values in accuracies.masked.items()
        ]
    return Heads(
        texts=len(chosen),
        sites=tuple(sites),
        masked_texts=len(tried),
        whole=whole,
        drops=tuple(drops),
        rows=tuple(rows(calls)),
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
