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
from probattn.sites.bayesian import BayesianAttention
from probattn.sites.flash_kernels import STATISTICS, attend_kernel, attend_key_kernel, attend_query_kernel
from probattn.sites.main_effects import TRUNCATION
from probattn.sites.traced import weibull_draw
from probattn.sites.upward import UpwardOutputs
from probattn.sites.weibull import WeibullConstants, constant_surprise

WIDEST = 128
"""Width of queries, keys and values that a program holds."""


def attend_options(method: BayesianAttention, scale: float) -> tuple[bool, list[float]]:
    """Whether the noise is normal, and the numbers of :func:`attend`, for the factor of the dot products."""
    constants = WeibullConstants.of(method, torch.float32)
    strength = method.log_strength
    if method.prior == "constant":
        strength += math.log(method.prior_concentration)
    normal, (low, high) = method.posterior == "lognormal", (0.0, 1.0)
    if method.noise == "truncated":
        low, high = TRUNCATION
    surprise, spread = 0.0, method.scale
    if not normal:
        spread = float(method.concentration)
        surprise = constant_surprise(spread) - math.log(constants.rate)
    return normal, [scale, constants.rate, surprise, strength, spread, method.prior_scale, low, high]


def _tile(query: Tensor, value: Tensor) -> dict[str, Any]:
    """Blocks that registers hold, and the precision of products of float32: to rounding, or less where torch may."""
    queries, width, value_width = query.shape[2], query.shape[3], value.shape[3]
    small = query.element_size() == 2 and max(width, value_width) <= 64
    exact = torch.get_float32_matmul_precision() == "highest"
    return {
        "ROWS": max(16, min(64 if small else 32, int(triton.next_power_of_2(queries)))),
        "COLUMNS": max(16, min(32, int(triton.next_power_of_2(value.shape[2])))),
        "WIDTH": max(16, int(triton.next_power_of_2(width))),
        "VALUE_WIDTH": max(16, int(triton.next_power_of_2(value_width))),
        "PRECISION": "tf32x3" if exact else "tf32",
        "num_warps": 8,
        "num_stages": 2,
    }


def _rows(tensor: Tensor) -> Tensor:
    """The tensor, its rows contiguous."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _steps(query: Tensor, key: Tensor, value: Tensor, valid: Tensor | None) -> list[int]:
    """Strides of the tensors but the last, of ``valid`` all, 0 where it broadcasts."""
    steps = [step for tensor in (query, key, value) for step in tensor.stride()[:3]]
    if valid is None:
        return [*steps, 0, 0, 0, 0]
    sizes = zip(valid.shape, valid.stride(), strict=True)
    return [*steps, *(0 if size == 1 else step for size, step in sizes)]


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
    are those of the contextual prior, ``valid`` broadcasts to ``[B, H, T, S]``, ``real`` is ``[B, T]``, ``seeds``
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
    """The largest difference between a small step by kernels and one of torch on the CPU, relative to the numbers."""
    method = BayesianAttention.bam(1e7)  # whose noise is below rounding
    shapes = (2, 4, 35, 20), (2, 2, 40, 20), (2, 2, 40, 24), (2, 2, 40), (2, 4, 35, 40), (2, 4, 35, 24)
    return kernels.gap_of_steps(device, shapes, partial(_torch_step, method), partial(_kernel_step, method))


def _torch_step(method: BayesianAttention, noise: Tensor, leaves: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Output and KL, by operations that autograd knows."""
    query, key, value, logits = (item.repeat_interleave(4 // item.shape[1], dim=1) for item in leaves)
    phi = torch.log_softmax(query @ key.transpose(-1, -2), dim=-1)
    log_value, kl = weibull_draw(method, phi, UpwardOutputs(), noise)
    log_alpha = torch.log_softmax(logits, dim=-1)[:, :, None]
    return torch.softmax(log_value, dim=-1) @ value, kl(log_alpha, logits.new_zeros(()), None)


def _kernel_step(method: BayesianAttention, noise: Tensor, leaves: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """The same by kernels, with other noise."""
    seeds = noise.new_zeros(1, dtype=torch.int64)
    output, _, kl = attend(*leaves, None, None, seeds, *attend_options(method, 1.0), True)
    return output, kl
