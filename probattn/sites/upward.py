"""The deterministic upward path of attention belief networks (Zhang et al. 2021, section 3.2)."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from probattn.sites.bayesian import BayesianAttention


class HeadMix(nn.Module):
    """Linear map across the heads of a map ``[B, H, T, S]``, the same at every query-key pair.

    Windows of one datum that stand beside its heads, ``[B, W * H, T, S]``, are mixed one by one.

    Args:
        num_heads: H; the map has an ``[H, H]`` weight and an ``[H]`` bias.

    Example:
        >>> HeadMix(2)(torch.ones(1, 2, 3, 4)).shape
        torch.Size([1, 2, 3, 4])
    """

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_heads, num_heads))
        self.bias = nn.Parameter(torch.empty(num_heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws weight and bias as ``torch.nn.Linear`` does."""
        bound = 1 / math.sqrt(self.weight.shape[1])
        nn.init.uniform_(self.weight, -bound, bound)
        nn.init.uniform_(self.bias, -bound, bound)

    def forward(self, state: Tensor, row_weight: Tensor | None = None) -> Tensor:
        """Mixes heads; ``row_weight`` is not needed because pairs never mix."""
        heads = len(self.weight)
        maps = state.reshape(-1, heads, state.shape[2] * state.shape[3])
        weight = self.weight.to(state.dtype).expand(len(maps), heads, heads)
        bias = self.bias.to(state.dtype).view(1, heads, 1)
        return torch.baddbmm(bias, weight, maps).view(state.shape)


