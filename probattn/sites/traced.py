r"""Attention calls that a graph of ``torch.compile`` holds: plain arithmetic around noise that Pyro's handlers draw.

While the graph runs, one operator a call announces the Pyro site, with a posterior that holds nothing yet, and returns
the noise that the guide draws for it. The draw and its KL are operations of the graph, which a compiler may fuse and
differentiate; the KL reaches the posterior when the graph has ended. No step depends on the values of a tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol, cast

import torch
from torch import Tensor

from probattn.distributions import LogNormal, Weibull, log_gamma_1p_reciprocal
from probattn.distributions.log_normal import log_normal_kl, log_normal_loc
from probattn.distributions.log_space import cross_terms, finite_exp, standard_exponential
from probattn.sites.answers import (
    AnsweringPosterior,
    Attending,
    can_draw_by_kernel,
    draw_by_kernel,
    flash,
    kernel_seeds,
)
from probattn.sites.bayesian import BayesianAttention, KLReduction, NoiseKind, PosteriorFamily
from probattn.sites.handlers import refuse_unreached, value_handlers
from probattn.sites.layout import PAIRS, Layout, by_head
from probattn.sites.masks import MASKED_SCORE, AttentionMask
from probattn.sites.noise import Noise
from probattn.sites.posterior import PosteriorInputs, site_numbers
from probattn.sites.prior import prior_parameters
from probattn.sites.scores import attention_scores, repeat_heads
from probattn.sites.site import AttentionSite, answer
from probattn.sites.upward import SharedUpward, UpwardChain, UpwardOutputs, UpwardPass
from probattn.sites.weibull import prior_terms, raised_log_scale, site_concentration

_UNSAFE = getattr(torch.Tag, "cudagraph_unsafe", None)
"""Tag of what must not be recorded once and replayed; older releases of torch have none."""


class GraphCall(NamedTuple):
    """What a call within a graph leaves for its posterior; ``phi`` and ``outputs`` are without gradient."""

    method: BayesianAttention
    kl: Tensor | None  # KL(q || prior) in nats, [B]; None where nobody needs it
    phi: Tensor  # of one entry where the spread of q(S) is a constant
    outputs: UpwardOutputs
    normalised: bool = True  # False where phi are the scores


class Passes(Protocol):
    """What knows which modules a network has around its attention modules."""

    def check_graph(self, network: str, within: GraphPass, site: str | None = None) -> None:
        """Refuses a pass that went round the attention modules of its network, of which ``site`` is one."""


class GraphPass:
    """A pass of a guide whose calls may be part of a graph: what they share, and what they leave."""

    def __init__(self, noise: Noise, *, with_kl: bool = True) -> None:
        self.with_kl = with_kl
        # Of the noise of the guide; None where kernels cannot make its numbers.
        self.draws = noise.draws if hasattr(noise, "seeds") else None
        self.shows_weights = False
        self.stacks: list[object] = []
        self.expected: dict[tuple[Passes, str], str] = {}
        self.ran: set[tuple[object, str]] = set()
        self.reached: set[tuple[object, str]] = set()
        self.outer: dict[tuple[Passes, str], Any] = {}
        self.calls: dict[str, GraphCall] = {}
        self.queries: dict[object, Tensor | None] = {}
        self.paths: dict[UpwardChain, dict[int, UpwardOutputs]] = {}
        self.order: Tensor | None = None

    def check(self) -> None:
        """Refuses a pass in which no attention module ran, or modules ran in a graph and their sites did not."""
        unreached = sorted(name for _, name in self.ran - self.reached)
        refuse_unreached("compiled network", unreached, len(self.ran))
        for passes in {passes for passes, _ in self.outer}:
            passes.check_graph("compiled network", self)
        for (passes, network), site in self.expected.items():
            passes.check_graph(network, self, site)


def graph_pass() -> GraphPass | None:
    """The pass of the guide whose handlers are active; None without one, or where another handler looks at sites."""
    handlers = value_handlers()
    current: GraphPass | None = getattr(handlers[0], "graph_pass", None) if len(handlers) == 1 else None
    return current


def compiled_pass() -> GraphPass | None:
    """The same while torch compiles, None while code runs as it is."""
    return graph_pass() if torch.compiler.is_compiling() else None


def can_trace(site: AttentionSite) -> bool:
    """True where a call of a site may be part of a graph; maps along queries depend on the values of a mask."""
    return site.separate is None and not (site.method.has_upward_path and site.method.upward == "positions")


class GraphMask(Layout):
    """The validity of pairs and queries, as of :class:`AttentionMask`, without questions that only values answer."""

    def __init__(self, valid: Tensor, query_valid: Tensor | None) -> None:
        self.valid = valid[:, :, :1] if valid.stride(2) == 0 else valid
        self.query_valid = query_valid

    @property
    def query_weight(self) -> Tensor | None:
        """``[B, 1, T, 1]``, 0 for padded queries; None where all are real."""
        return None if self.query_valid is None else self.query_valid[:, None, :, None].float()

    @property
    def pair_valid(self) -> Tensor:
        """Bool, True for the entries that take part in the KL."""
        real = self.query_valid
        return self.valid if real is None else self.valid & real[:, None, :, None]

    @property
    def pair_weight(self) -> Tensor:
        """:attr:`pair_valid` as factors 0 and 1."""
        return self.pair_valid.float()

    def weights(self, log_value: Tensor) -> Tensor:
        """Weights W from log S; zeros for a query without any key."""
        return torch.softmax(self.masked(log_value), dim=-1) * self.valid.any(dim=-1, keepdim=True)

    def masked(self, values: Tensor) -> Tensor:
        """Values with :data:`MASKED_SCORE` added at forbidden entries."""
        return values + (~self.valid).to(values.dtype) * MASKED_SCORE

    def zero_forbidden(self, values: Tensor) -> Tensor:
        """Values with zeros at forbidden entries."""
        return torch.where(self.valid, values, 0.0)

    def over_keys(self, values: Tensor, num_heads: int) -> Tensor:
        """Log-softmax over the keys of each query of one value a key; 0 at forbidden entries."""
        return self.zero_forbidden(torch.log_softmax(self.masked(by_head(values, num_heads)), dim=-1))


def graph_layout(valid: Tensor | None, real: Tensor | None, key: Tensor) -> Layout:
    """The layout of valid pairs and real queries, None for all."""
    if valid is None and real is None:
        return PAIRS
    return GraphMask(
        key.new_ones((1, 1, 1, key.shape[2]), dtype=torch.bool) if valid is None else valid, real
    )


def attend_in_graph(
    site: AttentionSite,
    name: str,
    attending: Attending,
    within: GraphPass,
    call: int = 0,
    *,
    alone: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """:meth:`AttentionSite.forward` as a part of a graph, with ``alone`` without a map, by kernels of a GPU.

    The layout is :class:`GraphMask` or that of all pairs.
    """
    query, key, value, layout = attending.query, attending.key, attending.value, attending.layout
    heads, method = query.shape[1], site.method
    if alone:
        assert within.draws is not None
        with torch.autocast(query.device.type, enabled=False):
            seeds = _announced(
                name, method, query, attending.shape, torch.float32, layout, within, within.draws
            )
            output, kl = flash(method, attending, site.prior, seeds, with_kl=within.with_kl)
        spread = query.new_zeros(1, 1, 1, 1, dtype=torch.float32), UpwardOutputs()
        within.calls[name] = GraphCall(method, kl, *spread)
        return output, None
    scores = attention_scores(query, repeat_heads(key, heads), **attending.options)
    with torch.autocast(query.device.type, enabled=False):
        if isinstance(layout, GraphMask):
            scores = layout.masked(scores)
        outputs = UpwardOutputs() if site.upward is None else _upward(site, scores, layout, within, call)
        noise = _announced(name, method, query, scores.shape, scores.dtype, layout, within)
        weights, kl, phi = _draw(site, key, scores, layout, outputs, noise, with_kl=within.with_kl)
        weights = weights.to(query.dtype)
        spread = _spread(method, scores if phi is None else phi, outputs)
        within.calls[name] = GraphCall(method, kl, *spread, phi is not None)
    return torch.matmul(weights, repeat_heads(value, heads).to(weights.dtype)), weights


def _draw(
    site: AttentionSite,
    key: Tensor,
    scores: Tensor,
    layout: Layout,
    outputs: UpwardOutputs,
    noise: Tensor,
    *,
    with_kl: bool,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """W, the KL and Phi, in operations that a compiler fuses; without Phi by a kernel of a GPU."""
    method = site.method
    if can_draw_by_kernel(method, scores, layout):
        logits = None if site.prior is None or not with_kl else site.prior.logits(key)
        return *draw_by_kernel(method, layout, scores, outputs.concentration, noise, logits, with_kl), None
    phi = layout.zero_forbidden(scores if method.scores == "raw" else layout.log_softmax(scores))
    log_value, entries = DRAWS[method.posterior](method, phi, outputs, noise)
    weights = layout.weights(log_value)
    if not with_kl:
        return weights, None, phi
    prior = prior_parameters(method, site.prior, key, scores.shape[1], phi.dtype, layout)
    return weights, entries(*prior, layout.pair_weight), phi


def _upward(
    site: AttentionSite, scores: Tensor, layout: Layout, within: GraphPass, call: int
) -> UpwardOutputs:
    """What the upward path gives a call; the first call of a chain computes it for all."""
    position = site.positions[call]
    if position == 0:
        within.paths[site.chain] = site.chain.compute(UpwardPass(scores, layout), len(scores))
    return within.paths[site.chain].pop(position)


def _spread(method: BayesianAttention, phi: Tensor, outputs: UpwardOutputs) -> tuple[Tensor, UpwardOutputs]:
    """What the spread of q(S) follows from: where it is a constant, one entry tells all."""
    if method.has_constant_spread:
        return phi.new_zeros(1, 1, 1, 1), UpwardOutputs()
    return phi.detach(), outputs.detach()


Entries = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""The KL ``[B]`` from log concentration and log rate of the prior, and the factors of the entries."""


