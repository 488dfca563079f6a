"""The posterior of one attention call: its distribution, draws from it and its KL to the prior."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, cast

import torch
from pyro.distributions.torch_distribution import TorchDistributionMixin
from torch import Tensor
from torch.distributions import kl_divergence

from probattn.distributions import Gamma, LogNormal, Weibull, log_gamma_1p_reciprocal, log_weibull_sample
from probattn.distributions.log_normal import log_normal_loc
from probattn.distributions.log_space import computing_dtype, standard_exponential
from probattn.distributions.log_space_distribution import carry_weights, exp_carrying_log
from probattn.host import on_cpu
from probattn.sites.bayesian import BayesianAttention
from probattn.sites.fused import WeibullDraw, draw_weibull, draw_weights
from probattn.sites.handlers import is_checkpointed
from probattn.sites.layout import PAIRS, Layout
from probattn.sites.main_effects import TRUNCATION, Variance, variances
from probattn.sites.masks import AttentionMask
from probattn.sites.noise import Noise, Origin
from probattn.sites.prior import Prior
from probattn.sites.upward import SharedUpward, UpwardCall, UpwardOutputs, with_rows
from probattn.sites.weibull import WeibullConstants, prior_terms, raised_log_scale, site_concentration


@dataclass(frozen=True, eq=False)
class PosteriorInputs:
    """Scores ``raw`` and upward path of one call, or what it gave (``computed``), from which q(S) follows on demand.

    ``separate`` are scores of k alone; ``normalised`` tells that ``raw`` is Phi.
    """

    method: BayesianAttention
    raw: Tensor
    layout: Layout = PAIRS
    call: UpwardCall | None = None
    origin: Origin = (0, 0)
    shared: SharedUpward | None = None
    draws: int = 1
    computed: UpwardOutputs | None = None
    separate: Tensor | None = None
    normalised: bool = False

    def detached(self, phi: Tensor | None = None, *, whole: bool = True) -> PosteriorInputs:
        """The same in Phi, or the scores, and what the upward path gave, without gradients or the rest of the pass.

        In a checkpointed block, which is to keep few maps, that of one datum unless it is to be ``whole``.
        """
        if self.computed is not None:
            return self
        raw, normalised = (self.raw, self.normalised) if phi is None else (phi, True)
        computed, layout = UpwardOutputs(self.concentration, self.scale).detach(), self.layout
        raw = raw.detach()
        if is_checkpointed() and not whole:
            row, layout = layout.first()
            raw, computed = raw[row].clone(), computed.of(row)
        alone = replace(self, raw=raw, normalised=normalised, call=None, shared=None, separate=None)
        return replace(alone, computed=computed, layout=layout)

    @cached_property
    def upward(self) -> UpwardOutputs:
        """Output of the upward path, for all rows of the batch or those of one draw."""
        if self.computed is not None:
            return self.computed
        if self.call is None:
            return UpwardOutputs()
        if self.shared is None:
            return self.call.outputs(len(self.raw))
        return self.shared.outputs(self.call, self.draws)

    @cached_property
    def scores(self) -> Tensor:
        """Phi, raw or normalised, masked; exp(Phi) is E[S] when sigma is 0."""
        if self.method.scores == "raw" or self.normalised:
            return self.raw
        return self.layout.log_softmax(self.raw)

    @cached_property
    def concentration(self) -> Tensor | None:
        """softplus(f_k(h)), of the scores' shape; None where k does not depend on the upward path.

        With separate scores it is what makes k that of their exponential in place of exp(Phi).
        """
        rise = with_rows(self.upward.concentration, len(self.raw))
        if self.separate is None or rise is None:
            return rise
        separate = self.separate if self.method.scores == "raw" else self.layout.log_softmax(self.separate)
        powers = [self.layout.zero_forbidden(scores).exp() for scores in (separate, self.scores)]
        return rise + (powers[0] - powers[1]) / self.method.rho

    @cached_property
    def scale(self) -> Tensor | None:
        """softplus(f_lambda(h)), of the scores' shape; None where lambda does not depend on the upward path."""
        return with_rows(self.upward.scale, len(self.raw))

    def distribution(self) -> Weibull | LogNormal:
        """q(S), batch shape that of the scores."""
        # Forbidden pairs get a score of 0: a masked one overflows in the divergence or its gradient, and no factor of 0
        # undoes that.
        method, phi = self.method, self.layout.zero_forbidden(self.scores)
        if method.posterior == "lognormal":
            spread = phi.new_full((), method.scale)
            return LogNormal(log_normal_loc(phi, method.scale), spread, validate_args=False)
        k = site_concentration(method, phi.exp(), self.concentration)
        if self.scale is None:
            return Weibull(log_mean=phi, concentration=k, validate_args=False)
        log_scale = raised_log_scale(phi - log_gamma_1p_reciprocal(k), self.scale, method.sigma)
        return Weibull(log_scale=log_scale, concentration=k, validate_args=False)


