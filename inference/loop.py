"""The numbers of a step: its gradients, means over rows and ranks, and the message about one that is not finite."""

from __future__ import annotations

import math
import textwrap
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pyro
import pyro.distributions as dist
import torch
from accelerate import Accelerator
from accelerate.utils import gather_object, send_to_device
from torch import Tensor, nn

from probattn.checks import PlainWarning
from probattn.inference.elbo import ELBOTerms
from probattn.inference.optimizers import unsharded
from probattn.sites.bayesian import RELEASE_KL_WEIGHT
from probattn.sites.site import LatentSite


class NonFiniteError(ArithmeticError):
    """The loss or its gradient is not finite; the parameters have their values from before this update."""


class ExplodedKLWarning(PlainWarning):
    """A KL beside which the likelihood is lost in rounding."""


class StepTerms(NamedTuple):
    """Means over rows of the objective's parts, as numbers; see :class:`probattn.inference.ELBOTerms`."""

    loss: float
    log_likelihood: float
    kl: float
    kl_nats: float
    factors: float


@dataclass
class Meter:
    """Means of the objective's parts over the updates since the last record."""

    steps: int = 0
    sums: list[float] = field(default_factory=lambda: [0.0] * len(StepTerms._fields))

    def add(self, terms: StepTerms) -> None:
        """Takes in one update."""
        self.steps += 1
        self.sums = [total + term for total, term in zip(self.sums, terms, strict=True)]

    def take(self) -> StepTerms:
        """The means, after which the accumulation restarts."""
        means = StepTerms(*(total / self.steps for total in self.sums))
        self.steps, self.sums = 0, [0.0] * len(self.sums)
        return means


class NonFiniteThrough(nn.Module):
    """Computes on where Pyro's validation stops at a NaN, so that all ranks report it; keeps its complaint.

    ``graphs`` is the context of its passes, in which networks may be compiled. Without ``repeatable`` passes Pyro's
    validation is off: a process alone cannot repeat a pass that gathers parameters from the others.
    """

    def __init__(
        self,
        module: nn.Module,
        graphs: AbstractContextManager[None] | None = None,
        *,
        repeatable: bool = True,
    ) -> None:
        super().__init__()
        self.module, self.repeatable = module, repeatable
        self.graphs = nullcontext() if graphs is None else graphs
        self.complaint: str | None = None

    def forward(self, batch: Any) -> ELBOTerms:
        """The module's terms of ``batch``."""
        terms: ELBOTerms
        if not self.repeatable:
            with self.graphs, pyro.validation_enabled(False):
                terms = self.module(batch)
            return terms
        try:
            with self.graphs:
                terms = self.module(batch)
        except ValueError as error:
            if dist.is_validation_enabled():
                with suppress(ValueError, RuntimeError), pyro.validation_enabled(False):
                    terms = self.module(batch)
                    if not bool(terms.loss.isfinite()):
                        self.complaint = textwrap.shorten(str(error), 200)
                        return terms
            raise
        return terms


def accumulate_gradients(
    accelerator: Accelerator, module: nn.Module, weights: Sequence[float], batches: Iterator[Any]
) -> Tensor:
    """Adds a step's gradient over micro-batches, ``weights`` their shares of it; the terms' means, ``[5]``."""
    total: Tensor | None = None
    for index, weight in enumerate(weights):
        last = index == len(weights) - 1
        with nullcontext() if last else accelerator.no_sync(module):
            terms = module(send_to_device(next(batches), accelerator.device))
            # Gradients are averaged over ranks, so a rank's share counts that many times.
            accelerator.backward(terms.loss * (weight * accelerator.num_processes))
        weighted = weight * torch.stack([term.detach() for term in terms])
        total = weighted if total is None else total + weighted
    reduced: Tensor = accelerator.reduce(total, "sum")
    return reduced


def evaluate(
    accelerator: Accelerator,
    module: nn.Module,
    batches: Iterable[tuple[Any, int]],
    metrics: Callable[[Any], Mapping[str, Tensor]] | None = None,
) -> dict[str, float]:
    """Means of terms, then metrics, over the rows of all ranks, without gradients, in evaluation mode."""
    sums: dict[str, float] = {}
    rows = 0
    mode = module.training
    module.eval()
    try:
        with torch.no_grad(), accelerator.autocast():
            for batch, size in batches:
                moved = send_to_device(batch, accelerator.device)
                measured = _metric_means(metrics, moved) if metrics else {}
                terms = StepTerms(*torch.stack(list(module(moved))).tolist())._asdict()
                for name, value in (terms | measured).items():
                    sums[name] = sums.get(name, 0.0) + size * value
                rows += size
    finally:
        module.train(mode)
    ranks = gather_object([(sums, rows)])
    total = sum(count for _, count in ranks)
    names = {name: None for values, _ in ranks for name in values}
    return {name: sum(values.get(name, 0.0) for values, _ in ranks) / total for name in names}