def weibull_draw(
    method: BayesianAttention, phi: Tensor, outputs: UpwardOutputs, noise: Tensor
) -> tuple[Tensor, Entries]:
    """log S, and its KL."""
    k = site_concentration(method, finite_exp(phi), outputs.concentration)
    log_gamma = log_gamma_1p_reciprocal(k)
    log_scale, log_mean = phi - log_gamma, phi
    if outputs.scale is not None:
        log_scale = raised_log_scale(log_scale, outputs.scale, method.sigma)
        log_mean = log_scale + log_gamma
    log_exponential = standard_exponential(noise.clone()).log_()

    def kl(log_alpha: Tensor, log_rate: Tensor, weight: Tensor | None) -> Tensor:
        terms = cross_terms(log_rate.exp() * finite_exp(log_mean), log_scale, k, log_alpha.exp())
        return _total(terms, weight) + prior_terms(log_alpha, log_rate, weight, phi.shape)

    return log_scale + log_exponential / k, kl


def _log_normal(
    method: BayesianAttention, phi: Tensor, _: UpwardOutputs, noise: Tensor
) -> tuple[Tensor, Entries]:
    """log S, and its KL."""
    loc = log_normal_loc(phi, method.scale)

    def kl(log_alpha: Tensor, _: Tensor, weight: Tensor | None) -> Tensor:
        return _total(log_normal_kl(loc - log_alpha, method.scale, method.prior_scale), weight)

    return loc + method.scale * noise, kl


