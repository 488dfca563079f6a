"""Posteriors that answer with what a call makes of a draw, and keep nothing of S that a gradient does not need."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, ClassVar

import torch
from pyro.distributions import Unit
from pyro.distributions.torch_distribution import TorchDistributionMixin
from torch import Tensor

from probattn.distributions import LogNormal, Weibull
from probattn.distributions.log_space import computing_dtype, standard_exponential
from probattn.host import on_cpu
from probattn.sites.bayesian import BayesianAttention
from probattn.sites.fused import runs_flash, runs_kernels
from probattn.sites.handlers import DeferredFactor, takes_answers
from probattn.sites.layout import PAIRS, Layout, by_head
from probattn.sites.masks import AttentionMask
from probattn.sites.noise import Kind, Noise, Rows
from probattn.sites.posterior import (
    PosteriorInputs,
    SitePosterior,
    biased,
    predicted_weights,
    site_numbers,
    truncated,
)
from probattn.sites.prior import ContextualPrior, Prior, site_prior
from probattn.sites.scores import attention_scores, repeat_heads
from probattn.sites.tiles import NoisyRows, TiledCall, TileKL, tiled_attention
from probattn.sites.upward import SharedUpward
from probattn.sites.weibull import constant_surprise, prior_terms


class AnsweringPosterior(SitePosterior):
    """q(S) of a call whose draw leaves an ``answer``, what the call makes of it, and a KL; its value holds nothing."""

    answer: Tensor | None = None
    uses_up_noise: ClassVar[bool] = True

    def prior_event(self) -> TorchDistributionMixin:
        """The prior of a value that holds nothing."""
        # Zeros; to validate them would be to wait for a device.
        return Unit(self._nothing().sum(dim=1), validate_args=False)

    def event(self) -> TorchDistributionMixin:
        """q of a value that holds nothing: its log density, less that of the prior, is the KL."""
        return DeferredFactor(self.kl, self.batch_shape[:1])

    def _nothing(self) -> Tensor:
        """The value ``[B, 0]``, of the map's type and on its device."""
        return self._like.new_empty(len(self._like), 0)


class WeightsPosterior(AnsweringPosterior):
    """q(S) of a learned concentration, answering with the weights W; ``prior`` is made where a KL asks for it."""

    # A draw keeps log E[S], the upward path's output and W for its gradient, and computes the rest again.

    def __init__(self, inputs: PosteriorInputs, prior: Callable[[], Prior], observations: int = 1) -> None:
        like = inputs.raw.new_empty(()).expand(inputs.raw.shape)  # without the scores' memory
        super().__init__(inputs, prior, observations)
        self._describe(inputs.method, inputs.layout, like)

    def draw(self, noise: Noise, *, with_kl: bool = True) -> Tensor:
        """Draws W ``[B, H, T, S]``, the answer; the value itself is ``[B, 0]``."""
        uniform = site_numbers(self.method, noise, self.inputs.raw)
        weights, _, log_mean = self._fused_draw(uniform, with_kl, normalise=True)
        assert log_mean is not None
        self.answer = self.layout.zero_empty(weights)
        self._inputs = self.inputs.detached(log_mean, whole=not with_kl)
        return self._nothing()

    def expect(self, bias: Tensor | None, layout: Layout) -> Tensor:
        """W of E[S], the answer; the value itself is ``[B, 0]``."""
        self.answer = layout.weights(biased(self._log_mean(), bias))
        return self._nothing()

    def predict(self, noise: Noise, shared: SharedUpward) -> Tensor:
        """Draws W ``[P * B, H, T, S]``, the answer, for a prediction; it keeps nothing of its noise."""
        inputs = replace(self.inputs, shared=shared, draws=noise.draws)
        drawn = predicted_weights(inputs, noise)
        if drawn is None:
            log_value = SitePosterior(inputs, self._prior).log_draw(noise, with_kl=False)
            self.answer = self.layout.weights(log_value)
        else:
            self.answer = drawn[1]
        return self._nothing()


