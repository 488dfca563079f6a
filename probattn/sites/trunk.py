"""What a network computes before its first latent variable, or its first particle: once for all of them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial, update_wrapper
from typing import Any, NamedTuple, TypeGuard

import torch
from pyro.poutine.messenger import Messenger
from pyro.poutine.runtime import Message
from pyro.poutine.util import site_is_subsample
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_unflatten

from probattn.sites.calling import called
from probattn.sites.handlers import may_look

PLAIN = (type(None), bool, int, float, str, torch.dtype, torch.device, torch.Size)
"""What a module may take and give beside tensors, if it is to be skipped."""


class RowsMovedError(Exception):
    """Between modules a pass puts the rows of its batch into another order, or lets them depend on each other."""


class ReachedError(Exception):
    """Ends the first pass: a latent variable or a particle comes next."""


class _UntilRandom(TorchDispatchMode):
    """Ends a pass before the first random number: no generator moves, none of another thread is looked at."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if _is_random(func, args, kwargs or {}):
            raise ReachedError
        return func(*args, **(kwargs or {}))


class _UntilLatent(Messenger):
    """Ends a pass at the first value that would be drawn, and reports whatever speaks to Pyro before."""

    def __init__(self, report: Callable[[], None]) -> None:
        super().__init__()
        self._report = report

    def _pyro_sample(self, msg: Message) -> None:
        law: Any = msg["fn"]
        everything = site_is_subsample(msg) and law.subsample_size in (None, law.size)
        if not (everything or msg["is_observed"] or msg["value"] is not None):
            raise ReachedError
        self._report()

    def _pyro_param(self, msg: Message) -> None:
        del msg
        self._report()


class _Result(NamedTuple):
    """One call of a module: its arguments, their sizes or values, and its output, whose tensors have a row a datum."""

    arguments: list[Any]
    sizes: list[object]
    leaves: list[Any]
    form: Any


@dataclass
class Trunk:
    """What modules compute before the first latent variable of a pass: once, and repeated for folded draws.

    It skips modules that take and give tensors and plain values, draw nothing (unless all draws ``share_random``
    numbers), speak to no Pyro handler and have no hook inside, if sizes are the first ones but for rows. Compiled,
    scripted or spread models and other threads run. Arguments of skipped modules are those of the first pass, row by
    row, or :meth:`folded` raises ``RowsMovedError``; in training that ``share_random`` numbers they are not compared.
    """

    model: Any
    inputs: Mapping[str, Tensor]
    keys: Collection[str]
    rows: int
    share_random: bool = False
    _first: int = field(default=0, init=False)
    _folded: int = field(default=0, init=False)
    _log: list[tuple[nn.Module, _Result | None]] = field(default_factory=list, init=False)
    _running: list[bool] = field(default_factory=list, init=False)
    _left: dict[nn.Module, deque[_Result | None]] = field(default_factory=dict, init=False)
    _same: list[Tensor] = field(default_factory=list, init=False)
    _thread: int = field(default_factory=threading.get_ident, init=False)

    @contextmanager
    def once(self, draws: int) -> Iterator[None]:
        """Runs what comes before the first latent variable, for passes of at most so many draws."""
        modules = self._install()
        try:
            if modules:
                self._run(draws)
                finished = {module for module, result in self._log if result is not None}
                _remove(module for module in modules if module not in finished)
            yield
        finally:
            _remove(modules)

    @contextmanager
    def folded(self, draws: int) -> Iterator[None]:
        """One pass with so many draws folded into the batch."""
        self._folded, self._left, self._same = draws * self.rows, {}, []
        for module, result in self._log:
            self._left.setdefault(module, deque()).append(result)
        try:
            yield
            self._compare()
        finally:
            self._folded = 0

    def _compare(self) -> None:
        """Raises unless the arguments of the modules that were skipped so far are the first pass's."""
        same, self._same = self._same, []
        if same and not bool(torch.stack(same).all()):  # one wait for the device
            self._log.clear()  # later passes skip nothing
            raise RowsMovedError

    def _install(self) -> list[nn.Module]:
        """Puts itself in the way of the parts of the model; of none where that would not do."""
        modules = list(self.model.modules()) if isinstance(self.model, nn.Module) else []
        if any(map(_is_special, modules)):
            return []
        watched = {module for module in modules if _is_watched(module)}
        for module in modules[1:]:
            inside = not watched.isdisjoint(module.modules())
            override, forward = vars(module).get("forward"), module.forward
            call = _Call(partial(self._call, module, forward, inside), override)
            vars(module)["forward"] = update_wrapper(
                call, forward, updated=()
            )  # its attributes may have our names
        return modules[1:]

    def _run(self, draws: int) -> None:
        """The first pass, with a number of rows that is no other size of the inputs: so outputs tell their rows."""
        tensors = {name: value for name, value in self.inputs.items() if isinstance(value, Tensor)}
        sizes = {size for name, value in tensors.items() for size in value.shape[name in self.keys :]}
        sizes |= {size for parameter in self.model.parameters() for size in parameter.shape}
        self._first = self.rows
        while draws > 1 and self._first in (1, *sizes):
            self._first += 1
        batch = dict(self.inputs)
        for name in self.keys:
            value = batch[name]
            more = value[-1:].expand(self._first - self.rows, *value.shape[1:])
            batch[name] = torch.cat([value, more])
        random = nullcontext() if self.share_random else _UntilRandom()
        with suppress(ReachedError), _UntilLatent(self._speaks), random:
            called("posterior_predict", self.model, batch)
        self._running.clear()

    def _speaks(self) -> None:
        """No module that runs now can be skipped."""
        self._running[:] = [True] * len(self._running)

    def _call(
        self, module: nn.Module, forward: Callable[..., Any], watched: bool, *args: Any, **kwargs: Any
    ) -> Any:
        """A forward pass of a module: kept in the first pass, skipped in later ones if it can be."""
        if threading.get_ident() != self._thread:
            return forward(*args, **kwargs)
        arguments, _ = tree_flatten((args, kwargs))
        sizes = _sizes_and_values(arguments)
        if self._folded:
            result = self._next(module, sizes, arguments)
            return forward(*args, **kwargs) if result is None else self._repeated(result)
        start = len(self._log)
        self._running.append(watched)
        output = forward(*args, **kwargs)
        leaves, form = tree_flatten(output)
        runs = self._running.pop() or sizes is None
        runs = runs or not all(
            _has_rows(leaf.shape, self._first) and self._first not in leaf.shape[1:]
            if isinstance(leaf, Tensor)
            else isinstance(leaf, PLAIN)
            for leaf in leaves
        )
        if runs or not any(_has_rows(size, self._first) for size in sizes or ()):
            self._log.insert(start, (module, None))
        else:
            cut = [leaf[: self.rows] if isinstance(leaf, Tensor) else leaf for leaf in leaves]
            self._log[start:] = [(module, _Result(arguments, sizes or [], cut, form))]
        return output

    def _next(self, module: nn.Module, sizes: list[object] | None, arguments: list[Any]) -> _Result | None:
        """What this call of a module gave in the first pass; None if it is to run."""
        left = self._left.get(module)
        result = left.popleft() if left else None
        if result is None:
            return None
        first, rows = self._first, [self._folded]
        expected = [torch.Size([*rows, *s[1:]]) if _has_rows(s, first) else s for s in result.sizes]
        if sizes != expected:
            self._left.clear()  # this pass goes another way than the first
            self._compare()
            return None
        if not (self.share_random and self.model.training):
            for now, before in zip(arguments, result.arguments, strict=True):
                if isinstance(now, Tensor) and now.numel():
                    has = _has_rows(before.shape, first)
                    folded = now.unflatten(0, (-1, self.rows)) if has else now
                    self._same.append((folded == (before[: self.rows] if has else before)).all())
        if not any(map(any, self._left.values())):  # the last one, before anything is drawn
            self._compare()
        return result

    def _repeated(self, result: _Result) -> Any:
        draws = self._folded // self.rows
        leaves = [
            leaf.repeat(draws, *[1] * (leaf.dim() - 1)) if isinstance(leaf, Tensor) else leaf
            for leaf in result.leaves
        ]
        return tree_unflatten(leaves, result.form)


