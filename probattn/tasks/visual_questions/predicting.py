"""Probabilities of answers, with draws, and where a network looks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from probattn.inference.expansion import posterior_moments
from probattn.inference.predictive import posterior_expectation, posterior_predict, rows_per_pass
from probattn.inference.report import ModelKey
from probattn.models import VisualQuestionProgram
from probattn.tasks.programs import Network
from probattn.tasks.visual_questions.results import AnswerMap, Values

Trained = Network[VisualQuestionProgram]
DIGITS = 5
"""Digits of the weights in records."""
SEEDS = 1_000_003
"""More than there are batches: no two seeds of a recipe share one of them."""
OF_REGIONS = (".decoder.", "image_reduction")
"""In names of attention calls whose keys are regions, unless they are guided by words."""


def answers_of(network: Trained) -> tuple[str, ...]:
    """The answers that a network chooses between, in the order of its outputs."""
    names = cast(dict[int, str], network.net.config.id2label)
    return tuple(names[number] for number in range(len(names)))


class Answered(NamedTuple):
    """Probabilities of answers ``[B, C]``, and draws of them ``[P, B, C]``, None without draws."""

    probabilities: Tensor
    draws: Tensor | None


def answered(
    network: Trained, inputs: Mapping[str, Tensor], options: Any, number: int, *, dropout: bool = True
) -> dict[ModelKey, Answered]:
    """Answers to a batch by model: of latent attention the mean over draws, and at its expectation.

    Args:
        network: a trained one.
        inputs: a batch on its device, without labels.
        options: with ``num_samples``, ``chunk_size`` and ``seed``.
        number: of the batch, from which its draws are seeded too.
        dropout: whether deterministic attention gets draws with dropout (Gal & Ghahramani 2016).
    """
    program, count = network.program, options.num_samples
    if network.key == "bayesian_mean":
        drawn = posterior_predict(
            program, inputs, count, seed=(options.seed, number), chunk_size=options.chunk_size
        )
        expected = posterior_expectation(program, inputs).float().sigmoid()
        return {
            "bayesian_mean": Answered(drawn.mean_probabilities, drawn.probabilities if count > 1 else None),
            "bayesian_expectation": Answered(expected, None),
        }
    with torch.no_grad():
        found = program(inputs).float().sigmoid()
    active = any(isinstance(each, nn.Dropout) and each.p for each in network.net.modules())
    draws = dropout_draws(network, inputs, options, number) if dropout and active and count > 1 else None
    return {network.key: Answered(found, draws)}


@torch.no_grad()
def dropout_draws(network: Trained, inputs: Mapping[str, Tensor], options: Any, number: int) -> Tensor:
    """Probabilities ``[P, B, C]`` with dropout kept on; torch's generators and the network's mode stay as they were."""
    rows, device = len(inputs["input_ids"]), network.device
    chunk = max(1, (options.chunk_size or rows_per_pass(device) // rows or 1))
    parts = []
    with torch.random.fork_rng(devices=[device.index or 0] if device.type == "cuda" else []):
        torch.manual_seed(options.seed * SEEDS + number)
        network.program.train()
        try:
            for start in range(0, options.num_samples, chunk):
                size = min(chunk, options.num_samples - start)
                folded = {
                    name: value.repeat(size, *[1] * (value.dim() - 1)) for name, value in inputs.items()
                }
                parts.append(network.program(folded).float().sigmoid().unflatten(0, (size, rows)))
        finally:
            network.program.eval()
    return torch.cat(parts)


class Looks(NamedTuple):
    """Where a network looks for one question, as the fields of a sample."""

    word_map: AnswerMap
    region_map: AnswerMap
    word_weights: AnswerMap
    region_weights: AnswerMap
    word_shares: Values
    region_shares: Values


def looks(network: Trained, inputs: Mapping[str, Tensor], options: Any, *, shares: bool) -> Looks:
    """Attention weights of a single question, and the parts of words and regions in the variance of its answer.

    Args:
        network: a trained one.
        inputs: a batch of one question without padding.
        options: with ``num_samples`` and ``seed``.
        shares: whether to attribute the variance, where attention is latent.
    """
    sizes: list[int] = []

    def read(given: Mapping[str, Tensor]) -> Tensor:
        """All maps of each row, one after the other, mean over heads."""
        output = network.net(**given, output_attentions=True)
        maps = (
            output.encoder_attentions[-1],
            output.cross_attentions[-1],
            output.word_weights,
            output.region_weights,
        )
        flat = [each.mean(dim=1).flatten(1) for each in maps]
        sizes[:] = [each.shape[1] for each in flat]
        return torch.cat(flat, dim=1)

    latent = network.key == "bayesian_mean"
    if latent:
        drawn = posterior_predict(read, inputs, options.num_samples, seed=(options.seed, 0)).logits[:, 0]
    else:
        with torch.no_grad():
            drawn = read(inputs)
    means = drawn.mean(dim=0).split(sizes)
    spreads = drawn.std(dim=0).split(sizes) if latent and len(drawn) > 1 else None
    maps = [
        AnswerMap(mean=_rounded(mean), spread=() if spreads is None else _rounded(spreads[place]))
        for place, mean in enumerate(means)
    ]
    words, regions = shares_of(network, inputs) if latent and shares else ((), ())
    return Looks(maps[0], maps[1], maps[2], maps[3], words, regions)


def shares_of(network: Trained, inputs: Mapping[str, Tensor]) -> tuple[Values, Values]:
    """Parts of words and of regions, as keys, in the variance of a single question's answer; 1 together."""
    moments = posterior_moments(network.program, inputs, attribution=True, method="expansion")
    parts: dict[bool, list[Tensor]] = {True: [], False: []}
    for site, share in (moments.share or {}).items():
        regions = any(word in site for word in OF_REGIONS) and not site.endswith("guided")
        parts[regions].append(share[0].sum(dim=(0, 1)))
    words, regions_ = (
        _rounded(torch.stack(found).sum(dim=0)) if found else () for found in (parts[False], parts[True])
    )
    return words, regions_


def _rounded(values: Tensor) -> Values:
    return tuple(round(max(0.0, value), DIGITS) for value in values.flatten().tolist())
