"""What is attacked: a trained network that answers texts with probabilities, one way or another."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from pyro.poutine.messenger import Messenger
from pyro.poutine.runtime import Message
from torch import Tensor

from probattn.attacks.options import Prediction, Randomness
from probattn.data import DataWarning, TextDataset
from probattn.inference import posterior_expectation, posterior_moments, posterior_predict
from probattn.inference.predictive import predict_label, rows_per_pass
from probattn.inference.session import evaluating
from probattn.sites.noise import PlacedNoise, hashed
from probattn.sites.posterior import SitePosterior
from probattn.sites.site import INFER_KEY
from probattn.sites.upward import SharedUpward
from probattn.tasks import Classification
from probattn.tasks.classification.networks import class_names
from probattn.tasks.errors import RunError
from probattn.tasks.networks import Network

Text = str | tuple[str, str]
"""A text, or a pair of texts."""


class Victim(Protocol):
    """Answers texts."""

    @property
    def classes(self) -> Sequence[str]:
        """Names of the classes."""

    def begin(self, number: int) -> None:
        """A new text is attacked, which has this number."""

    def __call__(self, texts: Sequence[Text]) -> Tensor:
        """Probabilities of the classes, float64 ``[N, C]``."""


@dataclass
class NetworkVictim:
    """A trained network as what is attacked.

    Args:
        task: of its run.
        network: the network.
        prediction: its probabilities.
        num_samples: P, draws of "draws".
        seed: of the draws.
        noise: "fixed": draw p of a site takes, for every text, the same numbers at the same places (head, query, key),
            so that the same text always has the same answer, whatever was asked before. "fresh": each query draws anew.

    Raises:
        RunError: "draws" or "moments" of a network without latent attention.
    """

    task: Classification
    network: Network[Any]
    prediction: Prediction = "point"
    num_samples: int = 20
    seed: int = 0
    noise: Randomness = "fixed"

    def __post_init__(self) -> None:
        if self.prediction != "point" and self.network.key != "bayesian_mean":
            raise RunError(
                f"--prediction {self.prediction}: expected a run with latent attention, {self.network.folder} has "
                "none; use --prediction point"
            )
        self._words: tuple[int, ...] = (self.seed, 0)
        self._queries = 0

    @property
    def classes(self) -> Sequence[str]:
        """Names of the classes."""
        return class_names(self.network)

    def begin(self, number: int) -> None:
        """A new text is attacked, whose fresh draws depend on its number and on how often it was asked."""
        self._words, self._queries = (self.seed, number), 0

    def __call__(self, texts: Sequence[Text]) -> Tensor:
        """Probabilities of the classes, float64 ``[N, C]``, each row's sum 1."""
        batches = [self._probabilities(batch) for batch in self._batches(texts)]
        probabilities = torch.cat(batches).cpu().double()
        return probabilities / probabilities.sum(dim=-1, keepdim=True)

    def _batches(self, texts: Sequence[Text]) -> Any:
        firsts = tuple(text if isinstance(text, str) else text[0] for text in texts)
        seconds = tuple(text[1] for text in texts if not isinstance(text, str)) or None
        with warnings.catch_warnings():  # of texts that are cut, which the training has warned of
            warnings.simplefilter("ignore", DataWarning)
            return map(
                self.network.moved,
                self.task.batches(self.network, TextDataset(firsts, None, (), "attacked", pairs=seconds)),
            )

    def _probabilities(self, batch: dict[str, Tensor]) -> Tensor:
        program = self.network.program
        if self.prediction == "point":
            return posterior_expectation(program, batch).float().softmax(dim=-1)
        if self.prediction == "moments":
            return posterior_moments(program, batch, method="expansion").mean_probabilities
        if self.noise == "fixed":
            return fixed_draws(program, batch, self.num_samples, self.seed)
        self._queries += 1
        drawn = posterior_predict(program, batch, self.num_samples, seed=(*self._words, self._queries))
        return drawn.probabilities.mean(dim=0)


def fixed_draws(program: Any, batch: dict[str, Tensor], num_samples: int, seed: int) -> Tensor:
    """Mean probabilities, float64 ``[B, C]``, over draws whose noise depends on site, draw and place alone.

    The answer to a text is thus a function of the text: neither the others of its batch, nor padding, nor earlier
    queries change it.

    Args:
        program: maps a batch to logits.
        batch: its inputs, B rows.
        num_samples: P.
        seed: of the draws.
    """
    rows = len(next(iter(batch.values())))
    at_once = max(1, rows_per_pass(next(iter(batch.values())).device) // rows)
    total = torch.zeros((), dtype=torch.float64)
    for first in range(0, num_samples, at_once):
        draws = range(first, min(first + at_once, num_samples))
        folded = {name: value.repeat(len(draws), *[1] * (value.dim() - 1)) for name, value in batch.items()}
        with evaluating(program), _FixedNoise(seed, draws):
            logits = program(folded)
        total = total + logits.double().softmax(dim=-1).unflatten(0, (len(draws), rows)).sum(dim=0)
    return total / num_samples


class _FixedNoise(Messenger):
    """Gives attention sites draws whose noise is the same for all rows of a draw."""

    def __init__(self, seed: int, draws: range) -> None:
        super().__init__()
        self._seed, self._draws = seed, draws
        self._shared = SharedUpward()

    def _pyro_sample(self, msg: Message) -> None:
        posterior = (msg["infer"] or {}).get(INFER_KEY)
        if isinstance(posterior, SitePosterior) and msg["value"] is None:
            keys = torch.tensor([hashed(self._seed, str(msg["name"]), draw) for draw in self._draws])
            rows = len(posterior.inputs.raw) // len(keys)
            noise = PlacedNoise(keys.repeat_interleave(rows), draws=len(keys))
            msg["value"] = posterior.predict(noise, self._shared)
        else:
            predict_label(msg)
