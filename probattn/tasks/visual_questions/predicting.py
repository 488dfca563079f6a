"""What a network answers to single questions, and its attention maps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor

from probattn.inference.expansion import posterior_moments
from probattn.inference.predictive import posterior_predict
from probattn.models import McanForQuestionAnswering, VisualQuestionProgram, inspect
from probattn.tasks.networks import Network
from probattn.tasks.visual_questions.results import AnswerMap, Values

Trained = Network[VisualQuestionProgram]
DIGITS = 5
"""Digits of the weights in records."""


def answers_of(network: Trained) -> tuple[str, ...]:
    """The answers that a network chooses between, in the order of its outputs."""
    names = cast(dict[int, str], network.net.config.id2label)
    return tuple(names[number] for number in range(len(names)))


def attention_maps(network: Trained, inputs: Mapping[str, Tensor], options: Any) -> dict[str, AnswerMap]:
    """Attention of a single question, by the names that a sample has for it.

    Args:
        network: a trained one.
        inputs: a batch of one question without padding.
        options: with ``num_samples`` and ``seed``.
    """
    config, words = network.net.config, inputs["input_ids"].shape[1]
    regions = inputs["region_features"].shape[1] if config.grid_size is None else config.grid_size**2
    shapes = {
        "word_map": (words, words),
        "region_map": (regions, words),
        "word_weights": (1, words),
        "region_weights": (1, regions),
    }

    def read(rows: Mapping[str, Tensor]) -> Tensor:
        """All maps of each row, one after the other, means over heads."""
        output = network.net(**rows, output_attentions=True)
        last = (output.encoder_attentions[-1], output.cross_attentions[-1])
        maps = (*last, output.word_weights, output.region_weights)
        return torch.cat([item.mean(dim=1).flatten(1) for item in maps], dim=1)

    latent = network.key == "bayesian_mean"
    drawn = posterior_predict(
        read, inputs, options.num_samples if latent else 1, seed=(options.seed, 0)
    ).logits[:, 0]
    draws_of_maps = drawn.split([height * width for height, width in shapes.values()], dim=1)
    return {
        name: AnswerMap(
            mean=_rows(draws.mean(dim=0).view(shape)),
            spread=_rows(draws.std(dim=0).view(shape)) if len(draws) > 1 else (),
        )
        for (name, shape), draws in zip(shapes.items(), draws_of_maps, strict=True)
    }


def variance_shares(network: Trained, inputs: Mapping[str, Tensor], answer: str) -> dict[str, Values]:
    """Parts of words and of regions, as keys, in the variance of an answer to a single question; 1 together."""
    if network.key != "bayesian_mean":
        return {}
    words = cast(McanForQuestionAnswering, network.net).dry_inputs()["input_ids"].shape[1]
    of_words = {call.name for call in inspect(network.net) if call.shape[2] == words}
    number = answers_of(network).index(answer)
    moments = posterior_moments(network.program, inputs, attribution=number, method="expansion")
    sums: dict[str, Tensor] = {}
    for site, share in (moments.share or {}).items():
        name = "word_shares" if site in of_words else "region_shares"
        sums[name] = sums.get(name, 0) + share[0].sum(dim=(0, 1))
    return {name: _rows(total[None])[0] for name, total in sums.items()}


def _rows(values: Tensor) -> tuple[Values, ...]:
    return tuple(tuple(round(max(0.0, value), DIGITS) for value in row) for row in values.tolist())
