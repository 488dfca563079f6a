"""A factor that is computed when its density is requested."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

import pyro
import torch
from pyro.distributions import Unit
from torch import Tensor

from probattn.sites.handlers import is_handled


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
