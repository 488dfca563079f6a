"""The prior of the unnormalised attention weights: contextual or constant."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from probattn.distributions import Gamma, LogNormal
from probattn.host import at_least_float32
from probattn.sites.bayesian import BayesianAttention
from probattn.sites.layout import PAIRS, Layout

Prior = Gamma | LogNormal


class ContextualPrior(nn.Module):
    """log alpha, an MLP of the keys, log-softmax over those that a query may see (Zhang et al. 2021, section 3.1)."""

    log_strength: nn.Parameter | None

    def __init__(self, method: BayesianAttention, head_dim: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(head_dim, method.prior_hidden)
        # The softmax over keys would not see a bias.
        self.output = nn.Linear(method.prior_hidden, 1, bias=False)
        log_strength = nn.Parameter(torch.zeros(())) if method.learns_strength else None
        self.register_parameter("log_strength", log_strength)

    def logits(self, key: Tensor) -> Tensor:
        """The MLP's values of keys ``[..., D]``, before the softmax: ``[...]``, at least in float32."""
        logits: Tensor = self.output(torch.relu(self.hidden(key.to(self.hidden.weight.dtype)))).squeeze(-1)
        return at_least_float32(logits)

    def forward(self, key: Tensor, num_heads: int, layout: Layout = PAIRS) -> Tensor:
        """log alpha ``[B, H, 1 | T, S]`` of keys ``[B, G, S, D]``, or ``[1, H, 1, E]`` of the nodes' ``[N, H, D]``."""
        return layout.over_keys(self.logits(key), num_heads)


def site_prior(
    method: BayesianAttention,
    contextual: ContextualPrior | None,
    key: Tensor,
    shape: torch.Size,
    dtype: torch.dtype,
    layout: Layout,
) -> Prior:
    """The prior of one call, Gamma(s alpha, s rate) or LogNormal(log alpha, prior_scale), unexpanded underneath."""
    log_alpha, log_rate = prior_parameters(method, contextual, key, shape[1], dtype, layout)
    if method.posterior == "lognormal":
        scale = log_alpha.new_full((), method.prior_scale)
        return LogNormal(log_alpha, scale, validate_args=False).expand(shape)
    return Gamma(log_concentration=log_alpha, rate=log_rate.exp(), validate_args=False).expand(shape)


def prior_parameters(
    method: BayesianAttention,
    contextual: ContextualPrior | None,
    key: Tensor,
    num_heads: int,
    dtype: torch.dtype,
    layout: Layout,
) -> tuple[Tensor, Tensor]:
    """log(s alpha), which broadcasts to ``[B, H, T, S]``, and the scalar log(s rate)."""
    if contextual is None:
        log_alpha = key.new_full((1, 1, 1, 1), math.log(method.prior_concentration), dtype=dtype)
    else:
        log_alpha = contextual(key, num_heads, layout).to(dtype)
    log_rate = log_alpha.new_full((), math.log(method.rate))
    if method.prior_strength == 1:
        return log_alpha, log_rate  # under causal masks log_alpha is a map, and a sum a pass over it
    learned = None if contextual is None else contextual.log_strength
    log_strength = method.log_strength if learned is None else learned.to(dtype)
    return log_alpha + log_strength, log_rate + log_strength
