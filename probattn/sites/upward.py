"""The deterministic upward path of attention belief networks (Zhang et al. 2021, section 3.2), and what draws share."""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import FrameType
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch._compile import _disable_dynamo

from probattn.sites.handlers import hooked_call, is_checkpointed, is_running
from probattn.sites.layout import Layout
from probattn.sites.mixes import Mix, UpwardMaps, mixed_positive

Pass = TypeVar("Pass")


@dataclass(frozen=True)
class UpwardOutputs:
    """softplus(f_k(h)) and softplus(f_lambda(h)) of a call, ``[B, H, T, S]``; None where a posterior needs none."""

    concentration: Tensor | None = None
    scale: Tensor | None = None

    def detach(self) -> UpwardOutputs:
        """The same without gradients."""
        return self._mapped(Tensor.detach)

    def of(self, rows: slice | Tensor) -> UpwardOutputs:
        """Copies of some rows of the batch."""
        return self._mapped(lambda item: item[rows].clone())

    def _mapped(self, function: Callable[[Tensor], Tensor]) -> UpwardOutputs:
        maps = (self.concentration, self.scale)
        return UpwardOutputs(*(None if item is None else function(item) for item in maps))

    @cached_property
    def smallest(self) -> list[float]:
        """The smallest softplus(f_k(h)) of each row of the batch."""
        values = self.concentration
        return [] if values is None or not values.numel() else values.flatten(1).amin(dim=1).tolist()