class KernelPosterior(WeightsPosterior):
    """q(S) whose draws, W, are one kernel of a GPU, with the KL; ``make_logits`` gives those of a contextual prior."""

    def __init__(
        self,
        inputs: PosteriorInputs,
        make_prior: Callable[[], Prior],
        make_logits: Callable[[], Tensor | None],
        observations: int = 1,
    ) -> None:
        super().__init__(inputs, make_prior, observations)
        self._make_logits = make_logits

    def draw(self, noise: Noise, *, with_kl: bool = True) -> Tensor:
        """Draws W ``[B, H, T, S]``, the answer; the value itself is ``[B, 0]``."""
        inputs, method = self.inputs, self.method
        seeds, drawn = kernel_seeds(noise, inputs.raw), None
        if seeds is None:
            drawn = site_numbers(method, noise, inputs.raw)
        logits = self._make_logits() if with_kl else None
        call = method, self.layout, inputs.raw, inputs.concentration
        self.answer, self._kl = draw_by_kernel(*call, drawn, logits, with_kl, seeds)
        self._inputs = inputs.detached(whole=not with_kl)
        return self._nothing()

    def predict(self, noise: Noise, shared: SharedUpward) -> Tensor:
        """Draws W ``[P * B, H, T, S]``, the answer, for a prediction."""
        inputs = replace(self.inputs, shared=shared, draws=noise.draws)
        apart = torch.is_grad_enabled() or inputs.separate is not None
        seeds = None if apart else kernel_seeds(noise, inputs.raw)
        if seeds is None:
            return super().predict(noise, shared)
        call = self.method, self.layout, inputs.raw, inputs.upward.concentration
        self.answer, _ = draw_by_kernel(*call, None, None, False, seeds)
        return self._nothing()


def kernel_seeds(noise: Noise, like: Tensor) -> Tensor | None:
    """Seeds ``[P]`` from which kernels make the numbers of a call; None where its source gives maps alone."""
    make: Callable[[Tensor], Tensor | None] | None = getattr(noise, "seeds", None)
    return None if make is None else make(like)


def draw_by_kernel(
    method: BayesianAttention,
    layout: Layout,
    scores: Tensor,
    rise: Tensor | None,
    noise: Tensor | None,
    logits: Tensor | None,
    with_kl: bool,
    seeds: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """W ``[B, H, T, S]`` and the KL ``[B]`` of masked scores, noise or seeds, and the logits of a contextual prior."""
    from probattn.sites.kernels import draw_map, draw_options

    maps = (item if item is None else item.contiguous() for item in (scores, rise, noise, logits))
    weights, _, kl = draw_map(*maps, *mask_of(layout, scores.shape), seeds, *draw_options(method), with_kl)
    return weights, kl if with_kl else None


def can_draw_by_kernel(method: BayesianAttention, scores: Tensor, layout: Layout) -> bool:
    """True where one kernel of a GPU draws W and sums the KL."""
    if not (layout.keys_last and runs_kernels(scores)):
        return False
    from probattn.sites.kernels import LONGEST

    plain = method.scores == "normalised" and not method.learns_scale and not method.learns_strength
    return plain and 0 < scores.shape[-1] <= LONGEST


def can_answer_with_weights(method: BayesianAttention, layout: Layout) -> bool:
    """True where W is drawn without S: a learned concentration, which is small where scores are normalised."""
    learned = method.posterior == "weibull" and method.concentration == "learned" and not method.learns_scale
    return learned and method.scores == "normalised" and layout.keys_last and takes_answers()


@dataclass(frozen=True, eq=False)
class Attending:
    """The arguments of one attention call, as :class:`probattn.sites.AttentionSite` takes them.

    Args:
        query: ``[B, H, T, D]``.
        key: ``[B, G, S, D]``, with G key heads; G divides H.
        value: ``[B, G, S, E]``.
        layout: an :class:`AttentionMask`, or ``PAIRS`` (the default), which allows all pairs.
        scale: factor of the dot products; None for ``D ** -0.5``.
        bias: additive scores, broadcastable to ``[B, H, T, S]``; None for none.
        softcap: c, which limits scores to (-c, c), see :func:`attention_scores`; None for no limit.

    Example:
        >>> Attending(*torch.ones(3, 1, 2, 5, 4)).scores().shape
        torch.Size([1, 2, 5, 5])
    """

    query: Tensor
    key: Tensor
    value: Tensor
    layout: Layout = PAIRS
    scale: float | None = None
    bias: Tensor | None = None
    softcap: float | None = None

    @property
    def shape(self) -> torch.Size:
        """Shape of scores and weights, ``[B, H, T, S]``."""
        return torch.Size((*self.query.shape[:3], self.key.shape[2]))

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor, AttentionMask | None]:
        """Query, key, value and mask: the positional arguments of a site's call, after its name."""
        mask = self.layout if isinstance(self.layout, AttentionMask) else None
        return self.query, self.key, self.value, mask

    @property
    def options(self) -> dict[str, Any]:
        """The keyword arguments ``scale``, ``bias`` and ``softcap`` of a site's call."""
        return {"scale": self.scale, "bias": self.bias, "softcap": self.softcap}

    @property
    def factor(self) -> float:
        """Factor of the dot products: ``scale``, or ``D ** -0.5`` if it is None."""
        return self.query.shape[-1] ** -0.5 if self.scale is None else self.scale

    def widened(self) -> Attending:
        """The same arguments, with float16 and bfloat16 tensors cast to float32."""
        half = (torch.float16, torch.bfloat16)
        wide = {
            name: tensor.float()
            for name in ("query", "key", "value", "bias")
            if (tensor := getattr(self, name)) is not None and tensor.dtype in half
        }
        return replace(self, **wide)

    def scores(self) -> Tensor:
        """The masked scores, ``[B, H, T, S]``, see :func:`attention_scores`."""
        query, key, _, mask = self.tensors
        return attention_scores(query, repeat_heads(key, query.shape[1]), mask, **self.options)


