r"""Draws of a learned Weibull posterior in one sweep over the attention map: with the KL, or with the weights.

:class:`probattn.sites.SitePosterior` computes the same from distributions, one autograd node an operation. A map
``[B, H, T, S]`` has millions of entries and each node is a pass over memory; here the map is cut into pieces
that stay in a core's cache, and one analytic backward sweep follows one forward sweep. Exponentials of forbidden
pairs saturate above zero: far below its range ``torch.exp`` takes five times as long on a CPU.

:func:`draw_weibull`, for training, works with log S, which is safe for every concentration. :func:`draw_weights`, for
prediction, works with S where k >= 1/2: there nothing leaves float32's range, since the noise to the power of 1/k stays
between 1e-14 and 256 and the rest are probabilities. S takes half the passes over memory, and W is S over its sum
instead of a softmax of log S.

Off the CPU, :mod:`probattn.sites.kernels` does the same in one kernel; :func:`runs_kernels` says where. Draws of a
constant spread need no map there, see :mod:`probattn.sites.flash` and :func:`runs_flash`.

:func:`compile_sites` makes kernels of the arithmetic of a piece, where there is a compiler. The network runs as it is,
which starts in seconds; :mod:`probattn.sites.traced` is for networks that a user compiles as a whole.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, wraps
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple, ParamSpec, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from probattn.distributions.log_space import finite_exp
from probattn.first_order import edges_to, first_order
from probattn.host import on_cpu
from probattn.sites.bayesian import BayesianAttention
from probattn.sites.layout import Tile, cut, tile_of
from probattn.sites.weibull import Drawn, WeibullConstants, draw_gradients, draw_terms, scaled_draw

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


_WORKING: dict[tuple[int, str], bool] = {}
"""Whether kernels of Triton compute what torch computes, by the number of the GPU and the module of the kernels."""
MAPS, FLASH = "kernels", "flash"
"""Modules of kernels, in this folder."""


def runs_kernels(tensor: Tensor) -> bool:
    """Whether :mod:`probattn.sites.kernels` computes with a tensor: float32, on a GPU where it works."""
    return tensor.is_cuda and tensor.dtype == torch.float32 and kernels_work(tensor)


def runs_flash(tensor: Tensor) -> bool:
    """Whether :mod:`probattn.sites.flash` computes with a tensor: of at most 32 bits, on a GPU where it works."""
    return tensor.is_cuda and tensor.dtype in FLASH_TYPES and kernels_work(tensor, FLASH)


def kernels_work(tensor: Tensor, module: str = MAPS) -> bool:
    """Whether kernels work on a tensor's GPU, which is tried once, outside graphs of a compiler."""
    tried = tensor.get_device(), module
    if tried not in _WORKING:
        if torch.compiler.is_compiling():
            return False
        _WORKING[tried] = _try_kernels(tensor.device, module)
    return _WORKING[tried]


def try_kernels(model: object) -> None:
    """Tries kernels for a model's methods on the GPU of its parameters, before a graph asks whether they work."""
    first = next(model.parameters(), None) if isinstance(model, nn.Module) else None
    if not isinstance(model, nn.Module) or first is None or not first.is_cuda:
        return
    kernels_work(first)
    methods = (getattr(module, "method", None) for module in model.modules())
    if any(isinstance(method, BayesianAttention) and method.has_constant_spread for method in methods):
        kernels_work(first, FLASH)