def _metric_means(metrics: Callable[[Any], Mapping[str, Tensor]], batch: Any) -> dict[str, float]:
    values = {name: torch.as_tensor(value).float().mean().item() for name, value in metrics(batch).items()}
    reserved = values.keys() & set(StepTerms._fields)
    if reserved:
        raise ValueError(
            f"validation_metrics: {sorted(reserved)} are names of the objective's terms; choose others"
        )
    return values


def mean_diagnostics(ranks: Sequence[Mapping[str, Mapping[str, float]]]) -> dict[str, dict[str, float]]:
    """Figures of every site, averaged over the ranks in whose last pass it was (a network may drop layers)."""
    ran = {site: [rank[site] for rank in ranks if site in rank] for rank in ranks for site in rank}
    return {
        site: {name: sum(figures[name] for figures in records) / len(records) for name in records[0]}
        for site, records in ran.items()
    }


def unhealthy_sites(diagnostics: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Sites with a figure that is not finite, each with that figure."""
    bad = {
        site: [f"{name} {value}" for name, value in figures.items() if not math.isfinite(value)]
        for site, figures in diagnostics.items()
    }
    return [f"{site} ({', '.join(figures)})" for site, figures in bad.items() if figures]


def unhealthy_gradients(module: nn.Module) -> list[str]:
    """Names of the parameters whose gradient is not finite."""
    grads = {name: p.grad for name, p in module.named_parameters() if p.grad is not None}
    return [name for name, grad in grads.items() if not bool(unsharded(grad).isfinite().all())]


LOST = 2.0**24
"""How many times larger a number is in whose float32 rounding another is lost."""


OUTWEIGHED = 100.0
"""How many times larger than the log-likelihood a summed KL, at its final weight, is from the start to be told."""


class Explosion(NamedTuple):
    """A KL beside which the likelihood is lost: its size and site, and what to set."""

    words: str
    advice: str


def kl_explosion(
    terms: StepTerms,
    diagnostics: Callable[[], Mapping[str, Mapping[str, float]]],
    module: nn.Module,
    weight: float | None = None,
) -> Explosion | None:
    """What to say of a KL of more than ``LOST`` times the log-likelihood, or 1; ``diagnostics`` come on demand.

    With ``weight``, that of the end of the training, also of a summed KL that will be ``OUTWEIGHED`` times it.
    """
    methods = [child.method for child in module.modules() if isinstance(child, LatentSite)]
    kl, verb, likelihood = terms.kl, "exploded", max(1.0, abs(terms.log_likelihood))
    limit = LOST * likelihood
    if weight and abs(kl) <= limit and any(method.kl_reduction == "sum" for method in methods):
        kl = weight * sum(figures.get("kl_reduced", 0.0) for figures in diagnostics().values())
        verb, limit = "outweighs the likelihood", OUTWEIGHED * abs(terms.log_likelihood)
    if math.isnan(kl) or abs(kl) <= limit:
        return None
    sites = {name: figures.get("kl_nats", 0.0) for name, figures in diagnostics().items()}
    largest = max(sites, key=lambda name: abs(sites[name]), default=None)
    where = "" if largest is None else f", most of it at site {largest} ({sites[largest]:.3g} nats)"
    words = (
        f"the KL of the attention weights {verb}: {kl:.3g} beside a log-likelihood of "
        f"{terms.log_likelihood:.3g}{where}"
    )
    causes = []
    if any(method.scores == "raw" for method in methods):
        causes.append("exp(scores) has no bound with scores='raw': set scores='normalised'")
    if any(method.kl_reduction == "sum" for method in methods):
        causes.append("kl_reduction='sum' adds up all pairs and heads: set 'mean'")
        causes.append(
            "or take the objective of the authors' code: BayesianAttention.release() (attention.preset=release) and "
            f"a constant KL weight of {RELEASE_KL_WEIGHT} (training.kl_weight, training.kl_schedule)"
        )
    return Explosion(words, "; ".join([*causes, "or lower the KL weight and the learning rates"]))


class StepCheck:
    """Refuses steps that are not finite, whose error advises ``precision``, and warns once of a KL that exploded.

    At the first step it also warns of a summed KL that outweighs the likelihood at ``kl_weight``, that of the end.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        objective: NonFiniteThrough,
        module: nn.Module,
        diagnostics: Callable[[], Mapping[str, Mapping[str, float]]],
        precision: str = "precision='no'",
        kl_weight: float = 0.0,
    ) -> None:
        self._accelerator, self._objective, self._module = accelerator, objective, module
        self._diagnostics, self._precision, self._kl_weight = diagnostics, precision, kl_weight
        self._exploded = False

    def terms(self, sums: Tensor, norms: Sequence[Tensor]) -> tuple[StepTerms, float]:
        """Terms ``[5]``, and the gradient's norm, or that of alignment's networks if it is not finite, as numbers."""
        *values, norm, other = torch.cat([sums, *(norm.to(sums).reshape(1) for norm in norms)]).tolist()
        return StepTerms(*values), norm if math.isfinite(other) else other

    def check(
        self, step: int, terms: StepTerms, norm: float, where: str, checkpoint: Callable[[], Path | None]
    ) -> None:
        """Raises :class:`NonFiniteError`, with the checkpoint that is made for it, or warns."""
        scaled = self._accelerator.scaler is not None  # a gradient scaler skips such updates and tries again
        finite = math.isfinite(sum(terms)) and (scaled or math.isfinite(norm))
        warned = finite and self._exploded
        if step == 0 and terms.log_likelihood == terms.factors == 0:
            lost = "step 1: the log-likelihood is 0, so no row of the batch has a label, and nothing is learned from it"
            warnings.warn(f"{lost}; labels that are missing are -100 or NaN", PlainWarning, stacklevel=4)
        weight = self._kl_weight if step == 0 else None
        explosion = None if warned else kl_explosion(terms, self._diagnostics, self._module, weight)
        if finite and explosion is not None:
            self._exploded = True
            lost = f"step {step + 1}: {explosion.words}, so that next to nothing is learned from the labels"
            warnings.warn(f"{lost}; {explosion.advice}", ExplodedKLWarning, stacklevel=4)
        if finite:
            return
        complaint = self._objective.complaint
        sites = gather_object(unhealthy_sites(self._diagnostics()))
        complaints = gather_object([] if complaint is None else [complaint])
        raise NonFiniteError(
            describe_failure(
                where=f"the loss of step {step + 1}{where}",
                terms=terms,
                gradient_norm=norm,
                sites=list(dict.fromkeys(sites)),
                gradients=unhealthy_gradients(self._module),
                complaints=list(dict.fromkeys(complaints)),
                checkpoint=checkpoint(),
                precision=self._precision,
                explosion=explosion,
            )
        )


