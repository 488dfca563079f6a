"""Sources of the random numbers behind a draw of the attention weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor


class Noise(Protocol):
    """Gives standard uniform and standard normal tensors; what a guide draws its sites from."""

    def uniform(self, like: Tensor) -> Tensor:
        """Uniform(0, 1) numbers of ``like``'s shape, dtype and device."""

    def normal(self, like: Tensor) -> Tensor:
        """N(0, 1) numbers of ``like``'s shape, dtype and device."""


class GlobalNoise:
    """Noise from torch's global generators, the ones that ``pyro.set_rng_seed`` sets."""

    def uniform(self, like: Tensor) -> Tensor:
        """Uniform(0, 1) numbers of ``like``'s shape, dtype and device."""
        return torch.rand_like(like)

    def normal(self, like: Tensor) -> Tensor:
        """N(0, 1) numbers of ``like``'s shape, dtype and device."""
        return torch.randn_like(like)


class SeededNoise:
    """Noise with one seed per draw, for draws folded into the batch.

    The leading dimension holds P draws of B rows each, draw after draw. Draw p takes its numbers from its own
    generator, so that it is the same whichever draws share its forward pass.

    Args:
        seeds: one integer per draw.
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
        self._generators = [torch.Generator(device=device).manual_seed(seed) for seed in seeds]

    def uniform(self, like: Tensor) -> Tensor:
        """Uniform(0, 1) numbers of ``like``'s shape, dtype and device; rows are split evenly over the draws."""
        noise = torch.empty_like(like)
        for part, generator in zip(self._parts(noise), self._generators, strict=True):
            part.uniform_(generator=generator)
        return noise

    def normal(self, like: Tensor) -> Tensor:
        """N(0, 1) numbers of ``like``'s shape, dtype and device; rows are split evenly over the draws."""
        noise = torch.empty_like(like)
        for part, generator in zip(self._parts(noise), self._generators, strict=True):
            part.normal_(generator=generator)
        return noise

    def _parts(self, noise: Tensor) -> tuple[Tensor, ...]:
        rows, draws = noise.shape[0], len(self._generators)
        if rows % draws:
            raise ValueError(
                f"SeededNoise: expected a batch of {draws} draws folded into its first dimension, got {rows} rows"
            )
        return noise.chunk(draws) if rows else (noise,) * draws