def _try_kernels(device: torch.device, module: str) -> bool:
    """A step on a GPU by kernels and on the CPU without them; a warning where the two differ or the kernels fail."""
    if find_spec("triton") is None:
        return False
    try:
        gap_to_torch = import_module(f"probattn.sites.{module}").gap_to_torch
        # A thread of its own has no hooks, modes or checkpoints of this one.
        with ThreadPoolExecutor(1) as pool:
            gap = pool.submit(gap_to_torch, device).result()
        trouble = "" if gap <= TOLERANCE else f"their results differ from torch's by {gap:.1e}"
    # Compilers, drivers and kernels raise errors of any kind: the warning below has the text, and torch computes.
    except Exception as error:  # noqa: BLE001
        trouble = str(error).strip().partition("\n")[0] or type(error).__name__
    if trouble:
        warnings.warn(
            f"probattn: kernels of Triton do not work on {device}; attention weights are drawn by slower "
            f"operations of torch, with other random numbers: {trouble}",
            RuntimeWarning,
            stacklevel=2,
        )
    return not trouble


class _Switch:
    """Whether sites compile, one answer for the process."""

    on = False


def compile_sites(enabled: bool = True) -> None:
    """Makes attention sites compute draws, KL divergences and their gradients in kernels of ``torch.compile``.

    A draw consists of about twenty operations on tensors ``[B, H, T, S]``, which a compiled kernel fuses. The noise is
    the same, and results are equal up to rounding. It needs a compiler (C++ for a CPU, Triton for a GPU) and some
    seconds for each kind of site in a process; torch caches the kernels on disk. The setting is for the whole process,
    and affects Weibull posteriors with learned concentration and without learned scale. ``enabled=False`` undoes it.

    Raises:
        RuntimeError: torch finds no working compiler for a CPU.

    Example:
        >>> compile_sites(False)
        >>> sites_compile()
        False
    """
    if enabled:
        check_compiler("compile_sites")
    _Switch.on = enabled


@cache
def check_compiler(owner: str) -> None:
    """Raises ``RuntimeError`` unless torch compiles; asked until it does."""
    try:
        torch.compile(lambda values: values.exp() + 1)(torch.zeros(8))
    except Exception as error:
        lines = [line for line in str(error).splitlines() if line and not line.startswith("backend=")]
        raise RuntimeError(
            f"{owner}: expected a compiler that torch.compile can use (for a CPU g++ or clang++ on the path, "
            f"or in the variable CXX), got: {lines[0]}"
        ) from error


def sites_compile() -> bool:
    """Whether :func:`compile_sites` is on."""
    return _Switch.on


