"""Saving converted networks and loading them again."""

from __future__ import annotations

import json
import shutil
import stat
import uuid
import warnings
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import transformers
from pydantic import BaseModel, ConfigDict, Field, JsonValue, TypeAdapter, model_validator
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoConfig, PreTrainedModel

from probattn.checks import shown
from probattn.files.durable import write_atomically, write_tensors
from probattn.files.json_files import JSONError, read_json
from probattn.files.manifest import MANIFEST, DamagedFolderError, verify_folder, write_manifest
from probattn.models.hosts.adapter import ATTRIBUTE
from probattn.models.hosts.classes import network_class
from probattn.models.hosts.convert import Conversion, conversion, convert
from probattn.models.hosts.pretrained import StoredNetworkError, open_pretrained, unreadable
from probattn.models.hosts.selection import Kind, Layers, Part
from probattn.options import hints
from probattn.sites import METHODS, Method
from probattn.sites.inverse_temperature import UnknownSizeError, without_inverse_temperature

FILE = "probattn.json"
WEIGHTS = "probattn.safetensors"
"""The sites' weights, apart from the host's own: transformers reads the folder as a plain network."""
LAYERS_PER_WEIGHT = 100
"""Layers may share weights, but not that many."""
FORMATS = (1, 2, 3, 4, 5)
"""Formats 1 to 4 have a key for each method of this library; the last one has a list of methods of any kind."""
FORMER_KEYS = {
    "method": "bayesian",
    "alignment": "alignment",
    "repulsive": "repulsive",
    "disagreement": "disagreement",
}
"""Keys of formats 1 to 4 and the kinds of methods that they stand for."""


class _Description(BaseModel):
    """The content of ``probattn.json``."""

    model_config = ConfigDict(frozen=True)

    format: int
    name: str = Field(alias="class")
    methods: list[dict[str, JsonValue]]
    layers: Layers | Part | None = None
    attention: Kind | None = None

    @model_validator(mode="before")
    @classmethod
    def _current(cls, value: Any) -> Any:
        return _migrated(value) if isinstance(value, dict) else value

    @model_validator(mode="after")
    def _check_location(self) -> _Description:
        if self.built() and (self.layers is None or self.attention is None):
            raise ValueError("expected the layers and the kind of attention that were converted, found none")
        return self

    def built(self) -> list[Method]:
        """The methods that the network was converted with; ``ValueError`` for an unknown one or a bad option."""
        return [_built(dict(stored)) for stored in self.methods]


def _migrated(stored: dict[str, Any]) -> dict[str, Any]:
    """A description of formats 1 to 4, which name each method by a key of its own, in the present format."""
    if stored.get("format") not in FORMATS[:-1] or "methods" in stored:
        return stored
    unchanged = {key: value for key, value in stored.items() if key not in FORMER_KEYS}
    methods = []
    for key, kind in FORMER_KEYS.items():
        options = stored.get(key)
        if options is not None:
            methods.append(
                {"kind": kind, **_with_present_names(options)} if isinstance(options, dict) else options
            )
    return {**unchanged, "methods": methods}


def _built(stored: dict[str, Any]) -> Method:
    kind = stored.pop("kind", None)
    try:
        method = METHODS[str(kind)]
    except KeyError as error:
        raise ValueError(error.args[0]) from None
    unknown = sorted(stored.keys() - hints(method).keys())
    if unknown:
        raise ValueError(f"{method.__name__} has no option {shown(unknown[0])}")
    return method(**stored)


def _with_present_names(options: dict[str, Any]) -> dict[str, Any]:
    """Options of heads in today's names; the network predicts the same for any noise of its training."""
    try:
        return without_inverse_temperature(options, None)
    except UnknownSizeError as error:
        warnings.warn(f"{error}, before training on: it is read as 1", stacklevel=2)
        return {name: value for name, value in options.items() if name != "inverse_temperature"}


