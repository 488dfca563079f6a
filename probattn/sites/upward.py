"""The deterministic upward path of attention belief networks (Zhang et al. 2021, section 3.2)."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx
from torch.nn import functional as F

from probattn.sites.bayesian import BayesianAttention
from probattn.sites.fused import Positive
from probattn.sites.layout import Layout

Pass = TypeVar("Pass")


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
    """Linear map across the heads of a map ``[B, H, T, S]``, the same at every query-key pair.

    Windows of one datum next to its heads, ``[B, W * H, T, S]``, are mixed one by one.
    """

    def forward(self, state: Tensor, row_weight: Tensor | None = None) -> Tensor:
        """Mixes heads; ``row_weight`` is not needed because pairs never mix."""
        heads = len(self.weight)
        maps = state.reshape(-1, heads, state.shape[2] * state.shape[3])
        weight = self.weight.to(state.dtype).expand(len(maps), heads, heads)
        bias = self.bias.to(state.dtype).view(1, heads, 1)
        return torch.baddbmm(bias, weight, maps).view(state.shape)


class PositionMix(_Mix):
    """Linear map along the queries of a map ``[B, H, T, S]``, sliced to the current length."""

    def forward(self, state: Tensor, row_weight: Tensor | None = None) -> Tensor:
        """Mixes real queries by their places among them; ``row_weight`` ``[B, 1, T, 1]`` is 0 for padded ones.

        Padding on either side moves nothing; values at padded queries mean nothing.
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
    """One attention module's maps of the upward path: f_h and, where the options ask for them, f_k and f_lambda."""

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

    @property
    def mixes_queries(self) -> bool:
        """True if the maps mix queries, not heads."""
        return isinstance(self.hidden, PositionMix)


@dataclass(frozen=True)
class UpwardOutputs:
    """Output of the upward path at one call, softplus(f_k(h)) and softplus(f_lambda(h)), ``[B, H, T, S]``.

    None where a posterior has no use for it.
    """

    concentration: Tensor | None = None
    scale: Tensor | None = None

    @cached_property
    def positive(self) -> Positive | None:
        """softplus(f_k(h)) with the smallest of each row; None where k does not depend on the path."""
        return None if self.concentration is None else Positive(self.concentration)


