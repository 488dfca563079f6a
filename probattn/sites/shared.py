"""The upward paths that the draws of one batch share."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field

import torch
from torch import Tensor

from probattn.sites.upward import UpwardCall, UpwardChain, UpwardOutputs, UpwardPass


@dataclass
class _SharedPath:
    """One chain's path over a batch: the scores of its first call, the current pass, the outputs of its calls."""

    scores: Tensor
    current: weakref.ref[UpwardPass]
    alike: bool = True
    outputs: dict[int, UpwardOutputs] = field(default_factory=dict)


class SharedUpward:
    """The upward path of a batch whose draws are predicted one after another, or folded into the batch.

    Nothing is drawn before a chain's first call, so in a network without other randomness its scores, and with them
    all outputs of the path, are the same for every draw. That is compared, not assumed: where scores differ, as where
    another chain draws first (a decoder's under its encoder's), every draw has a path of its own.
    """

    def __init__(self) -> None:
        self._paths: dict[UpwardChain, _SharedPath] = {}

    def outputs(self, call: UpwardCall, draws: int) -> UpwardOutputs:
        """Maps of B rows where all P draws are alike, else of P * B; ``ValueError`` without P draws in the batch."""
        current = call.started
        scores = current.scores
        if not len(scores) or len(scores) % draws:
            raise ValueError(
                f"expected a batch of {draws} draws folded into its first dimension, got {len(scores)} rows; predict "
                "with chunk_size=1 where the rows of the inputs are not those of the attention"
            )
        rows = len(scores) // draws
        path = self._paths.get(call.chain)
        if path is None or path.current() is not current:
            path = self._started(path, scores.unflatten(0, (draws, rows)), weakref.ref(current))
            self._paths[call.chain] = path
        if not path.alike:
            return call.outputs(len(scores))
        if call.position not in path.outputs:
            path.outputs[call.position] = call.outputs(rows)
        return path.outputs[call.position]

    def _started(
        self, path: _SharedPath | None, scores: Tensor, current: weakref.ref[UpwardPass]
    ) -> _SharedPath:
        if path is not None and path.alike and all(torch.equal(score, path.scores) for score in scores):
            path.current = current
            return path
        if all(torch.equal(score, scores[0]) for score in scores[1:]):
            return _SharedPath(scores[0].clone(), current)  # a draw may overwrite its scores
        return _SharedPath(scores[0], current, alike=False)
