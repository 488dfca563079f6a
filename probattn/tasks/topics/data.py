"""Test examples as the topics of a report read them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from probattn.models import AttentionCalls
from probattn.report import HeadRows
from probattn.tasks.networks import Network


def _no_rows(_: AttentionCalls) -> Iterable[HeadRows]:
    return ()


@dataclass(frozen=True)
class TopicData:
    """Test examples of a run, and what topics do with them.

    Attributes:
        take: returns a number of examples, fewer where there are not as many.
        batches: returns the inputs of a network for examples, in batches.
        start: returns the program of the network before training; None where it is gone.
        report: the recipe's section on the report.
        prediction: ``num_samples``, ``seed``, ``chunk_size`` and ``batch_size`` of predictions, such as the recipe's
            section on them.
        accuracy: returns a function without arguments that measures a network on examples, a share in [0, 1]; None
            where the task has no such measure.
        measure: that measure, in words.
        rows: returns attention of the heads of some calls in single texts.
    """

    take: Callable[[int], Any]
    batches: Callable[[Network[Any], Any], Iterable[Mapping[str, Tensor]]]
    start: Callable[[], Any]
    report: Any
    prediction: Any
    accuracy: Callable[[Network[Any], Any], Callable[[], float]] | None = None
    measure: str = "accuracy"
    rows: Callable[[AttentionCalls], Iterable[HeadRows]] = _no_rows
