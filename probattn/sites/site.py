"""The site: one attention call as a Pyro latent variable; every host goes through it, and the functional primitive."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import pyro
import torch
from pyro.distributions import Unit
from torch import Tensor, nn
from torch._compile import _disable_dynamo
from torch.jit._trace import is_tracing

from probattn.checks import check_integer
from probattn.distributions import LogNormal, Weibull
from probattn.distributions.log_space_distribution import carried_log, carried_weights, carries_log
from probattn.host import at_least_float32
from probattn.sites.answers import (
    AnsweringPosterior,
    Attending,
    FlashPosterior,
    KernelPosterior,
    TiledPosterior,
    WeightsPosterior,
    can_answer_with_weights,
    can_draw_by_kernel,
    can_flash,
    can_tile,
)
from probattn.sites.bayesian import BayesianAttention
from probattn.sites.handlers import is_handled, needs_prior, outer_plates, takes_answers
from probattn.sites.layout import PAIRS, Layout
from probattn.sites.masks import AttentionMask
from probattn.sites.mixes import UpwardMaps
from probattn.sites.noise import Origin
from probattn.sites.posterior import PosteriorInputs, SitePosterior
from probattn.sites.prior import ContextualPrior, site_prior
from probattn.sites.scores import repeat_heads
from probattn.sites.separate import SeparateScores
from probattn.sites.upward import UpwardChain

INFER_KEY = "attention"
"""Key of a site's ``infer`` dictionary under which the guide finds the :class:`SitePosterior`."""


@dataclass(frozen=True)
class SiteSpec:
    """Sizes and kind of an attention module, from which its site is made.

    Args:
        num_heads: H, the number of query heads.
        head_dim: D, the size of a head of queries and keys.
        causal: whether queries may attend only to earlier keys and themselves.
        max_positions: maximum number of queries; None for no limit.
        kind: "self" or "cross" attention.
        windowed: whether the W windows of an example may be folded into the heads, ``[B, W * H, T, D]`` (Swin).

    Raises:
        ValueError: ``num_heads`` or ``head_dim`` is below 1.
    """

    num_heads: int
    head_dim: int
    causal: bool = False
    max_positions: int | None = None
    kind: Literal["self", "cross"] = "self"
    windowed: bool = False

    def __post_init__(self) -> None:
        for name in ("num_heads", "head_dim"):
            check_integer("SiteSpec", name, getattr(self, name), minimum=1)