class PositionMix(nn.Module):
    """Linear map along the queries of a map ``[B, H, T, S]``, sliced to the length at hand.

    Args:
        max_positions: longest T; the weight is ``[max_positions, max_positions]``.

    Raises:
        ValueError: a call has more queries than ``max_positions``.
    """

    def __init__(self, max_positions: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(max_positions, max_positions))
        self.bias = nn.Parameter(torch.empty(max_positions))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws weight and bias as ``torch.nn.Linear`` does."""
        bound = 1 / math.sqrt(self.weight.shape[1])
        nn.init.uniform_(self.weight, -bound, bound)
        nn.init.uniform_(self.bias, -bound, bound)

    def forward(self, state: Tensor, row_weight: Tensor | None = None) -> Tensor:
        """Mixes queries.

        Args:
            state: ``[B, H, T, S]``.
            row_weight: ``[B, 1, T, 1]``, 0 for padded queries: they are zeroed first and do not count as positions, so
                that padding on either side moves nothing.

        Returns:
            ``[B, H, T, S]``; what stands at padded queries means nothing.
        """
        length, longest = state.shape[2], self.weight.shape[0]
        if length > longest:
            raise ValueError(
                f"upward='positions': expected at most {longest} queries, got {length}; "
                "raise max_positions or use upward='heads'"
            )
        if row_weight is None:
            weight = self.weight[:length, :length].to(state.dtype)
            return torch.matmul(weight, state) + self.bias[:length, None].to(state.dtype)
        place = row_weight[:, 0, :, 0].cumsum(dim=1).sub(1).clamp_min(0).long()  # [B, T]
        weight = self.weight[place[:, :, None], place[:, None, :]].to(state.dtype)  # [B, T, T]
        bias = self.bias[place][:, None, :, None].to(state.dtype)
        return torch.matmul(weight[:, None], state * row_weight) + bias


class UpwardMaps(nn.Module):
    """One attention module's maps of the upward path: f_h and, where the options ask for them, f_k and f_lambda.

    Args:
        method: the options.
        num_heads: H, for ``upward="heads"``.
        max_positions: for ``upward="positions"``.

    Raises:
        ValueError: ``upward="positions"`` without a maximum length.
    """

    def __init__(self, method: BayesianAttention, num_heads: int, max_positions: int | None) -> None:
        super().__init__()
        longest = method.max_positions or max_positions
        if method.upward == "positions" and longest is None:
            raise ValueError(
                "upward='positions': expected max_positions, the longest query length; "
                "set BayesianAttention(max_positions=...) or use upward='heads'"
            )

        def mix() -> nn.Module:
            return HeadMix(num_heads) if method.upward == "heads" else PositionMix(longest or 1)

        self.hidden = mix()
        self.concentration = mix() if method.learns_concentration else None
        self.scale = mix() if method.learns_scale else None


def softmax_over_keys(scores: Tensor) -> Tensor:
    """Softmax over the last dimension, the keys of a map ``[B, H, T, S]``."""
    return torch.softmax(scores, dim=-1)


@dataclass(eq=False)
class UpwardPass:
    """One forward pass through a chain: what it begins with, and the states that no call has asked for yet."""

    scores: Tensor
    row_weight: Tensor | None
    softmax: Callable[[Tensor], Tensor]
    states: list[Tensor | None] = field(default_factory=list)


class UpwardChain:
    r"""The hidden states that the calls of one stack share within a forward pass.

    With L calls, :math:`h^{L+1} = \mathrm{softmax}(\Phi^1)` and :math:`h^l = \mathrm{softplus}(f_h^l(h^{l+1}))` are
    computed from the first call's scores, before anything is drawn; the first call is served :math:`h^1`, after L
    maps, and the last :math:`h^L`, after one. A chain holds tensors only during a forward pass: the last call empties
    it, and whoever owns the network clears it when a pass ends early. Each thread that runs the
    network has a pass of its own.

    Args:
        None. Calls join with :meth:`join` in the order in which the network makes them.
    """

    def __init__(self) -> None:
        self._maps: list[UpwardMaps] = []
        self._passes: dict[int, UpwardPass] = {}

    def __len__(self) -> int:
        return len(self._maps)

    def join(self, maps: UpwardMaps) -> int:
        """Adds a call at the top of the chain and returns its position, from 0."""
        self._maps.append(maps)
        return len(self._maps) - 1

    def clear(self, *_: object) -> None:
        """Forgets the states of an unfinished forward pass; serves as a module's forward hook as it is."""
        self._passes.pop(threading.get_ident(), None)

    @property
    def current(self) -> UpwardPass | None:
        """This thread's pass, if one has been begun and not ended."""
        return self._passes.get(threading.get_ident())

    def begin(
        self,
        scores: Tensor,
        row_weight: Tensor | None,
        softmax: Callable[[Tensor], Tensor] = softmax_over_keys,
    ) -> None:
        """Begins a pass with the scores of its first call. The path rises when a state is asked for, at whatever call.

        Args:
            scores: masked scores ``[B, H, T, S]``.
            row_weight: float ``[B, 1, T, 1]``, 0 for padded queries, or None.
            softmax: normalises scores where they are not laid out as queries by keys.
        """
        self._passes[threading.get_ident()] = UpwardPass(scores, row_weight, softmax)

    @property
    def started(self) -> UpwardPass:
        """The pass at hand.

        Raises:
            RuntimeError: no pass was begun.
        """
        current = self.current
        if current is None:
            raise RuntimeError(
                "a call of an upward chain ran before call 0 of this forward pass; call the whole network, or convert "
                "only the layers that run"
            )
        return current

    def state(self, position: int, shape: torch.Size, rows: int | None = None) -> Tensor:
        """The state h for the call at ``position``, once in a pass.

        Args:
            position: place of the call in the chain.
            shape: of this call's scores.
            rows: how many rows of the batch to compute, the same at every call of a pass; None for all.

        Returns:
            h, ``[rows, H, T, S]``.

        Raises:
            RuntimeError: the chain was not begun in this forward pass, or the call's shape differs from the first's.
        """
        started = self.started
        scores = started.scores
        if scores.shape != shape:
            raise RuntimeError(
                f"attention call {position} of an upward chain: expected scores of shape {list(scores.shape)} as in "
                f"call 0, got {list(shape)}; calls of different shapes need chains of their own"
            )
        if not started.states:
            weight = started.row_weight
            first = started.softmax(scores[:rows])
            started.states = self._rise(first, None if weight is None else weight[:rows])
        state = started.states[position]
        if state is None:
            raise RuntimeError(f"attention call {position} of an upward chain ran twice in one forward pass")
        started.states[position] = None
        if position == len(self._maps) - 1:
            self.clear()
        return state

    def _rise(self, state: Tensor, row_weight: Tensor | None) -> list[Tensor | None]:
        states: list[Tensor | None] = []
        for maps in reversed(self._maps):
            state = F.softplus(maps.hidden(state, row_weight))
            states.append(state)
        return states[::-1]
