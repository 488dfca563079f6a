"""The contract with a model: how it is called with a batch, and which of what it returns are its predictions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import is_dataclass
from inspect import Signature, signature
from typing import Any

from torch import Tensor, nn

LAW = re.compile(r"Expected parameter (logits|probs|loc)\b.* to satisfy the constraint", re.DOTALL)
"""What torch says of a law whose parameters are not finite."""


def called(owner: str, model: Any, inputs: Mapping[str, Any]) -> Any:
    """What a model returns: ``model(**inputs)`` where they have the names of its parameters, else ``model(inputs)``.

    ``TypeError`` where neither fits; errors of the model have a note with the call.
    """
    form = signature(getattr(model, "_orig_mod", model).forward if isinstance(model, nn.Module) else model)
    by_name, whole = _misfit(form, (), inputs), _misfit(form, (inputs,), {})
    names = list(form.parameters)
    if by_name and len(names) > 1 and (whole or not inputs.keys().isdisjoint(names)):
        raise TypeError(
            f"{owner}: expected a batch for forward({', '.join(names)}), got {', '.join(inputs)}: {by_name}; or write "
            "forward(batch), which takes the whole dictionary"
        )
    named = not by_name and bool(whole or not inputs.keys().isdisjoint(names))
    try:
        return model(**inputs) if named else model(inputs)
    except (TypeError, AttributeError, LookupError, RuntimeError, ValueError) as error:
        if isinstance(error, ValueError) and LAW.search(str(error)) is not None:
            raise ValueError(
                f"{owner}: expected finite predictions, got NaN or infinity; check the network's weights, its inputs "
                "and its masks"
            ) from error
        call = f"forward({'**' * named}batch) of {type(model).__name__}, where batch is {described(inputs)}"
        error.add_note(f"{owner}: in {call}; labels are left out")
        raise


def _misfit(form: Signature, args: tuple[Any, ...], inputs: Mapping[str, Any]) -> str:
    """Why arguments are not those of a call; empty where they are."""
    try:
        form.bind(*args, **inputs)
    except TypeError as error:
        return str(error)
    return ""


def logits_of(output: Any) -> Tensor | None:
    """The tensor that a model returned, or that it returned as ``logits``, by attribute or key; None without."""
    named = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", output)
    return named if isinstance(named, Tensor) else None


def output_of(owner: str, output: Any) -> Tensor:
    """The predictions among what a model returned; ``TypeError`` without."""
    logits = logits_of(output)
    if logits is None:
        raise TypeError(
            f"{owner}: expected a model that returns its predictions, a tensor [B, ..., C] or one named logits, got "
            f"{described(output)}; return the tensor alone, or name it logits"
        )
    return logits


def described(value: Any) -> str:
    """Type of a value, of a tensor its shape, and of a container what it has, for messages."""
    if isinstance(value, Tensor):
        return str(list(value.shape))
    items = vars(value) if is_dataclass(value) and not isinstance(value, Mapping) else value
    inner = [described(item) for item in items] if isinstance(items, list | tuple) else []
    if isinstance(items, Mapping):
        inner = [f"{name} {described(item)}" for name, item in items.items()]
    return type(value).__name__ + (f" of {', '.join(inner[:8])}" if inner else "")
