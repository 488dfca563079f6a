"""The linear maps of the upward path, across heads or along queries."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from probattn.first_order import edges_to, first_order
from probattn.sites.bayesian import BayesianAttention
from probattn.sites.fused import ADVICE, pieces, runs_kernels


class _Mix(nn.Module):
    """A linear map across one dimension of a map: an ``[N, N]`` weight and an ``[N]`` bias."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size, size))
        self.bias = nn.Parameter(torch.empty(size))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws weight and bias as ``torch.nn.Linear`` does."""
        bound = 1 / math.sqrt(len(self.bias))
        nn.init.uniform_(self.weight, -bound, bound)
        nn.init.uniform_(self.bias, -bound, bound)


class HeadMix(_Mix):
    """Linear map across the heads of ``[B, H, T, S]``, alike at every pair; windows ``[B, W * H, T, S]`` one by one."""

    def forward(self, state: Tensor, row_weight: Tensor | None = None) -> Tensor:
        """Mixes heads; ``row_weight`` is not needed because pairs never mix."""
        weight, bias = self.weight.to(state.dtype), self.bias.to(state.dtype)
        return _mixed(weight, bias, state.reshape(-1, len(weight), state.shape[2:].numel())).view(state.shape)


class PositionMix(_Mix):
    """Linear map along the queries of a map ``[B, H, T, S]``, sliced to the current length."""

    def forward(self, state: Tensor, row_weight: Tensor | None = None) -> Tensor:
        """Mixes real queries by their places among them; ``row_weight`` ``[B, 1, T, 1]`` is 0 for padded ones."""
        length, longest = state.shape[2], self.weight.shape[0]
        if length > longest:
            raise ValueError(
                f"upward='positions': expected at most {longest} queries, got {length}; "
                "raise max_positions or use upward='heads'"
            )
        if row_weight is None:
            weight = self.weight[:length, :length].to(state.dtype)
            return torch.matmul(weight, state) + self.bias[:length, None].to(state.dtype)
        position = row_weight[:, 0, :, 0].cumsum(dim=1).sub(1).clamp_min(0).long()  # [B, T]
        weight = self.weight[position[:, :, None], position[:, None, :]].to(state.dtype)  # [B, T, T]
        bias = self.bias[position][:, None, :, None].to(state.dtype)
        return torch.matmul(weight[:, None], state * row_weight) + bias


Mix = HeadMix | PositionMix


def mixed_positive(
    mixes: Sequence[Mix], state: Tensor, row_weight: Tensor | None, *, swept: bool = True
) -> list[Tensor]:
    """The softplus of several mixes of one state; with ``swept`` in one sweep, which refuses a second derivative."""
    heads_alone = all(isinstance(mix, HeadMix) for mix in mixes)
    if swept and heads_alone and runs_kernels(state) and _fits(mixes[0]):
        return _mixed_by_kernel(mixes, state)
    # A compiler finds the sweep of its own, and cuts nothing into pieces.
    if not swept or torch.compiler.is_compiling() or not heads_alone:
        return [F.softplus(mix(state, row_weight)) for mix in mixes]
    heads = len(mixes[0].weight)
    weight = torch.stack([mix.weight for mix in mixes]).to(state.dtype)
    bias = torch.stack([mix.bias for mix in mixes]).to(state.dtype)
    mixed = _PositiveMixes.apply(_by_heads(state, heads), weight, bias)
    return [item.view(state.shape) for item in mixed]


def _by_heads(state: Tensor, heads: int) -> Tensor:
    """Maps ``[..., H, P]`` of all pairs P, also of none."""
    return state.reshape(state.shape[:2].numel() // heads, heads, state.shape[2:].numel())


def _fits(mix: Mix) -> bool:
    from probattn.sites.kernels import MOST_HEADS

    return len(mix.weight) <= MOST_HEADS


def _mixed_by_kernel(mixes: Sequence[Mix], state: Tensor) -> list[Tensor]:
    from probattn.sites.kernels import mix_maps

    heads = len(mixes[0].weight)
    pairs = [item.to(state.dtype).contiguous() for mix in mixes for item in (mix.weight, mix.bias)]
    maps = _by_heads(state, heads).contiguous()
    mixed = mix_maps(maps, *pairs, *[None] * (4 - len(pairs)))
    return [item.view(state.shape) for item in mixed[: len(mixes)]]


def _mixed(weight: Tensor, bias: Tensor, maps: Tensor, out: Tensor | None = None) -> Tensor:
    """``weight`` ``[O, H]`` times maps ``[N, H, P]``, plus ``bias``."""
    return torch.baddbmm(bias.view(1, -1, 1), weight.expand(len(maps), -1, -1), maps, out=out)


class _PositiveMixes(torch.autograd.Function):
    """M positive maps ``[N, H, P]`` of one, by weights ``[M, H, H]`` and biases ``[M, H]``, in pieces."""

    # The gradient needs the maps alone: that of softplus is 1 - exp(-softplus).

    @staticmethod
    def forward(ctx: Any, maps: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
        mixed = tuple(torch.empty_like(maps) for _ in weight)
        for piece in _pieces(maps):
            for item, matrix, shift in zip(mixed, weight, bias, strict=True):
                _mixed(matrix, shift, maps[piece], out=item[piece])
                torch.ops.aten.softplus.out(item[piece], out=item[piece])
        ctx.edges = edges_to(maps, weight, bias)
        ctx.save_for_backward(maps, weight, *mixed)
        return mixed

    @staticmethod
    @first_order(ADVICE)
    def backward(ctx: Any, *pulls: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        maps, weight, *mixed = ctx.saved_tensors
        rows = weight.flatten(0, 1)  # [M * H, H]
        to_maps, to_rows, to_bias = torch.empty_like(maps), torch.zeros_like(rows), rows.new_zeros(len(rows))
        negative = rows.neg()
        for piece in _pieces(maps):
            source = maps[piece]
            slope = _negative_slopes([item[piece] for item in mixed], [pull[piece] for pull in pulls])
            torch.matmul(negative.mT, slope, out=to_maps[piece])
            to_rows -= torch.matmul(slope, source.mT).sum(dim=0)
            to_bias -= slope.sum(dim=(0, 2))
        return to_maps, to_rows.view_as(weight), to_bias.view(weight.shape[:2])


def _pieces(maps: Tensor) -> Iterator[tuple[slice, slice, slice]]:
    """Parts of maps ``[N, H, P]`` that stay in a cache, of all heads."""
    size, heads, pairs = maps.shape
    for rows, _, columns in pieces(maps.new_empty(()).expand(size, 1, pairs, heads)):
        yield rows, slice(None), columns


def _negative_slopes(softplus: Sequence[Tensor], pulls: Sequence[Tensor]) -> Tensor:
    """The pulls ``[N, H, P]`` of M softplus back at their arguments, with the other sign, ``[N, M * H, P]``."""
    size, heads, pairs = softplus[0].shape
    slopes = softplus[0].new_empty(size, len(softplus) * heads, pairs)
    chunks = slopes.chunk(len(softplus), dim=1)
    for chunk, item in zip(chunks, softplus, strict=True):
        torch.neg(item, out=chunk)
    slopes.expm1_()
    for chunk, pull in zip(chunks, pulls, strict=True):
        chunk.mul_(pull)
    return slopes


class UpwardMaps(nn.Module):
    """One attention module's maps of the upward path: f_h and, where the options ask for them, f_k and f_lambda."""

    def __init__(self, method: BayesianAttention, num_heads: int, max_positions: int | None) -> None:
        super().__init__()
        longest = method.max_positions or max_positions
        if method.upward == "positions" and longest is None:
            raise ValueError(
                "upward='positions': expected max_positions, the longest query length; "
                "set BayesianAttention(max_positions=...) or use upward='heads'"
            )

        def mix() -> Mix:
            return HeadMix(num_heads) if method.upward == "heads" else PositionMix(longest or 1)

        self.hidden = mix()
        self.hidden_scale = method.hidden_scale
        self.concentration = mix() if method.learns_concentration else None
        self.scale = mix() if method.learns_scale else None

    @property
    def outputs(self) -> dict[str, Mix]:
        """f_k and f_lambda, those there are."""
        mixes = {"concentration": self.concentration, "scale": self.scale}
        return {name: mix for name, mix in mixes.items() if mix is not None}

    @property
    def mixes_queries(self) -> bool:
        """True if the maps mix queries, not heads."""
        return isinstance(self.hidden, PositionMix)
