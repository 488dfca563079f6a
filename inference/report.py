"""Another name of :mod:`probattn.report`, which is imported when one of its names is used first."""

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    if name.startswith("__") and name != "__all__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("probattn.report"), name)


def __dir__() -> list[str]:
    return list(import_module("probattn.report").__all__)