DRAWS = {"weibull": weibull_draw, "lognormal": _log_normal}


def _total(terms: Tensor, weight: Tensor | None) -> Tensor:
    return (terms if weight is None else terms * weight).sum(dim=(1, 2, 3))


class GraphPosterior(AnsweringPosterior):
    """q(S) of a call within a graph: gives it noise, and has the KL that the graph leaves in ``within`` at its end."""

    uses_up_noise: ClassVar[bool] = False

    def __init__(
        self,
        name: str,
        method: BayesianAttention,
        like: Tensor,
        layout: Layout,
        within: GraphPass,
        *,
        seeded: bool = False,
    ) -> None:
        self._describe(method, layout, like)
        self._name, self._within, self._seeded = name, within, seeded

    @property
    def inputs(self) -> PosteriorInputs:
        """What the spread of q(S) follows from."""
        call = self._within.calls[self._name]
        return PosteriorInputs(call.method, call.phi, computed=call.outputs, normalised=call.normalised)

    def draw(self, noise: Noise, *, with_kl: bool = True) -> Tensor:
        """Draws the noise of S, the answer, or its seeds; the value itself is ``[B, 0]``."""
        if self._seeded:
            self.answer = kernel_seeds(noise, self._like)
        else:
            self.answer = site_numbers(self.method, noise, self._like)
        return self._nothing()

    def predict(self, noise: Noise, shared: SharedUpward) -> Tensor:
        """The same for a prediction."""
        return self.draw(noise, with_kl=False)

    def kl(self) -> Tensor:
        """KL(q || prior) in nats, ``[B]``."""
        divergence = self._within.calls[self._name].kl
        assert divergence is not None
        return divergence

    def relative(self) -> Callable[[], Weibull | LogNormal]:
        """Makes a distribution whose standard deviations over means are those of q(S)."""
        return self.inputs.distribution


