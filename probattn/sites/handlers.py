"""Pyro's handlers and torch's hooks around an attention call, handlers of a checkpointed block, and those of threads.

Pyro keeps its active handlers and the names of its active plates in lists of the process. A handler of one thread would
answer the attention calls of another, and two threads would take the lists apart in the wrong order. Importing
:mod:`probattn` gives every thread lists of its own. Pyro's parameter store and the modes of modules cannot be kept
apart: they are changed for a while only under :data:`SHARED_STATE`.
"""

from __future__ import annotations

import copy
import inspect
import os
import sys
import threading
from collections import UserList
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from types import FrameType
from typing import Any, ClassVar

import pyro
import torch
from pyro.contrib.autoname.scoping import NameCountMessenger, ScopeMessenger
from pyro.distributions import Unit
from pyro.poutine import collapse_messenger, messenger, runtime
from pyro.poutine.broadcast_messenger import BroadcastMessenger
from pyro.poutine.indep_messenger import IndepMessenger
from pyro.poutine.infer_config_messenger import InferConfigMessenger
from pyro.poutine.markov_messenger import MarkovMessenger
from pyro.poutine.mask_messenger import MaskMessenger
from pyro.poutine.messenger import Messenger
from pyro.poutine.scale_messenger import ScaleMessenger
from pyro.poutine.trace_messenger import TraceMessenger
from pyro.poutine.trace_struct import Trace
from torch import Tensor, nn

from probattn.checks import grouped

INDIFFERENT = (
    *(IndepMessenger, ScaleMessenger, MaskMessenger, BroadcastMessenger),
    *(MarkovMessenger, InferConfigMessenger, ScopeMessenger, NameCountMessenger),
)
"""Handlers that never look at the value of a site: of plates, names, Markov steps, and of log densities."""
EXPECTS = "takes_expectations"
"""Attribute, true of a Pyro handler under which attention takes its expectation, as it does without any."""


def value_handlers() -> list[Messenger]:
    """This thread's handlers that set a site's value or look at it."""
    return [handler for handler in runtime._PYRO_STACK if not isinstance(handler, INDIFFERENT)]


def is_handled() -> bool:
    """Whether a handler wants the sites of a pass. Plates, scales and masks of the program's own want nothing."""
    return bool(value_handlers())


def takes_expectations() -> bool:
    """Whether attention takes its posterior expectation: no handler wants a site, or all of them ask for that."""
    return all(getattr(handler, EXPECTS, False) for handler in value_handlers())


def refuse_training(name: str, module: nn.Module) -> None:
    """``RuntimeError`` where a prediction meets attention in training mode, which only functions hide from it."""
    if module.training and any(getattr(handler, "predicts", False) for handler in value_handlers()):
        raise RuntimeError(
            f"site {name!r}: expected a network in evaluation mode, got one in training mode, with dropout, inside a "
            "function; call its .eval() first, or give the network instead of the function"
        )


def outer_plates() -> list[str]:
    """Names of this thread's plates outside that of the data, which has the last dimension."""
    plates = (handler for handler in runtime._PYRO_STACK if isinstance(handler, IndepMessenger))
    return [plate.name for plate in plates if (plate.dim or 0) < -1]


def takes_answers() -> bool:
    """True where a guide takes answers without a value, and no other handler looks for one."""
    handlers = value_handlers()
    return len(handlers) == 1 and bool(getattr(handlers[0], "takes_outputs", False))


def needs_prior() -> bool:
    """Whether a handler may ask for the priors of sites."""
    return any(getattr(handler, "needs_prior", True) for handler in value_handlers())


def refuse_repeated(name: str) -> None:
    """``ValueError`` where a trace has a site of this name, which layers without a name share."""
    traces = [handler.trace for handler in value_handlers() if isinstance(handler, TraceMessenger)]
    if any(name in trace.nodes for trace in traces):
        raise ValueError(
            f"site {name!r}: two layers of one pass have no name of their own; end the network's __init__ with "
            "probattn.link(self), which names all its layers, or give MultiheadAttention(site=...)"
        )