def site_kernel(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """A function of tensors and numbers, as one kernel for any sizes where sites compile."""
    # Reductions stay outside: where several are fused, torch 2.13 fails to compile them for changing sizes. Past
    # torch's limit of variants the function runs as it is.
    return _kernel(function) if sites_compile() else function


@cache
def _kernel(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    compiled = torch.compile(function, dynamic=True)  # which loads torch's compiler

    @wraps(function)
    def call(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        # Dynamo asks every tensor for its gradient; those within a graph warn.
        plain: Any = tree_map_only(Tensor, Tensor.detach, (args, kwargs))
        return compiled(*plain[0], **plain[1])

    return call


ADVICE = (
    "draws of a learned concentration have none; those of sigma > 0, and of BayesianAttention.bam() with the map "
    "(output_attentions=True, or need_weights=True), can be differentiated twice"
)
"""What to use for a second derivative."""
FLASH_TYPES = (torch.float32, torch.bfloat16, torch.float16)
TOLERANCE = 1e-4  # between a GPU's kernels and the CPU, relative to the largest number
CPU_PIECE = 2**18  # entries of a piece on a CPU, whose float32 buffers fit a core's second-level cache


class WeibullDraw(NamedTuple):
    """log S or W ``[B, H, T, S]``; the KL ``[B]`` without the prior's terms; with W log E[S], without gradient."""

    value: Tensor
    kl: Tensor
    log_mean: Tensor | None


def draw_weibull(
    log_mean: Tensor,
    rise: Tensor | None,
    uniform: Tensor,
    alpha: Tensor | None,
    weight: Tensor | None,
    options: WeibullConstants,
    *,
    normalise: bool = False,
) -> WeibullDraw:
    """Draws log S, or W with ``normalise``, and sums its KL; see :mod:`probattn.sites.weibull`; differentiable once."""
    # ``log_mean``, ``rise`` (None leaves its term out) and ``uniform`` (overwritten) are ``[B, H, T, S]``; ``alpha``
    # (None: no KL) and the 0/1 factors ``weight`` broadcast; gradients flow to ``log_mean``, ``rise`` and ``alpha``. W
    # is S / sum_keys S, with mu the log-softmax of ``log_mean``. The gradient needs no maps but W, mu and ``rise``: k
    # and the noise follow from them, the noise to k epsilon, so k should not be large.
    return WeibullDraw(*_WeibullDraw.apply(log_mean, rise, uniform, alpha, weight, options, normalise))


class _WeibullDraw(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        log_mean: Tensor,
        rise: Tensor | None,
        uniform: Tensor,
        alpha: Tensor | None,
        weight: Tensor | None,
        options: WeibullConstants,
        normalise: bool,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        ctx.edges = edges_to(log_mean, rise, alpha)
        log_mean = torch.log_softmax(log_mean, dim=-1) if normalise else log_mean
        log_sum = log_mean.new_empty(*log_mean.shape[:-1], 1) if normalise else None
        # W takes the place of the noise, which nothing needs then.
        value = uniform.detach() if normalise else torch.empty_like(log_mean)
        kl = log_mean.new_zeros(len(log_mean))
        shape, slope = None if alpha is None else alpha.shape, None
        if alpha is not None:
            alpha = four_dimensional(alpha)
            slope = log_mean.new_zeros(len(kl), *alpha.shape[1:])
        weight = None if weight is None else four_dimensional(weight)
        terms = site_kernel(draw_terms)
        for piece in pieces(log_mean):
            rise_tile, noise = None if rise is None else rise[piece], uniform[piece]
            target = None if normalise else value[piece]
            kl_terms = terms(log_mean[piece], rise_tile, noise, target, options, alpha is not None)
            if log_sum is not None:
                log_sum[piece] = _normalise(value[piece])
            if alpha is None or slope is None or kl_terms is None:
                continue
            surprise, others = kl_terms
            if weight is not None:
                surprise.mul_(tile_of(weight, piece))
                others.mul_(tile_of(weight, piece))
            slope_tile = tile_of(slope, piece)  # of kl by alpha
            surprise = surprise.sum_to_size(slope_tile.shape)
            slope_tile += surprise
            pull = (surprise * tile_of(alpha, piece)).flatten(1).sum(dim=1)
            kl[piece[0]] += others.flatten(1).sum(dim=1).add_(pull)
        ctx.set_materialize_grads(False)
        ctx.options, ctx.alpha_shape = options, shape
        drawn = (value, log_sum) if normalise else (uniform, None)
        ctx.save_for_backward(log_mean, rise, *drawn, alpha, weight, slope)
        if not normalise:
            return value, kl, None
        ctx.mark_non_differentiable(log_mean)
        return value, kl, log_mean

    @staticmethod
    @first_order(ADVICE)
    def backward(
        ctx: Any, grad_value: Tensor | None, grad_kl: Tensor | None, _: None
    ) -> tuple[Tensor | None, ...]:
        maps: list[Any]
        *maps, alpha, weight, slope = ctx.saved_tensors
        log_mean, rise = maps[:2]
        grad_alpha: Tensor | None = None
        if alpha is None:
            grad_kl = None
        if ctx.needs_input_grad[3] and grad_kl is not None:
            by_datum = slope * grad_kl.view(-1, 1, 1, 1)
            grad_alpha = by_datum.sum_to_size(alpha.shape).view(ctx.alpha_shape)
        grad_mean, grad_rise = torch.empty_like(log_mean), None if rise is None else torch.empty_like(rise)
        gradients = site_kernel(draw_gradients)
        for piece in pieces(log_mean):
            share: Tensor | None = None
            if grad_kl is not None:
                share = grad_kl[piece[0]].view(-1, 1, 1, 1)
                share = share if weight is None else share * tile_of(weight, piece)
            items: list[Any] = [None if item is None else item[piece] for item in maps]
            drawn = Drawn(*items)
            pull, centre = None if grad_value is None else grad_value[piece], None
            if pull is not None and drawn.log_sum is not None:
                pull = pull * drawn.value
                centre = pull.sum(dim=-1, keepdim=True)
            pulls = pull, share, None if alpha is None else tile_of(alpha, piece)
            grads = grad_mean[piece], None if grad_rise is None else grad_rise[piece]
            gradients(drawn, pulls, centre, grads, ctx.options)
            if drawn.log_sum is not None:  # from the log-softmax back
                log_softmax = torch.ops.aten._log_softmax_backward_data
                log_softmax.out(grads[0], drawn.log_mean, -1, grads[0].dtype, out=grads[0])
        return grad_mean, grad_rise, None, grad_alpha, None, None, None


def _normalise(logs: Tensor) -> Tensor:
    """Writes the softmax over the last dimension in place of its logits; their log-sum-exp, ``[..., 1]``."""
    if not logs.shape[-1]:
        return logs.logsumexp(dim=-1, keepdim=True)
    largest = logs.amax(dim=-1, keepdim=True)
    torch.softmax(logs, dim=-1, out=logs)
    return largest.sub_(logs.amax(dim=-1, keepdim=True).log_())


def draw_weights(
    scores: Tensor, base: Tensor, smallest: Sequence[float] | None, uniform: Tensor, options: WeibullConstants
) -> tuple[Tensor, Tensor]:
    """S >= 0 and W, written over u and the masked scores ``[P * B, H, T, S]``, float32, that are normalised first."""
    # p = softmax(Phi), k = rho softplus(z) + p + floor, S = p (-log u)^(1/k) / Gamma(1 + 1/k); not differentiable. A
    # further map allocated at every call costs as much as the softmax. ``base`` is softplus(z) of all P draws, and
    # ``smallest`` the smallest of each of its rows; None where to know them is to wait for an accelerator.
    bound = None if smallest is None else options.inverse_bound(min(smallest, default=0.0))
    if smallest is None or (sites_compile() and bound is not None):
        maps, noise = (item.view(-1, *base.shape) for item in (scores, uniform))
        _draw_piece(maps, base, noise, options, bound)
        return uniform, scores
    for rows, *inside in pieces(base):
        bound = options.inverse_bound(min(smallest[rows]))
        for first in range(0, len(scores), max(1, len(base))):
            piece = slice(first + rows.start, first + rows.stop), *inside
            _draw_piece(scores[piece], base[rows, *inside], uniform[piece], options, bound)
    return uniform, scores


def _draw_piece(
    scores: Tensor, base: Tensor, noise: Tensor, options: WeibullConstants, bound: float | None
) -> None:
    """Writes W and S over scores and noise; by logarithms where 1 / k has no bound."""
    if bound is None:
        draw_terms(torch.log_softmax(scores, dim=-1), base, noise, None, options, False)
        torch.softmax(noise, dim=-1, out=scores)
        noise.copy_(finite_exp(noise))
        return
    mean = torch.softmax(scores, dim=-1, out=scores if sites_compile() else None)
    site_kernel(scaled_draw)(mean, base, noise, options, bound)
    torch.mul(noise, noise.sum(dim=-1, keepdim=True).reciprocal_(), out=scores)


def four_dimensional(tensor: Tensor) -> Tensor:
    """The tensor with leading dimensions of size 1, four dimensions in all."""
    return tensor.view((1,) * (4 - tensor.dim()) + tensor.shape)


def pieces(values: Tensor) -> Iterator[Tile]:
    """Tiles of a map that stay in a cache; the whole of it off the CPU, where launching kernels is what costs."""
    rows = max(1, CPU_PIECE // max(1, values.shape[-1]))
    return cut(values.shape, rows if on_cpu(values) else max(1, values.shape[:3].numel()))
