"""Operators of a GPU, with gradients: draws of attention weights and the upward path, by kernels of Triton.

:func:`draw_map` draws W from scores and sums the KL, as :mod:`probattn.sites.fused` does on a CPU, :func:`mix_maps`
makes positive maps of the upward path. The kernels are in :mod:`probattn.sites.triton_kernels`; on a CPU they run by
Triton's interpreter (``TRITON_INTERPRET=1``), for tests.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import triton
from torch import Tensor
from torch.nn import functional as F

from probattn.sites.bayesian import BayesianAttention
from probattn.sites.fused import ADVICE
from probattn.sites.main_effects import TRUNCATION
from probattn.sites.traced import weibull_draw
from probattn.sites.triton_kernels import (
    CONSTANT,
    LEARNED,
    NORMAL,
    draw_backward_kernel,
    draw_kernel,
    mix_backward_kernel,
    mix_kernel,
    noise_kernel,
)
from probattn.sites.upward import UpwardOutputs
from probattn.sites.weibull import WeibullConstants

LONGEST = 4096
"""Keys of a row that a program holds."""
ENTRIES = 1024  # of a program's part of a map, with four warps eight a thread, which its registers hold
MOST_HEADS = 32
"""Heads that a program mixes."""
COLUMNS = 32  # pairs of a block whose heads a program mixes
MOST_SUMS = 1024  # programs that sum the gradients of the mixes' weights


def draw_options(method: BayesianAttention) -> tuple[int, list[float]]:
    """Family and numbers of :func:`draw_map`."""
    constants = WeibullConstants.of(method, torch.float32)
    strength = method.log_strength
    if method.prior == "constant":
        strength += math.log(method.prior_concentration)
    shared = [constants.rho, constants.floor, constants.rate, math.log(constants.rate), strength]
    limits = noise_limits(method)
    if method.posterior == "lognormal":
        return NORMAL, [*shared, method.scale, method.prior_scale, *limits]
    if isinstance(method.concentration, str):
        return LEARNED, [*shared, 0.0, 0.0, *limits]
    return CONSTANT, [*shared, method.concentration, 0.0, *limits]


def noise_limits(method: BayesianAttention) -> tuple[float, float]:
    """Range of the uniform numbers of a draw."""
    return TRUNCATION if method.noise == "truncated" else (0.0, 1.0)


def _tile(queries: int, keys: int) -> dict[str, int]:
    """Rows and columns of a program's part of a map, and the warps that share it."""
    columns = triton.next_power_of_2(max(16, keys))
    rows = max(1, min(triton.next_power_of_2(queries), ENTRIES // columns))
    return {"ROWS": rows, "COLUMNS": columns, "num_warps": max(1, min(16, rows * columns // 256))}


def _map_arguments(
    scores: Tensor, logits: Tensor | None, valid: Tensor | None, numbers: Sequence[float]
) -> tuple[Any, ...]:
    """Strides of ``valid``, sizes and numbers: arguments that both kernels of a draw share."""
    strides: tuple[int, ...] = (0, 0, 0, 0)
    if valid is not None:
        steps = zip(valid.shape, valid.stride(), strict=True)
        strides = tuple(0 if size == 1 else step for size, step in steps)
    _, heads, queries, keys = scores.shape
    return *strides, heads, heads if logits is None else logits.shape[1], queries, keys, *numbers


def _programs(scores: Tensor, tile: dict[str, int]) -> int:
    batch, heads, queries, _ = scores.shape
    return batch * heads * int(triton.cdiv(queries, tile["ROWS"]))


def _mix_tile(heads: int) -> dict[str, int]:
    """Heads, at least the sixteen of a matrix product, and columns of a block, and the warps that share it."""
    rows = max(16, int(triton.next_power_of_2(heads)))
    return {"HEADS": rows, "COLUMNS": COLUMNS, "num_warps": rows // 4}


def as_bytes(mask: Tensor | None) -> Tensor | None:
    """A mask as Triton takes it."""
    return None if mask is None else mask.view(torch.uint8)


def launch(kernel: Any, programs: int, *arguments: Any, **options: Any) -> None:
    """Starts the programs of a kernel on the device of its first argument."""
    if not programs:
        return
    with torch.cuda.device_of(arguments[0]):
        kernel[(programs,)](*arguments, **options)


def map_noise(seeds: Tensor, shape: Sequence[int], normal: bool) -> Tensor:
    """The numbers u or n ``[B, H, T, S]`` that kernels with these seeds draw by themselves."""
    out = torch.empty(tuple(shape), dtype=torch.float32, device=seeds.device)
    tile, (batch, heads, queries, keys) = _tile(*shape[2:]), shape
    launch(
        noise_kernel, _programs(out, tile), seeds, out, batch // len(seeds), heads, queries, keys, NORMAL=normal, **tile
    )  # fmt: skip
    return out


@torch.library.custom_op("probattn::draw_map", mutates_args=())
def draw_map(
    scores: Tensor,
    rise: Tensor | None,
    noise: Tensor | None,
    logits: Tensor | None,
    valid: Tensor | None,
    real: Tensor | None,
    seeds: Tensor | None,
    family: int,
    numbers: Sequence[float],
    with_kl: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """W ``[B, H, T, S]``, log sum_keys S ``[B, H, T]`` and the KL ``[B]``, zeros unless it is wanted.

    ``scores`` are masked, ``rise`` is what the upward path gives, ``noise`` is uniform or normal, all ``[B, H, T, S]``;
    without gradients ``rise`` may have the rows of one draw, for all in the batch. ``seeds`` int64 ``[P]`` of the draws
    make the numbers where ``noise`` is None. ``logits`` ``[B, G, S]`` are those of the contextual prior; ``valid``
    broadcasts to the map, ``real`` is ``[B, T]``. ``numbers`` are rho, floor, rate, log rate, log of the prior's
    strength (without logits times the concentration), spread (k or s), spread of the prior and the range of u.
    """
    batch, heads, queries, keys = scores.shape
    weights, log_sums = torch.empty_like(scores), scores.new_empty(batch, heads, queries)
    divergence = torch.empty_like(log_sums) if with_kl else None
    tile = _tile(queries, keys)
    share, risen = batch if seeds is None else batch // len(seeds), batch if rise is None else len(rise)
    launch(
        draw_kernel, _programs(scores, tile), scores, rise, noise, logits, as_bytes(valid), as_bytes(real), seeds,
        weights, log_sums, divergence, share, risen, *_map_arguments(scores, logits, valid, numbers), FAMILY=family,
        **tile,
    )  # fmt: skip
    return weights, log_sums, scores.new_zeros(batch) if divergence is None else divergence.sum(dim=(1, 2))


@draw_map.register_fake
def _(scores: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(scores), torch.empty_like(scores[..., 0]), scores.new_empty(scores.shape[0])


@torch.library.custom_op("probattn::draw_map_backward", mutates_args=())
def draw_map_backward(
    scores: Tensor,
    rise: Tensor | None,
    logits: Tensor | None,
    valid: Tensor | None,
    real: Tensor | None,
    weights: Tensor,
    log_sums: Tensor,
    by_weights: Tensor,
    by_kl: Tensor | None,
    family: int,
    numbers: Sequence[float],
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients by ``scores``, ``rise`` and ``logits`` of :func:`draw_map`; of what is None a tensor of no entries."""
    batch, _, queries, keys = scores.shape
    tile = _tile(queries, keys)
    to_scores = torch.empty_like(scores)
    to_rise = None if rise is None else torch.empty_like(rise)
    programs, to_logits = _programs(scores, tile), None
    if logits is not None and by_kl is not None:
        to_logits = scores.new_empty(
            batch, logits.shape[1], programs // max(1, batch * logits.shape[1]), keys
        )
    launch(
        draw_backward_kernel, programs, scores, rise, logits, as_bytes(valid), as_bytes(real), weights, log_sums,
        by_weights, by_kl, to_scores, to_rise, to_logits, *_map_arguments(scores, logits, valid, numbers[:-2]),
        FAMILY=family, **tile,
    )  # fmt: skip
    return (
        to_scores,
        scores.new_empty(0) if to_rise is None else to_rise,
        scores.new_empty(0) if to_logits is None else to_logits.sum(dim=2),
    )


@draw_map_backward.register_fake
def _(
    scores: Tensor, rise: Tensor | None, logits: Tensor | None, *rest: Any
) -> tuple[Tensor, Tensor, Tensor]:
    by_kl = rest[5]
    return (
        torch.empty_like(scores),
        scores.new_empty(0) if rise is None else torch.empty_like(rise),
        scores.new_empty(0) if logits is None or by_kl is None else torch.empty_like(logits),
    )


def _keep_draw(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    scores, rise, _, logits, valid, real, _, ctx.family, ctx.numbers, ctx.with_kl = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(scores, rise, logits, valid, real, *output[:2])


def _draw_gradients(
    ctx: Any, by_weights: Tensor | None, _: Tensor | None, by_kl: Tensor | None
) -> tuple[Tensor | None, ...]:
    scores, rise, logits, valid, real, weights, log_sums = ctx.saved_tensors
    by_weights = torch.zeros_like(weights) if by_weights is None else by_weights.contiguous()
    by_kl = None if by_kl is None or not ctx.with_kl else by_kl.contiguous()
    to_scores, to_rise, to_logits = draw_map_backward(
        scores, rise, logits, valid, real, weights, log_sums, by_weights, by_kl, ctx.family, ctx.numbers
    )
    return (
        to_scores,
        None if rise is None else to_rise,
        None,
        to_logits if to_logits.numel() else None,
        *[None] * 6,
    )


draw_map.register_autograd(_draw_gradients, setup_context=_keep_draw)


@torch.library.custom_op("probattn::mix_maps", mutates_args=())
def mix_maps(
    maps: Tensor, weight: Tensor, bias: Tensor, weight_2: Tensor | None, bias_2: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The softplus of one or two mixes ``weight maps + bias`` of maps ``[N, H, P]``; the second may have no entries."""
    size, heads, pairs = maps.shape
    mixed = torch.empty_like(maps)
    second = None if weight_2 is None else torch.empty_like(maps)
    blocks = size * triton.cdiv(pairs, COLUMNS)
    launch(
        mix_kernel, blocks, maps, weight, bias, mixed, weight_2, bias_2, second, heads, pairs,
        **_mix_tile(heads),
    )  # fmt: skip
    return mixed, maps.new_empty(0) if second is None else second


@mix_maps.register_fake
def _(
    maps: Tensor, weight: Tensor, bias: Tensor, weight_2: Tensor | None, bias_2: Tensor | None
) -> tuple[Tensor, Tensor]:
    del weight, bias, bias_2
    return torch.empty_like(maps), maps.new_empty(0) if weight_2 is None else torch.empty_like(maps)


@torch.library.custom_op("probattn::mix_maps_backward", mutates_args=())
def mix_maps_backward(
    maps: Tensor,
    weight: Tensor,
    mixed: Tensor,
    pull: Tensor,
    weight_2: Tensor | None,
    mixed_2: Tensor | None,
    pull_2: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of M mixes by ``maps``, by the weights ``[M, H, H]`` and by the biases ``[M, H]``."""
    size, heads, pairs = maps.shape
    mixes, total = 1 if weight_2 is None else 2, size * triton.cdiv(pairs, COLUMNS)
    span = triton.cdiv(max(1, total), MOST_SUMS)
    programs = triton.cdiv(total, span)
    to_maps = torch.empty_like(maps)
    to_weights, to_biases = (
        maps.new_empty(programs, mixes, heads, heads),
        maps.new_empty(programs, mixes, heads),
    )
    launch(
        mix_backward_kernel, programs, maps, weight, mixed, pull, weight_2, mixed_2, pull_2, to_maps, to_weights,
        to_biases, heads, pairs, total, span, MIXES=mixes, **_mix_tile(heads),
    )  # fmt: skip
    return to_maps, to_weights.sum(dim=0), to_biases.sum(dim=0)


@mix_maps_backward.register_fake
def _(maps: Tensor, weight: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    mixes, heads = 1 if rest[2] is None else 2, len(weight)
    return (torch.empty_like(maps), weight.new_empty(mixes, heads, heads), weight.new_empty(mixes, heads))


def _keep_mixes(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    maps, weight, _, weight_2, _ = inputs
    ctx.save_for_backward(maps, weight, output[0], weight_2, None if weight_2 is None else output[1])


def _mix_gradients(ctx: Any, pull: Tensor, pull_2: Tensor) -> tuple[Tensor | None, ...]:
    maps, weight, mixed, weight_2, mixed_2 = ctx.saved_tensors
    second = None if weight_2 is None else pull_2.contiguous()
    to_maps, weights, biases = mix_maps_backward(
        maps, weight, mixed, pull.contiguous(), weight_2, mixed_2, second
    )
    if weight_2 is None:
        return to_maps, weights[0], biases[0], None, None
    return to_maps, weights[0], biases[0], weights[1], biases[1]


mix_maps.register_autograd(_mix_gradients, setup_context=_keep_mixes)


def refuse_second(*_: Any) -> None:
    """The gradient of an operator that is a gradient."""
    raise RuntimeError(f"expected one derivative, got a derivative of a gradient; {ADVICE}")


for _operator in (draw_map_backward, mix_maps_backward):
    _operator.register_autograd(refuse_second)
OPERATORS = (draw_map, draw_map_backward, mix_maps, mix_maps_backward)
"""The operators of this module."""


def gap_to_torch(device: torch.device) -> float:
    """The largest difference between a small step by kernels and one of torch on the CPU, relative to the numbers."""
    shapes = ((2, 4, 5, 7),) * 3 + ((4, 4), (4,), (2, 4, 7), (2, 4, 5, 7), (2, 4, 5, 7))
    method = BayesianAttention()
    gap = gap_of_steps(device, shapes, partial(_torch_step, method), partial(_kernel_step, method))
    seeds, shape = torch.zeros(1, dtype=torch.int64, device=device), (2, 4, 5, 7)
    scores = torch.zeros(shape, dtype=torch.float32, device=device)
    sources = (map_noise(seeds, shape, False), None), (None, seeds)
    maps = [
        draw_map(scores, None, noise, None, None, None, by_seeds, *draw_options(method), False)[0]
        for noise, by_seeds in sources
    ]
    return max(gap, float((maps[0] - maps[1]).abs().max()))


Step = Callable[[Tensor, Sequence[Tensor]], tuple[Tensor, Tensor]]
"""An output and a KL ``[B]`` from noise and leaves."""


def gap_of_steps(
    device: torch.device, shapes: Sequence[tuple[int, ...]], by_torch: Step, by_kernel: Step
) -> float:
    """The largest difference of a step on the CPU and one on a device, inf for NaN; of leaves, noise and a gradient."""
    numbers = torch.Generator().manual_seed(0)
    inputs = [torch.rand(shape, generator=numbers, dtype=torch.float32, device="cpu") for shape in shapes]
    results = []
    for where, step in ((torch.device("cpu"), by_torch), (device, by_kernel)):
        *leaves, noise, pull = (item.to(where) for item in inputs)
        with torch.enable_grad(), torch.autocast(where.type, enabled=False):
            leaves = [item.detach().requires_grad_() for item in leaves]
            output, kl = step(noise, leaves)
            gradients = torch.autograd.grad((output * pull).sum() + kl.sum(), leaves)
        results.append([item.detach().cpu() for item in (output, kl, *gradients)])
    gaps = [float((one - other).abs().max() / one.abs().max()) for one, other in zip(*results, strict=True)]
    return max(gaps) if all(map(math.isfinite, gaps)) else math.inf


def _torch_step(method: BayesianAttention, noise: Tensor, leaves: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Weights and KL of a draw whose k has another map in it, by operations that autograd knows."""
    scores, rise, state, weight, bias, logits = leaves
    rise = rise + F.softplus(weight @ state.flatten(2) + bias[:, None]).view_as(state)
    outputs, phi = UpwardOutputs(concentration=rise), torch.log_softmax(scores, dim=-1)
    log_value, kl = weibull_draw(method, phi, outputs, noise)
    log_alpha = torch.log_softmax(logits, dim=-1)[:, :, None]
    return torch.softmax(log_value, dim=-1), kl(log_alpha, logits.new_zeros(()), None)


def _kernel_step(method: BayesianAttention, noise: Tensor, leaves: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """The same by kernels."""
    scores, rise, state, weight, bias, logits = leaves
    rise = rise + mix_maps(state.flatten(2), weight, bias, None, None)[0].view_as(state)
    weights, _, kl = draw_map(scores, rise, noise, logits, None, None, None, *draw_options(method), True)
    return weights, kl