@dataclass(eq=False)
class UpwardPass:
    """One forward pass through a chain: scores and layout of its first call, and the outputs not yet used.

    In an ``apart`` pass, whose first call is in a checkpointed block, each call computes its outputs; ``states`` has
    some states h by their number of maps.
    """

    scores: Tensor
    layout: Layout
    apart: bool = False
    outputs: dict[int, UpwardOutputs] = field(default_factory=dict)
    states: dict[int, Tensor] = field(default_factory=dict)
    used: set[int] = field(default_factory=set)

    def copy(self) -> UpwardPass:
        """A pass that goes on from here without changing this one."""
        return replace(self, outputs={**self.outputs}, states={**self.states}, used={*self.used})


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
    r"""The upward path of a stack of L attention calls: the states h on which their k and lambda depend.

    Source: Zhang et al. 2021a, section 3.2. :math:`h^{L+1} = \mathrm{softmax}(\Phi^1)` and
    :math:`h^l = \mathrm{softplus}(f_h^l(h^{l+1}))`, with linear maps :math:`f_h`, are computed from the first call's
    scores :math:`\Phi^1` before any S is drawn. Call l uses :math:`h^l`: the first call the state after L maps, the
    last call the one after one map. The chain holds tensors only during a forward pass, separately for each thread; the
    last call empties it, and :meth:`clear` does if a pass ends early.

    Args:
        unlinked: True while :func:`probattn.link` has not joined the call with others. A second unlinked call in a pass
            is refused, because the two would not form a belief network (``link(net, together=False)`` allows it).
    """

    unlinked: bool = False

    def __init__(self, *, unlinked: bool = False) -> None:
        self.unlinked = unlinked
        self._maps: list[UpwardMaps] = []
        self._passes: dict[int, UpwardPass] = {}
        self._calls: dict[int, FrameType | None] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Without passes: a copy is in none; and without Pyro's weak references, as in those of its modules."""
        for parameter in torch.nn.ModuleList(self._maps).parameters():
            vars(parameter).pop("unconstrained", None)
        return {**vars(self), "_passes": {}, "_calls": {}}

    def __len__(self) -> int:
        return len(self._maps)

    def join(self, maps: UpwardMaps) -> int:
        """Appends a call with its linear maps and returns its position, from 0; join calls in the order they run."""
        self._maps.append(maps)
        return len(self._maps) - 1

    def clear(self, *_: object) -> None:
        """Drops the states of this thread's pass; can be registered as a forward hook of a module."""
        self._passes.pop(threading.get_ident(), None)
        self._calls.pop(threading.get_ident(), None)

    @_disable_dynamo  # passes are kept by thread; torch.compiler.disable would import the compiler
    def begin(self, *_: object) -> None:
        """Forward pre-hook for the module that makes all calls: begins a pass, which ends with that module's call."""
        self.clear()
        self._calls[threading.get_ident()] = hooked_call()

    @property
    def current(self) -> UpwardPass | None:
        """The current forward pass of this thread through the chain; None outside a pass."""
        if not is_running(self._calls.get(threading.get_ident())):
            self.clear()  # an interrupt has left it behind
        return self._passes.get(threading.get_ident())

    def remember(self) -> Callable[[], AbstractContextManager[None]]:
        """A function for :func:`checkpoint_contexts`: its context managers restore a copy of the present pass."""
        current = self.current
        snapshot = None if current is None else current.copy()

        @contextmanager
        def resume() -> Iterator[None]:
            with swapped(self._passes, None if snapshot is None else snapshot.copy()):
                yield

        return resume

    def call(self, position: int, scores: Tensor, layout: Layout) -> UpwardCall:
        """The call at ``position`` with its masked scores ``[B, H, T, S]``; position 0 begins a pass."""
        if position == 0:
            self._passes[threading.get_ident()] = UpwardPass(scores, layout, is_checkpointed())
        return UpwardCall(self, position, scores, layout, self.current)

    def outputs(self, position: int, started: UpwardPass, rows: int) -> UpwardOutputs:
        """softplus(f_k(h)) and softplus(f_lambda(h)) of a call, ``[rows, H, T, S]``, or None; once in a pass."""
        if position in started.used:
            raise RuntimeError(f"attention call {position} of an upward chain ran twice in one forward pass")
        if started.apart:
            with torch.set_grad_enabled(torch.is_grad_enabled() or is_checkpointed()):
                outputs = self._recomputable(position, started, rows)
        else:
            started.outputs = started.outputs or self.compute(started, rows)
            outputs = started.outputs.pop(position)
        started.used.add(position)
        if position == len(self._maps) - 1 and self.current is started:
            self.clear()
        return outputs

    def maps(self, position: int) -> UpwardMaps:
        """The linear maps f of the call at ``position``."""
        return self._maps[position]

    def compute(self, started: UpwardPass, rows: int) -> dict[int, UpwardOutputs]:
        """The outputs of all calls by their positions, for the first ``rows`` rows of the batch."""
        state = self._mixed(started, rows, self._first_state(started, rows), [self._maps[-1].hidden])[0]
        outputs: dict[int, UpwardOutputs] = {}
        for position in reversed(range(len(self._maps))):
            state = _scaled(state, self._maps[position])
            candidates = self._maps[position].outputs
            if position:
                candidates["hidden"] = self._maps[position - 1].hidden
            mixed = dict(zip(candidates, self._mixed(started, rows, state, candidates.values()), strict=True))
            state = mixed.pop("hidden", state)
            outputs[position] = UpwardOutputs(**mixed)
        return outputs

    def _recomputable(self, position: int, started: UpwardPass, rows: int) -> UpwardOutputs:
        """One call's outputs, which its block computes again; of L states about sqrt(L) stay from block to block."""
        depth = len(self._maps)
        number, stride = depth - position, math.isqrt(depth - 1) + 1
        start = max((some for some in started.states if some <= number), default=0)
        state = started.states[start] if start else self._first_state(started, rows)
        for done in range(start, number):
            maps = self._maps[depth - 1 - done]
            state = _scaled(self._mixed(started, rows, state, [maps.hidden])[0], maps)
            if (done + 1) % stride == 0 and done + 1 < depth and torch.is_grad_enabled():
                started.states[done + 1] = state
        mixes = self._maps[position].outputs
        return UpwardOutputs(
            **dict(zip(mixes, self._mixed(started, rows, state, mixes.values()), strict=True))
        )

    def _first_state(self, started: UpwardPass, rows: int) -> Tensor:
        scores = started.scores
        return started.layout.softmax(scores if rows == len(scores) else scores[:rows])

    def _mixed(self, started: UpwardPass, rows: int, state: Tensor, mixes: Iterable[Mix]) -> list[Tensor]:
        weight = started.layout.query_weight
        # All else of a posterior with a learned scale can be differentiated twice; of the others nothing can.
        swept = all(maps.scale is None for maps in self._maps)
        return mixed_positive(list(mixes), state, None if weight is None else weight[:rows], swept=swept)


