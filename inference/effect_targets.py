"""The number of a prediction that :func:`probattn.inference.attention_effects` explains."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Self, SupportsIndex

import torch
from torch import Tensor

from probattn.checks import check_choice
from probattn.inference.posterior import Link, linked

Target = Literal["answer", "doubt"] | int | tuple[int, int] | Tensor | Callable[[Tensor], Tensor]
LEAST_LOG = -1e4
"""Logarithm of the probability of a class that is ruled out, whose entropy would have no derivative."""


class Reading(NamedTuple):
    """Of P passes of R predictions: the target ``[P, R]``, and of their mean the answer and its probability ``[R]``."""

    value: Tensor
    answer: Tensor
    probability: Tensor
    best: Tensor

    def detached(self) -> Reading:
        """Without gradients."""
        return Reading(*(item.detach() for item in self))

    @classmethod
    def together(cls, batches: Sequence[Self]) -> Reading:
        """The rows of all batches."""
        return Reading(*(torch.cat(items, dim=-1) for items in zip(*batches, strict=True)))


@dataclass(frozen=True)
class Number:
    """The number of a prediction that is explained; arguments as in :func:`probattn.inference.attention_effects`."""

    owner: str
    target: Target
    position: int | Sequence[int] | None
    rows: int
    link: Link

    def __post_init__(self) -> None:
        target = self.target
        if isinstance(target, str):
            check_choice(self.owner, "target", target, Literal["answer", "doubt"])
            if self.link == "identity" and target == "doubt":
                raise ValueError(
                    f"{self.owner}: target='doubt': numbers have no entropy; name one of them, target=0"
                )
        named = target if isinstance(target, tuple) else (target,)
        plain = all(isinstance(item, SupportsIndex) and not isinstance(item, bool) for item in named)
        if not (isinstance(target, str | Tensor) or callable(target) or (plain and len(named) <= 2)):
            raise TypeError(
                f"{self.owner}: expected as target 'answer', 'doubt', a class, a pair of them, int64 [{self.rows}] or "
                f"a function, got {target!r}"
            )
        by_row = {"target": target if isinstance(target, Tensor) else None, "position": self.position}
        for name, value in by_row.items():
            if value is None or (isinstance(value, SupportsIndex) and not isinstance(value, Tensor)):
                continue
            values = torch.as_tensor(value)
            if values.shape != (self.rows,) or values.dtype != torch.int64:
                raise ValueError(
                    f"{self.owner}: expected one {name}, or int64 [{self.rows}] by row, got {values.dtype} "
                    f"{list(values.shape)}"
                )

    def read(self, logits: Tensor, rows: Tensor, answer: Tensor | None = None) -> Reading:
        """What is read of predictions ``[P, R, ..., C]`` of some rows; ``answer`` ``[R]`` where another pass has it."""
        at = self._at_position(logits, rows)
        function = self.target if not isinstance(self.target, Tensor) and callable(self.target) else None
        if at.dim() != 3:
            if function is None:
                raise ValueError(
                    f"{self.owner}: expected one prediction a row, got {list(logits.shape[1:])}; name one with "
                    "position, or give a function as the target"
                )
            none = rows.new_full(rows.shape, -1)
            value = self._finite(self._called(function, at), rows)
            return Reading(value, none, at.new_full(rows.shape, torch.nan), none)
        at = at.to(torch.promote_types(at.dtype, torch.float32))
        probabilities = (at if self.link == "identity" else linked(at, self.link)).mean(dim=0)
        best = torch.zeros_like(rows) if self.link == "identity" else probabilities.argmax(dim=-1)
        if answer is None:
            answer = self._answer(best, rows, at.shape[-1])
        value = self._called(function, at) if function is not None else self._value(at, answer)
        value = self._finite(value, rows)
        return Reading(value, answer, probabilities.gather(-1, answer[:, None]).squeeze(-1), best)

    def _finite(self, value: Tensor, rows: Tensor) -> Tensor:
        """The target, which must be finite."""
        wrong = ~value.isfinite().all(dim=0)
        if bool(wrong.any()):
            first = int(wrong.nonzero()[0])
            raise ValueError(
                f"{self.owner}: expected a finite target, got {value[0, first].item()} in row {int(rows[first])}, with "
                "all tokens or without some; check the network's weights and its prediction"
            )
        return value

    def _called(self, function: Callable[[Tensor], Tensor], at: Tensor) -> Tensor:
        """The numbers that a function makes of predictions."""
        flat = at.flatten(0, 1)
        value = function(flat)
        if not isinstance(value, Tensor) or value.shape != flat.shape[:1]:
            received = list(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise ValueError(
                f"{self.owner}: expected a target function from predictions {list(flat.shape)} to numbers "
                f"[{len(flat)}], got {received}"
            )
        return value.view(at.shape[:2])

    def _at_position(self, logits: Tensor, rows: Tensor) -> Tensor:
        if self.position is None:
            return logits
        flat = logits.flatten(2, -2) if logits.dim() > 3 else logits[:, :, :0]
        positions = torch.as_tensor(self.position, device=rows.device).expand(self.rows)[rows]
        if not bool(((positions >= 0) & (positions < flat.shape[2])).all()):
            have = f"0..{flat.shape[2] - 1}" if flat.shape[2] else "none, for a row has a single prediction"
            raise ValueError(f"{self.owner}: expected a position among {have}, got {self.position}")
        return flat[:, torch.arange(len(rows), device=rows.device), positions]

    def _answer(self, best: Tensor, rows: Tensor, classes: int) -> Tensor:
        """The class, label or number that the target names, or the most probable one."""
        if isinstance(self.target, str) or (callable(self.target) and not isinstance(self.target, Tensor)):
            return best
        named = self.target if isinstance(self.target, tuple) else (self.target,)
        answers = [torch.as_tensor(item, device=rows.device).expand(self.rows)[rows] for item in named]
        wrong = [item for item in answers if bool(((item < 0) | (item >= classes)).any())]
        if wrong or (len(answers) == 2 and self.link != "softmax") or len(answers) > 2:
            pair = ", or a pair of them" if self.link == "softmax" else ""
            raise ValueError(
                f"{self.owner}: expected a target among 0..{classes - 1}{pair}, got {self.target!r}"
            )
        return answers[0]

    def _value(self, at: Tensor, answer: Tensor) -> Tensor:
        """The target ``[P, R]`` of predictions ``[P, R, C]``."""
        if self.target == "doubt":
            both = torch.nn.functional.logsigmoid(torch.stack([at, -at], dim=-1)).flatten(-2)
            log_p = both if self.link == "sigmoid" else at.log_softmax(dim=-1)
            log_p = log_p.clamp_min(LEAST_LOG)
            return -(log_p.exp() * log_p).sum(dim=-1)
        index = answer.expand(len(at), -1).unsqueeze(-1)
        named = at.gather(-1, index).squeeze(-1)
        if self.link != "softmax":
            return named
        if isinstance(self.target, tuple):
            return named - at[..., self.target[1]]
        if at.shape[-1] < 2:
            raise ValueError(
                f"{self.owner}: expected predictions of two classes or more, got {list(at.shape[1:])}"
            )
        return named - at.scatter(-1, index, -torch.inf).logsumexp(dim=-1)
