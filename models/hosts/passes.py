"""Masks, counts and upward chains that the calls of one stack share in a pass, and passes that run again."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache

from probattn.models.hosts.cache import cache_in
from probattn.models.hosts.eager import HostMask, own_keys, read_mask
from probattn.sites import AttentionMask, UpwardChain
from probattn.sites.handlers import Contexts, checkpoint_contexts, hooked_call, is_handled, is_running
from probattn.sites.noise import Origin
from probattn.sites.traced import compiled_pass
from probattn.sites.upward import swapped

FUNCTION = "_gradient_checkpointing_func"
"""Attribute under which transformers keeps the function that checkpoints."""


@dataclass(eq=False)
class HostContexts:
    """``context_fn`` of a host's checkpoints: handlers, and the states of the stacks that the module belongs to."""

    module: nn.Module

    def __call__(self) -> Contexts:
        """The contexts of the first and the second run."""
        modules = self.module.modules()
        states = {id(state): state for state in (getattr(module, "state", None) for module in modules)}
        passes = [state for state in states.values() if isinstance(state, StackPass)]
        return checkpoint_contexts(*(state.remember() for state in passes))


def prepare_recomputing(owner: nn.Module) -> None:
    """Gives checkpoints in training the contexts in which sites run again; ``RuntimeError`` where they cannot."""
    for module in owner.modules():
        if getattr(module, "gradient_checkpointing", False) is True and module.training:
            function: Any = getattr(module, FUNCTION, None)
            _refuse(type(owner).__name__, function)
            if not _is_prepared(function):
                setattr(module, FUNCTION, partial(function, context_fn=HostContexts(module)))


def forget_recomputing(module: nn.Module) -> None:
    """Gives a module the function back that :func:`prepare_recomputing` replaced."""
    function: Any = vars(module).get(FUNCTION)
    if _is_prepared(function):
        options = {name: value for name, value in function.keywords.items() if name != "context_fn"}
        setattr(module, FUNCTION, partial(function.func, *function.args, **options))


def _is_prepared(function: Any) -> bool:
    return isinstance(function, partial) and isinstance(function.keywords.get("context_fn"), HostContexts)


def _refuse(name: str, function: Any) -> None:
    options = function.keywords if isinstance(function, partial) else {}
    if options.get("use_reentrant") is not False:
        raise RuntimeError(
            f"{name}: reentrant activation checkpointing runs layers without gradients first, so that the KL of their "
            'sites has none; call activation_checkpointing_enable({"use_reentrant": False}), in older versions of '
            "transformers gradient_checkpointing_enable"
        )
    if options.get("preserve_rng_state", True) is not True:
        raise RuntimeError(
            f"{name}: activation checkpointing with preserve_rng_state=False draws other attention weights in the "
            "backward pass; leave it True"
        )
    if "context_fn" in options and not _is_prepared(function):
        raise RuntimeError(
            f"{name}: activation checkpointing with a context_fn of its own leaves no place for that of the attention "
            "sites; leave it out"
        )
    if not is_handled():
        raise RuntimeError(
            f"{name}: activation checkpointing runs layers again in the backward pass, under the handlers of the first "
            "run, and there are none: training without a driver; train with probattn.inference.SVIDriver or under "
            "AttentionGuide, or call activation_checkpointing_disable(), in older versions of transformers "
            "gradient_checkpointing_disable()"
        )


@dataclass
class _Pass:
    """One thread's forward pass through a stack."""

    open: bool = False
    call: FrameType | None = None
    rows: int | None = None
    calls: Counter[str] = field(default_factory=Counter)
    read: dict[int, tuple[Tensor, HostMask]] = field(default_factory=dict)
    masks: dict[tuple[int, bool, int, int], AttentionMask] = field(default_factory=dict)
    queries: Tensor | None = None
    past: Tensor | int = 0
    shows_weights: bool = True


