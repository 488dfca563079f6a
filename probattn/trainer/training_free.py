"""Latent attention for a network that is trained already: the largest spread that validation data allow."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from probattn.checks import check_batch, check_number
from probattn.inference.predictive import posterior_expectation, posterior_predict
from probattn.models.choosing import program_for
from probattn.models.heads.classification import Classifier
from probattn.models.hosts.convert import convert, revert
from probattn.models.hosts.hosting import conversion
from probattn.models.program import IGNORED, check_classes, evaluating
from probattn.sites.bayesian import BayesianAttention

OWNER = "training_free"
BOUNDS = (1.0, 1000.0)
"""Concentrations between which one is chosen."""
HALVINGS = 5
"""Halvings of the logarithm of that range: the choice is within a quarter of the concentration."""


@dataclass(frozen=True)
class TrainingFree:
    """Result of ``training_free``.

    Attributes:
        concentration: k of the posterior's Weibull distributions; the network is converted with this value.
        within_tolerance: whether its loss is within the tolerance; if False, ``concentration`` is 1,000, the largest.
        loss: mean negative log-likelihood of a validation label before conversion, nats.
        trials: pairs of a concentration that was tried and the loss of the mean prediction over samples with it.
    """

    concentration: float
    within_tolerance: bool
    loss: float
    trials: tuple[tuple[float, float], ...]

    def __str__(self) -> str:
        """The concentration, and the loss with it and before."""
        after = dict(self.trials)[self.concentration]
        return f"concentration {self.concentration:.3g}: validation loss {after:.4f}, {self.loss:.4f} before conversion"


def training_free(
    net: PreTrainedModel,
    validation: Iterable[Mapping[str, Tensor]],
    *,
    tolerance: float = 0.01,
    num_samples: int = 10,
    seed: int = 0,
    layers: Any = "all",
) -> TrainingFree:
    r"""Converts a fine-tuned classifier to latent attention without any training.

    Unnormalised attention weights get the posterior of Bayesian attention modules (Fan et al. 2020): Weibull
    distributions with one concentration k, and the network's weights as means. The smaller k, the larger the standard
    deviation. As in training-free Bayesianization (Shi et al. 2024), k is the smallest value, between 1 and 1,000, for
    which the mean negative log-likelihood of validation labels is at most that before conversion plus ``tolerance``.
    It is found to within a factor 1.24 by bisection on log k, assuming that the loss falls with k. Everything that
    works with a trained posterior works with the result.

    Args:
        net: a classifier with one class per row, not converted; it is converted in place.
        validation: batches with ``labels``, read several times: a list or a ``DataLoader``, not a generator.
        tolerance: allowed increase of the mean negative log-likelihood of a label, nats.
        num_samples: number of posterior samples for a prediction; fewer samples make the estimated loss larger and
            therefore the choice more cautious (a larger k).
        seed: seed of the samples.
        layers: layers to convert, as in ``probattn.convert``.

    Returns:
        The concentration and how it was found; ``print`` shows it with both losses.

    Raises:
        ValueError: the network is converted already or does not predict one class per row; the batches can be read only
            once, or their labels are missing or not class numbers; or ``tolerance`` is not positive.
        TypeError: a batch is not a mapping of tensors.
    """
    check_number(OWNER, "tolerance", tolerance, positive=True)
    if conversion(net) is not None:
        raise ValueError(f"{OWNER}: expected a plain network, got a converted one; revert(net) first")
    if not isinstance(program := program_for(net), Classifier):
        raise ValueError(f"{OWNER}: expected a classifier of one class a row, got {type(program).__name__}")
    if iter(validation) is validation:
        raise ValueError(
            f"{OWNER}: expected batches that can be gone through again (a list), got an iterator"
        )
    with evaluating(net):
        before, trials = _loss(net, validation, 0, seed), dict[float, float]()

    def fits(log_k: float) -> bool:
        concentration = math.exp(log_k)
        convert(net, BayesianAttention.bam(concentration), layers=layers)
        try:
            with evaluating(net):
                trials[concentration] = _loss(net, validation, num_samples, seed)
        finally:
            revert(net)
        return trials[concentration] <= before + tolerance

    low, high = map(math.log, BOUNDS)
    attained = fits(high)
    if attained and fits(low):
        high = low
    for _ in range(HALVINGS if attained and high > low else 0):
        middle = (low + high) / 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    convert(net, BayesianAttention.bam(math.exp(high)), layers=layers)
    return TrainingFree(math.exp(high), attained, before, tuple(trials.items()))


@torch.no_grad()
def _loss(
    net: PreTrainedModel, validation: Iterable[Mapping[str, Tensor]], num_samples: int, seed: int
) -> float:
    """Mean negative log-likelihood of a label, of the mean over samples, or of the network's output for none."""
    total, count = 0.0, 0
    for number, batch in enumerate(validation):
        check_batch(OWNER, batch)
        inputs = {name: value.to(net.device) for name, value in batch.items()}
        if (labels := inputs.pop("labels", None)) is None:
            raise ValueError(f"{OWNER}: expected batches with labels, got {', '.join(batch)}")
        if num_samples:
            drawn = posterior_predict(net, inputs, num_samples, seed=(seed, number))
            probabilities = drawn.mean_probabilities
        else:
            probabilities = posterior_expectation(net, inputs).float().softmax(dim=-1)
        check_classes(
            program_for(net), "labels", labels, probabilities.shape[:1], probabilities.shape[-1], ignored=True
        )
        labelled = labels != IGNORED
        likelihood = probabilities.double()[labelled].gather(1, labels[labelled, None])
        total -= float(likelihood.clamp_min(torch.finfo(torch.float64).tiny).log().sum())
        count += len(likelihood)
    if not count:
        raise ValueError(f"{OWNER}: expected labels in the validation batches, got none")
    return total / count
