"""What the draws of one batch have in common, computed once for all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional as F

from probattn.sites.upward import UpwardChain


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
    """One chain's path over a batch: the scores that it starts from, and what it says at each call."""

    start: Tensor
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
        self,
        chain: UpwardChain,
        position: int,
        scores: Tensor,
        draws: int,
        rise: Callable[[int], UpwardOutputs],
    ) -> UpwardOutputs:
        """What the path says at a call, for one draw where all are alike.

        Args:
            chain: the call's chain.
            position: the call's place in it; 0 starts a pass.
            scores: this call's masked scores, ``[P * B, H, T, S]``.
            draws: P, the number of draws folded into the batch.
            rise: computes it for so many rows of the batch.

        Returns:
            Maps of B rows, or of P * B where the draws differ.
        """
        rows = len(scores) // draws
        if position == 0:
            self._start(chain, scores.unflatten(0, (draws, rows)))
        path = self._paths.get(chain)
        if path is None:
            return rise(len(scores))
        if position not in path.outputs:
            path.outputs[position] = rise(rows)
        return path.outputs[position]

    def _start(self, chain: UpwardChain, scores: Tensor) -> None:
        known = self._paths.pop(chain, None)
        if known is not None and all(torch.equal(own, known.start) for own in scores):
            self._paths[chain] = known
        elif all(torch.equal(own, scores[0]) for own in scores[1:]):
            self._paths[chain] = _Path(scores[0].clone())  # a draw may overwrite its scores