class MeanPoint(NamedTuple):
    """E[S] of one call, maps ``[B, H, T, S]``."""

    value: Tensor  # carries the weights of E[S]; a function of log_mean in the autograd graph
    log_mean: Tensor  # up to a constant of each query, which no weight depends on
    weights: Tensor  # without gradient
    inputs: PosteriorInputs

    @property
    def kind(self) -> tuple[Any, ...]:
        """What sites share whose variances are computed together."""
        like = self.log_mean
        return (self.inputs.method, like.shape, like.dtype, like.device, self.inputs.concentration is None)


def mean_variances(points: Sequence[MeanPoint], rows: int, indices: Tensor) -> Variance:
    """Of S relative to E[S], and of what S alone does to the weights, for sites of the same options and shape.

    ``indices`` ``[N]`` are places in their maps beside each other, flat, ``[rows, L, M]``.
    """
    method, inputs = points[0].inputs.method, [point.inputs for point in points]

    def there(values: Sequence[Tensor]) -> Tensor:
        maps = stacked_maps([item.detach().reshape(rows, -1) for item in values])
        return maps.reshape(-1)[indices].to(computing_dtype(maps))

    weights = there([point.weights for point in points])
    if method.posterior == "lognormal":
        return variances("normal", method.scale, weights)
    if not isinstance(method.concentration, str):
        return variances(method.noise, method.concentration, weights)
    # k is a function of exp(Phi), which the weights of E[S] are where nothing is added to it.
    apart = method.scores == "raw" or method.learns_scale
    means = there([item.scores for item in inputs]).exp() if apart else weights
    rises = [item.concentration for item in inputs if item.concentration is not None]
    k = site_concentration(method, means, there(rises) if rises else None)
    return variances(method.noise, k, weights)


def stacked_maps(maps: Sequence[Tensor]) -> Tensor:
    """Maps ``[R, M]`` of L sites as ``[R, L, M]``; no copy of one alone."""
    return maps[0].unsqueeze(1) if len(maps) == 1 else torch.stack(list(maps), dim=1)