def _needs_no_map(method: BayesianAttention) -> bool:
    """Whether a draw may be cut into blocks."""
    return method.has_constant_spread and not method.learns_strength


def can_flash(method: BayesianAttention, attending: Attending) -> bool:
    """Whether kernels of a GPU compute a draw without a map, for a guide that takes outputs."""
    query, key, value = attending.query, attending.key, attending.value
    plain = method.scores == "normalised" and attending.bias is None and attending.softcap is None
    if not (_needs_no_map(method) and plain and runs_flash(query)):
        return False
    alike = query.dtype == key.dtype == value.dtype and attending.shape.numel() > 0
    fits = key.shape[:3] == value.shape[:3] and query.shape[::3] == key.shape[::3]
    if not (alike and fits and query.shape[1] % key.shape[1] == 0):  # which others refuse
        return False
    from probattn.sites.flash import WIDEST

    return 0 < query.shape[-1] <= WIDEST and 0 < value.shape[-1] <= WIDEST


def can_tile(method: BayesianAttention, attending: Attending) -> bool:
    """Whether a CPU computes a draw in tiles, for a guide that takes outputs."""
    if not _needs_no_map(method):
        return False
    tensors = (attending.query, attending.key, attending.value, attending.bias)
    types = {tensor.dtype for tensor in tensors if tensor is not None}
    cached = on_cpu(attending.query) and attending.shape.numel() > 0
    return cached and types in ({torch.float32}, {torch.float64}) and takes_answers()


