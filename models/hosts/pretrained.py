"""Networks, configurations and tokenizers from folders that others wrote, opened without running code of theirs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import transformers
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

from probattn.checks import OneLineError, shortened, shown
from probattn.files.json_files import JSON_OBJECT, JSONError, read_json

RUST = "pyo3_runtime"
"""Module of the exception for a panic in Rust, such as the tokenizers' own; it is no ``Exception``."""
MOST_CLASSES = 1_000_000
"""More are taken for damage: a configuration names every one of them."""
SECONDS = 10.0
"""How long patterns of adapters may take."""
_MATCHES = """
import json, re, sys
patterns, names = json.load(sys.stdin)
for pattern in patterns:
    for name in names:
        re.fullmatch(pattern, name)
"""


class StoredNetworkError(OneLineError):
    """A folder, or a name on the hub, holds no readable network, configuration or tokenizer."""


def open_pretrained(cls: Any, source: Path | str, **options: Any) -> Any:
    """``cls.from_pretrained`` without code of the files; any failure becomes a :class:`StoredNetworkError`."""
    check_folder(source)
    with reading(source):
        return cls.from_pretrained(source, **({"trust_remote_code": False} | options))


@contextmanager
def reading(source: Path | str, *kinds: type[Exception]) -> Iterator[None]:
    """Errors of these kinds, or all of them and panics in Rust, become a :class:`StoredNetworkError` of ``source``."""
    try:
        yield
    except BaseException as error:
        if isinstance(error, kinds or Exception) or (not kinds and type(error).__module__ == RUST):
            raise unreadable(source, error) from error
        raise


def check_folder(source: Path | str) -> None:
    """Refuses what would be read without an end: pipes and devices, and more classes than a network can have."""
    folder = Path(source)
    if not folder.is_dir():
        return
    for file in sorted(folder.iterdir()):
        if file.exists() and not (file.is_file() or file.is_dir()):
            raise StoredNetworkError(f"{file}: expected a file, got a pipe, a socket or a device; remove it")
    try:
        config = read_json(folder / "config.json", JSON_OBJECT)
    except (JSONError, OSError):
        return  # whoever reads it says so
    check_classes(config, folder / "config.json")
    register_system(config)


def check_classes(config: Mapping[str, Any], file: Path) -> None:
    """Refuses more classes in a configuration, read from ``file``, than a network can have."""
    classes = config.get("num_labels")
    if isinstance(classes, int) and classes > MOST_CLASSES:
        raise StoredNetworkError(
            f"{file}: expected at most {MOST_CLASSES:,} num_labels, got {shown(classes)}; save it again"
        )


def check_patterns(adapters: Mapping[str, Any], net: nn.Module, source: Path) -> None:
    """Refuses patterns of adapters that need more than seconds; a process tries them, for Python stops no match."""
    patterns = [adapters.get(name) for name in ("target_modules", "exclude_modules", "layers_pattern")]
    for table in (adapters.get(name) for name in ("rank_pattern", "alpha_pattern")):
        patterns += [rf"(.*\.)?({key})$" for key in table] if isinstance(table, Mapping) else []
    patterns = [one for one in patterns if isinstance(one, str) and re.escape(one) != one]
    if not patterns:
        return
    names = [name for name, _ in net.named_modules()]
    content = json.dumps([patterns, names])
    try:
        command, silent = [sys.executable, "-I", "-S", "-c", _MATCHES], subprocess.DEVNULL
        subprocess.run(command, input=content.encode(), stderr=silent, timeout=SECONDS, check=True)
    except subprocess.TimeoutExpired as error:
        raise StoredNetworkError(
            f"{source}: expected patterns of modules that match in {SECONDS:g} seconds, got {shown(patterns)}; list "
            "the names of the modules instead"
        ) from error
    except subprocess.CalledProcessError as error:
        raise StoredNetworkError(
            f"{source}: expected regular expressions of modules, got {shown(patterns)}"
        ) from error


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


MAPPINGS = (
    "MODEL_MAPPING",
    "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING",
    "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING",
)
"""Where ``AutoModel.register`` and its like keep networks that are not transformers' own."""

SYSTEMS: Mapping[str, str] = {
    "probattn_decomposable": "pairs",
    "probattn_esim": "pairs",
    "probattn_graphwriter": "graphwriter",
    "probattn_mcan": "mcan",
    "probattn_recurrent_translation": "translation",
    "probattn_self_attentive": "sentence",
}
"""Packages of ``probattn.models`` by the ``model_type`` that they register with transformers' Auto classes."""


def register_system(config: Mapping[str, Any]) -> None:
    """Imports the package whose networks have a configuration's ``model_type``; nothing for networks of others."""
    package = SYSTEMS.get(str(config.get("model_type")))
    if package is not None:
        import_module(f"probattn.models.{package}")


def network_class(name: str, config: PretrainedConfig) -> type[PreTrainedModel] | None:
    """The network class of a name in ``architectures``, transformers' or registered with an auto class, or None."""
    registered = (getattr(transformers, mapping).get(type(config), None) for mapping in MAPPINGS)
    for candidate in (getattr(transformers, name, None), *registered):
        is_network = isinstance(candidate, type) and issubclass(candidate, PreTrainedModel)
        if is_network and candidate.__name__ == name:
            return candidate
    return None