def refuse_unreached(network: str, names: Sequence[str], number: int) -> None:
    """Refuses a pass of a network in which the sites of the modules ``names``, of ``number`` that ran, did not."""
    if names:
        replaced = (
            "the module's forward, its submodule 'probattn' or transformers' attention function of that name"
        )
        _refuse(network, names[0], f" ({len(names)} of {number}), so that its attention", replaced)


def refuse_none(network: str, name: str) -> None:
    """Refuses a pass of a network in which none of its attention modules ran; ``name`` is one of them."""
    _refuse(network, name, ", nor any other, so that the pass", "the forward of a module that calls them")


def refuse_replaced(network: str, name: str, outer: str) -> None:
    """Refuses a pass in which a module that was replaced, or its forward, left the attention module ``name`` out."""
    _refuse(
        network,
        name,
        ", so that its attention",
        f"the forward of {outer}, or the whole module, which runs it",
    )


def _refuse(network: str, name: str, extent: str, replaced: str) -> None:
    raise RuntimeError(
        f"{network}: the attention site of {name} was not reached{extent} was deterministic: after conversion "
        f"something replaced {replaced}; undo that, or call probattn.models.revert(net) and convert the network again"
    )


Contexts = tuple[AbstractContextManager[Any], AbstractContextManager[Any]]
Resumption = Callable[[], AbstractContextManager[None]]
"""Puts a state back for the time of a block, as often as it is called."""


def checkpoint_contexts(*resumptions: Resumption) -> Contexts:
    """The argument ``context_fn`` of ``torch.utils.checkpoint.checkpoint`` for a block with attention sites.

    A checkpointed block runs again in the backward pass, where no Pyro handler is active. With these contexts the
    second run is under copies of the handlers of the first, whose records are thrown away: sites are drawn from the
    same noise (torch restores its generators), and no site is registered twice. Tensors that left the block in the
    first run, such as the KL of its sites, still get their gradients.

    Args:
        *resumptions: functions, as from :meth:`UpwardChain.remember`, that make contexts which restore more state.

    Returns:
        The context managers of the first run and of the second.

    Example:
        >>> import functools, pyro, torch, probattn
        >>> import pyro.distributions as dist
        >>> from torch.utils.checkpoint import checkpoint
        >>> mha = probattn.MultiheadAttention(4, 2, batch_first=True)
        >>> block = functools.partial(checkpoint, mha, use_reentrant=False, context_fn=checkpoint_contexts)
        >>> def model(x):
        ...     with pyro.plate("data", len(x)):
        ...         output, _ = block(x, x, x)
        ...         pyro.sample("y", dist.Normal(output, 1.0).to_event(2), obs=x)
        >>> from probattn.inference import AttentionELBO, AttentionGuide
        >>> AttentionELBO()(model, AttentionGuide(model))(torch.randn(3, 5, 4)).loss.backward()
    """
    handlers = _copies(runtime._PYRO_STACK)
    plates = list(runtime._DIM_ALLOCATOR._stack)

    @contextmanager
    def handled() -> Iterator[None]:
        stacks = (runtime._PYRO_STACK, runtime._DIM_ALLOCATOR._stack)
        former = [list(stack) for stack in stacks]
        stacks[0][:], stacks[1][:] = _copies(handlers), plates
        try:
            yield
        finally:
            for stack, items in zip(stacks, former, strict=True):
                stack[:] = items

    return _Again([_checkpointed]), _Again([_checkpointed, handled, *resumptions])


_BLOCKS = threading.local()


@contextmanager
def _checkpointed() -> Iterator[None]:
    former = is_checkpointed()
    _BLOCKS.inside = True
    try:
        yield
    finally:
        _BLOCKS.inside = former


def is_checkpointed() -> bool:
    """Whether this thread is in a block with :func:`checkpoint_contexts`, which computes again what it saves."""
    return getattr(_BLOCKS, "inside", False)


class _Again(AbstractContextManager[None]):
    """States put back together; may be entered again, as torch does for a graph that is retained."""

    def __init__(self, resumptions: Sequence[Resumption]) -> None:
        self._resumptions = resumptions
        self._entered = ExitStack()

    def __enter__(self) -> None:
        with ExitStack() as stack:
            for resume in self._resumptions:
                stack.enter_context(resume())
            self._entered = stack.pop_all()

    def __exit__(self, *_: object) -> None:
        self._entered.close()


