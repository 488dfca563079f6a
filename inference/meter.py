"""Running means between records, and the report of a step that is not finite."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from probattn.inference.loop import StepTerms


class NonFiniteError(ArithmeticError):
    """The loss or its gradient is not finite; the parameters are those before the update that failed."""


@dataclass
class Meter:
    """Means of the objective's parts over the updates since the last record.

    Example:
        >>> meter = Meter()
        >>> meter.add(StepTerms(2.0, -1.0, 1.0, 8.0, 0.0))
        >>> meter.add(StepTerms(4.0, -2.0, 2.0, 16.0, 0.0))
        >>> meter.take()
        StepTerms(loss=3.0, log_likelihood=-1.5, kl=1.5, kl_nats=12.0, factors=0.0)
        >>> meter.steps
        0
    """

    steps: int = 0
    sums: list[float] = field(default_factory=lambda: [0.0] * len(StepTerms._fields))

    def add(self, terms: StepTerms) -> None:
        """Takes in one update."""
        self.steps += 1
        self.sums = [total + term for total, term in zip(self.sums, terms, strict=True)]

    def take(self) -> StepTerms:
        """The means, after which it starts anew."""
        means = StepTerms(*(total / self.steps for total in self.sums))
        self.load_state_dict({"steps": 0, "sums": [0.0] * len(self.sums)})
        return means

    def state_dict(self) -> dict[str, Any]:
        """Plain values for a checkpoint."""
        return {"steps": self.steps, "sums": list(self.sums)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes over what :meth:`state_dict` returned."""
        self.steps, self.sums = state["steps"], list(state["sums"])


def unhealthy_sites(diagnostics: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Sites with a figure that is not finite, each with that figure.

    Example:
        >>> unhealthy_sites({"layer.0": {"kl_nats": 1.0}, "layer.1": {"kl_nats": float("inf"), "cv": 0.2}})
        ['layer.1 (kl_nats inf)']
    """
    bad = {
        site: [f"{name} {value}" for name, value in figures.items() if not math.isfinite(value)]
        for site, figures in diagnostics.items()
    }
    return [f"{site} ({', '.join(figures)})" for site, figures in bad.items() if figures]


def unhealthy_gradients(module: nn.Module) -> list[str]:
    """Names of the parameters whose gradient is not finite."""
    return [
        name
        for name, parameter in module.named_parameters()
        if parameter.grad is not None and not bool(_all_finite(parameter.grad))
    ]


def _all_finite(tensor: Tensor) -> Tensor:
    return tensor.isfinite().all()


def describe_failure(
    *,
    where: str,
    terms: StepTerms,
    gradient_norm: float,
    sites: Sequence[str],
    gradients: Sequence[str],
    complaints: Sequence[str],
    checkpoint: Path | None,
) -> str:
    """The message of :class:`NonFiniteError`: what, where, at which site, and what is kept.

    Args:
        where: step, epoch and batch.
        terms: of the failing step.
        gradient_norm: of the failing step.
        sites: as :func:`unhealthy_sites` gives them.
        gradients: names of parameters.
        complaints: what Pyro's validation said.
        checkpoint: the last one, with the state before the failing step.
    """
    parts = ", ".join(f"{name} {value}" for name, value in terms._asdict().items())
    found = f"{where} is not finite: {parts}, gradient norm {gradient_norm}"
    site = (
        f"sites: {_first(sites)}"
        if sites
        else "no attention site is to blame: every site's KL, concentration and spread are finite"
    )
    gradient = f"; gradients that are not finite: {_first(gradients)}" if gradients else ""
    said = f"; Pyro's validation: {_first(complaints, 1)}" if complaints else ""
    kept = f"last checkpoint: {checkpoint}" if checkpoint else "there is no checkpoint"
    return (
        f"{found}; {site}{gradient}{said}; {kept}. No update was made from it. Lower the learning rates, clip harder "
        "(max_grad_norm), warm up the KL weight more slowly, or train with precision='no'"
    )


def _first(names: Sequence[str], count: int = 3) -> str:
    more = f" and {len(names) - count} more" if len(names) > count else ""
    return ", ".join(names[:count]) + more