class SitePosterior:
    """q(S) of one attention call; the site passes it to the guide in its ``infer`` dictionary.

    Args:
        inputs: options, scores ``[B, H, T, S]`` and upward path, from which q(S) is computed.
        prior: the prior of S, batch shape ``[B, H, T, S]``, or a function that makes it on demand.
        observations: number of labels that one row of the batch stands for: 1, in a graph the number of labelled nodes.
    """

    observations = 1
    _inputs: PosteriorInputs | None = None
    _kl: Tensor | None = None

    def __init__(
        self, inputs: PosteriorInputs, prior: Prior | Callable[[], Prior], observations: int = 1
    ) -> None:
        self._describe(inputs.method, inputs.layout, inputs.raw)
        self._inputs, self._prior, self.observations = inputs, prior, observations

    def _describe(self, method: BayesianAttention, layout: Layout, like: Tensor) -> None:
        """Options and layout of a map of ``like``'s shape, type and device."""
        self._method, self._layout, self._like = method, layout, like

    @property
    def inputs(self) -> PosteriorInputs:
        """Options, scores ``[B, H, T, S]`` and upward path."""
        assert self._inputs is not None
        return self._inputs

    @property
    def call(self) -> UpwardCall | None:
        """This call in its :class:`UpwardChain`; None without an upward path."""
        return None if self._inputs is None else self._inputs.call

    @cached_property
    def prior(self) -> Prior:
        """The prior of S."""
        return self._prior if isinstance(self._prior, Gamma | LogNormal) else self._prior()

    @property
    def method(self) -> BayesianAttention:
        """Options of the attention method."""
        return self._method

    @property
    def layout(self) -> Layout:
        """An :class:`AttentionMask`, :class:`Edges`, or ``PAIRS``: the allowed pairs, and the sums that normalise W."""
        return self._layout

    @property
    def mask(self) -> AttentionMask | None:
        """The layout if it is an :class:`AttentionMask`, else None."""
        return self.layout if isinstance(self.layout, AttentionMask) else None

    @cached_property
    def distribution(self) -> Weibull | LogNormal:
        """q(S) of all pairs, forbidden ones included; batch shape ``[B, H, T, S]``.

        After a draw of W in a checkpointed block it is that of one datum, ``[1, H, T, S]``.
        """
        return self.inputs.distribution()

    @property
    def log_mean(self) -> Tensor:
        """log E[S] of all pairs, -inf or any number at forbidden ones; a later draw may overwrite the tensor."""
        return self.distribution.log_mean if self.method.learns_scale else self.inputs.scores

    def event(self) -> TorchDistributionMixin:
        """q(S) for a Pyro site: forbidden pairs and padded queries masked, batch ``[B]``, event ``[H, T, S]``."""
        return self.layout.event(self.distribution)

    def draw(self, noise: Noise, *, with_kl: bool = True) -> Tensor:
        """Draws S > 0, ``[B, H, T, S]``, to which log S is attached, with gradients to the posterior's parameters.

        ``noise`` gives the random numbers. ``with_kl``: whether :meth:`kl` will be called; it is then computed with the
        sample, because a checkpointed block does not keep the tensors for its gradient.
        """
        log_value = self.log_draw(noise, with_kl=with_kl)
        if with_kl:
            self._kl = self.kl()
        return exp_carrying_log(log_value)

    def at_mean(self, log_factor: Tensor | None = None) -> MeanPoint:
        """The site's value at E[S] exp(log_factor) as a function of log E[S], for derivatives of the output."""
        inputs, u = self.inputs, self._log_mean()
        u = u if u.requires_grad else u.detach().requires_grad_()
        weights = self.layout.weights(biased(u, log_factor))
        if log_factor is None:  # else only the prediction is used
            with torch.no_grad():
                _ = inputs.concentration  # while the pass that holds the upward path's states lasts
        value = carry_weights(weights.view_as(weights), weights, self.mask)
        return MeanPoint(value, u, weights.detach(), inputs)

    def expect(self, bias: Tensor | None, layout: Layout) -> Tensor:
        """The site's value at E[S] after ``bias`` is added to log E[S], with W normalised by ``layout``."""
        weights = layout.weights(biased(self._log_mean(), bias))
        return carry_weights(weights.view_as(weights), weights, self.mask)

    def _log_mean(self) -> Tensor:
        """log E[S], up to a number per query, as a function of the scores."""
        return self.inputs.distribution().log_mean if self.method.learns_scale else self.inputs.raw

    def predict(self, noise: Noise, shared: SharedUpward) -> Tensor:
        """Draws S ``[P * B, H, T, S]`` for a prediction, to which log S or W is attached, without gradients or KL.

        Call it last: it may overwrite the scores. ``noise`` holds P, the number of draws folded into the batch,
        ``shared`` the upward path of the batch, which is computed once for all draws if they share its scores.
        """
        inputs = replace(self.inputs, shared=shared, draws=noise.draws)
        drawn = predicted_weights(inputs, noise)
        if drawn is None:
            return SitePosterior(inputs, self._prior).draw(noise, with_kl=False)
        return carry_weights(*drawn, self.mask)

    def log_draw(self, noise: Noise, *, with_kl: bool = True) -> Tensor:
        """Draws log S as in :meth:`draw`; only here is the noise "truncated", :attr:`distribution` samples exactly."""
        like = self.inputs.scores
        method = self.method
        numbers = site_numbers(method, noise, like)
        if method.posterior == "lognormal":
            posterior = cast(LogNormal, self.distribution)
            return posterior.loc + posterior.scale * numbers
        if method.concentration == "learned" and not method.learns_scale:
            sums_to_1 = method.scores == "normalised" and self.layout.keys_last
            here = sums_to_1 or not method.learns_strength  # elsewhere :meth:`kl` does it
            return self._fused_draw(numbers, with_kl and here).value
        weibull = cast(Weibull, self.distribution)
        log_exponential = standard_exponential(numbers).log_()
        return log_weibull_sample(weibull.log_scale, weibull.unexpanded.concentration, log_exponential)

    def kl(self) -> Tensor:
        """KL(q || prior) in nats, summed over the valid pairs of real queries: ``[B]``."""
        if self._kl is not None:
            return self._kl
        return self.layout.total(kl_divergence(self.distribution, self.prior))

    def _fused_draw(self, uniform: Tensor, with_kl: bool, *, normalise: bool = False) -> WeibullDraw:
        """log S, or W, of a learned Weibull posterior, and the KL, in one sweep."""
        inputs, method = self.inputs, self.method
        scores = inputs.raw if normalise else inputs.scores
        log_alpha, rate = cast(Gamma, self.prior).unexpanded if with_kl else (None, None)
        weight = None if self.layout.pair_weight is None else self.layout.pair_weight.to(scores.dtype)
        alpha = None if log_alpha is None else log_alpha.exp()
        options, rise = WeibullConstants.of(method, scores.dtype), inputs.concentration
        drawn = draw_weibull(scores, rise, uniform, alpha, weight, options, normalise=normalise)
        if log_alpha is not None and rate is not None:
            self._kl = drawn.kl + prior_terms(log_alpha, rate.log(), weight, scores.shape)
            if method.learns_strength:  # E[S] of a query sums to 1
                queries = scores.new_ones(()) if weight is None else weight.amax(dim=-1)
                self._kl = self._kl + rate * queries.expand(scores.shape[:-1]).sum(dim=(1, 2))
        return drawn

    def weights(self, log_value: Tensor) -> Tensor:
        """Attention weights W from log S, of the same shape."""
        return self.layout.weights(log_value)

    def reduction_factor(self) -> Tensor | float:
        """Factor, a number or ``[B]``, from :meth:`kl` to the reduced KL of the option ``kl_reduction``."""
        reduction, shape = self.method.kl_reduction, self.batch_shape
        return self.layout.reduction_factor(reduction, shape, self.dtype, self.observations)

    def relative(self) -> Callable[[], Weibull | LogNormal]:
        """A function, usable after this object is gone, that makes a distribution with q(S)'s sd / mean."""
        return self.inputs.detached(self.inputs.scores).distribution

    @property
    def batch_shape(self) -> torch.Size:
        """Shape of S."""
        return self._like.shape

    @property
    def dtype(self) -> torch.dtype:
        """Type of S."""
        return self._like.dtype

    @property
    def device(self) -> torch.device:
        """Device of S."""
        return self._like.device