def _copies(handlers: Sequence[Any]) -> list[Any]:
    """Handlers that do what these do and record elsewhere; a guide's source of noise counts on from where it is."""
    copies = [copy.copy(handler) for handler in handlers]
    for handler in copies:
        if isinstance(handler, TraceMessenger):
            handler.trace = Trace(graph_type=handler.graph_type)
        if "noise" in vars(handler):
            handler.noise = copy.deepcopy(handler.noise)
    return copies


class DeferredFactor(Unit):
    """``pyro.distributions.Unit`` with a log factor that its first density computes; prediction never pays for it."""

    arg_constraints: ClassVar[dict[str, object]] = {}  # validating the log factor would compute it

    def __init__(self, compute: Callable[[], Tensor], batch_shape: torch.Size, name: str = "") -> None:
        super(Unit, self).__init__(batch_shape, torch.Size((0,)), validate_args=False)
        self.compute = compute
        self._name = name
        self._log_factor: Tensor | None = None

    @property
    def log_factor(self) -> Tensor:
        """The log factor, computed once."""
        return self.settle(self.compute()) if self._log_factor is None else self._log_factor

    def settle(self, log_factor: Tensor) -> Tensor:
        """Takes the log factor; ``ValueError`` for one of another shape."""
        if log_factor.shape != self.batch_shape:
            raise ValueError(
                f"site {self._name!r}: expected a log factor of shape {list(self.batch_shape)}, a number a row, got "
                f"{list(log_factor.shape)}"
            )
        self._log_factor = log_factor
        return log_factor

    def expand(self, batch_shape: torch.Size, _instance: object = None) -> DeferredFactor:
        """The same factor in every row of a larger batch."""
        shape = torch.Size(batch_shape)
        if shape == self.batch_shape:
            return self
        return DeferredFactor(lambda: self.log_factor.expand(shape), shape)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """The value without content that a factor has, of shape ``[*sample_shape, *batch_shape, 0]``."""
        return torch.empty(torch.Size(sample_shape) + self.shape())


def deferred_factor(name: str, compute: Callable[[], Tensor], batch_shape: torch.Size) -> None:
    """``pyro.factor(name, compute())``, computed when its density is requested, of the given shape."""
    factor = DeferredFactor(compute, batch_shape, name)
    pyro.sample(name, factor, obs=factor.sample(), infer={"is_auxiliary": True})


def compute_together(factors: Sequence[DeferredFactor]) -> None:
    """Computes at once the deferred factors whose ``compute`` has the same ``kind``; by the ``together`` of one."""
    kinds = ((getattr(factor.compute, "kind", None), factor) for factor in factors)
    for kind, group in grouped(kinds).items():
        if kind is not None and len(group) > 1:
            first: Any = group[0].compute
            for factor, value in zip(group, first.together([one.compute for one in group]), strict=True):
                factor.settle(value)


def announce(
    name: str, compute: Callable[[], Tensor], batch_shape: torch.Size, *, training: bool, what: str
) -> None:
    """Under a Pyro handler, registers the factor ``name``, computed when its density is requested; else does nothing.

    ``compute`` returns the log factor; ``training`` is the calling module's mode; ``what`` names the factor in errors.

    Raises:
        RuntimeError: in training mode with gradients, without a handler: training would omit the factor.
        ValueError: ``compute`` returns a tensor of another shape than ``batch_shape``.
    """
    if is_handled():
        deferred_factor(name, compute, batch_shape)
    elif training and torch.is_grad_enabled():
        raise RuntimeError(
            f"site {name!r}: training without a driver would leave the {what} out unnoticed; train "
            "with probattn.inference.SVIDriver, probattn.ProbabilisticTrainer (in place of transformers.Trainer) or "
            "pyro.infer.SVI, or call .eval() or torch.no_grad() to predict"
        )


def may_look(hook: Any) -> bool:
    """Whether a hook may read or draw what passes; those of transformers read it where a pass asks for it."""
    if _is_of_transformers(hook):
        return False
    return bool(getattr(getattr(hook, "__self__", None), "is_active", True))


