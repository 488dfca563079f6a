"""Predictions of networks as posteriors, and their columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _NormBase

from probattn.inference.expansion import posterior_moments
from probattn.inference.moments import Moments
from probattn.inference.posterior import Posterior, linked
from probattn.inference.predictive import posterior_expectation, posterior_predict, rows_per_pass
from probattn.inference.session import generator_states
from probattn.models.hosts.dry_run import kept_generators
from probattn.models.program import evaluating
from probattn.report import ModelKey, Predictions
from probattn.report.bootstrap import Columns
from probattn.tasks.answering import Drawing
from probattn.tasks.networks import Network

Read = Callable[[Mapping[str, Tensor]], Tensor]
"""A prediction as a function of a batch: a program, or a part of what one predicts."""
SEEDS = 2**31
"""Number of seeds of a recipe: between those of dropout in two batches there is room for all of them."""


def predictions(
    network: Network[Any],
    batches: Iterable[Mapping[str, Tensor]],
    drawing: Drawing,
    *,
    dropout: bool = True,
    first_batch: int = 0,
    moments: bool = False,
) -> dict[ModelKey, Predictions]:
    """Probabilities of classes, or labels, by model: of latent attention of draws, at its expectation, in closed form.

    "moments" of latent attention are its own prediction, and draws replace them where the closed form does not serve;
    with ``moments`` they go with its draws, unchecked. ``dropout`` draws where attention is deterministic (Gal and
    Ghahramani 2016), for PAvPU, which needs some spread: not of a network that takes no random numbers.
    """
    program, latent = network.program, network.key == "bayesian_mean"
    alone = latent and drawing.uncertainty == "moments"
    dropping = dropout and not network.has_draws and drawing.num_samples > 0
    used = {parameter.device for parameter in program.parameters()}
    posteriors: dict[ModelKey, list[Posterior]] = {}
    expanded, dropped = [], []
    with kept_generators(program):
        torch.manual_seed(
            drawing.seed + SEEDS * first_batch
        )  # functional dropout takes no generator of its own
        for number, batch in enumerate(batches, first_batch):
            inputs = network.moved(batch)
            if alone:
                options: dict[str, Any] = {"num_samples": max(drawing.num_samples, 2)}
                expanded.append(posterior_moments(program, inputs, seed=(drawing.seed, number), **options))
                continue
            for model, posterior in posteriors_of(network, program, inputs, drawing, number).items():
                posteriors.setdefault(model, []).append(posterior)
            if latent and moments:
                expanded.append(posterior_moments(program, inputs, method="expansion"))
            if dropping:
                # An accelerator rounds repeated passes in several ways: values do not tell whether anything was drawn.
                before = generator_states(used)
                dropped.append(_dropout_draws(program, inputs, drawing.num_samples))
                dropping = not all(map(torch.equal, before, generator_states(used)))
    joined_moments = Moments.together(expanded) if expanded else None
    if joined_moments is not None and alone:
        closed = 1 - joined_moments.drawn.double().mean().item()
        return {network.key: Predictions.from_moments(joined_moments, drawing.num_samples, closed)}
    models = {}
    for model, batch_posteriors in posteriors.items():
        draws = torch.cat([posterior.probabilities for posterior in batch_posteriors], dim=1)
        drawn = network.has_draws and model == network.key
        models[model] = Predictions.from_draws(draws) if drawn else Predictions(draws[0])
    if dropping:
        scored = models[network.key].probabilities
        models[network.key] = Predictions(scored, torch.cat(dropped, dim=1), "dropout")
    if joined_moments is not None:
        models["bayesian_moments"] = Predictions.from_moments(joined_moments, drawing.num_samples)
    return models


def _dropout_draws(model: Any, inputs: Mapping[str, Tensor], num_samples: int) -> Tensor:
    """Probabilities ``[P, B, C]`` with dropout, folded into the batch; running statistics stay."""
    first = next(iter(inputs.values()))
    rows, draws = len(first), []
    chunk = max(1, rows_per_pass(first.device) // rows)
    with evaluating(model), torch.no_grad():
        for module in model.modules():
            module.training = not isinstance(module, _NormBase)
        for start in range(0, num_samples, chunk):
            size = min(chunk, num_samples - start)
            folded = {name: value.repeat(size, *[1] * (value.dim() - 1)) for name, value in inputs.items()}
            draws.append(linked(model(folded), model.link).unflatten(0, (size, rows)).cpu())
    return torch.cat(draws)


def posterior_of(
    network: Network[Any], read: Read, inputs: Mapping[str, Tensor], options: Any, number: int
) -> Posterior:
    """Predictions of a batch by ``read``, on the CPU: draws, seeded by its ``number``, or one without draws."""
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
