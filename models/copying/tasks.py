"""Synthetic tasks whose sentences are drawn on the fly, each run's from its own seed (Snell et al. 2021)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple, get_args

import numpy as np
import torch
from annotated_types import Ge
from torch import Tensor

from probattn.options import Count, Options

Split = Literal["train", "test"]
Order = Literal["copy", "permuted"]

_ORDER_STREAM = 2
"""Number of the random stream of a task's order; those before it are the splits'."""


class CopyBatch(NamedTuple):
    """Input and output sentences of R runs.

    Attributes:
        source: input words x, integers ``[R, B, L]`` in 0..V-1.
        target: output words y, integers ``[R, B, T]``; T = L in these tasks.
        positions: source positions, integers ``[R, T]``: output word t of run r is input word ``positions[r, t]``.
    """

    source: Tensor
    target: Tensor
    positions: Tensor


@dataclass(frozen=True)
class CopyTask(Options):
    r"""Task of copying sentences of distinct words, or of permuting them in a fixed order.

    For each sentence one of ``sets`` disjoint vocabularies is drawn, and ``length`` of its ``types`` words without
    replacement. With ``length == types`` every sentence is a permutation of the same words, so co-occurrence does not
    show which output word belongs to which input word (Snell et al. 2021, section 3.3); with ``sets=2`` it only shows
    which vocabulary the words are from (section A.3).

    With ``order="permuted"`` the output is :math:`f(x)_t = x_{\pi(t)}` (Eq. 26), with one permutation :math:`\pi` for
    each run, drawn from the run's seed. As in copying, the output has all input words (section 6.2).

    Args:
        types: number of words in a vocabulary, >= ``length``.
        length: number L of words in a sentence.
        sets: number of vocabularies.
        order: order of the output, "copy" or "permuted".

    Raises:
        ValueError: a size out of its range.

    Example:
        >>> task = CopyTask(types=6, length=4)
        >>> batch = task.draw([0, 1], step=1, batch_size=3)
        >>> batch.source.shape, torch.equal(batch.source, batch.target)
        (torch.Size([2, 3, 4]), True)
        >>> torch.equal(task.draw([1], step=1, batch_size=3).source[0], batch.source[1])
        True
    """

    types: Count = 40
    length: Count = 40
    sets: Count = 1
    order: Order = "copy"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.types < self.length:
            raise ValueError(
                f"CopyTask.types: expected at least length ({self.length}) words, got {self.types}; words are drawn "
                "without replacement"
            )

    @property
    def vocabulary(self) -> int:
        """Number V of words in all vocabularies together."""
        return self.types * self.sets

    def draw(self, seeds: Sequence[int], step: int, batch_size: int, split: Split = "train") -> CopyBatch:
        """Draws the sentences of one training step for every run; equal arguments give equal sentences.

        Args:
            seeds: seed of each run's data, >= 0.
            step: number of the training step, >= 0.
            batch_size: number B of sentences per run.
            split: "train" or "test", which have independent random streams.

        Returns:
            Sentences and source positions, on the CPU.
        """
        source = np.stack([self._sentences(_generator(seed, step, split), batch_size) for seed in seeds])
        positions = np.stack([self._positions(seed) for seed in seeds])
        target = np.take_along_axis(source, positions[:, None], axis=-1)
        return CopyBatch(torch.from_numpy(source), torch.from_numpy(target), torch.from_numpy(positions))

    def _sentences(self, generator: np.random.Generator, count: int) -> np.ndarray:
        words = generator.permuted(np.tile(np.arange(self.types), (count, 1)), axis=1)[:, : self.length]
        return words + self.types * generator.integers(self.sets, size=(count, 1))

    def _positions(self, seed: int) -> np.ndarray:
        if self.order == "copy":
            return np.arange(self.length)
        return np.random.default_rng((seed, _ORDER_STREAM)).permutation(self.length)


class KeywordBatch(NamedTuple):
    """Sentences with and without the keyword, of R runs.

    Attributes:
        words: integers ``[R, B, L]`` in 0..V-1; word 0 is the keyword.
        labels: bool ``[R, B]``, True for sentences with the keyword.
        positions: position of the keyword, integers ``[R, B]``; 0 in sentences without the keyword.
    """

    words: Tensor
    labels: Tensor
    positions: Tensor


@dataclass(frozen=True)
class KeywordTask(Options):
    """Task of detecting a keyword in a sentence of random words (Snell et al. 2021, section 6.1).

    Words are drawn with replacement. A sentence has the keyword with probability 1/2, then exactly once, at a uniformly
    drawn position.

    Args:
        types: number V of words in the vocabulary, keyword included, >= 2.
        length: number L of words in a sentence.

    Raises:
        ValueError: a size out of its range.

    Example:
        >>> batch = KeywordTask(types=40, length=40).draw([0], step=1, batch_size=8)
        >>> torch.equal((batch.words == 0).sum(-1), batch.labels.long())
        True
    """

    types: Annotated[int, Ge(2)] = 40
    length: Count = 40

    def draw(self, seeds: Sequence[int], step: int, batch_size: int, split: Split = "train") -> KeywordBatch:
        """Draws the sentences of one training step for every run; the arguments are those of :meth:`CopyTask.draw`."""
        batches = [self._sentences(_generator(seed, step, split), batch_size) for seed in seeds]
        return KeywordBatch(*(torch.from_numpy(np.stack(arrays)) for arrays in zip(*batches, strict=True)))

    def _sentences(self, generator: np.random.Generator, count: int) -> tuple[np.ndarray, ...]:
        words = generator.integers(1, self.types, size=(count, self.length))
        labels = generator.integers(2, size=count).astype(bool)
        positions = np.where(labels, generator.integers(self.length, size=count), 0)
        words[labels, positions[labels]] = 0
        return words, labels, positions


def _generator(seed: int, step: int, split: Split) -> np.random.Generator:
    return np.random.default_rng((seed, get_args(Split).index(split), step))
