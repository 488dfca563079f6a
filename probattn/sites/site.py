"""The site: one attention call as a Pyro latent variable. Every host and primitive goes through it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import pyro
import torch
from pyro.poutine.runtime import am_i_wrapped
from torch import Tensor, nn

from probattn.checks import check_integer
from probattn.distributions import Gamma, LogNormal, Weibull
from probattn.distributions.carried import carried_log, carried_weights, carries_log
from probattn.sites.bayesian import BayesianAttention
from probattn.sites.building import build
from probattn.sites.masks import AttentionMask
from probattn.sites.posterior import PosteriorInputs, SitePosterior, as_event
from probattn.sites.prior import ContextualPrior, site_prior
from probattn.sites.scores import attention_scores, normalise, repeat_heads
from probattn.sites.shared import SharedUpward, UpwardOutputs
from probattn.sites.upward import UpwardChain, UpwardMaps, softmax_over_keys

INFER_KEY = "attention"
"""Key of a site's ``infer`` dictionary under which the guide finds the :class:`SitePosterior`."""


@dataclass(frozen=True)
class SiteSpec:
    """What a site must know of the attention module it serves.

    Args:
        num_heads: H, query heads.
        head_dim: D, size of a key head.
        causal: whether queries see only earlier keys.
        max_positions: longest query length, or None where there is no limit.
        kind: "self" or "cross" attention.
        windowed: whether windows of a datum may stand beside its heads, ``[B, W * H, T, D]`` (Swin).

    Raises:
        ValueError: a size below 1.
    """

    num_heads: int
    head_dim: int
    causal: bool = False
    max_positions: int | None = None
    kind: Literal["self", "cross"] = "self"
    windowed: bool = False

    def __post_init__(self) -> None:
        for name in ("num_heads", "head_dim"):
            check_integer("SiteSpec", name, getattr(self, name), least=1)


class LatentSite(nn.Module):
    """What latent attention over pairs and over edges have in common: options, prior network and upward maps.

    Args:
        method: the options.
        spec: sizes of the attention module.
        chain: upward chain shared with other calls; each call must then be added with :meth:`join`. Default: a chain
            of this call alone.

    Raises:
        ValueError: ``upward="positions"`` in a causal network or without a maximum length.
    """

    def __init__(self, method: BayesianAttention, spec: SiteSpec, chain: UpwardChain | None = None) -> None:
        super().__init__()
        if method.has_upward_path and method.upward == "positions" and spec.causal:
            raise ValueError(
                "upward='positions' mixes queries, so a causal network would see the future; use upward='heads'"
            )
        self.method = method
        self.spec = spec
        self.prior = (
            ContextualPrior(spec.head_dim, method.prior_hidden) if method.prior == "contextual" else None
        )
        self.upward: UpwardMaps | None = None
        if method.has_upward_path:
            self.upward = UpwardMaps(method, spec.num_heads, spec.max_positions)
        self.chain = UpwardChain()
        self.positions: list[int] = []
        self.join(self.chain if chain is None else chain)

    def join(self, chain: UpwardChain) -> None:
        """Adds one call of this site to ``chain``; a site that is called several times joins as often."""
        if chain is not self.chain:
            self.chain, self.positions = chain, []
        if self.upward is not None:
            self.positions.append(chain.join(self.upward))

    def extra_repr(self) -> str:
        """The options, for ``print(network)``."""
        return f"{self.method}, {self.spec}"

    def _begin(
        self,
        call: int,
        scores: Tensor,
        weight: Tensor | None = None,
        softmax: Callable[[Tensor], Tensor] = softmax_over_keys,
    ) -> None:
        """Tells the chain of its first call's scores, whoever gives that call its weights."""
        if self.upward is not None and self.positions[call] == 0:
            self.chain.begin(scores, weight, softmax)

    def _rise(
        self,
        call: int,
        scores: Tensor,
        weight: Tensor | None = None,
        softmax: Callable[[Tensor], Tensor] = softmax_over_keys,
        shared: SharedUpward | None = None,
        draws: int = 1,
    ) -> UpwardOutputs:
        """What the upward path says at this call; ``weight`` is 0 for padded queries."""
        if self.upward is None:
            return UpwardOutputs()
        maps, chain, position = self.upward, self.chain, self.positions[call]

        def rise(rows: int) -> UpwardOutputs:
            own = None if weight is None else weight[:rows]
            state = chain.state(position, scores.shape, rows)
            mixed = (None if mix is None else mix(state, own) for mix in (maps.concentration, maps.scale))
            return UpwardOutputs(*mixed)

        if chain.current is None:  # asked for after the pass
            self._begin(call, scores, weight, softmax)
        return rise(len(scores)) if shared is None else shared.outputs(chain, position, draws, rise)

    def _sample(self, name: str, prior: Gamma | LogNormal, posterior: SitePosterior) -> Tensor:
        """Announces S to Pyro and gives what it got."""
        value = pyro.sample(name, as_event(prior, posterior.mask), infer={INFER_KEY: posterior})
        if value.shape != prior.batch_shape:
            raise ValueError(
                f"site {name!r}: expected unnormalised weights of shape {list(prior.batch_shape)}, got "
                f"{list(value.shape)}"
            )
        return value

    def _refuse_unsupported(self, name: str) -> None:
        if getattr(self, "_is_replica", False):
            raise RuntimeError(
                f"site {name!r}: torch.nn.DataParallel runs threads that Pyro's handlers do not reach and is not "
                "supported; launch one process per device (accelerate launch, torchrun)"
            )
        if self.training and torch.is_grad_enabled() and not am_i_wrapped():
            raise RuntimeError(
                f"site {name!r}: training without a driver would fit deterministic attention unnoticed; train with "
                "probattn.inference.SVIDriver or pyro.infer.SVI under AttentionGuide, or call .eval() or "
                "torch.no_grad() to predict"
            )


