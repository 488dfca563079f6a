"""Predictions and figures of an evaluation: means of draws, exact means of the objective, measures of uncertainty."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch import Tensor

from probattn.inference.elbo import ELBOTerms
from probattn.inference.expansion import posterior_moments
from probattn.inference.loop import StepTerms
from probattn.inference.predictive import posterior_predict, rows_per_pass
from probattn.metrics.functional.inputs import accumulation_dtype, widened
from probattn.models.hosts.card import evaluations_in, note_evaluations, notes
from probattn.models.program import HeadProgram, Link
from probattn.trainer.data import name_of

Prediction = Literal["mean", "draws", "moments"]
"""What an evaluation predicts with."""

ASIDE = ("model_preparation_time", "jit_compilation_time")
"""Metrics of a ``Trainer`` that say nothing of the network."""


class EvaluationMeans:
    """Means of the objective's terms over all labels of a data set, and the number of the batch."""

    def __init__(self) -> None:
        self.batches = 0
        self._sums: Tensor | None = None

    def add(self, terms: ELBOTerms, rows: int, labels: int) -> None:
        """Takes in a batch's terms, means over its rows."""
        sums = torch.stack(
            [*(rows * widened(term) for term in terms), widened(terms.loss.new_tensor(labels))]
        )
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
    """The batch without the rows that the last step of several processes repeats, so that all have as many."""
    state = accelerator.gradient_state
    repeated = accelerator.num_processes > 1 and state.end_of_dataloader and state.remainder > 0
    if not repeated:
        return batch
    rows = len(next(iter(batch.values())))
    count = min(max(state.remainder - accelerator.process_index * rows, 0), rows)
    return {name: value[:count] if isinstance(value, Tensor) else value for name, value in batch.items()}


def prediction_words(prediction: Prediction, draws: int) -> str:
    """What predictions are, for the model card."""
    if prediction == "draws":
        return f"mean of {draws} draws"
    return "posterior expectation" if prediction == "mean" else "closed-form mean of the posterior"


def predicted_scores(
    program: HeadProgram, inputs: Mapping[str, Tensor], prediction: Prediction, draws: int, *seed: int
) -> Tensor:
    """Scores ``[B, ...]`` whose probabilities are the posterior predictive ones: of draws, or of their moments."""
    if prediction == "moments":
        return mean_of_moments(program, inputs, draws, *seed)
    return mean_of_draws(program, inputs, draws, *seed)


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
    r"""Scores ``[B, ...]`` whose probabilities are the means over draws; of a regression the mean itself.

    .. math:: \log \frac{1}{P} \sum_p \mathrm{softmax}(f(x, S_p))

    for classes, the log-odds of the mean for labels that are 0 or 1.
    """
    first = next(iter(inputs.values()))
    chunk = max(rows_per_pass(first.device) // len(first), 1)
    total: tuple[Tensor, ...] = ()
    for start in range(0, draws, chunk):
        number = min(chunk, draws - start)
        drawn = posterior_predict(program, inputs, number, seed=(*seed, start), chunk_size=number)
        sums = _sums(drawn.logits.float(), program.link)
        total = sums if not total else tuple(map(_added(program.link), total, sums))
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


def _added(link: Link) -> Any:
    return torch.add if link == "identity" else torch.logaddexp


def add_to_card(
    net: Any, name: str, metrics: Mapping[str, Any], rows: int | None, data: Any, words: str
) -> None:
    """Has the model card of a network show an evaluation.

    Args:
        net: the network.
        name: of the evaluation, with which the names of the metrics begin.
        metrics: those of a ``Trainer``.
        rows: how many were predicted; None where that is not known.
        data: the data set; those of datasets know their names.
        words: what the predictions are.
    """
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
