"""Attention weights of posterior draws, gathered over passes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from probattn.distributions.carried import carried_log, carried_weights
from probattn.sites.posterior import SitePosterior


@dataclass
class AttentionDraws:
    """Gathers attention weights over passes, as draws or as running moments.

    Args:
        wanted: sites, "all", or None for nothing.
        streaming: keep moments in place of draws.
    """

    wanted: Literal["all"] | Sequence[str] | None
    streaming: bool
    draws: dict[str, list[Tensor]] = field(default_factory=dict)
    moments: dict[str, tuple[int, Tensor, Tensor]] = field(default_factory=dict)
    seen: set[str] = field(default_factory=set)

    def add(self, name: str, posterior: SitePosterior, value: Tensor, draws: int) -> None:
        """Takes over a site's drawn values of one pass, ``draws`` of them folded into the batch."""
        self.seen.add(name)
        if self.wanted is None or (self.wanted != "all" and name not in self.wanted):
            return
        weights = carried_weights(value, posterior.mask)
        weights = posterior.weights(carried_log(value)) if weights is None else weights
        weights = weights.unflatten(0, (draws, -1))
        if self.streaming:
            self.moments[name] = _merge(self.moments.get(name), weights)
        else:
            self.draws.setdefault(name, []).append(weights)

    def check(self) -> None:
        """Raises ``ValueError`` unless the passes so far met the wanted sites."""
        if self.wanted == "all" and not self.seen:
            raise ValueError("posterior_predict: the model has no attention site; convert the network first")
        for name in () if self.wanted is None or self.wanted == "all" else self.wanted:
            if name not in self.seen:
                known = ", ".join(sorted(self.seen)) or "none: convert the network first"
                raise ValueError(f"posterior_predict: no attention site {name!r}; the model has {known}")

    def results(self) -> tuple[dict[str, Tensor] | None, dict[str, Tensor] | None, dict[str, Tensor] | None]:
        """Draws, means and standard deviations by site; None for what is not kept."""
        if self.wanted is None:
            return None, None, None
        found = self.moments if self.streaming else self.draws
        order = (
            list(found) if self.wanted == "all" else list(self.wanted)
        )  # that of the pass, or as asked for
        if not self.streaming:
            return {name: torch.cat(self.draws[name]) for name in order}, None, None
        moments = {name: self.moments[name] for name in order}
        mean = {name: moment[1] for name, moment in moments.items()}
        std = {name: (m2 / max(count - 1, 1)).sqrt() for name, (count, _, m2) in moments.items()}
        return None, mean, std


def _merge(known: tuple[int, Tensor, Tensor] | None, weights: Tensor) -> tuple[int, Tensor, Tensor]:
    """Count, mean and sum of squared deviations of all draws so far (Chan et al. 1979)."""
    count, mean = weights.shape[0], weights.mean(dim=0)
    m2 = (weights - mean).square().sum(dim=0)
    if known is None:
        return count, mean, m2
    before, old_mean, old_m2 = known
    total, delta = before + count, mean - old_mean
    return total, old_mean + delta * (count / total), old_m2 + m2 + delta.square() * (before * count / total)