class TiledPosterior(AnsweringPosterior):
    """q(S) of an attention call that is computed in tiles; S ``[B, H, T, S]`` is never stored.

    :meth:`draw` stores the call's output ``[B, H, T, E]`` in ``answer`` and returns an empty tensor ``[B, 0]``, the
    site's Pyro value. :attr:`distribution` and other tensors ``[B, H, T, S]`` are computed on request. ``method`` has a
    constant k or a log-normal posterior; ``contextual`` is the network of the contextual prior, else None.

    Example:
        >>> from probattn import BayesianAttention
        >>> from probattn.sites import SeededNoise
        >>> method = BayesianAttention.bam(prior="constant")
        >>> posterior = TiledPosterior(method, Attending(*torch.ones(3, 1, 2, 5, 4)), None)
        >>> posterior.draw(SeededNoise([0], "cpu")).shape, posterior.kl().shape
        (torch.Size([1, 0]), torch.Size([1]))
    """

    def __init__(
        self, method: BayesianAttention, attending: Attending, contextual: ContextualPrior | None
    ) -> None:
        like = attending.query.new_empty((), dtype=computing_dtype(attending.query))
        self._describe(method, attending.layout, like.expand(attending.shape))
        self.attending, self.contextual = attending, contextual

    @cached_property
    def inputs(self) -> PosteriorInputs:
        """The options and the scores ``[B, H, T, S]``."""
        return PosteriorInputs(self.method, self.attending.widened().scores(), self.layout)

    @cached_property
    def prior(self) -> Prior:
        """The prior of S, batch shape ``[B, H, T, S]``."""
        key, shape = self.attending.key, self.batch_shape
        return site_prior(self.method, self.contextual, key, shape, self.dtype, self.layout)

    def relative(self) -> Callable[[], Weibull | LogNormal]:
        """A function that makes q(S) at score 0, whose ratio of standard deviation to mean is that of all entries."""
        return PosteriorInputs(self.method, self._like.new_zeros(1, 1, 1, 1)).distribution

    def draw(self, noise: Noise, *, with_kl: bool = True) -> Tensor:
        """Draws S and stores the output ``[B, H, T, E]`` in ``answer``, and the KL; returns the value ``[B, 0]``."""
        at, method = self.attending, self.method
        # Where all queries see the same keys the KL of a Weibull is a sum over queries and one over keys.
        plain = at.softcap is None and at.bias is None
        apart = plain and method.posterior == "weibull" and self.layout.rows_alike
        in_tiles = with_kl and not apart
        heads = at.query.shape[1]
        logits: Tensor | None = None
        if in_tiles and self.contextual is not None:
            logits = by_head(self.contextual.logits(at.key), heads).squeeze(2).to(self.dtype)
        call = TiledCall(
            self.layout,
            at.factor,
            at.softcap,
            NoisyRows(_rows(noise, method, self._like), partial(_perturbation, method)),
            log_sums=with_kl and apart,
            kl=TileKL(method) if in_tiles else None,
        )
        key, value = (repeat_heads(item, heads) for item in (at.key, at.value))
        tiled = tiled_attention(at.query, key, value, at.bias, logits, call)
        self.answer = tiled.output
        if with_kl:
            self._kl = self._kl_apart(key, tiled.log_sum) if apart else tiled.kl
        return self._nothing()

    def expect(self, bias: Tensor | None, layout: Layout) -> Tensor:
        """Stores the output at E[S] in ``answer``, returns ``[B, 0]``; arguments as in :meth:`SitePosterior.expect`."""
        at = self.attending
        added = at.bias if bias is None else biased(bias.to(at.query.dtype), at.bias)
        call = TiledCall(layout, at.factor, at.softcap, None, log_sums=False)
        key, value = (repeat_heads(item, at.query.shape[1]) for item in (at.key, at.value))
        self.answer = tiled_attention(at.query, key, value, added, None, call).output
        return self._nothing()

    def predict(self, noise: Noise, shared: SharedUpward) -> Tensor:
        """As :meth:`draw`, for a prediction with P draws in the batch: output ``[P * B, H, T, E]``, no KL."""
        return self.draw(noise, with_kl=False)

    def _kl_apart(self, key: Tensor, log_sum: Tensor) -> Tensor:
        """The KL ``[B]`` from the log-sum-exp of each query's scores."""
        # sum_ts alpha_s Phi_ts is (sum_t q_t) times (sum_s alpha_s k_s), and E[S] of a query sums to 1.
        method, mask, query = self.method, self.layout, self.attending.query
        normalised, k = method.scores == "normalised", float(method.concentration)
        real, valid = query.new_ones(*query.shape[::2][:2], 1)[:, None], query.new_ones(1, 1, 1, 1)
        if isinstance(mask, AttentionMask):
            valid = mask.valid[:, :, :1].to(query.dtype)
            real = real if mask.query_weight is None else mask.query_weight.to(query.dtype)  # [B, 1, T, 1]
        log_alpha = self.prior.unexpanded[0]  # [B | 1, H | 1, 1, S | 1]
        shape = torch.Size((*self.batch_shape[:2], 1, self.batch_shape[3]))
        queries = real.sum(dim=2, keepdim=True)  # [B, 1, 1, 1]
        alpha = (log_alpha.exp() * valid).expand(shape)
        total = alpha.sum(dim=-1, keepdim=True)  # [B, H, 1, 1]
        pooled_query = (query * real).sum(dim=2, keepdim=True) * self.attending.factor
        linear = (pooled_query * (alpha @ key)).sum(dim=-1, keepdim=True)
        cross = queries * total * constant_surprise(k) - linear
        log_sum = log_sum.unsqueeze(-1)
        if normalised:
            cross = cross + total * (log_sum * real).sum(dim=2, keepdim=True)
            means = (queries * valid.amax(dim=-1, keepdim=True)).expand(total.shape)
        else:
            means = (log_sum.exp() * real).sum(dim=2, keepdim=True)
        pairs = (queries * valid).expand(shape)
        rate = self.prior.unexpanded[1]
        constant = pairs.sum(dim=(1, 2, 3)) * math.log(k) + prior_terms(log_alpha, rate.log(), pairs, shape)
        return (cross + rate * means).sum(dim=(1, 2, 3)) + constant


