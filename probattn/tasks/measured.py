"""Predictions of networks as posteriors, and their columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from probattn.inference.posterior import Posterior
from probattn.inference.predictive import posterior_expectation, posterior_predict
from probattn.report import ModelKey
from probattn.report.bootstrap import Columns
from probattn.tasks.networks import Network

Read = Callable[[Mapping[str, Tensor]], Tensor]
"""A prediction as a function of a batch: a program, or a part of what one predicts."""


def posterior_of(
    network: Network[Any], read: Read, inputs: Mapping[str, Tensor], options: Any, number: int
) -> Posterior:
    """Predictions of a batch, on the CPU: draws of latent attention or particles, or the one prediction without.

    ``read`` is the program or a part of what it predicts; ``number`` of the batch seeds the draws.
    """
    if not network.has_draws:
        return expected_of(network, read, inputs)
    drawn = posterior_predict(
        read, inputs, options.num_samples, seed=(options.seed, number), chunk_size=options.chunk_size
    )
    return _posterior(network, drawn.logits)


def expected_of(network: Network[Any], read: Read, inputs: Mapping[str, Tensor]) -> Posterior:
    """The prediction of one pass, which takes latent attention at its expectation."""
    with torch.no_grad():
        return _posterior(network, read(inputs)[None])


def posteriors_of(
    network: Network[Any], read: Read, inputs: Mapping[str, Tensor], options: Any, number: int
) -> dict[ModelKey, Posterior]:
    """The same by model, of latent attention at its expectation too."""
    posteriors: dict[ModelKey, Posterior] = {
        network.key: posterior_of(network, read, inputs, options, number)
    }
    if network.key == "bayesian_mean":
        posteriors["bayesian_expectation"] = _posterior(network, posterior_expectation(read, inputs)[None])
    return posteriors


def _posterior(network: Network[Any], logits: Tensor) -> Posterior:
    return Posterior(logits.cpu(), link=network.program.link, noise=getattr(network.program, "noise", None))


def joined(batches: Sequence[Columns], order: Sequence[int]) -> dict[str, Tensor]:
    """Columns of batches together, their rows put back from the order in which they were computed.

    Example:
        >>> joined([{"row": torch.tensor([2, 0])}, {"row": torch.tensor([1])}], [2, 0, 1])["row"]
        tensor([0, 1, 2])
    """
    back = torch.tensor(order).argsort()
    return {name: torch.cat([batch[name] for batch in batches])[back] for name in batches[0]}