class LatentSite(nn.Module):
    """Latent attention over pairs or edges; a ``chain`` may be shared with other calls, added with :meth:`join`."""

    def __init__(self, method: BayesianAttention, spec: SiteSpec, chain: UpwardChain | None = None) -> None:
        super().__init__()
        if method.has_upward_path and method.upward == "positions" and spec.causal:
            raise ValueError(
                "upward='positions' mixes queries, so a causal network would see the future; use upward='heads'"
            )
        self.method = method
        self.spec = spec
        self.prior = ContextualPrior(method, spec.head_dim) if method.prior == "contextual" else None
        longest = spec.max_positions
        self.upward = UpwardMaps(method, spec.num_heads, longest) if method.has_upward_path else None
        separate = method.width_scores == "separate"
        self.separate = SeparateScores(spec.num_heads, spec.head_dim) if separate else None
        self.chain = UpwardChain(unlinked=True)
        self.positions: list[int] = []
        self.join(self.chain if chain is None else chain)

    def join(self, chain: UpwardChain) -> None:
        """Adds one call of this site to ``chain``; a site with several calls in a forward pass joins once for each."""
        if chain is not self.chain:
            self.chain, self.positions = chain, []
        if self.upward is not None:
            self.positions.append(chain.join(self.upward))

    def extra_repr(self) -> str:
        """The options, for ``print(network)``."""
        return f"{self.method}, {self.spec}"

    def posterior(
        self, scores: Tensor, layout: Layout | None = None, call: int = 0, separate: Tensor | None = None
    ) -> Weibull | LogNormal:
        """q(S) from masked scores ``[B, H, T, S]``, for edges ``[1, H, 1, E]``; the layout None allows all pairs.

        ``separate`` are the scores in k, of the same shape, for ``width_scores="separate"``.

        Raises:
            ValueError: ``separate`` is given without this option, or missing with it.
        """
        if (separate is None) != (self.separate is None):
            raise ValueError(
                "posterior: expected separate scores where width_scores='separate', and none elsewhere, got "
                f"{'none' if separate is None else list(separate.shape)}; site.separate(query, key, mask) gives them"
            )
        inputs = self._inputs(scores, PAIRS if layout is None else layout, call, separate=separate)
        return inputs.distribution()

    def _inputs(
        self,
        scores: Tensor,
        layout: Layout,
        call: int,
        origin: Origin = (0, 0),
        separate: Tensor | None = None,
    ) -> PosteriorInputs:
        """Scores and upward path of q(S); the first call of a chain begins a pass through it."""
        path = None if self.upward is None else self.chain.call(self.positions[call], scores, layout)
        return PosteriorInputs(self.method, scores, layout, path, origin, separate=separate)

    def _weights(
        self,
        name: str,
        scores: Tensor,
        key: Tensor,
        layout: Layout,
        call: int,
        observations: int = 1,
        *,
        origin: Origin = (0, 0),
        separate: Tensor | None = None,
        alone: bool = False,
    ) -> Tensor:
        """W from masked scores: of a sample of S under a Pyro handler, of its posterior expectation under none."""
        if not is_handled():
            # Without sigma E[S] is exp(scores) up to a factor per query.
            learned = self.method.learns_scale
            mean = self.posterior(scores, layout, call, separate).log_mean if learned else scores
            return layout.weights(mean)
        inputs = self._inputs(scores, layout, call, origin, separate)
        make_prior = partial(site_prior, self.method, self.prior, key, scores.shape, scores.dtype, layout)
        once = alone or self.method.learns_concentration  # whether a second derivative is refused in any case
        if once and takes_answers() and can_draw_by_kernel(self.method, scores, layout):
            make_logits = partial(_prior_logits, self.prior, key)
            return answer(name, KernelPosterior(inputs, make_prior, make_logits, observations))
        if can_answer_with_weights(self.method, layout):
            return answer(name, WeightsPosterior(inputs, make_prior, observations))
        posterior = SitePosterior(inputs, make_prior, observations)
        event: Any = Unit(scores.new_empty(len(scores)), validate_args=False)
        if needs_prior():
            event = layout.event(posterior.prior)
        value = pyro.sample(name, event, infer={INFER_KEY: posterior})
        if value.shape != scores.shape:
            raise ValueError(
                f"site {name!r}: expected unnormalised weights of shape {list(scores.shape)}, got {list(value.shape)}"
                f"{_outside()}"
            )
        ready = carried_weights(value, posterior.mask)
        return layout.weights(log_weights(name, value, layout).to(scores.dtype)) if ready is None else ready

    def _refuse_unsupported(self, name: str) -> None:
        refuse_tracing(name)
        if getattr(self, "_is_replica", False):
            raise RuntimeError(
                f"site {name!r}: torch.nn.DataParallel runs threads that Pyro's handlers do not reach and is not "
                "supported; launch one process per device (accelerate launch, torchrun)"
            )
        if self.training and torch.is_grad_enabled() and not is_handled():
            raise RuntimeError(
                f"site {name!r}: training without a driver would fit deterministic attention unnoticed; train with "
                "probattn.inference.SVIDriver, probattn.ProbabilisticTrainer (in place of transformers.Trainer) or "
                "pyro.infer.SVI under AttentionGuide, or call .eval() or torch.no_grad() to predict"
            )