@torch.library.custom_op(
    "probattn::site_noise",
    mutates_args=(),
    tags=[torch.Tag.nondeterministic_seeded, *([_UNSAFE] if _UNSAFE is not None else [])],
)
def site_noise(
    like: Tensor,
    shape: Sequence[int],
    dtype: torch.dtype,
    valid: Tensor | None,
    real: Tensor | None,
    _before: Tensor | None,
    name: str,
    options: str,
    draws: int,
) -> tuple[Tensor, Tensor]:
    """Announces a site to Pyro's handlers and returns the noise that its guide draws for it, of the given shape.

    With ``draws`` above 0 it returns seeds instead, int64 ``[draws]``, from which a kernel makes the noise. ``options``
    are family, noise and reduction, parted by spaces; ``_before`` is the second result of the site before, which keeps
    the sites in order.
    """
    within, (family, noise, reduction) = graph_pass(), options.split()
    if within is None:
        raise RuntimeError(
            f"site {name!r}: the compiled network runs outside the pass that it was compiled for"
        )
    layout: Layout = PAIRS
    if valid is not None:
        layout = AttentionMask(valid.expand(shape[0], -1, -1, -1), real)
    method = BayesianAttention(
        posterior=cast(PosteriorFamily, family),
        noise=cast(NoiseKind, noise),
        kl_reduction=cast(KLReduction, reduction),
    )
    map_like = like.new_empty((), dtype=dtype).expand(shape)
    posterior = GraphPosterior(name, method, map_like, layout, within, seeded=draws > 0)
    return answer(name, posterior), like.new_empty(0)


@site_noise.register_fake
def _(like: Tensor, shape: Sequence[int], dtype: torch.dtype, *rest: Any) -> tuple[Tensor, Tensor]:
    draws = rest[-1]
    noise = like.new_empty(draws, dtype=torch.int64) if draws > 0 else like.new_empty(shape, dtype=dtype)
    return noise, like.new_empty(0)


def _announced(
    name: str,
    method: BayesianAttention,
    query: Tensor,
    shape: Sequence[int],
    dtype: torch.dtype,
    layout: Layout,
    within: GraphPass,
    draws: int = 0,
) -> Tensor:
    """The noise of a call, or the seeds of its draws, after those of the calls before."""
    valid, real = (layout.valid, layout.query_valid) if isinstance(layout, GraphMask) else (None, None)
    options = f"{method.posterior} {method.noise} {method.kl_reduction}"
    noise: Tensor
    noise, within.order = site_noise(
        query.detach(), shape, dtype, valid, real, within.order, name, options, draws
    )
    return noise
