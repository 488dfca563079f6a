"""Score-function gradients beside divergences in closed form."""

from __future__ import annotations

from typing import Any

import torch
from pyro.distributions.score_parts import ScoreParts
from pyro.infer import TraceGraph_ELBO
from pyro.poutine.trace_struct import Trace

from probattn.inference.elbo import site_divergence


class TraceGraphMeanFieldELBO(TraceGraph_ELBO):
    r"""``pyro.infer.TraceGraph_ELBO`` that knows the divergence of a latent site where it has a closed form.

    .. math:: \mathcal L = \mathrm E_q[\log p(y \mid z)] - \sum_i \mathrm E_q[\mathrm{KL}(q(z_i) \| p(z_i))]

    The expected log-likelihood has the score-function gradient of Pyro's class, with its baselines; of the divergence
    Pyro's class draws :math:`\log q(z_i) - \log p(z_i)` too, and its noise is in every gradient of the prior and of the
    posterior. Here they have the exact one, as in ``pyro.infer.TraceMeanField_ELBO``, and a ``baseline_value`` stands
    against the log-likelihood alone. The expectations are the same. Sites without a closed form are drawn, and all are
    where model and guide have them in different orders: the closed form of a site is right for what is drawn before it
    in both.

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
            posterior.update(
                log_prob=nothing,
                log_prob_sum=nothing.sum(),
                score_parts=ScoreParts(nothing, posterior["score_parts"].score_function, 0),
            )
        return model_trace, guide_trace


def _latent(trace: Trace) -> list[str]:
    return [
        name for name, site in trace.nodes.items() if site["type"] == "sample" and not site["is_observed"]
    ]
