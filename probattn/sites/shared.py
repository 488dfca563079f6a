"""What the draws of one batch have in common, computed once for all of them."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional as F

from probattn.sites.upward import UpwardChain, UpwardPass


@dataclass(frozen=True)
class Positive:
    """Positive numbers by row of the batch, ``[B, H, T, S]``."""

    values: Tensor

    @cached_property
    def smallest(self) -> list[float]:
        """The smallest number of each row."""
        found: list[float] = self.values.flatten(1).amin(dim=1).tolist() if self.values.numel() else []
        return found


@dataclass(frozen=True)
class UpwardOutputs:
    """What the upward path says at one call.

    Attributes:
        concentration: f_k(h), ``[B, H, T, S]``; None where k does not depend on the path.
        scale: f_lambda(h), same shape; None where lambda does not.
    """

    concentration: Tensor | None = None
    scale: Tensor | None = None

    @cached_property
    def positive(self) -> Positive | None:
        """softplus(f_k(h)); None where k does not depend on the path."""
        return None if self.concentration is None else Positive(F.softplus(self.concentration))


@dataclass
class _Path:
    """One chain's path over a batch: the scores that it starts from, the pass at hand, what it says at each call."""

    start: Tensor
    current: weakref.ref[UpwardPass]
    alike: bool = True
    outputs: dict[int, UpwardOutputs] = field(default_factory=dict)


class SharedUpward:
    """The upward path of a batch whose draws are predicted one after another, or folded into the batch.

    The path rises from the scores of a chain's first call. Nothing is drawn before that call, so in a network without
    other randomness these scores are those of every draw, and with them all that the path says. That is looked at, not
    assumed: scores that differ, as where another chain's draws come first (a decoder's under its encoder's), are
    served a path of their own.
    """

    def __init__(self) -> None:
        self._paths: dict[UpwardChain, _Path] = {}

    def outputs(
        self, chain: UpwardChain, position: int, draws: int, rise: Callable[[int], UpwardOutputs]
    ) -> UpwardOutputs:
        """What the path says at a call, for one draw where all are alike.

        Args:
            chain: the call's chain, begun.
            position: the call's place in it.
            draws: P, the number of draws folded into the batch.
            rise: computes it for so many rows of the batch.

        Returns:
            Maps of B rows, or of P * B where the draws differ.

        Raises:
            ValueError: the batch does not hold so many draws.
        """
        current = chain.started
        scores = current.scores
        if not len(scores) or len(scores) % draws:
            raise ValueError(
                f"expected a batch of {draws} draws folded into its first dimension, got {len(scores)} rows; predict "
                "with chunk_size=1 where the rows of the inputs are not those of the attention"
            )
        rows = len(scores) // draws
        path = self._paths.get(chain)
        if path is None or path.current() is not current:
            path = self._paths[chain] = self._started(
                path, scores.unflatten(0, (draws, rows)), weakref.ref(current)
            )
        if not path.alike:
            return rise(len(scores))
        if position not in path.outputs:
            path.outputs[position] = rise(rows)
        return path.outputs[position]

    def _started(self, known: _Path | None, scores: Tensor, current: weakref.ref[UpwardPass]) -> _Path:
        if known is not None and known.alike and all(torch.equal(own, known.start) for own in scores):
            known.current = current
            return known
        if all(torch.equal(own, scores[0]) for own in scores[1:]):
            return _Path(scores[0].clone(), current)  # a draw may overwrite its scores
        return _Path(scores[0], current, alike=False)