class AttentionSite(LatentSite):
    r"""Attention whose unnormalised weights S are latent.

    What a call does depends on who watches it:

    - under :class:`probattn.inference.AttentionGuide`: S is drawn from the posterior;
    - under other Pyro handlers: S follows the prior, or what ``condition``, ``replay`` or ``do`` give it;
    - under none: the posterior expectation, :math:`W = E[S] / \sum E[S]`, deterministic. Training so raises.

    At forbidden pairs W is 0, and what S is there means nothing.

    Args:
        method: the options.
        spec: sizes of the attention module.
        chain: upward chain shared with other calls; each call must then be added with :meth:`join`. Default: a chain
            of this call alone.

    Raises:
        ValueError: ``upward="positions"`` in a causal network or without a maximum length.
    """

    def forward(
        self,
        name: str,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: AttentionMask | None = None,
        *,
        scale: float | None = None,
        bias: Tensor | None = None,
        softcap: float | None = None,
        call: int = 0,
    ) -> tuple[Tensor, Tensor]:
        """Attends.

        Args:
            name: name of the Pyro site.
            query: ``[B, H, T, D]``.
            key: ``[B, G, S, D]``, G dividing H (grouped heads).
            value: ``[B, G, S, E]``.
            mask: validity of the pairs; fully masked queries give zeros.
            scale: factor of the scores, default ``D ** -0.5``.
            bias: additive scores, broadcastable to ``[B, H, T, S]``, finite.
            softcap: soft limit of the scores.
            call: which of this module's calls in a forward pass this is.

        Returns:
            Output ``[B, H, T, E]`` and weights ``[B, H, T, S]``, in the query's type.

        Raises:
            RuntimeError: training without a driver, or under ``torch.nn.DataParallel``.
            ValueError: a wrong number of heads, a given S of the wrong shape, or a negative one.
        """
        self._refuse_unsupported(name)
        heads = query.shape[1]
        if heads != self.spec.num_heads and (not self.spec.windowed or heads % self.spec.num_heads):
            raise ValueError(f"site {name!r}: expected {self.spec.num_heads} query heads, got {heads}")
        scores = attention_scores(
            query, repeat_heads(key, heads), mask, scale=scale, bias=bias, softcap=softcap
        )
        with torch.autocast(query.device.type, enabled=False):
            if am_i_wrapped():
                weights = self._announce(name, scores, key, mask, call)
            else:
                weights = normalise(self._expectation(scores, mask, call), mask)
            weights = weights.to(query.dtype)
        return torch.matmul(weights, repeat_heads(value, heads).to(weights.dtype)), weights

    def posterior(self, scores: Tensor, mask: AttentionMask | None, call: int = 0) -> Weibull | LogNormal:
        """q(S) from masked scores ``[B, H, T, S]``; batch shape that of the scores."""
        self._begin(call, scores, _row_weight(mask, scores.dtype))
        return self._posterior_inputs(scores, mask, call).distribution(self.method)

    def _posterior_inputs(
        self,
        scores: Tensor,
        mask: AttentionMask | None,
        call: int,
        shared: SharedUpward | None = None,
        draws: int = 1,
    ) -> PosteriorInputs:
        mixes_queries = self.upward is not None and self.method.upward == "positions"
        if mixes_queries and mask is not None and not mask.rows_alike:
            raise ValueError(
                "upward='positions' mixes queries, but the mask differs between queries (causal or windowed), so they "
                "would see what is hidden from them; use upward='heads'"
            )
        weight = _row_weight(mask, scores.dtype)
        upward = self._rise(call, scores, weight, shared=shared, draws=draws)
        log_softmax = partial(torch.log_softmax, dim=-1) if self.method.scores == "normalised" else None
        return PosteriorInputs(scores, upward, log_softmax, None if mask is None else mask.valid)

    def _expectation(self, scores: Tensor, mask: AttentionMask | None, call: int) -> Tensor:
        if not self.method.learns_scale:
            return scores  # E[S] is exp(scores) up to a factor per query
        return self.posterior(scores, mask, call).log_mean

    def _announce(
        self, name: str, scores: Tensor, key: Tensor, mask: AttentionMask | None, call: int
    ) -> Tensor:
        self._begin(call, scores, _row_weight(mask, scores.dtype))
        prior = site_prior(self.method, self.prior, key, scores.shape, scores.dtype, mask)
        make = partial(self._posterior_inputs, scores, mask, call)
        posterior = SitePosterior(self.method, make, prior, mask)
        value = self._sample(name, prior, posterior)
        weights = carried_weights(value, mask)
        return normalise(log_weights(name, value).to(scores.dtype), mask) if weights is None else weights


def log_weights(name: str, value: Tensor) -> Tensor:
    """log S of a site; a value from outside (``condition``, ``do``) is checked, zeros become the smallest number."""
    if carries_log(value):
        return carried_log(value)
    if not bool((value >= 0).all()):
        raise ValueError(
            f"site {name!r}: expected unnormalised attention weights >= 0, got a smallest value of {value.min().item()}"
        )
    return value.clamp_min(torch.finfo(value.dtype).tiny).log()


def _row_weight(mask: AttentionMask | None, dtype: torch.dtype) -> Tensor | None:
    if mask is None or mask.query_valid is None:
        return None
    return mask.query_valid[:, None, :, None].to(dtype)


@build.register
def _site(
    method: BayesianAttention,
    num_heads: int,
    head_dim: int,
    *,
    causal: bool = False,
    max_positions: int | None = None,
) -> AttentionSite:
    return AttentionSite(method, SiteSpec(num_heads, head_dim, causal=causal, max_positions=max_positions))
