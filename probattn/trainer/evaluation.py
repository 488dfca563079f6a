"""Predictions and figures of an evaluation: means of draws, exact means of the objective, measures of uncertainty."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce, wraps
from typing import Any, Literal

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch import Tensor
from transformers import EvalPrediction

from probattn.inference.elbo import ELBOTerms
from probattn.inference.expansion import posterior_moments
from probattn.inference.loop import StepTerms
from probattn.inference.predictive import posterior_predict, rows_per_pass
from probattn.metrics.functional import (
    area_under_risk_coverage,
    brier_score,
    negative_log_likelihood,
    predictive_entropy,
)
from probattn.metrics.functional.calibration import BinSums, bin_sums, calibration_error_from_sums
from probattn.metrics.functional.inputs import accumulation_dtype, widened
from probattn.models.hosts.description import evaluations_in, note_evaluations, notes
from probattn.models.program import IGNORED, HeadProgram, Link

Prediction = Literal["mean", "draws", "moments"]  # what an evaluation predicts with

ASIDE = ("model_preparation_time", "jit_compilation_time")
"""Metrics of a ``Trainer`` that say nothing of the network."""
FILES = ("arrow", "csv", "json", "pandas", "parquet", "text")
"""Names that datasets gives to what was read from the user's files."""
SCORES = 2**20  # scores that are measured at once; the measures make several copies of them
OWNER = "compute_uncertainty"


class EvaluationMeans:
    """Means of the objective's terms over all labels of a data set, and the number of the batch."""

    def __init__(self) -> None:
        self.batches = 0
        self._sums: Tensor | None = None

    def add(self, terms: ELBOTerms, rows: int, labels: int) -> None:
        """Takes in a batch's terms, means over its rows."""
        count = widened(terms.loss.new_tensor(labels))
        sums = torch.stack([*(rows * widened(term) for term in terms), count])
        self._sums = sums if self._sums is None else self._sums + sums

    def take(self, accelerator: Accelerator) -> dict[str, float]:
        """The means over the labels of all processes; empty without labels."""
        size, device = len(StepTerms._fields) + 1, accelerator.device
        nothing = torch.zeros(size, dtype=accumulation_dtype(device), device=device)
        total: Tensor = accelerator.reduce(nothing if self._sums is None else self._sums, "sum")
        *sums, labels = total.tolist()
        if labels == 0:
            return {}
        return StepTerms(*(value / labels for value in sums))._asdict()


def real_rows(batch: Mapping[str, Any], accelerator: Accelerator) -> Mapping[str, Any]:
    """The batch without the rows that pad the last step of several processes."""
    state = accelerator.gradient_state
    repeated = accelerator.num_processes > 1 and state.end_of_dataloader and state.remainder > 0
    if not repeated:
        return batch
    rows = len(next(iter(batch.values())))
    count = min(max(state.remainder - accelerator.process_index * rows, 0), rows)
    return {name: value[:count] if isinstance(value, Tensor) else value for name, value in batch.items()}


def labelled_rows(program: HeadProgram, batch: Mapping[str, Any]) -> tuple[Mapping[str, Any], int]:
    """The rows that have a label, and their number; all rows and 0 where none has one.

    The divergence of the others is no part of the evidence lower bound of the data.
    """
    observed = (program.is_observed(batch[name]) for name in program.label_names)
    rows = torch.stack([item.unsqueeze(-1).flatten(1).any(dim=1) for item in observed]).any(dim=0)
    count = int(rows.sum())
    if count in (0, len(rows)):
        return batch, count
    has_rows = {
        name for name, value in batch.items() if isinstance(value, Tensor) and value.shape[:1] == rows.shape
    }
    return {name: value[rows] if name in has_rows else value for name, value in batch.items()}, count


def prediction_words(prediction: Prediction, draws: int) -> str:
    """What predictions are, for the model card."""
    if prediction == "draws":
        return f"mean of {draws} draws"
    return "posterior expectation" if prediction == "mean" else "closed-form mean of the posterior"


def mean_of_moments(program: HeadProgram, inputs: Mapping[str, Tensor], draws: int, *seed: int) -> Tensor:
    """What :func:`mean_of_draws` scatters around, by the closed form; draws serve where that is not to be had."""
    moments = posterior_moments(program, inputs, num_samples=draws, seed=seed)
    if program.link == "identity":
        return moments.mean
    # In float64 a probability's logarithm is finite down to e^-708.
    mean = replace(moments, logits=widened(moments.logits)).mean
    if program.link == "sigmoid":
        return mean.logit(eps=torch.finfo(mean.dtype).eps).to(moments.covariance)
    return mean.clamp_min(torch.finfo(mean.dtype).tiny).log().to(moments.covariance)


