"""Sources of the random numbers behind a draw of the attention weights.

On a CPU a piece of 2^18 numbers has a stream of its own (NumPy's SFC64), so that the cores share the work and their
number changes nothing: torch fills a tensor on one core, and a training step waits for it at every site.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Literal, Protocol

import numpy as np
import torch
from torch import Tensor

_PIECE = 2**18
_NUMPY_TYPES = (torch.float32, torch.float64)

Kind = Literal["uniform", "normal"]


class Noise(Protocol):
    """Gives standard uniform and standard normal tensors; what a guide draws its sites from."""

    @property
    def draws(self) -> int:
        """P, the number of draws folded into the batch, draw after draw."""

    def uniform(self, like: Tensor) -> Tensor:
        """Uniform(0, 1) numbers of ``like``'s shape, dtype and device; 0 is possible, 1 is not."""

    def normal(self, like: Tensor) -> Tensor:
        """N(0, 1) numbers of ``like``'s shape, dtype and device."""


class GlobalNoise:
    """Noise from torch's global generators, the ones that ``pyro.set_rng_seed`` sets.

    On a CPU they give each tensor its seed. A checkpoint therefore needs the state of torch's generators alone.
    """

    draws = 1

    def uniform(self, like: Tensor) -> Tensor:
        """Uniform(0, 1) numbers of ``like``'s shape, dtype and device; 0 is possible, 1 is not."""
        return self._make("uniform", like)

    def normal(self, like: Tensor) -> Tensor:
        """N(0, 1) numbers of ``like``'s shape, dtype and device."""
        return self._make("normal", like)

    def _make(self, kind: Kind, like: Tensor) -> Tensor:
        if not _is_seeded(like):
            return torch.rand_like(like) if kind == "uniform" else torch.randn_like(like)
        noise = torch.empty_like(like, memory_format=torch.contiguous_format)
        seed = torch.randint(2**63 - 1, (), dtype=torch.int64)
        _fill(kind, noise, (int(seed),))
        return noise


class SeededNoise:
    """Noise with one seed per draw, for draws folded into the batch.

    The leading dimension holds P draws of B rows each, draw after draw. Draw p takes its numbers from streams of its
    own, so that it is the same whichever draws share its forward pass.

    Args:
        seeds: one integer >= 0 per draw.
        device: where the numbers are made.

    Raises:
        ValueError: no seeds.

    Example:
        >>> both = SeededNoise([3, 4], "cpu").uniform(torch.empty(4, 2))
        >>> alone = SeededNoise([4], "cpu").uniform(torch.empty(2, 2))
        >>> bool((both[2:] == alone).all())
        True
    """

    def __init__(self, seeds: Sequence[int], device: torch.device | str) -> None:
        if not seeds:
            raise ValueError("SeededNoise: expected at least one seed, got none")
        self._seeds = list(seeds)
        self._generators = [torch.Generator(device=device).manual_seed(seed) for seed in seeds]
        self._calls = 0

    @property
    def draws(self) -> int:
        """P, the number of draws folded into the batch, draw after draw."""
        return len(self._seeds)

    def uniform(self, like: Tensor) -> Tensor:
        """Uniform(0, 1) numbers of ``like``'s shape, dtype and device; rows are split evenly over the draws."""
        return self._make("uniform", like)

    def normal(self, like: Tensor) -> Tensor:
        """N(0, 1) numbers of ``like``'s shape, dtype and device; rows are split evenly over the draws."""
        return self._make("normal", like)

    def _make(self, kind: Kind, like: Tensor) -> Tensor:
        noise = torch.empty_like(like, memory_format=torch.contiguous_format)
        self._calls += 1
        for part, seed, generator in zip(self._parts(noise), self._seeds, self._generators, strict=True):
            if _is_seeded(like):
                _fill(kind, part, (seed, self._calls))
            elif kind == "uniform":
                part.uniform_(generator=generator)
            else:
                part.normal_(generator=generator)
        return noise

    def _parts(self, noise: Tensor) -> tuple[Tensor, ...]:
        rows, draws = noise.shape[0], self.draws
        if rows % draws:
            raise ValueError(
                f"SeededNoise: expected a batch of {draws} draws folded into its first dimension, got {rows} rows"
            )
        return noise.chunk(draws) if rows else (noise,) * draws


def _is_seeded(like: Tensor) -> bool:
    return like.device.type == "cpu" and like.dtype in _NUMPY_TYPES


def _fill(kind: Kind, noise: Tensor, entropy: Sequence[int]) -> None:
    """Fills a contiguous CPU tensor, each piece of it from a stream that the entropy and its number give."""
    flat: np.ndarray = noise.detach().view(-1).numpy()

    def fill(number: int) -> None:
        stream = np.random.Generator(np.random.SFC64(np.random.SeedSequence(entropy, spawn_key=(number,))))
        part = flat[number * _PIECE : (number + 1) * _PIECE]
        if kind == "uniform":
            stream.random(out=part, dtype=part.dtype)
        else:
            stream.standard_normal(out=part, dtype=part.dtype)

    pieces = range(-(-flat.size // _PIECE))
    workers = min(len(pieces), torch.get_num_threads())

    def work(first: int) -> None:
        for number in pieces[first::workers]:
            fill(number)

    # NumPy lets go of Python's lock while it fills.
    helpers = [threading.Thread(target=work, args=(first,)) for first in range(1, workers)]
    for helper in helpers:
        helper.start()
    if workers:
        work(0)
    for helper in helpers:
        helper.join()
