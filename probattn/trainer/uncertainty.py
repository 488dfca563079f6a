"""Measures of an evaluation's predictions, as a ``Trainer`` asks for them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from transformers import EvalPrediction

from probattn.metrics.functional import (
    area_under_risk_coverage,
    brier_score,
    negative_log_likelihood,
    predictive_entropy,
)
from probattn.metrics.functional.calibration import BinSums, bin_sums, calibration_error_from_sums
from probattn.models.program import IGNORED, HeadProgram

SCORES = 2**20
"""Scores that are measured at once; the measures make several copies of them."""
OWNER = "compute_uncertainty"


def with_program(compute: Callable[..., Any], program: HeadProgram) -> Callable[..., Any]:
    """A ``compute_metrics`` whose predictions know their program, as :func:`compute_uncertainty` needs it."""

    @wraps(compute)
    def computed(prediction: Any, *args: Any, **kwargs: Any) -> Any:
        prediction.program = program
        return compute(prediction, *args, **kwargs)

    return computed


def compute_uncertainty(
    prediction: EvalPrediction, *, program: HeadProgram | None = None
) -> dict[str, float]:
    r"""Measures of predicted classes and of their uncertainty, as ``compute_metrics`` of a ``Trainer``.

    The predictions are those of any ``Trainer`` for classes; of a :class:`ProbabilisticTrainer` with
    ``prediction="draws"`` or ``"moments"`` they are the logarithms of the posterior predictive probabilities.
    Labels of -100 do not count. The program aligns labels and logits: those of a causal language model are compared
    with the logits one position before them; of spans, starts and ends count alike.

    Args:
        prediction: logits ``[N, C]`` with labels ``[N]``, ``[N, T, C]`` with ``[N, T]``, or for spans two of each;
            of further outputs the first.
        program: of the network. A :class:`ProbabilisticTrainer` hands over its own; with another ``Trainer`` logits
            ``[N, T, C]`` need ``functools.partial(compute_uncertainty, program=probattn.models.program_for(net))``.

    Returns:
        ``accuracy``; ``negative_log_likelihood`` and ``predictive_entropy`` in nats; ``brier_score``;
        ``calibration_error`` (10 bins); ``area_under_risk_coverage`` of errors ranked by entropy; ``pavpu``, which
        counts a prediction as certain whose entropy is below half of that of C equal probabilities. Beside the logits
        it holds a few of them at a time.

    Raises:
        ValueError: predictions or labels of another shape, of numbers or of several labels; no label that counts; or
            logits of tokens without a program.

    Example:
        >>> import numpy as np
        >>> logits, labels = np.log([[0.9, 0.1], [0.2, 0.8]]), np.array([0, 1])
        >>> figures = compute_uncertainty(EvalPrediction(logits, labels))
        >>> figures["accuracy"], round(figures["negative_log_likelihood"], 4)
        (1.0, 0.1643)
    """
    program = getattr(prediction, "program", None) if program is None else program
    columns: list[tuple[Tensor, ...]] = []
    sums: list[Tensor] = []
    for scores, target in (piece for pair in _aligned(prediction, program) for piece in _pieces(*pair)):
        nats = negative_log_likelihood(scores, target, inputs="logits")
        entropy, wrong = predictive_entropy(scores, inputs="logits"), scores.argmax(dim=-1) != target
        certain = entropy < math.log(scores.shape[-1]) / 2
        columns.append((nats, brier_score(scores, target, inputs="logits"), entropy, wrong, certain))
        bins = bin_sums(scores, target, inputs="logits")
        sums = (
            list(bins)
            if not sums
            else [total + increment for total, increment in zip(sums, bins, strict=True)]
        )
    if not columns:
        raise ValueError(f"{OWNER}: expected labels other than {IGNORED}, got none")
    nats, brier, entropy, wrong, certain = (torch.cat(item) for item in zip(*columns, strict=True))
    figures = {
        "accuracy": 1 - wrong.double().mean(),
        "negative_log_likelihood": nats.mean(),
        "brier_score": brier.mean(),
        "calibration_error": calibration_error_from_sums(BinSums(*sums), "l1"),
        "predictive_entropy": entropy.mean(),
        "area_under_risk_coverage": area_under_risk_coverage(entropy, wrong),
        "pavpu": (certain != wrong).double().mean(),
    }
    return {name: float(value) for name, value in figures.items()}


def _aligned(prediction: EvalPrediction, program: HeadProgram | None) -> Iterator[tuple[Tensor, Tensor]]:
    """Logits ``[N, ..., C]`` and the labels ``[N, ...]`` that they are compared with, of each kind of labels."""
    if program is not None and program.link != "softmax":
        kind = "numbers" if program.link == "identity" else "labels that are 0 or 1"
        raise ValueError(
            f"{OWNER}: expected predictions of classes, got those of {kind} ({type(program).__name__}); write "
            "compute_metrics with the functions of probattn.metrics"
        )
    outputs, labels = prediction.predictions, prediction.label_ids
    several = isinstance(labels, tuple) and program is not None and len(labels) == len(program.label_names)
    pairs: Sequence[tuple[Any, Any]]
    if several and len(labels) > 1:
        pairs = list(zip(outputs, labels, strict=False))
    else:
        pairs = [(outputs[0] if isinstance(outputs, tuple) else outputs, labels)]
    for logits, target in pairs:
        scores = torch.as_tensor(logits)
        _check(scores, target, program)
        yield (
            (scores, torch.as_tensor(target))
            if program is None
            else program.aligned(scores, torch.as_tensor(target))
        )


def _check(scores: Tensor, labels: Any, program: HeadProgram | None) -> None:
    several = isinstance(labels, tuple)
    if not several and labels is not None and scores.shape == labels.shape:
        kind = f"predictions {list(scores.shape)} with as many labels"
    elif several or scores.dim() not in (2, 3) or scores.shape[:-1] != labels.shape or scores.shape[-1] < 2:
        kind = f"logits {list(scores.shape)} and " + (
            "several kinds of labels" if several else f"labels {list(labels.shape)}"
        )
    elif scores.dim() == 3 and program is None:
        raise ValueError(
            f"{OWNER}: expected the program of a network whose logits are {list(scores.shape)}, since labels of tokens "
            "may belong to the logits before them; use functools.partial(compute_uncertainty, "
            "program=probattn.models.program_for(net)), or ProbabilisticTrainer"
        )
    else:
        return
    raise ValueError(
        f"{OWNER}: expected logits [N, C] of classes with labels [N], or [N, T, C] with [N, T], got {kind}; for "
        "numbers and several labels a row write compute_metrics with the functions of probattn.metrics"
    )


def _pieces(scores: Tensor, labels: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """The scores ``[M, C]`` with labels that count, a few rows at a time."""
    step = max(1, SCORES // max(1, scores[:1].numel()))
    for start in range(0, len(labels), step):
        target = labels[start : start + step].flatten()
        counted = target != IGNORED
        if counted.any():
            yield scores[start : start + step].flatten(0, -2)[counted], target[counted]
