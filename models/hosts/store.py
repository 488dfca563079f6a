"""Saving converted networks and loading them again."""

from __future__ import annotations

import json
import shutil
import uuid
from dataclasses import asdict
from pathlib import Path
from typing import Any

import transformers
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoConfig, PreTrainedModel

from probattn.models.hosts.adapter import ATTRIBUTE
from probattn.models.hosts.classes import network_class
from probattn.models.hosts.convert import Conversion, conversion, convert
from probattn.models.hosts.hosting import Method
from probattn.sites import AlignmentAttention, BayesianAttention, DisagreementAttention
from probattn.sites.repulsive import RepulsiveAttention

FILE = "probattn.json"
WEIGHTS = "probattn.safetensors"
"""The sites' weights, apart from the host's own: whoever reads the folder with transformers finds a plain network."""
FORMATS = (1, 2, 3, 4)
"""Format 2 may hold alignment, format 3 repulsive heads too, format 4 a penalty on heads that are alike."""


class StoredNetworkError(ValueError):
    """A folder that holds no readable converted network."""


def save(net: PreTrainedModel, folder: Path | str) -> Path:
    """Saves a network, converted or not, in Hugging Face's format with ``probattn.json`` beside it.

    The sites' weights stand in a file of their own, ``probattn.safetensors``. The folder appears whole or not at all.

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
    described = {"format": FORMATS[0], "class": type(net).__name__, "method": None}
    if record is not None:
        described |= _describe(record)
    weights: dict[str, Tensor] = net.state_dict()
    draft = target.parent / f".{target.name}.{uuid.uuid4().hex}"
    draft.mkdir()
    try:
        net.save_pretrained(draft, state_dict={k: v for k, v in weights.items() if not _is_site(k)})
        if record is not None:
            sites = {k: v.detach().cpu().contiguous() for k, v in weights.items() if _is_site(k)}
            save_file(sites, draft / WEIGHTS)
        (draft / FILE).write_text(json.dumps(described, indent=2) + "\n", encoding="utf-8")
        if target.exists():
            target.rmdir()
        draft.rename(target)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    return target


def load(folder: Path | str, auto_class: Any = None, **options: Any) -> PreTrainedModel:
    """Loads what :func:`save` wrote: the network, converted as it was, with all its weights.

    Args:
        folder: the folder.
        auto_class: class whose ``from_pretrained`` reads the host, for networks that are not transformers' own.
        **options: for ``from_pretrained``, such as ``dtype``.

    Returns:
        The network in evaluation mode.

    Raises:
        StoredNetworkError: the folder, its description or its weights are missing, corrupt or do not fit together.

    Example:
        >>> import tempfile
        >>> from transformers import BertConfig, BertModel
        >>> config = BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
        >>> net = convert(BertModel(config), BayesianAttention.bam())
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     again = load(save(net, folder))
        >>> conversion(again).method.concentration
        10.0
    """
    source = Path(folder)
    described = _description(source)
    try:
        net = _host(source, auto_class or _network_class(source, described["class"]), options)
        methods = _methods(described)
        if not methods:
            return net.eval()
        weights = load_file(source / WEIGHTS)
        convert(net, *methods, layers=described["layers"], attention=described["attention"])
        _fill_sites(net, weights, source)
    except StoredNetworkError:
        raise
    except (OSError, SafetensorError, RuntimeError, ValueError, TypeError, KeyError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise StoredNetworkError(f"{source}: cannot be read ({reason}); save it again") from error
    return net.eval()


def _describe(record: Conversion) -> dict[str, Any]:
    described: dict[str, Any] = {
        "method": None if record.method is None else asdict(record.method),
        "layers": record.layers if isinstance(record.layers, str) else list(record.layers),
        "attention": record.attention,
    }
    if record.alignment is not None:
        described |= {"format": FORMATS[1], "alignment": asdict(record.alignment)}
    if record.repulsive is not None:
        described |= {"format": FORMATS[2], "repulsive": asdict(record.repulsive)}
    if record.disagreement is not None:
        described |= {"format": FORMATS[3], "disagreement": asdict(record.disagreement)}
    return described


def _methods(described: dict[str, Any]) -> list[Method]:
    methods: list[Method] = []
    if described["method"] is not None:
        methods.append(BayesianAttention(**described["method"]))
    if described.get("alignment") is not None:
        methods.append(AlignmentAttention(**described["alignment"]))
    if described.get("repulsive") is not None:
        methods.append(RepulsiveAttention(**described["repulsive"]))
    if described.get("disagreement") is not None:
        methods.append(DisagreementAttention(**described["disagreement"]))
    return methods


def _network_class(source: Path, name: str) -> type[PreTrainedModel]:
    """The class that :func:`save` named: one of transformers, or one that its auto classes were told of."""
    config = AutoConfig.from_pretrained(source)
    cls = network_class(name, config)
    if cls is None:
        raise StoredNetworkError(
            f"{source / FILE}: transformers {transformers.__version__} has no network class {name!r}; pass auto_class"
        )
    if cls.config_class is not None and not isinstance(config, cls.config_class):
        raise StoredNetworkError(
            f"{source}: {FILE} names a {name}, config.json describes a {config.model_type}; they do not fit together"
        )
    return cls


def _host(source: Path, cls: Any, options: dict[str, Any]) -> PreTrainedModel:
    """The network before its conversion, with every weight from the folder."""
    loaded: Any = cls.from_pretrained(source, output_loading_info=True, **options)
    net: PreTrainedModel = loaded[0]
    report: dict[str, Any] = loaded[1]
    for problem in ("missing_keys", "mismatched_keys", "unexpected_keys"):
        if report[problem]:
            keys = sorted(map(str, report[problem]))
            raise StoredNetworkError(
                f"{source}: weights do not fit config.json: {len(keys)} {problem.replace('_', ' ')}, {keys[0]} first"
            )
    return net


def _fill_sites(net: PreTrainedModel, weights: dict[str, Tensor], source: Path) -> None:
    expected = {name: tensor.shape for name, tensor in net.state_dict().items() if _is_site(name)}
    found = {name: tensor.shape for name, tensor in weights.items()}
    differing = [name for name in sorted(expected | found) if expected.get(name) != found.get(name)]
    if differing:
        raise StoredNetworkError(
            f"{source}: {len(differing)} site parameters in {WEIGHTS} do not fit {FILE}, {differing[0]} first"
        )
    net.load_state_dict(weights, strict=False)


def _description(source: Path) -> dict[str, Any]:
    file = source / FILE
    try:
        described = json.loads(file.read_text(encoding="utf-8"))
        found = [described[name] for name in ("format", "class", "method")]
        if any(
            described.get(name) is not None for name in ("method", "alignment", "repulsive", "disagreement")
        ):
            found += [described[name] for name in ("layers", "attention")]
    except FileNotFoundError as error:
        raise StoredNetworkError(
            f"{file}: not found; expected a folder written by probattn.models.save"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise StoredNetworkError(f"{file}: corrupt ({error})") from error
    if found[0] not in FORMATS:
        raise StoredNetworkError(
            f"{file}: expected a format from {FORMATS[0]} to {FORMATS[-1]}, got {found[0]!r}; another version wrote it"
        )
    return dict(described)


def _is_site(name: str) -> bool:
    return f".{ATTRIBUTE}." in f".{name}"