@dataclass
class _Call:
    """What stands in the way of a module's forward pass, and what stood there before."""

    run: Callable[..., Any]
    before: Callable[..., Any] | None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The pass."""
        return self.run(*args, **kwargs)


def _remove(modules: Iterable[nn.Module]) -> None:
    """Gives the modules their own forward passes back."""
    for module in modules:
        call = vars(module).get("forward")
        if isinstance(call, _Call) and call.before is None:
            del vars(module)["forward"]
        elif isinstance(call, _Call):
            vars(module)["forward"] = call.before


def _is_random(operation: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call of an operation draws random numbers; attention and recurrence do so with dropout alone."""
    if torch.Tag.nondeterministic_seeded not in operation.tags:
        return False
    signature = operation._schema.arguments
    values = {argument.name: argument.default_value for argument in signature}
    values |= dict(zip(values, args, strict=False)) | dict(kwargs)
    return all(values[name] != 0 for name in ("dropout_p", "dropout", "train") if name in values)


def _is_special(module: nn.Module) -> bool:
    """Whether a module is compiled, scripted or spread over devices, or part of an outer prediction."""
    kinds = torch.jit.ScriptModule, nn.DataParallel, nn.parallel.DistributedDataParallel
    return (
        isinstance(module, kinds)
        or hasattr(module, "_orig_mod")
        or module._compiled_call_impl is not None
        or isinstance(vars(module).get("forward"), _Call)
    )


def _is_watched(module: nn.Module) -> bool:
    """Whether a module must see every call, a hook may look at it, or something replaces its parts."""
    hooks = (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
    replaced = vars(module).keys() & module._modules.keys()
    return bool(replaced or getattr(module, "counts_calls", False)) or any(map(may_look, hooks))


def _sizes_and_values(leaves: list[Any]) -> list[object] | None:
    """Of tensors their sizes, of plain values themselves; None with anything else among them."""
    if not all(isinstance(leaf, (Tensor, *PLAIN)) for leaf in leaves):
        return None
    return [leaf.shape if isinstance(leaf, Tensor) else leaf for leaf in leaves]


def _has_rows(size: object, rows: int) -> TypeGuard[torch.Size]:
    """Whether a tensor's first dimension is that of the batch."""
    return isinstance(size, torch.Size) and len(size) > 0 and size[0] == rows
