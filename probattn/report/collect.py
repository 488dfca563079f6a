"""Predictions over a whole data loader, and training curves from the records of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import product
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from probattn.inference.expansion import posterior_moments
from probattn.inference.moments import Moments
from probattn.inference.posterior import Link, linked
from probattn.inference.predictive import posterior_expectation, posterior_predict, rows_per_pass
from probattn.inference.session import generator_states
from probattn.report.record import Curve, ModelKey

Batch = Mapping[str, Tensor]
SEEDS = 2**31
"""Number of seeds of a recipe: between those of two batches there is room for all of them."""


class BayesianPredictions(NamedTuple):
    """Draws ``[P, N, C]``, the prediction at the posterior expectation ``[N, C]``, and labels ``[N]`` if there.

    ``moments`` is the closed form of the draws' mean and covariance, to first order; None unless requested.
    """

    draws: Tensor
    expectation: Tensor
    labels: Tensor | None
    moments: Moments | None = None


class DeterministicPredictions(NamedTuple):
    """Probabilities ``[N, C]``, dropout draws ``[P, N, C]`` (None where nothing drops out), and labels if there."""

    probabilities: Tensor
    draws: Tensor | None
    labels: Tensor | None


def predict_bayesian(
    model: Callable[[Batch], Tensor],
    batches: Iterable[Batch],
    num_samples: int = 20,
    *,
    seed: int = 0,
    chunk_size: int | None = None,
    label_name: str = "labels",
    device: torch.device | str | None = None,
    first_batch: int = 0,
    moments: bool = False,
) -> BayesianPredictions:
    """Predicts every batch with draws and with the posterior expectation.

    Args:
        model: a Pyro model that maps a batch to logits.
        batches: a data loader.
        num_samples: P.
        seed: of the draws; every batch has its own.
        chunk_size: draws per pass, see :func:`~probattn.inference.posterior_predict`.
        label_name: key of the labels.
        device: where the batches go; they stay where they are by default.
        first_batch: number of the first batch, where those before it are predicted elsewhere.
        moments: whether to compute the closed form too, unchecked, for the draws stand beside it.

    Returns:
        Probabilities on the CPU.

    Raises:
        ValueError: no batch.
    """
    draws, expectation, labels, expanded = [], [], [], []
    for number, batch in enumerate(moved(batches, device), first_batch):
        posterior = posterior_predict(
            model, batch, num_samples, seed=(seed, number), chunk_size=chunk_size, label_name=label_name
        )
        draws.append(posterior.probabilities.cpu())
        inputs = {name: value for name, value in batch.items() if name != label_name}
        expectation.append(linked(posterior_expectation(model, inputs), posterior.link).cpu())
        if moments:
            expanded.append(posterior_moments(model, inputs, method="expansion"))
        labels.append(batch.get(label_name))
    _require(draws, "predict_bayesian")
    closed_form = Moments.together(expanded) if moments else None
    return BayesianPredictions(torch.cat(draws, dim=1), torch.cat(expectation), _labels(labels), closed_form)


def predict_deterministic(
    model: nn.Module,
    batches: Iterable[Batch],
    num_samples: int = 20,
    *,
    seed: int = 0,
    label_name: str = "labels",
    device: torch.device | str | None = None,
    first_batch: int = 0,
) -> DeterministicPredictions:
    """Predicts every batch once as it is, and ``num_samples`` times with dropout kept on (Gal & Ghahramani 2016).

    The draws serve PAvPU, which needs some spread; the probabilities come from the pass without dropout. Draws are
    folded into the batch. The model is left in the mode it was in and torch's generators in their state. Arguments are
    those of :func:`predict_bayesian`; with ``num_samples`` 0 there are no draws.

    Returns:
        Probabilities on the CPU; no draws of a network that takes no random numbers, such as one without dropout.

    Raises:
        ValueError: no batch, or a negative number of draws.
    """
    if num_samples < 0:
        raise ValueError(f"predict_deterministic: expected num_samples >= 0, got {num_samples}")
    probabilities, labels, drawing = [], [], num_samples > 0
    draws: list[Tensor] = []
    link: Link = getattr(model, "link", "softmax")
    used = {parameter.device for parameter in model.parameters()}
    with torch.no_grad(), _seeded(seed + SEEDS * first_batch, model):
        for batch in moved(batches, device):
            inputs = {name: value for name, value in batch.items() if name != label_name}
            with _mode(model, dropout=False):
                probabilities.append(linked(model(inputs), link).cpu())
            if drawing:
                # An accelerator rounds repeated passes in several ways: values do not tell whether anything was drawn.
                before = generator_states(used)
                with _mode(model, dropout=True):
                    draws.append(_dropout_draws(model, inputs, num_samples, link))
                drawing = not all(map(torch.equal, before, generator_states(used)))
            labels.append(batch.get(label_name))
    _require(probabilities, "predict_deterministic")
    drawn = torch.cat(draws, dim=1) if drawing else None
    return DeterministicPredictions(torch.cat(probabilities), drawn, _labels(labels))


def _dropout_draws(model: nn.Module, inputs: Batch, num_samples: int, link: Link) -> Tensor:
    first = next(iter(inputs.values()))
    rows = len(first)
    chunk = max(1, rows_per_pass(first.device) // rows)
    draws = []
    for start in range(0, num_samples, chunk):
        size = min(chunk, num_samples - start)
        folded = {name: value.repeat(size, *[1] * (value.dim() - 1)) for name, value in inputs.items()}
        draws.append(linked(model(folded), link).unflatten(0, (size, rows)).cpu())
    return torch.cat(draws)  # [P, B, C]


@contextmanager
def _mode(model: nn.Module, *, dropout: bool) -> Iterator[None]:
    """Evaluation mode, or training mode for all modules but those that would update running statistics."""
    before = [(module, module.training) for module in model.modules()]
    try:
        for module, _ in before:
            module.training = dropout and not isinstance(module, _NormBase)
        yield
    finally:
        for module, training in before:
            module.training = training


@contextmanager
def _seeded(seed: int, model: nn.Module) -> Iterator[None]:
    """Seeds torch's generators for a while: functional dropout takes no generator of its own."""
    devices = sorted({p.device.index or 0 for p in model.parameters() if p.device.type == "cuda"})
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield


def moved(batches: Iterable[Batch], device: torch.device | str | None) -> Iterator[Batch]:
    """Batches on a device; where they are without one."""
    for batch in batches:
        yield batch if device is None else {name: value.to(device) for name, value in batch.items()}


def _labels(labels: Sequence[Tensor | None]) -> Tensor | None:
    present = [value.cpu() for value in labels if value is not None]
    if present and len(present) != len(labels):
        raise ValueError(
            f"expected labels in every batch or in none, got them in {len(present)} of {len(labels)}"
        )
    return torch.cat(present) if present else None


def _require(batches: Sequence[Tensor], name: str) -> None:
    if not batches:
        raise ValueError(f"{name}: expected at least one batch, got none")


QUANTITIES = ("loss", "log_likelihood", "kl_nats", "kl_weight", "accuracy")
"""Quantities of the records that a report shows, if recorded."""

POINTS = 300
"""Points kept of a curve; longer ones are averaged in windows."""


def training_curves(
    records: Sequence[Mapping[str, Any]],
    model: ModelKey,
    *,
    quantities: Sequence[str] = QUANTITIES,
    points: int = POINTS,
) -> list[Curve]:
    """Curves of a run's records (:func:`probattn.inference.records.read_records`).

    Args:
        records: objects with ``kind``, ``step`` and numbers; a number that is missing or null leaves a gap.
        model: whose training it was.
        quantities: names of the numbers.
        points: most points of a curve; beyond it, windows of neighbouring records are averaged and stand at the last
            step of their window.

    Returns:
        One curve per kind and quantity that occurs; a quantity that is 0 throughout is left out, and so is the weight
        of the KL where there is no KL. In validation that weight is the training's, and no curve.

    Example:
        >>> records = [{"kind": "train", "step": step, "loss": 1 / step} for step in (1, 2)]
        >>> [(curve.name, curve.values) for curve in training_curves(records, "bayesian_mean")]
        [('loss', (1.0, 0.5))]
    """
    curves = []
    if not any(record.get("kl_nats") for record in records):
        quantities = [name for name in quantities if name != "kl_weight"]
    kinds: tuple[Literal["train", "validation"], ...] = ("train", "validation")
    for name, kind in product(quantities, kinds):
        series = [
            (int(record["step"]), float(record[name]))
            for record in records
            if record.get("kind") == kind and isinstance(record.get(name), (int, float))
        ]
        if any(value for _, value in series) and (name, kind) != ("kl_weight", "validation"):
            window = -(-len(series) // points)
            windows = [series[start : start + window] for start in range(0, len(series), window)]
            steps = tuple(rows[-1][0] for rows in windows)
            values = tuple(sum(value for _, value in rows) / len(rows) for rows in windows)
            curves.append(Curve(model=model, name=name, kind=kind, steps=steps, values=values, window=window))
    return curves