def biased(scores: Tensor, bias: Tensor | None) -> Tensor:
    """Scores with a bias, in their type."""
    return scores if bias is None else scores + bias.to(scores.dtype)


def site_numbers(method: BayesianAttention, noise: Noise, like: Tensor) -> Tensor:
    """Random numbers of a draw: normal, or uniform from the range that the options give."""
    return noise.normal(like) if method.posterior == "lognormal" else truncated(method, noise.uniform(like))


def truncated(method: BayesianAttention, uniform: Tensor) -> Tensor:
    """Brings uniform numbers into the range that the options give, in place."""
    if method.noise == "truncated":
        low, high = TRUNCATION
        uniform.mul_(high - low).add_(low)
    return uniform


def predicted_weights(inputs: PosteriorInputs, noise: Noise) -> tuple[Tensor, Tensor] | None:
    """S and W of a prediction, written over noise and scores, for options close to the default; None for the rest."""
    method, raw = inputs.method, inputs.raw
    if torch.is_grad_enabled() or method.scores == "raw" or not inputs.layout.keys_last:
        return None
    if raw.dtype != torch.float32:
        return None
    upward = inputs.upward
    if upward.concentration is None or upward.scale is not None or inputs.separate is not None:
        return None
    uniform, constants = site_numbers(method, noise, raw), WeibullConstants.of(method, raw.dtype)
    smallest = upward.smallest if on_cpu(raw) else None
    value, weights = draw_weights(raw, upward.concentration, smallest, uniform, constants)
    return value, inputs.layout.zero_empty(weights)
