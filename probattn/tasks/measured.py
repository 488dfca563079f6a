"""Predictions of networks as posteriors, and measures of them as functions of columns."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from probattn.inference.posterior import Posterior
from probattn.inference.predictive import posterior_expectation, posterior_predict
from probattn.report import Evaluation, ModelKey, ReliabilityBin, Scores, compare
from probattn.report.bootstrap import Columns, Figures
from probattn.report.evaluation import reliability_bins
from probattn.tasks.measures import binned_sums
from probattn.tasks.networks import Network

Read = Callable[[Mapping[str, Tensor]], Tensor]
"""A prediction as a function of a batch: a program, or a part of what one predicts."""


def posterior_of(
    network: Network[Any], read: Read, inputs: Mapping[str, Tensor], options: Any, number: int
) -> Posterior:
    """What a network predicts of a batch: draws of latent attention, or the one prediction without.

    Args:
        network: whose program has a ``link``.
        read: the program, or a part of what it predicts.
        inputs: of the batch, on the network's device.
        options: with ``num_samples``, ``seed`` and ``chunk_size``.
        number: of the batch, from which its draws are seeded.

    Returns:
        The predictions, on the CPU.
    """
    if network.key != "bayesian_mean":
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
    found: dict[ModelKey, Posterior] = {network.key: posterior_of(network, read, inputs, options, number)}
    if network.key == "bayesian_mean":
        found["bayesian_expectation"] = _posterior(network, posterior_expectation(read, inputs)[None])
    return found


def _posterior(network: Network[Any], logits: Tensor) -> Posterior:
    return Posterior(logits.cpu(), link=network.program.link, noise=getattr(network.program, "noise", None))


def joined(parts: Sequence[Columns], order: Sequence[int]) -> dict[str, Tensor]:
    """Columns of batches together, their rows put back from the order in which they were computed.

    Example:
        >>> joined([{"place": torch.tensor([2, 0])}, {"place": torch.tensor([1])}], [2, 0, 1])["place"]
        tensor([0, 1, 2])
    """
    back = torch.tensor(order).argsort()
    return {name: torch.cat([part[name] for part in parts])[back] for name in parts[0]}


def evaluation_of(
    table: Mapping[tuple[str, ModelKey], Columns],
    figures: Figures,
    measures: Collection[str],
    report: Any,
    *,
    seed: int,
    clusters: Mapping[str, Sequence[Hashable]] | None = None,
) -> Evaluation:
    """Scores of every model on every data set, and what separates them from the baseline.

    Args:
        table: what the measures are computed from, by data set and model; a column "bins" of :func:`bin_columns` is
            behind the reliability diagram.
        figures: the measures of columns, and further figures that are not compared.
        measures: names of those that are compared.
        report: the recipe's section on the report, with ``resamples`` and ``level``.
        seed: of the resamples.
        clusters: the cluster of each example, by data set, where examples depend on each other.
    """

    def compared(columns: Columns) -> dict[str, float | None]:
        return {name: value for name, value in figures(columns).items() if name in measures}

    def reliability(columns: Columns) -> tuple[ReliabilityBin, ...]:
        return reliability_bins(binned_sums(columns["bins"])) if "bins" in columns else ()

    scores = tuple(
        Scores(model=model, data=data, values=figures(columns), reliability=reliability(columns))
        for (data, model), columns in table.items()
    )
    options = {"clusters": clusters, "resamples": report.resamples, "level": report.level, "seed": seed}
    return Evaluation(scores, compare(table, compared, **options))
