"""What transformers calls the state of a decoder: ``cache`` since its version 5.24, ``past_key_values`` before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from transformers.modeling_outputs import Seq2SeqLMOutput

NAMES = ("cache", "past_key_values")
CACHE = next(name for name in NAMES if name in {field.name for field in fields(Seq2SeqLMOutput)})
"""Its name in the calls and the outputs of the networks of the version that is installed."""

Output = TypeVar("Output")


def cache_in(arguments: Mapping[str, Any]) -> Any:
    """The state among the arguments of a call, by either name; None for none."""
    return next((arguments[name] for name in NAMES if arguments.get(name) is not None), None)


def cached_output(output: type[Output]) -> type[Output]:
    """Makes a class of outputs with a field ``cache`` a dataclass, in which that field has the name :data:`CACHE`."""
    kinds = {CACHE if name == "cache" else name: kind for name, kind in output.__annotations__.items()}
    output.__annotations__ = kinds
    setattr(output, CACHE, None)
    if NAMES[0] != CACHE:
        delattr(output, NAMES[0])
    return dataclass(output)