class FlashPosterior(TiledPosterior):
    """The same by kernels of a GPU, :mod:`probattn.sites.flash`, with tensors of 16 bits too; maps are of float32."""

    def draw(self, noise: Noise, *, with_kl: bool = True) -> Tensor:
        """Draws S and stores the output ``[B, H, T, E]`` in ``answer``, and the KL; returns the value ``[B, 0]``."""
        seeds = kernel_seeds(noise, self._like)
        if seeds is None:  # of a source whose numbers the kernels do not make
            whole = SitePosterior(self.inputs, lambda: self.prior)
            self._apply(self.layout.weights(whole.log_draw(noise, with_kl=with_kl)))
            self._kl = whole.kl() if with_kl else None
            return self._nothing()
        self.answer, self._kl = flash(self.method, self.attending, self.contextual, seeds, with_kl=with_kl)
        return self._nothing()

    def expect(self, bias: Tensor | None, layout: Layout) -> Tensor:
        """Stores the output at E[S] in ``answer``, returns ``[B, 0]``; arguments as in :meth:`SitePosterior.expect`."""
        self._apply(layout.weights(biased(self.inputs.scores, bias)))
        return self._nothing()

    def _apply(self, weights: Tensor) -> None:
        value = repeat_heads(self.attending.value, weights.shape[1])
        self.answer = weights @ value.to(weights.dtype)


def flash(
    method: BayesianAttention,
    attending: Attending,
    contextual: ContextualPrior | None,
    seeds: Tensor,
    *,
    with_kl: bool,
) -> tuple[Tensor, Tensor | None]:
    """Output ``[B, H, T, E]`` and KL ``[B]`` of a draw by kernels of a GPU, without a map."""
    from probattn.sites.flash import attend, attend_options

    query, key, value = attending.query, attending.key, attending.value
    logits = contextual.logits(key).contiguous() if with_kl and contextual is not None else None
    mask = mask_of(attending.layout, attending.shape)
    call = logits, *mask, seeds, *attend_options(method, attending.factor)
    output, _, kl = attend(query, key, value, *call, with_kl)
    return output, kl if with_kl else None


def mask_of(layout: Layout, shape: torch.Size) -> tuple[Tensor | None, Tensor | None]:
    """Valid pairs, of ``shape``, and real queries ``[B, T]``, as kernels take them; None for all."""
    valid, real = getattr(layout, "valid", None), getattr(layout, "query_valid", None)
    real = None if real is None else real.expand(shape[0], shape[2]).contiguous()
    return None if valid is None else valid.expand(shape), real


def _rows(noise: Noise, method: BayesianAttention, like: Tensor) -> Rows:
    """The noise of a map by row; made at once where its source knows no rows."""
    kind: Kind = "normal" if method.posterior == "lognormal" else "uniform"
    by_row = getattr(noise, "rows", None)
    rows: Rows | None = None if by_row is None else by_row(kind, like)
    if rows is not None:
        return rows
    whole = (noise.normal(like) if kind == "normal" else noise.uniform(like)).flatten(0, -2)

    def fill(first: int, out: Tensor) -> None:
        out.copy_(whole[first : first + len(out)])

    return fill


def _perturbation(method: BayesianAttention, noise: Tensor) -> Tensor:
    """What a draw adds to the scores, up to a constant, in place of the noise."""
    if method.posterior == "lognormal":
        return noise.mul_(method.scale)
    return standard_exponential(truncated(method, noise)).log_().div_(float(method.concentration))
