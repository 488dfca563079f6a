"""How the heads of a finished run of translation differ, and what each is good for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import torch

from probattn.cli.trained import compares_heads
from probattn.cli.trained_translator import TrainedTranslator
from probattn.cli.translation_networks import build_network
from probattn.data import SentencePairs
from probattn.inference.report import HeadDrops, Heads, HeadsKey, ModelKey, SiteHeads, site_heads
from probattn.models import AttentionCalls, CapturedCall, Translator, capture, head_redundancy, inspect
from probattn.models.hosts.projections import head_lengths
from probattn.recipes import TranslationRecipe


def measure_heads(
    networks: Sequence[TrainedTranslator], test: SentencePairs, recipe: TranslationRecipe
) -> Heads | None:
    """Compares the heads of the run's network, of its baseline, and of both before training.

    Args:
        networks: the run's own last.
        test: the test pairs; fixed choices of ``report.head_pairs`` and ``report.masked_pairs`` are looked at.
        recipe: of the run.

    Returns:
        The records; None where no method was there to keep heads apart, no pair is to be looked at, or no call has two
        heads.
    """
    own, report = networks[-1], recipe.report
    calls = AttentionCalls(call for call in inspect(own.net) if call.num_heads > 1)
    if not compares_heads(own.net) or not report.head_pairs or not calls:
        return None
    start = Translator(build_network(recipe, len(own.subwords))).to(own.device).eval()
    compared: dict[HeadsKey, TrainedTranslator] = {
        "start": TrainedTranslator(start, own.subwords, own.folder),
        **{each.key: each for each in networks},
    }
    chosen = test.take(report.head_pairs)
    sites: list[SiteHeads] = []
    for key, each in compared.items():
        sites += site_heads(_captured(each, chosen, recipe, calls), key, head_lengths(each.net, calls))
    masked = test.take(report.masked_pairs)
    whole: dict[ModelKey, float] = {}
    drops: list[HeadDrops] = []
    for each in networks if report.masked_pairs else ():
        found = head_redundancy(each.net, partial(_accuracy, each, masked, recipe), calls)
        whole[each.key] = found.whole
        drops += [
            HeadDrops(model=each.key, site=site, accuracy=values) for site, values in found.masked.items()
        ]
    return Heads(
        texts=len(chosen),
        sites=tuple(sites),
        masked_texts=len(masked) if drops else 0,
        whole=whole,
        drops=tuple(drops),
    )


def _captured(
    network: TrainedTranslator, pairs: SentencePairs, recipe: TranslationRecipe, calls: AttentionCalls
) -> Iterator[Mapping[str, CapturedCall]]:
    for batch in network.batches(pairs, recipe):
        inputs = {name: tensor for name, tensor in batch.items() if name != "labels"}
        with torch.no_grad():
            yield capture(network.net, inputs, calls)


def _accuracy(network: TrainedTranslator, pairs: SentencePairs, recipe: TranslationRecipe) -> float:
    """Share of subwords that are the first choice."""
    sums = network.tokens(pairs, recipe)
    return sums["correct"] / sums["tokens"]
