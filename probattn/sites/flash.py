"""Operators of a GPU for attention with noise of a constant spread: no map is stored, with or without gradients.

:func:`attend` computes what :mod:`probattn.sites.tiles` computes on a CPU, by the kernels of
:mod:`probattn.sites.flash_kernels`; on a CPU they run by Triton's interpreter, for tests.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import triton
from torch import Tensor

from probattn.sites import kernels
from probattn.sites.answers import mask_of
from probattn.sites.bayesian import BayesianAttention
from probattn.sites.flash_kernels import STATISTICS, attend_kernel, attend_key_kernel, attend_query_kernel
from probattn.sites.scores import exact_products, repeat_heads
from probattn.sites.traced import DRAWS, GraphMask
from probattn.sites.upward import UpwardOutputs
from probattn.sites.weibull import WeibullConstants, constant_surprise

WIDEST = 128
"""Width of queries, keys and values that a program holds."""
OLDEST = (8, 0)
"""Compute capability of the GPUs whose products of matrices the kernels use."""


def attend_options(method: BayesianAttention, scale: float) -> tuple[bool, list[float]]:
    """Whether the noise is normal, and the numbers of :func:`attend`, for the factor of the dot products."""
    constants = WeibullConstants.of(method, torch.float32)
    strength = method.log_strength
    if method.prior == "constant":
        strength += math.log(method.prior_concentration)
    normal, surprise, spread = method.posterior == "lognormal", 0.0, method.scale
    if not normal:
        spread = float(method.concentration)
        surprise = constant_surprise(spread) - math.log(constants.rate)
    limits = kernels.noise_limits(method)
    return normal, [scale, constants.rate, surprise, strength, spread, method.prior_scale, *limits]


def _tile(query: Tensor, value: Tensor) -> dict[str, Any]:
    """Blocks that registers hold, and the precision of products of float32: to rounding, or less where torch may."""
    queries, width, value_width = query.shape[2], query.shape[3], value.shape[3]
    small = query.element_size() == 2 and max(width, value_width) <= 64
    rounded = torch.backends.cuda.matmul.fp32_precision == "tf32"
    return {
        "ROWS": max(16, min(64 if small else 32, int(triton.next_power_of_2(queries)))),
        "COLUMNS": max(16, min(32, int(triton.next_power_of_2(value.shape[2])))),
        "WIDTH": max(16, int(triton.next_power_of_2(width))),
        "VALUE_WIDTH": max(16, int(triton.next_power_of_2(value_width))),
        "PRECISION": "tf32" if rounded else "tf32x3",
        "num_warps": 8,
        "num_stages": 2,
    }


def _rows(tensor: Tensor) -> Tensor:
    """The tensor, its rows contiguous."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _steps(query: Tensor, key: Tensor, value: Tensor, valid: Tensor | None) -> list[int]:
    """Strides of the tensors but the last, of ``valid`` all."""
    steps = [step for tensor in (query, key, value) for step in tensor.stride()[:3]]
    return [*steps, *((0, 0, 0, 0) if valid is None else valid.stride())]


def _sizes(
    query: Tensor, key: Tensor, value: Tensor, logits: Tensor | None, seeds: Tensor
) -> tuple[int, ...]:
    heads, groups = query.shape[1], key.shape[1]
    by_prior = heads if logits is None else logits.shape[1]
    share = query.shape[0] // len(seeds)
    return share, heads, groups, by_prior, query.shape[2], key.shape[2], query.shape[3], value.shape[3]