def _scaled(state: Tensor, maps: UpwardMaps) -> Tensor:
    return state if maps.hidden_scale == 1 else state * maps.hidden_scale


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
            if self.chain.maps(self.position).mixes_queries and not self.layout.rows_alike:
                raise ValueError(
                    "upward='positions' mixes queries, but the mask differs between queries (causal or windowed), so "
                    "they would see what is hidden from them; use upward='heads'"
                )
            self.computed = self.chain.outputs(self.position, self.started, rows)
        computed = (self.computed.concentration, self.computed.scale)
        if all(tensor is None or len(tensor) == rows for tensor in computed):
            return self.computed
        return UpwardOutputs(*(with_rows(tensor, rows) for tensor in computed))


class LinkedPaths:
    """Refuses a pass with two calls whose upward paths nobody has joined: they would be no belief network."""

    def __init__(self) -> None:
        self._first: str | None = None

    def clear(self) -> None:
        """Begins a pass."""
        self._first = None

    def add(self, name: str, call: UpwardCall | None) -> None:
        """Takes a call of the pass; ``ValueError`` for the second that is alone without having been meant to be."""
        if call is None or not call.chain.unlinked:
            return
        if self._first not in (None, name):
            raise ValueError(
                f"site {name!r}: its upward path is not joined with that of {self._first!r}, so that the two are no "
                "belief network; end the network's __init__ with probattn.link(self), which joins all its layers and "
                "names them, or with probattn.link(self, together=False) for paths of their own"
            )
        self._first = name


def with_rows(tensor: Tensor | None, rows: int) -> Tensor | None:
    """A map of B rows as one of ``rows``: cut, or repeated draw by draw, ``[B, ...]`` to ``[P * B, ...]``."""
    if tensor is None or len(tensor) == rows:
        return tensor
    return (
        tensor[:rows] if len(tensor) > rows else tensor.repeat(rows // len(tensor), *[1] * (tensor.dim() - 1))
    )


@dataclass
class _SharedPath:
    """One chain's path over a batch: the scores of its first call, the current pass, the outputs of its calls."""

    scores: Tensor
    current: weakref.ref[UpwardPass]
    alike: bool = True
    outputs: dict[int, UpwardOutputs] = field(default_factory=dict)


class SharedUpward:
    """The upward path of a batch whose draws are predicted one after another, or folded into the batch."""

    # Nothing is drawn before a chain's first call, so in a network without other randomness its scores, and with them
    # all outputs of the path, are the same for every draw. That is compared, not assumed: where scores differ, as where
    # another chain draws first (a decoder's under its encoder's), every draw has a path of its own.

    def __init__(self) -> None:
        self._paths: dict[UpwardChain, _SharedPath] = {}

    def outputs(self, call: UpwardCall, draws: int) -> UpwardOutputs:
        """Maps of B rows where all P draws are alike, else of P * B; ``ValueError`` without P draws in the batch."""
        current = call.started
        scores = current.scores
        if not len(scores) or len(scores) % draws:
            raise ValueError(
                f"expected a batch of {draws} draws folded into its first dimension, got {len(scores)} rows; set "
                "batch_first=True where a MultiheadAttention gets [batch, tokens, width], or predict with chunk_size=1"
            )
        rows = len(scores) // draws
        path = self._paths.get(call.chain)
        if path is None or path.current() is not current:
            path = self._started(path, scores.unflatten(0, (draws, rows)), weakref.ref(current))
            self._paths[call.chain] = path
        if not path.alike:
            return call.outputs(len(scores))
        if call.position not in path.outputs:
            path.outputs[call.position] = call.outputs(rows)
        return path.outputs[call.position]

    def _started(
        self, path: _SharedPath | None, scores: Tensor, current: weakref.ref[UpwardPass]
    ) -> _SharedPath:
        if path is not None and path.alike and _all_are(path.scores, scores):
            path.current = current
            return path
        if _all_are(scores[0], scores[1:]):
            return _SharedPath(scores[0].clone(), current)  # a draw may overwrite its scores
        return _SharedPath(scores[0], current, alike=False)


def _all_are(one: Tensor, many: Tensor) -> bool:
    """Whether several tensors are equal to one, in a single comparison."""
    return one.shape == many.shape[1:] and torch.equal(one.expand_as(many), many)
