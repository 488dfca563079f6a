"""Pyro's own estimators of the evidence lower bound as objectives of a driver, and one with closed forms."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection
from typing import Any

import torch
from pyro.distributions.score_parts import ScoreParts
from pyro.infer import ELBO, Trace_ELBO, TraceEnum_ELBO, TraceGraph_ELBO
from pyro.infer.traceenum_elbo import _compute_dice_elbo
from pyro.infer.util import Dice
from pyro.poutine.trace_struct import Trace
from torch import Tensor

from probattn.inference.elbo import (
    AttentionELBO,
    AttentionELBOModule,
    ELBOTerms,
    data_size,
    observed_sites,
    require_data,
    site_divergence,
)
from probattn.sites.particle_layers import particle_count

ESTIMATORS = (Trace_ELBO, TraceGraph_ELBO, TraceEnum_ELBO)
"""Classes whose objects, and those of classes derived from them, a driver knows how to differentiate."""


class ProgramELBOModule(AttentionELBOModule):
    """A model, its guide and one of Pyro's estimators; the KL is what likelihood and factors leave of its loss."""

    def __init__(self, model: Callable[..., Any], guide: Callable[..., Any], elbo: ELBO) -> None:
        if not isinstance(elbo, ESTIMATORS):
            raise TypeError(
                "SVIDriver.elbo: expected an AttentionELBO, or a Trace_ELBO, TraceMeanField_ELBO, TraceGraph_ELBO or "
                f"TraceEnum_ELBO of pyro.infer, got {type(elbo).__name__}"
            )
        if particle_count(model) is not None:
            raise ValueError(
                f"SVIDriver.elbo: expected an AttentionELBO, which runs a batch for each particle of the layers, got "
                f"{type(elbo).__name__}; leave it out"
            )
        super().__init__(model, guide, elbo)

    def terms(self, *args: Any, **kwargs: Any) -> ELBOTerms:
        """The terms in the current parameter store."""
        draws: list[ELBOTerms] = []
        for model_trace, guide_trace in self.elbo._get_traces(self.model, self.guide, args, kwargs):
            require_data(model_trace)
            loss = differentiable_loss(self.elbo, model_trace, guide_trace)
            # Where there are no such sites, they are numbers of the CPU.
            groups = (observed_sites(model_trace, factors=kind).values() for kind in (False, True))
            likelihood, factors = (_expectation(guide_trace, sites).to(loss.device) for sites in groups)
            kl = loss.detach() + likelihood + factors
            size = data_size(model_trace)
            terms = (loss, likelihood, kl, kl, factors)
            draws.append(ELBOTerms(*(term / (size * self.elbo.num_particles) for term in terms)))
        return ELBOTerms(*(torch.stack(values).sum() for values in zip(*draws, strict=True)))


def differentiable_loss(elbo: ELBO, model_trace: Trace, guide_trace: Trace) -> Tensor:
    """The negative bound of a pair of traces, undivided, with the gradient of their estimator."""
    if isinstance(elbo, TraceEnum_ELBO):
        return torch.as_tensor(-_compute_dice_elbo(model_trace, guide_trace))
    if isinstance(elbo, TraceGraph_ELBO):
        bound, surrogate = elbo._loss_and_surrogate_loss_particle(model_trace, guide_trace)
        value = -torch.as_tensor(bound)
    else:
        loss, surrogate = elbo._differentiable_loss_particle(model_trace, guide_trace)
        value = torch.as_tensor(loss, dtype=surrogate.dtype, device=surrogate.device)
    return surrogate - surrogate.detach() + value.detach()