class AttentionSite(LatentSite):
    r"""Site of an attention module: its unnormalised weights S ``[B, H, T, S]`` are a latent Pyro variable.

    Pyro's handlers around a call determine S:

    - under :class:`probattn.inference.AttentionGuide` it is drawn from the posterior;
    - under other handlers it is drawn from the prior, or set by ``condition``, ``replay`` or ``do``;
    - without a handler (plates, ``scale`` and ``mask`` do not count) the call uses the posterior expectation,
      :math:`W = E[S] / \sum E[S]`, deterministic; in training mode with gradients this raises ``RuntimeError``.

    At forbidden pairs W is 0, and S has no meaning.

    Args:
        method: options of the attention method.
        spec: sizes and kind of the attention module.
        chain: the :class:`UpwardChain` to which this call is added; None for a new chain. A module that is called
            several times in a forward pass is added once more with ``join(chain)`` for each further call.

    Raises:
        ValueError: ``upward="positions"`` in a causal network or without a maximum number of queries.
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
        origin: Origin = (0, 0),
        alone: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Computes attention with the Pyro site ``name``; output and weights of a fully masked query are 0.

        The tensors, ``scale``, ``bias`` and ``softcap`` are those of :class:`Attending`; without ``mask`` all pairs are
        allowed. ``call`` counts this module's calls within a forward pass from 0. ``origin`` holds the positions of the
        first query and the first key in their sequences; the query's is not 0 if a cache holds earlier tokens. With
        ``alone`` the caller does not need the weights: a kernel of a GPU may draw them, without a second derivative.

        Returns:
            Output ``[B, H, T, E]`` and weights W ``[B, H, T, S]``, in the query's dtype.

        Raises:
            RuntimeError: in training mode with gradients, outside Pyro's handlers (no guide, SVI or driver is active);
                under ``torch.nn.DataParallel``; or in a traced pass (``torch.jit.trace``, Pyro's Jit ELBOs).
            ValueError: the number of heads is wrong, or a value of S set by a handler is negative or of a wrong shape.
        """
        self._check(name, query)
        layout = PAIRS if mask is None else mask
        scores = Attending(query, key, value, layout, scale, bias, softcap).scores()
        separate = None if self.separate is None else self.separate(query, key, mask)
        with torch.autocast(query.device.type, enabled=False):
            weights = self._weights(
                name, scores, key, layout, call, origin=origin, separate=separate, alone=alone
            )
            weights = weights.to(query.dtype)
        heads = query.shape[1]
        return torch.matmul(weights, repeat_heads(value, heads).to(weights.dtype)), weights

    def attend_alone(
        self, name: str, attending: Attending, *, call: int = 0, origin: Origin = (0, 0)
    ) -> tuple[Tensor, Tensor | None]:
        """As :meth:`forward`, for callers that do not need the attention weights.

        If k is constant or the posterior log-normal, and ``prior_strength`` is not learned, a guide computes sample and
        KL without a map, on a CPU in tiles of at least float32, on a GPU by kernels (normalised scores without bias or
        cap): memory grows linearly with T and S, and the weights are None.
        """
        kind: type[TiledPosterior] = FlashPosterior
        at = attending
        if not (takes_answers() and can_flash(self.method, at)):
            kind, at = TiledPosterior, attending.widened()
            if not can_tile(self.method, at):
                return self(
                    name, *attending.tensors, **attending.options, call=call, origin=origin, alone=True
                )
        self._check(name, attending.query)
        with torch.autocast(attending.query.device.type, enabled=False):
            output = answer(name, kind(self.method, at, self.prior))
        return output.to(attending.query.dtype), None

    def _check(self, name: str, query: Tensor) -> None:
        self._refuse_unsupported(name)
        heads = query.shape[1]
        if heads != self.spec.num_heads and (not self.spec.windowed or heads % self.spec.num_heads):
            raise ValueError(f"site {name!r}: expected {self.spec.num_heads} query heads, got {heads}")


def _prior_logits(prior: ContextualPrior | None, key: Tensor) -> Tensor | None:
    return None if prior is None else prior.logits(key)


def refuse_tracing(name: str) -> None:
    """Raises ``RuntimeError`` in a pass that is traced, whose graph would hold one draw for good."""
    if is_tracing():
        raise RuntimeError(
            f"site {name!r}: latent attention cannot be traced, by torch.jit.trace or a Jit ELBO of Pyro; use "
            "probattn.inference.AttentionELBO, or pyro.infer.TraceMeanField_ELBO or Trace_ELBO"
        )


def answer(name: str, posterior: AnsweringPosterior) -> Tensor:
    """What a call makes of the draw that its guide asks for; the posterior, which may outlive it, lets go of it."""
    pyro.sample(name, posterior.prior_event(), infer={INFER_KEY: posterior})
    output, posterior.answer = posterior.answer, None
    assert output is not None
    return output


def _outside() -> str:
    """Why a plate outside the data's, such as that of pyro.infer.SVGD, gives a site values of a wrong shape."""
    plates = outer_plates()
    if not plates:
        return ""
    return (
        f"; the plate {plates[0]!r} asks for several values a datum in one pass of a network, which has one. "
        "pyro.infer.SVGD cannot move attention weights: each datum has its own, and new data would have none. Train "
        "their posterior with SVIDriver or pyro.infer.SVI under AttentionGuide (probattn.inference), and move heads or "
        "layers with HeadSVGD"
    )


def log_weights(name: str, value: Tensor, layout: Layout) -> Tensor:
    """log S of a site; a value from outside (``condition``, ``do``) is checked, zeros become the smallest number."""
    if carries_log(value):
        return carried_log(value)
    value = layout.zero_forbidden(at_least_float32(value))
    wrong = value[~((value >= 0) & (value < torch.inf))]
    if len(wrong):
        raise ValueError(f"site {name!r}: expected finite unnormalised weights S >= 0, got {wrong[0].item()}")
    return value.clamp_min(torch.finfo(value.dtype).tiny).log()


