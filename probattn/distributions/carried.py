"""Positive samples that carry what would be lost or computed again: their exact logarithm, or their weights."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from probattn.distributions.log_space import finite_exp

_ATTRIBUTE = "_probattn_log"
_WEIGHTS = "_probattn_weights"


def exp_carrying_log(log_value: Tensor) -> Tensor:
    """exp(log_value), saturated to the positive finite numbers of its type, with ``log_value`` attached."""
    value = finite_exp(log_value)
    setattr(value, _ATTRIBUTE, log_value)
    return value


def carried_log(value: Tensor) -> Tensor:
    """The logarithm of a positive tensor: the one it carries, else ``value.log()``.

    Handing a sample on, as ``poutine.replay`` does, keeps the logarithm; arithmetic, ``detach`` and copies lose it.
    """
    log_value = getattr(value, _ATTRIBUTE, None)
    return value.log() if log_value is None else log_value


def carries_log(value: Tensor) -> bool:
    """True if a tensor came from :func:`exp_carrying_log` and still has its logarithm."""
    return hasattr(value, _ATTRIBUTE)


def carry_weights(value: Tensor, weights: Tensor, mask: Any) -> Tensor:
    """Attaches to S the weights W that it is known to give under ``mask``; returns ``value`` itself."""
    setattr(value, _WEIGHTS, (weights, mask))
    return value


def carried_weights(value: Tensor, mask: Any) -> Tensor | None:
    """The weights that S carries, if it carries any that were made under this mask."""
    weights, carried_mask = getattr(value, _WEIGHTS, (None, None))
    return weights if carried_mask is mask else None