@torch.no_grad()
def _expectation(guide_trace: Trace, sites: Collection[dict[str, Any]]) -> Tensor:
    """Sum of log densities, undivided: the expectation where the guide enumerates, otherwise that of the draw."""
    if not any("packed" in site for site in sites):
        return torch.as_tensor(sum((site["log_prob_sum"] for site in sites), 0.0)).detach()
    symbols = guide_trace.plate_to_symbol
    costs: dict[frozenset[str], list[Tensor]] = defaultdict(list)
    samples = {name: site for name, site in guide_trace.nodes.items() if site["type"] == "sample"}
    ordering = {name: _ordinal(site, symbols) for name, site in samples.items()}
    for site in sites:
        costs[_ordinal(site, symbols)].append(site["packed"]["log_prob"])
    return torch.as_tensor(Dice(guide_trace, ordering).compute_expectation(costs)).detach()


def _ordinal(site: dict[str, Any], symbols: dict[str, str]) -> frozenset[str]:
    """The plates of a site, in the letters of a packed trace."""
    return frozenset(symbols[frame.name] for frame in site["cond_indep_stack"] if frame.vectorized)


def bind(model: Callable[..., Any], guide: Any, elbo: ELBO | None) -> AttentionELBOModule:
    """Model, guide and estimator as one module; None for an :class:`AttentionELBO`."""
    if elbo is None or isinstance(elbo, AttentionELBO):
        return (elbo or AttentionELBO())(model, guide)
    return ProgramELBOModule(model, guide, elbo)


class TraceGraphMeanFieldELBO(TraceGraph_ELBO):
    r"""``pyro.infer.TraceGraph_ELBO`` that uses the closed form of the KL divergence of a latent site if there is one.

    .. math:: \mathcal L = \mathrm E_q[\log p(y \mid z)] - \sum_i \mathrm E_q[\mathrm{KL}(q(z_i) \| p(z_i))]

    The gradient of the expected log-likelihood is the score-function estimate of Pyro's class, with its baselines; a
    ``baseline_value`` should predict the log-likelihood only. Pyro's class also estimates the divergence from a draw,
    as :math:`\log q(z_i) - \log p(z_i)`, which adds noise to the gradients; here it is exact, as in
    ``pyro.infer.TraceMeanField_ELBO``. The expectations are the same. The divergence is still estimated for sites
    without a closed form, and for all sites if model and guide have them in different orders.

    Example:
        >>> import pyro
        >>> import pyro.distributions as dist
        >>> from torch.distributions import kl_divergence
        >>> prior, posterior = dist.Bernoulli(0.5), dist.Bernoulli(0.9)
        >>> def model(y):
        ...     z = pyro.sample("z", prior)
        ...     pyro.sample("y", dist.Normal(z, 1.0), obs=y)
        >>> def guide(y):
        ...     pyro.sample("z", posterior)
        >>> pyro.set_rng_seed(0)
        >>> loss = TraceGraphMeanFieldELBO().loss(model, guide, torch.tensor(0.5))
        >>> likelihood = dist.Normal(1.0, 1.0).log_prob(torch.tensor(0.5))  # the same for both values of z
        >>> bool(torch.isclose(torch.tensor(loss), kl_divergence(posterior, prior) - likelihood))
        True
    """

    def _get_trace(self, model: Any, guide: Any, args: Any, kwargs: Any) -> tuple[Trace, Trace]:
        model_trace, guide_trace = super()._get_trace(model, guide, args, kwargs)
        shared = [name for name in _latent(guide_trace) if name in model_trace]
        if shared != [name for name in _latent(model_trace) if name in guide_trace]:
            return model_trace, guide_trace
        for name in shared:
            prior, posterior = model_trace.nodes[name], guide_trace.nodes[name]
            divergence = site_divergence(prior, posterior)
            if divergence is None:  # also of a subsample of the data: the site stays as Pyro draws it
                continue
            nothing = torch.zeros_like(divergence)
            prior.update(log_prob=-divergence, log_prob_sum=-divergence.sum())
            score = ScoreParts(nothing, posterior["score_parts"].score_function, 0)
            posterior.update(log_prob=nothing, log_prob_sum=nothing.sum(), score_parts=score)
        return model_trace, guide_trace


def _latent(trace: Trace) -> list[str]:
    nodes = trace.nodes.items()
    return [name for name, site in nodes if site["type"] == "sample" and not site["is_observed"]]