@_disable_dynamo  # a Pyro site cannot be a part of a compiled graph
def attention(
    name: str,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: AttentionMask | Tensor | None = None,
    *,
    method: AttentionSite | BayesianAttention,
    scale: float | None = None,
    bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    r"""Computes attention with latent unnormalised weights S, the value of the Pyro sample site ``name``.

    The output is :math:`O = W V` with :math:`W = S / \sum_{keys} S`. S is ``[B, H, T, S]`` with batch dimension B; call
    the function inside one ``pyro.plate`` over B. Under :class:`probattn.inference.AttentionGuide` S is drawn from its
    posterior, under other Pyro handlers it follows the prior, ``condition`` or ``replay``; without a handler (plates do
    not count) it is the posterior expectation.

    Args:
        name: name of the site.
        query: queries, ``[B, H, T, D]``.
        key: keys, ``[B, H, S, D]`` (or with fewer heads, whose number divides H).
        value: values, ``[B, H, S, E]``.
        mask: True = attend: bool ``[B, S]`` over keys, a tensor with four dimensions that broadcasts to
            ``[B, H, T, S]``, or an :class:`AttentionMask`.
        method: a site built with ``BayesianAttention(...).build(num_heads, head_dim)`` (its parameters are
            registered with ``pyro.module(name, ...)``), or options that need no parameters, such as
            ``BayesianAttention.bam(prior="constant")``.
        scale: factor of the scores, default ``D ** -0.5``.
        bias: additive scores, broadcastable to ``[B, H, T, S]``; finite: ``mask`` forbids pairs.

    Returns:
        Output ``[B, H, T, E]`` and weights ``[B, H, T, S]``.

    Raises:
        RuntimeError: the forward pass is traced, for instance by a Jit ELBO of Pyro.
        TypeError: ``method`` needs parameters, and ``build`` was not called.
        ValueError: the shapes do not match.

    Example:
        >>> import torch
        >>> q, k, v = torch.randn(3, 2, 4, 5, 8)
        >>> method = BayesianAttention.bam(prior="constant").build(num_heads=4, head_dim=8).eval()
        >>> output, weights = attention("attend", q, k, v, method=method)
        >>> output.shape, weights.shape
        (torch.Size([2, 4, 5, 8]), torch.Size([2, 4, 5, 5]))
    """
    refuse_tracing(name)
    _check_shapes(name, query, key, value)
    site = _built(name, method, query, key)
    valid = _mask(name, mask, query, key)
    return site(name, query, key, value, valid, scale=scale, bias=bias)


def _built(name: str, method: AttentionSite | BayesianAttention, query: Tensor, key: Tensor) -> AttentionSite:
    if isinstance(method, AttentionSite):
        spec = method.spec
        if (query.shape[1], key.shape[-1]) != (spec.num_heads, spec.head_dim):
            raise ValueError(
                f"site {name!r}: built for {spec.num_heads} heads of size {spec.head_dim}, got queries with "
                f"{query.shape[1]} heads and keys of size {key.shape[-1]}"
            )
        if is_handled():
            pyro.module(name, method)
        return method
    if method.has_parameters:
        raise TypeError(
            f"site {name!r}: these options need parameters of their own; build them once, outside the model: "
            f"method = BayesianAttention(...).build(num_heads={query.shape[1]}, head_dim={key.shape[-1]})"
        )
    site = AttentionSite(method, SiteSpec(query.shape[1], key.shape[-1]))
    return site if query.requires_grad or key.requires_grad else site.eval()  # nothing is trained


def _check_shapes(name: str, query: Tensor, key: Tensor, value: Tensor) -> None:
    for role, tensor in (("query", query), ("key", key), ("value", value)):
        if tensor.dim() != 4:
            raise ValueError(
                f"site {name!r}: expected {role} [B, H, T or S, D], got shape {list(tensor.shape)}"
            )
    if key.shape[:3] != value.shape[:3]:
        raise ValueError(
            f"site {name!r}: expected keys and values alike in [B, H, S], got {list(key.shape)}, {list(value.shape)}"
        )
    if query.shape[0] != key.shape[0] or query.shape[3] != key.shape[3]:
        raise ValueError(
            f"site {name!r}: expected queries and keys alike in B and D, got {list(query.shape)}, {list(key.shape)}"
        )


def _mask(name: str, mask: AttentionMask | Tensor | None, query: Tensor, key: Tensor) -> AttentionMask | None:
    if mask is None or isinstance(mask, AttentionMask):
        return mask
    batch, keys = key.shape[0], key.shape[2]
    if mask.shape == (batch, keys):
        mask = mask[:, None, None, :]
    expected = [batch, query.shape[1], query.shape[2], keys]
    fits = mask.dim() == 4 and all(have in (1, want) for have, want in zip(mask.shape, expected, strict=True))
    if not fits:
        raise ValueError(
            f"site {name!r}: expected a mask [B, S] or broadcastable to {expected}, got shape {list(mask.shape)}"
        )
    return AttentionMask(mask.expand(batch, -1, -1, keys))