def reads_weights(module: nn.Module) -> bool:
    """Whether a forward hook, or what replaces a module's ``forward``, may read attention weights in this pass."""
    # transformers leaves its hooks in place for good; they read maps only where the pass collects them.
    hooks = module._forward_hooks.values()
    return is_replaced(module) or any(may_look(hook) or _collects_maps(hook) for hook in hooks)


def is_replaced(module: nn.Module) -> bool:
    """Whether another ``forward`` is in a module; earlier releases of transformers leave the module's own there."""
    forward = vars(module).get("forward")
    return forward is not None and getattr(forward, "__func__", None) is not type(module).forward


def _collects_maps(hook: Any) -> bool:
    if not _is_of_transformers(hook):
        return False
    collector = getattr(hook, "__globals__", {}).get("_active_collector")
    collected = {"attentions"} if collector is None else collector.get() or {}
    return any(name.endswith("attentions") for name in collected)


def _is_of_transformers(hook: Any) -> bool:
    return (getattr(hook, "__module__", None) or "").startswith("transformers.")


HOOKED = inspect.getfile(nn.Module)
"""The file of torch whose frames call hooks: one that called a pre-hook lasts until the module's forward has ended.

torch runs forward hooks after an ``Exception`` in a forward, but not after a ``KeyboardInterrupt`` or ``SystemExit``:
what a pre-hook began is over when the frame of its call is gone.
"""


def hooked_call() -> FrameType | None:
    """The frame of the module's call in whose pre-hook this runs; None outside a hook."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename != HOOKED:
        frame = frame.f_back
    return frame


def is_running(call: FrameType | None) -> bool:
    """Whether a call is one of those that this thread is in; True for None, a state that no call has left."""
    frame: FrameType | None = None if call is None else sys._getframe(1)
    while frame is not call:
        if frame is None:
            return False
        frame = frame.f_back
    return True


class SharedState:
    """A lock around state of the process that a thread changes for a while; the thread may enter it again."""

    # Other threads wait, or are refused with the words ``busy``. In a forked child the thread that forked goes on
    # alone: where another thread was in a block, its changes are undone there and the lock is free.

    def __init__(self, busy: str | None = None) -> None:
        self._busy = busy
        self._lock = threading.RLock()
        self._changes: list[ExitStack] = []
        in_child(self._free)

    @contextmanager
    def changed(self) -> Iterator[ExitStack]:
        """A block that changes the state, with the stack of what undoes its changes when it ends."""
        lock = self._lock
        if not lock.acquire(blocking=self._busy is None):
            raise RuntimeError(self._busy)
        try:
            with ExitStack() as changes:
                self._changes.append(changes)
                try:
                    yield changes
                finally:
                    self._changes.remove(changes)
        finally:
            lock.release()

    def _free(self) -> None:
        if self._lock.acquire(blocking=False):  # nobody's, or of the thread that forked
            self._lock.release()
            return
        self._lock, changes, self._changes = threading.RLock(), self._changes, []
        while changes:
            changes.pop().close()


def in_child(action: Callable[[], object]) -> None:
    """Runs ``action`` in every child that is forked from now on."""
    if hasattr(os, "register_at_fork"):  # Windows does not fork
        os.register_at_fork(after_in_child=action)


SHARED_STATE = SharedState()
"""Held while Pyro's parameter store or the modes of modules are other than the process finds them afterwards."""


class ThreadList(threading.local, UserList[Any]):
    """A list of which every thread sees its own, empty at first; a slice is a plain list."""

    def __getitem__(self, index: Any) -> Any:
        return self.data[index]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.data)

    def __reversed__(self) -> Iterator[Any]:
        return reversed(self.data)


def _thread_list(items: Iterable[Any]) -> ThreadList:
    copied = ThreadList()
    copied.extend(items)
    return copied


def give_threads_their_handlers() -> None:
    """Replaces Pyro's lists; handlers and plates that are active stay so in this thread. Once is enough."""
    if isinstance(runtime._PYRO_STACK, ThreadList):
        return
    handlers = _thread_list(runtime._PYRO_STACK)
    for module in (runtime, messenger, collapse_messenger):
        module._PYRO_STACK = handlers
    runtime._DIM_ALLOCATOR._stack = _thread_list(runtime._DIM_ALLOCATOR._stack)