@torch.no_grad()
def mean_of_draws(program: HeadProgram, inputs: Mapping[str, Tensor], draws: int, *seed: int) -> Tensor:
    """Scores ``[B, ...]`` whose probabilities are means over draws: logarithms, or log-odds of labels."""
    first = next(iter(inputs.values()))
    chunk = max(rows_per_pass(first.device) // len(first), 1)
    total: tuple[Tensor, ...] = ()
    for start in range(0, draws, chunk):
        number = min(chunk, draws - start)
        drawn = posterior_predict(program, inputs, number, seed=(*seed, start), chunk_size=number)
        sums = _sums(drawn.logits.float(), program.link)
        add = torch.add if program.link == "identity" else torch.logaddexp
        total = sums if not total else tuple(map(add, total, sums))
    if program.link == "identity":
        return total[0] / draws
    if program.link == "sigmoid":
        return total[0] - total[1]
    return total[0] - math.log(draws)


def _sums(scores: Tensor, link: Link) -> tuple[Tensor, ...]:
    """Sums over draws ``[P, ...]``: of numbers themselves, of probabilities as logarithms."""
    if link == "identity":
        return (scores.sum(dim=0),)
    if link == "sigmoid":
        return F.logsigmoid(scores).logsumexp(dim=0), F.logsigmoid(-scores).logsumexp(dim=0)
    return (scores.log_softmax(dim=-1).logsumexp(dim=0),)


def add_to_card(
    net: Any, name: str, metrics: Mapping[str, Any], rows: int | None, data: Any, words: str
) -> None:
    """Has the model card of a network show the metrics of an evaluation (its prefix is ``name``) of so many rows."""
    aside = {f"{name}_{item}" for item in ASIDE}
    figures = {
        key.removeprefix(f"{name}_"): value if math.isfinite(value) else str(value)
        for key, value in metrics.items()
        if isinstance(value, float | int) and key not in aside
    }
    source = name_of(data)
    number = "rows" if rows is None else f"{rows} rows"
    entry = {"figures": figures, "on": f"{number}{f' of {source}' if source else ''}, {words}"}
    note_evaluations(net, evaluations_in(notes(net)) | {name: entry})


def name_of(data: Any) -> str:
    """Name and part of a data set of datasets, such as "glue (sst2, validation)"; empty for others."""
    info = getattr(data, "info", None)
    name = getattr(info, "dataset_name", None) or getattr(info, "builder_name", None)
    if not isinstance(name, str) or name in FILES:
        return ""
    config, split = getattr(info, "config_name", None), getattr(data, "split", None)
    details = [str(detail) for detail in (config, split) if detail is not None and detail != "default"]
    return f"{name} ({', '.join(details)})" if details else name


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
    r"""Measures of predicted classes and of their uncertainty; pass it to a ``Trainer`` as ``compute_metrics``.

    It works with any ``Trainer`` of a classifier. With a :class:`ProbabilisticTrainer` and ``prediction="draws"`` or
    "moments" the measures are those of the posterior predictive probabilities. Labels of -100 are ignored. A label of
    a causal language model is compared with the logits one position before it; starts and ends of spans are pooled.
    The logits are processed a few rows at a time, to save memory.

    Args:
        prediction: logits ``[N, C]`` with labels ``[N]``, ``[N, T, C]`` with ``[N, T]``, or for spans two of each. If
            the network has further outputs, the first one is used.
        program: the network's Pyro model, which aligns labels with logits. :class:`ProbabilisticTrainer` passes it;
            with another ``Trainer`` logits ``[N, T, C]`` need
            ``functools.partial(compute_uncertainty, program=probattn.models.program_for(net))``.

    Returns:
        ``accuracy``; ``negative_log_likelihood`` and ``predictive_entropy`` in nats; ``brier_score``;
        ``calibration_error`` (10 bins); ``area_under_risk_coverage`` of errors ranked by entropy; ``pavpu``, the share
        of predictions that are right and certain or wrong and uncertain (certain: entropy below half of log C).

    Raises:
        ValueError: predictions or labels of another shape, in regression or with several labels per row; all labels
            are -100; or logits of tokens without ``program``.

    Example:
        >>> import numpy as np
        >>> logits, labels = np.log([[0.9, 0.1], [0.2, 0.8]]), np.array([0, 1])
        >>> figures = compute_uncertainty(EvalPrediction(logits, labels))
        >>> figures["accuracy"], round(figures["negative_log_likelihood"], 4)
        (1.0, 0.1643)
    """
    program = getattr(prediction, "program", None) if program is None else program
    columns: list[tuple[Tensor, ...]] = []
    sums: list[BinSums] = []
    for scores, target in (piece for pair in _aligned(prediction, program) for piece in _pieces(*pair)):
        nats = negative_log_likelihood(scores, target, inputs="logits")
        entropy, wrong = predictive_entropy(scores, inputs="logits"), scores.argmax(dim=-1) != target
        certain = entropy < math.log(scores.shape[-1]) / 2
        columns.append((nats, brier_score(scores, target, inputs="logits"), entropy, wrong, certain))
        sums.append(bin_sums(scores, target, inputs="logits"))
    if not columns:
        raise ValueError(f"{OWNER}: expected labels other than {IGNORED}, got none")
    nats, brier, entropy, wrong, certain = (torch.cat(item) for item in zip(*columns, strict=True))
    bins = (reduce(torch.add, item) for item in zip(*sums, strict=True))
    figures = {
        "accuracy": 1 - wrong.double().mean(),
        "negative_log_likelihood": nats.mean(),
        "brier_score": brier.mean(),
        "calibration_error": calibration_error_from_sums(BinSums(*bins), "l1"),
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
        compared = torch.as_tensor(target)
        yield (scores, compared) if program is None else program.aligned(scores, compared)


def _check(scores: Tensor, labels: Any, program: HeadProgram | None) -> None:
    if labels is None:
        raise ValueError(f"{OWNER}: expected labels beside the predictions, got none")
    several = isinstance(labels, tuple)
    if not several and scores.shape == labels.shape:
        kind = f"predictions {list(scores.shape)} with as many labels (of soft labels give their argmax)"
    elif several or scores.dim() not in (2, 3) or scores.shape[:-1] != labels.shape or scores.shape[-1] < 2:
        described = "several kinds of labels" if several else f"labels {list(labels.shape)}"
        kind = f"logits {list(scores.shape)} and {described}"
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
