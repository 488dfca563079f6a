"""Networks, configurations and tokenizers from folders that others wrote, opened without running code of theirs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from probattn.checks import shortened

RUST = "pyo3_runtime"
"""Module of the exception for a panic in Rust, such as the tokenizers' own; it is no ``Exception``."""


class StoredNetworkError(ValueError):
    """A folder, or a name on the hub, that holds no readable network, configuration or tokenizer."""

    def __init__(self, message: str) -> None:
        super().__init__(shortened(message))


def open_pretrained(cls: Any, source: Path | str, **options: Any) -> Any:
    """Returns ``cls.from_pretrained`` of a folder or hub name; every failure becomes a :class:`StoredNetworkError`.

    The content of a file decides which of many exceptions transformers, tokenizers and safetensors raise: of a wrong
    type, of a division by 0 heads, a panic in Rust. Code that comes with the files is not run.
    """
    try:
        return cls.from_pretrained(source, **({"trust_remote_code": False} | options))
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__module__ != RUST:
            raise
        raise unreadable(source, error) from error


def unreadable(source: Path | str, error: BaseException) -> StoredNetworkError:
    """The error that says what came of reading a folder."""
    reason = shortened(f"{type(error).__name__}: {error}".rstrip(": "), 240)
    return StoredNetworkError(f"{source}: cannot be read ({reason}); {_advice(source)}")


def _advice(source: Path | str) -> str:
    """Advice about a folder that exists, or about a name that does not exist and was requested from the hub."""
    if Path(source).exists():
        return "save it again, or take another"
    return (
        "no such folder, and no such name on the hub within reach: check it, the network, and HF_HUB_OFFLINE"
    )