def describe_failure(
    *,
    where: str,
    terms: StepTerms,
    gradient_norm: float,
    sites: Sequence[str],
    gradients: Sequence[str],
    complaints: Sequence[str],
    checkpoint: Path | None,
    precision: str = "precision='no'",
    explosion: Explosion | None = None,
) -> str:
    """The message of :class:`NonFiniteError`: what, where, at which site, and what is kept."""
    if explosion is None:
        values = ", ".join(f"{name} {value}" for name, value in terms._asdict().items())
        failure = f"{where} is not finite: {values}, gradient norm {gradient_norm}"
        site = "; no attention site is to blame: every site's KL, concentration and spread are finite"
        advice = (
            "Lower the learning rates, clip harder (max_grad_norm), warm up the KL weight more slowly, or train with "
            f"{precision}"
        )
    else:
        failure = f"{where} or its gradient is not finite: {explosion.words}; gradient norm {gradient_norm}"
        site, advice = "", f"{explosion.advice[0].upper()}{explosion.advice[1:]}"
    site = f"; sites: {_first(sites)}" if sites else site
    gradient = f"; gradients that are not finite: {_first(gradients)}" if gradients else ""
    validation = f"; Pyro's validation: {_first(complaints, 1)}" if complaints else ""
    saved = f"last checkpoint: {checkpoint}" if checkpoint else "there is no checkpoint"
    return f"{failure}{site}{gradient}{validation}; {saved}. No update was made from it. {advice}"


def _first(names: Sequence[str], count: int = 3) -> str:
    more = f" and {len(names) - count} more" if len(names) > count else ""
    return ", ".join(names[:count]) + more