def save(net: PreTrainedModel, folder: Path | str, *, beside: Callable[[Path], object] | None = None) -> Path:
    """Saves a network, converted or not, in Hugging Face's format, and ``probattn.json``.

    The sites' weights stand in a file of their own, ``probattn.safetensors``; ``manifest.json`` has the size and the
    SHA-256 sum of every file. The folder appears whole or not at all.

    Args:
        net: the network.
        folder: a folder that does not exist yet, or is empty.
        beside: writes further files into the folder that it is given, such as a tokenizer's ``save_pretrained``; they
            are among those with a sum.

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
    described = {"format": FORMATS[-1], "class": type(net).__name__, **_describe(record)}
    weights: dict[str, Tensor] = net.state_dict()
    draft = target.parent / f".{target.name}.{uuid.uuid4().hex}"
    draft.mkdir()
    try:
        net.save_pretrained(draft, state_dict={k: v for k, v in weights.items() if not _is_site(k)})
        if record is not None:
            write_tensors(draft / WEIGHTS, {k: v for k, v in weights.items() if _is_site(k)})
        write_atomically(draft / FILE, (json.dumps(described, indent=2) + "\n").encode())
        if beside is not None:
            beside(draft)
        _give_usual_permissions(draft)
        write_manifest(draft)
        if target.exists():
            target.rmdir()
        draft.rename(target)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    return target


def load(folder: Path | str, auto_class: Any = None, **options: Any) -> PreTrainedModel:
    """Loads what :func:`save` wrote: the network, converted as it was, with all its weights.

    Files are compared with the sums that were saved with them; a folder without ``manifest.json``, which an earlier
    version wrote, is loaded without. Code in the folder is not run.

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
        >>> from probattn import BayesianAttention
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
    verify_network(source)
    _check_layers(source)
    net = _host(source, auto_class or _network_class(source, described.name), options)
    methods = described.built()
    if not methods:
        return net.eval()
    try:
        weights = load_file(source / WEIGHTS)
        convert(net, *methods, layers=described.layers or "all", attention=described.attention or "all")
    except (OSError, SafetensorError, TypeError, ValueError) as error:
        raise unreadable(source, error) from error
    _fill_sites(net, weights, source)
    return net.eval()


def verify_network(folder: Path) -> None:
    """Compares the files of a saved network with their sums, if saved; ``StoredNetworkError`` where they differ."""
    if not (folder / FILE).exists():
        return
    try:
        verify_folder(folder)
    except DamagedFolderError as error:
        raise StoredNetworkError(
            f"{folder}: {error}; copy the folder again from where it was saved, or save the network anew (if the "
            f"change is meant, delete {MANIFEST})"
        ) from error


def _describe(record: Conversion | None) -> dict[str, Any]:
    if record is None:
        return {"methods": []}
    return {
        "methods": [{"kind": method.kind, **_written(method)} for method in record.methods],
        "layers": record.layers if isinstance(record.layers, str) else list(record.layers),
        "attention": record.attention,
    }


def _written(method: Any) -> dict[str, Any]:
    return asdict(method)


def _check_layers(source: Path) -> None:
    """Refuses a damaged number of layers, which would be built one after the other without an end."""
    try:
        config = read_json(source / "config.json", TypeAdapter(dict[str, JsonValue]))
        tensors = 0
        for file in source.glob("*.safetensors"):
            with safe_open(file, framework="pt") as opened:
                tensors += len(opened.keys())
    except (JSONError, OSError, SafetensorError) as error:
        raise unreadable(source, error) from error
    most = LAYERS_PER_WEIGHT * max(tensors, 1)
    for name, value in config.items():
        if "layers" in name and isinstance(value, int) and value > most:
            raise StoredNetworkError(
                f"{source}: expected {name} of config.json to fit {tensors} weights, got {shown(value)}; save it again"
            )


def _network_class(source: Path, name: str) -> type[PreTrainedModel]:
    """The class that :func:`save` named: one of transformers, or one that its auto classes were told of."""
    config = open_pretrained(AutoConfig, source)
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
    loaded: Any = open_pretrained(cls, source, output_loading_info=True, **options)
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
    stored = {name: tensor.shape for name, tensor in weights.items()}
    differing = [name for name in sorted(expected | stored) if expected.get(name) != stored.get(name)]
    if differing:
        raise StoredNetworkError(
            f"{source}: {len(differing)} site parameters in {WEIGHTS} do not fit {FILE}, {differing[0]} first"
        )
    net.load_state_dict(weights, strict=False)


def _description(source: Path) -> _Description:
    file = source / FILE
    try:
        described = read_json(file, TypeAdapter(_Description))
    except FileNotFoundError as error:
        raise StoredNetworkError(
            f"{file}: not found; expected a folder written by probattn.models.save"
        ) from error
    except (JSONError, OSError) as error:
        reason = str(error).removeprefix(f"{file}: ")
        raise StoredNetworkError(f"{file}: cannot be read ({reason})") from error
    if described.format not in FORMATS:
        raise StoredNetworkError(
            f"{file}: expected a format from {FORMATS[0]} to {FORMATS[-1]}, got {described.format}; another version "
            "wrote it"
        )
    return described


def _give_usual_permissions(folder: Path) -> None:
    """Has every file be as readable as one that was simply written; safetensors keeps its own from everybody else."""
    usual = stat.S_IMODE((folder / FILE).stat().st_mode)
    for file in folder.rglob("*"):
        if file.is_file():
            file.chmod(usual)


def _is_site(name: str) -> bool:
    return f".{ATTRIBUTE}." in f".{name}"