class _Softplus(torch.autograd.Function):
    """softplus whose gradient needs its result alone, which is kept anyway: the map it is made of is not."""

    generate_vmap_rule = True

    @staticmethod
    def forward(values: Tensor) -> Tensor:
        return F.softplus(values)

    @staticmethod
    def setup_context(ctx: FunctionCtx, _inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (result,) = ctx.saved_tensors
        return gradient * -torch.expm1(-result)  # the logistic function


def softplus(values: Tensor) -> Tensor:
    """log(1 + exp(values)), elementwise."""
    result: Tensor = _Softplus.apply(values)
    return result


@dataclass(eq=False)
class UpwardPass:
    """One forward pass through a chain: scores and layout of its first call, and the states not yet used."""

    scores: Tensor
    layout: Layout
    states: list[Tensor | None] = field(default_factory=list)


@contextmanager
def swapped(passes: dict[int, Pass], inner: Pass | None) -> Iterator[None]:
    """This thread's entry of a table of passes, or its absence, for the time of a block."""
    thread = threading.get_ident()
    former = passes.pop(thread, None)
    if inner is not None:
        passes[thread] = inner
    try:
        yield
    finally:
        passes.pop(thread, None)
        if former is not None:
            passes[thread] = former


class UpwardChain:
    r"""The hidden states that the calls of one stack share within a forward pass.

    With L calls, :math:`h^{L+1} = \mathrm{softmax}(\Phi^1)` and :math:`h^l = \mathrm{softplus}(f_h^l(h^{l+1}))` are
    computed from the first call's scores, before anything is drawn; the first call is served :math:`h^1`, after L
    maps, and the last :math:`h^L`, after one. A chain holds tensors only during a forward pass: the last call empties
    it, and the network's owner clears it when a pass ends early. Each thread that runs the
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

    def remember(self) -> Callable[[], AbstractContextManager[None]]:
        """What puts the pass back, as it is here, around a block that runs again; each time a copy."""
        current = self.current
        kept = None if current is None else replace(current, states=list(current.states))

        @contextmanager
        def resume() -> Iterator[None]:
            copied = None if kept is None else replace(kept, states=list(kept.states))
            with swapped(self._passes, copied):
                yield

        return resume

    def call(self, position: int, scores: Tensor, layout: Layout) -> UpwardCall:
        """The call at ``position`` with its masked scores ``[B, H, T, S]``; the first begins a pass."""
        if position == 0:
            self._passes[threading.get_ident()] = UpwardPass(scores, layout)
        return UpwardCall(self, position, scores, layout, self.current)

    def state(self, position: int, started: UpwardPass, rows: int) -> Tensor:
        """The state h ``[rows, H, T, S]`` of a call, once in a pass; the first request computes all states."""
        if not started.states:
            started.states = self._states(started, rows)
        state = started.states[position]
        if state is None:
            raise RuntimeError(f"attention call {position} of an upward chain ran twice in one forward pass")
        started.states[position] = None
        if position == len(self._maps) - 1 and self.current is started:
            self.clear()
        return state

    def maps(self, position: int) -> UpwardMaps:
        """The maps of the call at ``position``."""
        return self._maps[position]

    def _states(self, started: UpwardPass, rows: int) -> list[Tensor | None]:
        state, weight = started.layout.softmax(started.scores[:rows]), started.layout.query_weight
        states: list[Tensor | None] = []
        for maps in reversed(self._maps):
            state = softplus(maps.hidden(state, None if weight is None else weight[:rows]))
            states.append(state)
        return states[::-1]


@dataclass(eq=False)
class UpwardCall:
    """One call of a chain in one forward pass; its output is computed once, on demand."""

    chain: UpwardChain
    position: int
    scores: Tensor
    layout: Layout
    current: UpwardPass | None
    computed: UpwardOutputs | None = None

    @property
    def started(self) -> UpwardPass:
        """The call's pass; an error if the chain's first call did not run in it, or had scores of another shape."""
        if self.current is None:
            raise RuntimeError(
                "a call of an upward chain ran before call 0 of this forward pass; call the whole network, or convert "
                "only the layers that run"
            )
        first = self.current.scores.shape
        if first != self.scores.shape:
            raise RuntimeError(
                f"attention call {self.position} of an upward chain: expected scores of shape {list(first)} as in "
                f"call 0, got {list(self.scores.shape)}; calls of different shapes need chains of their own"
            )
        return self.current

    def outputs(self, rows: int) -> UpwardOutputs:
        """Output for the first ``rows`` rows of the batch; rows beyond those computed first repeat these."""
        if self.computed is None:
            maps, weight = self.chain.maps(self.position), self.layout.query_weight
            if maps.mixes_queries and not self.layout.rows_alike:
                raise ValueError(
                    "upward='positions' mixes queries, but the mask differs between queries (causal or windowed), so "
                    "they would see what is hidden from them; use upward='heads'"
                )
            state = self.chain.state(self.position, self.started, rows)
            row_weight = None if weight is None else weight[: len(state)]
            mixes = maps.concentration, maps.scale
            self.computed = UpwardOutputs(
                *(None if mix is None else softplus(mix(state, row_weight)) for mix in mixes)
            )
        computed = (self.computed.concentration, self.computed.scale)
        if all(tensor is None or len(tensor) == rows for tensor in computed):
            return self.computed
        return UpwardOutputs(*(with_rows(tensor, rows) for tensor in computed))


def with_rows(tensor: Tensor | None, rows: int) -> Tensor | None:
    """A map of B rows as one of ``rows``: cut, or repeated draw by draw, ``[B, ...]`` to ``[P * B, ...]``."""
    if tensor is None or len(tensor) == rows:
        return tensor
    return (
        tensor[:rows] if len(tensor) > rows else tensor.repeat(rows // len(tensor), *[1] * (tensor.dim() - 1))
    )