class StackPass:
    """What the calls of one stack share in a pass; hooks of its owner open and close it, in each thread its own."""

    def __init__(self, net: nn.Module | None = None) -> None:
        modules = () if net is None else net.modules()
        supports = [module._supports_sdpa for module in modules if hasattr(module, "_supports_sdpa")]
        self.needs_weights = not supports or not all(supports)
        self.chains: dict[tuple[object, ...], UpwardChain] = {}
        self.traceable = False
        self._passes: dict[int, _Pass] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Without passes: a copy is in none."""
        return {**vars(self), "_passes": {}}

    @property
    def _current(self) -> _Pass:
        """This thread's pass; for a call outside a pass of the whole stack one that is not open and not kept."""
        return self._passes.get(threading.get_ident()) or _Pass()

    @property
    def idle(self) -> bool:
        """True if this thread has neither a pass of the stack nor states of a chain."""
        no_pass = threading.get_ident() not in self._passes
        return no_pass and all(chain.current is None for chain in self.chains.values())

    @property
    def rows(self) -> int | None:
        """Number of data in the pass, the length of the first tensor that the owner was given."""
        return self._current.rows

    @property
    def shows_weights(self) -> bool:
        """True if the pass asked for weights or the family may need them, as one without torch's attention does."""
        return self.needs_weights or self._current.shows_weights

    def begin(self, owner: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Opens a pass, in a graph that is being compiled one that the guide keeps."""
        within = compiled_pass() if self.traceable else None
        recomputes = (getattr(module, "gradient_checkpointing", False) is True for module in owner.modules())
        if within is None or any(recomputes):
            self._begin(owner, args, kwargs)
        else:
            within.stacks.append(self)
            within.shows_weights = within.shows_weights or bool(kwargs.get("output_attentions"))

    @torch.compiler.disable(reason="passes are kept by thread")
    def _begin(self, owner: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Opens a pass; refuses ``torch.nn.DataParallel``, and prepares layers that are checkpointed."""
        if getattr(owner, "_is_replica", False):
            raise RuntimeError(
                f"{type(owner).__name__}: torch.nn.DataParallel runs threads that Pyro's handlers do not reach and is "
                "not supported; launch one process per device (accelerate launch, torchrun)"
            )
        if owner.training and torch.is_grad_enabled():
            prepare_recomputing(owner)
        self.clear()
        values = (value for value in (*args, *kwargs.values()) if isinstance(value, Tensor))
        rows = next((len(value) for value in values if value.dim()), None)
        shown, past = bool(kwargs.get("output_attentions")), _cached(kwargs)
        current = _Pass(open=True, call=hooked_call(), rows=rows, past=past, shows_weights=shown)
        self._passes[threading.get_ident()] = current

    def end(self, *_: object) -> None:
        """Closes the pass."""
        within = compiled_pass()
        if within is None or self not in within.stacks:
            self.clear()

    @torch.compiler.disable(reason="passes are kept by thread")
    def clear(self) -> None:
        """Forgets everything of a pass."""
        self._passes.pop(threading.get_ident(), None)
        for chain in self.chains.values():
            chain.clear()

    def remember(self) -> Callable[[], AbstractContextManager[None]]:
        """What puts the pass and its chains back, as they are here, around layers that run again; each time a copy."""
        current = self._passes.get(threading.get_ident())
        snapshot = None if current is None else replace(current, call=None, calls=current.calls.copy())
        chains = [chain.remember() for chain in self.chains.values()]

        @contextmanager
        def resume() -> Iterator[None]:
            copied = None if snapshot is None else replace(snapshot, calls=snapshot.calls.copy())
            with ExitStack() as stack:
                stack.enter_context(swapped(self._passes, copied))
                for chain in chains:
                    stack.enter_context(chain())
                yield

        return resume

    def count(self, module: str) -> int:
        """Number of this call of a module in the pass, from 0; always 0 outside a pass of the whole stack."""
        if not is_running(self._current.call):
            self.clear()  # an interrupt has left it behind
        current = self._current
        index = current.calls[module]
        current.calls[module] += current.open
        return index

    def origin(self, queries: int, keys: int, *, cross: bool) -> Origin:
        """Places of a call's first query and key: queries follow the cache, a cache of fixed length starts at 0."""
        past = self._current.past
        first = past + (queries - keys)
        return past, 0 if cross else first.clamp_min(0) if isinstance(first, Tensor) else max(0, first)

    def read(self, module: nn.Module, mask: Tensor | None) -> HostMask:
        """The host's mask, read once per pass: families hand the same tensor to every layer."""
        current = self._current
        if mask is None or not current.open:
            return read_mask(module, mask)
        cached = current.read.get(id(mask))
        if cached is None:
            cached = current.read[id(mask)] = mask, read_mask(module, mask)  # holding it keeps its id its own
        return cached[1]

    def mask(
        self, valid: Tensor | None, query: Tensor, keys: int, *, cross: bool, real: Tensor | None = None
    ) -> AttentionMask | None:
        """Validity and real queries of a call, the network's ``real`` ones first; None where all pairs are valid."""
        rows, _, queries, _ = query.shape
        explicit = real is not None
        if real is None:
            real = self._real_queries(valid, rows, queries, cross=cross)
        if valid is None and real is None:
            return None
        current = self._current
        key = (id(valid), cross, rows, keys)
        cached = None if explicit else current.masks.get(key)
        if cached is None:
            pairs = query.new_ones((1, 1, 1, keys), dtype=torch.bool) if valid is None else valid
            cached = AttentionMask(pairs.expand(rows, -1, -1, -1), real)
            if current.open and not explicit:
                current.masks[key] = cached
        return cached

    def _real_queries(self, valid: Tensor | None, rows: int, queries: int, *, cross: bool) -> Tensor | None:
        current = self._current
        if cross:
            real = current.queries
            return None if real is None or real.shape != (rows, queries) else real
        if valid is None or not current.open:
            current.queries = None
            return None if valid is None else own_keys(valid.expand(rows, -1, -1, -1), queries)
        if current.queries is None or current.queries.shape != (rows, queries):
            current.queries = own_keys(valid.expand(rows, -1, -1, -1), queries)
        return current.queries


def _cached(kwargs: Mapping[str, Any]) -> Tensor | int:
    """Number of queries before those of a pass. A cache counts on in place, so that a tensor is copied."""
    cache = cache_in(kwargs)
    past: Tensor | int = cache.get_seq_length() if isinstance(cache, Cache) else 0
    return past.clone() if isinstance(past, Tensor) else past