@torch.library.custom_op("probattn::attend", mutates_args=())
def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    logits: Tensor | None,
    valid: Tensor | None,
    real: Tensor | None,
    seeds: Tensor,
    normal: bool,
    numbers: Sequence[float],
    with_kl: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Output ``[B, H, T, E]``, statistics of queries ``[1 | 5, B, H, T]`` and the KL ``[B]``, empty unless wanted.

    ``query`` is ``[B, H, T, D]``, ``key`` and ``value`` ``[B, G, S, D or E]``, of one type; ``logits`` ``[B, G', S]``
    are those of the contextual prior, ``valid`` is ``[B, H, T, S]``, ``real`` is ``[B, T]``, ``seeds``
    are int64 ``[P]``, one for each of P draws in the batch. ``numbers`` are those of :func:`attend_options`.
    """
    query, key, value = _rows(query), _rows(key), _rows(value)
    output = query.new_empty(*query.shape[:3], value.shape[3])
    statistics = query.new_empty(STATISTICS if with_kl else 1, *query.shape[:3], dtype=torch.float32)
    divergence = torch.empty_like(statistics[0]) if with_kl else None
    tile = _tile(query, value)
    kernels.launch(
        attend_kernel, _programs(query, tile["ROWS"]), query, key, value, logits, kernels.as_bytes(valid),
        kernels.as_bytes(real), seeds, output, statistics, divergence, *_steps(query, key, value, valid),
        *_sizes(query, key, value, logits, seeds), *numbers, NORMAL=normal, **tile,
    )  # fmt: skip
    return output, statistics, output.new_empty(0) if divergence is None else divergence.sum(dim=(1, 2))


def _programs(rows: Tensor, size: int) -> int:
    return rows.shape[0] * rows.shape[1] * int(triton.cdiv(rows.shape[2], size))


@attend.register_fake
def _(query: Tensor, _: Tensor, value: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    output, with_kl = query.new_empty(*query.shape[:3], value.shape[3]), rest[-1]
    numbers = query.new_empty(STATISTICS if with_kl else 1, *query.shape[:3], dtype=torch.float32)
    return output, numbers, numbers.new_empty(query.shape[0]) if with_kl else output.new_empty(0)


@torch.library.custom_op("probattn::attend_backward", mutates_args=())
def attend_backward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    logits: Tensor | None,
    valid: Tensor | None,
    real: Tensor | None,
    seeds: Tensor,
    output: Tensor,
    statistics: Tensor,
    by_output: Tensor,
    by_kl: Tensor | None,
    normal: bool,
    numbers: Sequence[float],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients by query, key, value and logits; of logits that are None a tensor of no entries."""
    query, key, value = _rows(query), _rows(key), _rows(value)
    batch, heads, groups, keys = *query.shape[:2], key.shape[1], key.shape[2]
    inner = (by_output.float() * output.float()).sum(dim=-1)
    to_query = torch.empty_like(query, memory_format=torch.contiguous_format)
    to_key, to_value = (item.new_empty(batch, heads, keys, item.shape[3]) for item in (key, value))
    to_logits = None
    if logits is not None and by_kl is not None:
        to_logits = statistics.new_empty(batch, heads, keys)
    tile = _tile(query, value)
    inputs = (
        query, key, value, by_output, inner, logits, kernels.as_bytes(valid), kernels.as_bytes(real), seeds,
        statistics, by_kl,
    )  # fmt: skip
    rest = *_steps(query, key, value, valid), *_sizes(query, key, value, logits, seeds), *numbers
    options = {"NORMAL": normal, "WITH_KL": by_kl is not None, **tile}
    kernels.launch(attend_query_kernel, _programs(query, tile["ROWS"]), *inputs, to_query, *rest, **options)
    kernels.launch(
        attend_key_kernel, _programs(to_key, tile["COLUMNS"]), *inputs, to_key, to_value, to_logits, *rest, **options
    )  # fmt: skip
    if groups < heads:
        to_key, to_value = (item.unflatten(1, (groups, -1)).sum(dim=2) for item in (to_key, to_value))
    if to_logits is None or logits is None:
        return to_query, to_key, to_value, statistics.new_empty(0)
    if logits.shape[1] < heads:
        to_logits = to_logits.unflatten(1, (logits.shape[1], -1)).sum(dim=2)
    return to_query, to_key, to_value, to_logits


@attend_backward.register_fake
def _(
    query: Tensor, key: Tensor, value: Tensor, logits: Tensor | None, *rest: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    made = [item.new_empty(item.shape) for item in (query, key, value)]
    by_kl = rest[6]
    to_logits = rest[4].new_empty(0) if logits is None or by_kl is None else logits.new_empty(logits.shape)
    return made[0], made[1], made[2], to_logits


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, ctx.normal, ctx.numbers, ctx.with_kl = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*tensors, *output[:2])


def _gradients(
    ctx: Any, by_output: Tensor | None, _: Tensor | None, by_kl: Tensor | None
) -> tuple[Tensor | None, ...]:
    *tensors, output, statistics = ctx.saved_tensors
    by_output = torch.zeros_like(output) if by_output is None else by_output.contiguous()
    by_kl = None if by_kl is None or not ctx.with_kl else by_kl.contiguous()
    *gradients, to_logits = attend_backward(
        *tensors, output, statistics, by_output, by_kl, ctx.normal, ctx.numbers
    )
    return *gradients, to_logits if to_logits.numel() else None, *[None] * 6


attend.register_autograd(_gradients, setup_context=_keep)
attend_backward.register_autograd(kernels.refuse_second)
OPERATORS = (attend, attend_backward)
"""The operators of this module."""


def gap_to_torch(device: torch.device) -> float:
    """The largest difference between small steps by kernels and by torch on the CPU, relative to the numbers.

    One step is of float32 at the widest, one of float16, whose difference counts a two-hundredth.

    Raises:
        RuntimeError: the GPU is older than compute capability 8.0.
    """
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < OLDEST:
        raise RuntimeError("expected a GPU of compute capability 8.0 or newer for attention without maps")
    # Their noise is below rounding.
    wide, half = BayesianAttention.bam(1e7), BayesianAttention.bam(posterior="lognormal", scale=1e-7)
    gaps = []
    for method, width, dtype in ((wide, WIDEST, torch.float32), (half, WIDEST // 2, torch.float16)):
        query, key = (1, 2, 40, width), (1, 1, 40, width)
        shapes = query, key, key, (1, 1, 40), (1, 2, 40, 40), query
        steps = (partial(step, method, dtype) for step in (_torch_step, _kernel_step))
        with exact_products():
            gaps.append(kernels.gap_of_steps(device, shapes, *steps))
    return max(gaps[0], gaps[1] / 200)


def _trial_mask(like: Tensor) -> GraphMask:
    """A causal mask with padded queries."""
    batch, _, queries, _ = like.shape
    causal = torch.ones(queries, queries, dtype=torch.bool, device=like.device).tril()
    real = torch.arange(queries, device=like.device) < queries - 3
    return GraphMask(causal.expand(batch, 1, queries, queries), real.expand(batch, queries))


def _torch_step(
    method: BayesianAttention, dtype: torch.dtype, noise: Tensor, leaves: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    """Output and KL, by operations that autograd knows, of tensors rounded to a type."""
    *rounded, logits = leaves
    heads = rounded[0].shape[1]
    query, key, value = (repeat_heads(item.to(dtype).float(), heads) for item in rounded)
    layout = _trial_mask(noise)
    scores = layout.masked(query @ key.transpose(-1, -2) / query.shape[-1])
    phi = layout.zero_forbidden(layout.log_softmax(scores))
    log_value, kl = DRAWS[method.posterior](method, phi, UpwardOutputs(), noise)
    log_alpha = layout.over_keys(logits, heads)
    return layout.weights(log_value) @ value, kl(log_alpha, logits.new_zeros(()), layout.pair_weight)


def _kernel_step(
    method: BayesianAttention, dtype: torch.dtype, noise: Tensor, leaves: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    """The same by kernels, with other noise."""
    query, key, value = (item.to(dtype) for item in leaves[:3])
    seeds, options = noise.new_zeros(1, dtype=torch.int64), attend_options(method, 1 / query.shape[-1])
    call = leaves[3], *mask_of(_trial_mask(noise), noise.shape), seeds, *options
    output, _, kl = attend(query, key, value, *call, True)
    return output, kl
