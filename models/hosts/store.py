"""Saving converted networks and loading them again."""

from __future__ import annotations

import json
import shutil
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers import AutoConfig, PreTrainedModel

from probattn.attention import BayesianAttention
from probattn.models.hosts.adapter import ATTRIBUTE
from probattn.models.hosts.convert import conversion, convert

FILE = "probattn.json"
FORMAT = 1


class StoredNetworkError(ValueError):
    """A folder that holds no readable converted network."""


def save(net: PreTrainedModel, folder: Path | str) -> Path:
    """Saves a network, converted or not, in Hugging Face's format with ``probattn.json`` beside it.

    The folder appears whole or not at all.

    Args:
        net: the network.
        folder: a folder that does not exist yet, or is empty.

    Returns:
        The folder.

    Raises:
        FileExistsError: the folder holds files.
        OSError: it cannot be written.
    """
    target = Path(folder)
    if target.exists() and any(target.iterdir()):
        raise FileExistsError(f"{target}: expected a new folder, it holds files; choose another or remove it")
    target.parent.mkdir(parents=True, exist_ok=True)
    record = conversion(net)
    described: dict[str, Any] = {"format": FORMAT, "class": type(net).__name__, "method": None}
    if record is not None:
        layers = record.layers if isinstance(record.layers, str) else list(record.layers)
        described |= {"method": asdict(record.method), "layers": layers, "attention": record.attention}
    draft = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        net.save_pretrained(draft)
        (draft / FILE).write_text(json.dumps(described, indent=2) + "\n", encoding="utf-8")
        if target.exists():
            target.rmdir()
        draft.rename(target)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    return target


def load(folder: Path | str, **options: Any) -> PreTrainedModel:
    """Loads what :func:`save` wrote: the network, converted as it was, with all its weights.

    Args:
        folder: the folder.
        **options: for ``from_pretrained``, such as ``dtype``.

    Returns:
        The network in evaluation mode.

    Raises:
        StoredNetworkError: the folder, its description or its weights are missing, corrupt or do not fit together.
    """
    source = Path(folder)
    described = _description(source)
    cls = getattr(transformers, described["class"], None)
    if cls is None:
        raise StoredNetworkError(
            f"{source / FILE}: transformers {transformers.__version__} has no {described['class']}"
        )
    try:
        weights = _site_weights(source)
        net: PreTrainedModel = cls.from_pretrained(
            source, config=AutoConfig.from_pretrained(source), **options
        )
    except (OSError, SafetensorError, RuntimeError, ValueError) as error:
        raise StoredNetworkError(
            f"{source}: cannot be read ({str(error).splitlines()[0]}); save it again"
        ) from error
    if described["method"] is None:
        return net.eval()
    method = BayesianAttention(**described["method"])
    convert(net, method, layers=described["layers"], attention=described["attention"])
    expected = {name for name in net.state_dict() if _is_site(name)}
    if expected != weights.keys():
        differing = sorted(expected ^ weights.keys())
        raise StoredNetworkError(
            f"{source}: the weights of {len(differing)} site parameters do not fit {FILE}, {differing[0]} first"
        )
    with torch.no_grad():
        net.load_state_dict(weights, strict=False)
    return net.eval()


def _description(source: Path) -> dict[str, Any]:
    file = source / FILE
    try:
        described = json.loads(file.read_text(encoding="utf-8"))
        found = described["format"], described["class"], described["method"]
    except FileNotFoundError as error:
        raise StoredNetworkError(
            f"{file}: not found; expected a folder written by probattn.models.save"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise StoredNetworkError(f"{file}: corrupt ({error})") from error
    if found[0] != FORMAT:
        raise StoredNetworkError(
            f"{file}: expected format {FORMAT}, got {found[0]!r}; another version wrote it"
        )
    return dict(described)


def _site_weights(source: Path) -> dict[str, Tensor]:
    weights: dict[str, Tensor] = {}
    for file in sorted(source.glob("*.safetensors")):
        with safe_open(file, framework="pt") as opened:
            weights |= {name: opened.get_tensor(name) for name in opened.keys() if _is_site(name)}  # noqa: SIM118 - no mapping
    return weights


def _is_site(name: str) -> bool:
    return f".{ATTRIBUTE}." in f".{name}"
