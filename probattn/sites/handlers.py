"""Pyro's handlers around an attention call: what they want of it, and how a checkpointed block meets them again."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from types import TracebackType
from typing import Any, ClassVar

import pyro
import torch
from pyro.distributions import Unit
from pyro.poutine import runtime
from pyro.poutine.indep_messenger import IndepMessenger
from pyro.poutine.mask_messenger import MaskMessenger
from pyro.poutine.messenger import Messenger
from pyro.poutine.scale_messenger import ScaleMessenger
from pyro.poutine.trace_messenger import TraceMessenger
from pyro.poutine.trace_struct import Trace
from torch import Tensor

INDIFFERENT = (IndepMessenger, ScaleMessenger, MaskMessenger)
"""Handlers that never look at the value of a site: plates, and factors and masks of log densities."""
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


def takes_answers() -> bool:
    """True where a guide takes answers without a value, and no other handler looks for one."""
    handlers = value_handlers()
    return len(handlers) == 1 and bool(getattr(handlers[0], "takes_outputs", False))


def refuse_repeated(name: str) -> None:
    """``ValueError`` where a trace has a site of this name, which layers without a name share."""
    if any(
        isinstance(handler, TraceMessenger) and name in handler.trace.nodes for handler in value_handlers()
    ):
        raise ValueError(
            f"site {name!r}: two layers of one pass have no name of their own; end the network's __init__ with "
            "probattn.link(self), which names all its layers, or give MultiheadAttention(site=...)"
        )


def refuse_unreached(network: str, names: Sequence[str], number: int) -> None:
    """Refuses a pass of a network in which the sites of the modules ``names``, of ``number`` that ran, did not."""
    if names:
        raise RuntimeError(
            f"{network}: the attention site of {names[0]} was not reached ({len(names)} of {number}), so that its "
            "attention was deterministic: after conversion something replaced the module's forward, its submodule "
            "'probattn' or transformers' attention function of that name; undo that, or call "
            "probattn.models.revert(net) and convert the network again"
        )


def refuse_none(network: str, name: str) -> None:
    """Refuses a pass of a network in which none of its attention modules ran; ``name`` is one of them."""
    raise RuntimeError(
        f"{network}: the attention site of {name} was not reached, nor any other, so that the pass was deterministic: "
        "after conversion something replaced the forward of a module that calls them; undo that, or call "
        "probattn.models.revert(net) and convert the network again"
    )


def refuse_replaced(network: str, name: str, outer: str) -> None:
    """Refuses a pass in which a module that was replaced, or its forward, left the attention module ``name`` out."""
    raise RuntimeError(
        f"{network}: the attention site of {name} was not reached, so that its attention was deterministic: after "
        f"conversion something replaced the forward of {outer}, or the whole module, which runs it; undo that, or call "
        "probattn.models.revert(net) and convert the network again"
    )


Contexts = tuple[AbstractContextManager[Any], AbstractContextManager[Any]]
Resumption = Callable[[], AbstractContextManager[None]]
"""Puts a state back for the time of a block, as often as it is called."""


def checkpoint_contexts(*resumptions: Resumption) -> Contexts:
    """Serves ``torch.utils.checkpoint.checkpoint`` as ``context_fn`` around a block with attention sites.

    A checkpointed block runs again in the backward pass, where no handler of Pyro's is active. With these contexts it
    meets copies of the handlers of its first run, which record elsewhere: its sites are drawn from the same noise
    (torch restores its generators), and nothing is announced a second time. What left the block in the first run, such
    as its sites' KL, has its gradient.

    Args:
        *resumptions: further states that the second run needs as the first one found them.

    Returns:
        The contexts of the first run, which does nothing, and of the second.

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

    return nullcontext(), _Again([handled, *resumptions])


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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
    """``pyro.distributions.Unit`` with a log factor that its first density computes.

    Handlers that never ask for a density, those of prediction, never pay for the factor.
    """

    arg_constraints: ClassVar[dict[str, object]] = {}  # validating the log factor would compute it

    def __init__(self, compute: Callable[[], Tensor], batch_shape: torch.Size) -> None:
        super(Unit, self).__init__(batch_shape, torch.Size((0,)), validate_args=False)
        self._compute = compute
        self._log_factor: Tensor | None = None

    @property
    def log_factor(self) -> Tensor:
        """The log factor, computed once."""
        if self._log_factor is None:
            self._log_factor = self._compute()
        return self._log_factor

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

    def checked() -> Tensor:
        log_factor = compute()
        if log_factor.shape != batch_shape:
            raise ValueError(
                f"site {name!r}: expected a log factor of shape {list(batch_shape)}, a number a row, got "
                f"{list(log_factor.shape)}"
            )
        return log_factor

    factor = DeferredFactor(checked, batch_shape)
    pyro.sample(name, factor, obs=factor.sample(), infer={"is_auxiliary": True})


def announce(
    name: str, compute: Callable[[], Tensor], batch_shape: torch.Size, *, training: bool, what: str
) -> None:
    """A deferred factor under a Pyro handler; nothing in prediction.

    Raises:
        RuntimeError: in training mode with gradients, outside all handlers: training would leave ``what`` out.
        ValueError: ``compute`` gives a tensor of another shape than ``batch_shape``.
    """
    if is_handled():
        deferred_factor(name, compute, batch_shape)
    elif training and torch.is_grad_enabled():
        raise RuntimeError(
            f"site {name!r}: training without a driver would leave the {what} out unnoticed; train "
            "with probattn.inference.SVIDriver, probattn.ProbabilisticTrainer (in place of transformers.Trainer) or "
            "pyro.infer.SVI, or call .eval() or torch.no_grad() to predict"
        )
