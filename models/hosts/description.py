"""The description of a saved network, ``probattn.json``, the weights of its sites, and their download from the hub."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

from pydantic import BaseModel, ConfigDict, Field, JsonValue, TypeAdapter, model_validator
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from probattn.checks import shown
from probattn.files.json_files import JSONError, read_json
from probattn.files.manifest import MANIFEST, Manifest
from probattn.models.hosts.adapter import ATTRIBUTE
from probattn.models.hosts.calls import Kind, Layers, Part
from probattn.models.hosts.hosting import Conversion, scale_of
from probattn.models.hosts.pretrained import StoredNetworkError, reading, unreadable
from probattn.options import hints
from probattn.sites import METHODS, Method
from probattn.sites.observation import ObservationNoise

FILE = "probattn.json"
FORMAT = 5


class Description(BaseModel):
    """The content of ``probattn.json``; beside adapters with the configuration of the base network."""

    model_config = ConfigDict(frozen=True)

    format: int
    name: str = Field(alias="class")
    methods: list[dict[str, JsonValue]]
    layers: Layers | Part | None = None
    attention: Kind | None = None
    noise: dict[str, JsonValue] | None = None
    card: dict[str, Any] = Field(default_factory=dict)
    config: dict[str, JsonValue] | None = None

    @model_validator(mode="after")
    def _check_location(self) -> Description:
        if self.built() and (self.layers is None or self.attention is None):
            raise ValueError("expected the layers and the kind of attention that were converted, found none")
        return self

    @classmethod
    def of(cls, net: nn.Module, record: Conversion | None, card: Mapping[str, Any]) -> Description:
        """The description of a network that was converted as the record has it."""
        content: dict[str, Any] = {"format": FORMAT, "class": type(net).__name__, "methods": []}
        if record is not None:
            content["methods"] = [
                {"kind": method.kind, **asdict(cast(Any, method))} for method in record.methods
            ]
            content["layers"] = record.layers if isinstance(record.layers, str) else list(record.layers)
            content["attention"] = record.attention
        return cls.model_validate_json(
            json.dumps(content | {"noise": described_noise(net), "card": dict(card)})
        )

    def write(self, folder: Path) -> None:
        """Writes ``probattn.json``."""
        content = self.model_dump(by_alias=True, exclude_defaults=True)
        (folder / FILE).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")

    def built_noise(self) -> tuple[ObservationNoise, int] | None:
        """The noise of observed numbers and how many there are; ``ValueError`` or ``TypeError`` for a bad option."""
        if self.noise is None:
            return None
        options: dict[str, Any] = dict(self.noise)
        size = int(options.pop("size"))
        return ObservationNoise(**options), size

    def built(self) -> list[Method]:
        """The methods that the network was converted with; ``ValueError`` for an unknown one or a bad option."""
        return [_built(dict(stored)) for stored in self.methods]


def described_noise(net: nn.Module) -> dict[str, JsonValue] | None:
    """The options of a network's noise of observed numbers, and how many there are; None without it."""
    scale = scale_of(net)
    return None if scale is None else {**asdict(scale.noise), "size": len(scale.log_scale)}


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


def read_description(source: Path) -> Description:
    """Reads ``probattn.json`` in a folder; :class:`StoredNetworkError` where it is missing, damaged or newer."""
    file = source / FILE
    try:
        described = read_json(file, TypeAdapter(Description))
    except FileNotFoundError as error:
        raise StoredNetworkError(
            f"{file}: not found; expected a folder written by probattn.models.save or by save_pretrained of a "
            "converted network; a plain one is read by transformers, and probattn.models.convert makes it probabilistic"
        ) from error
    except (JSONError, OSError) as error:
        reason = str(error).removeprefix(f"{file}: ")
        raise StoredNetworkError(f"{file}: cannot be read ({reason})") from error
    if described.format != FORMAT:
        raise StoredNetworkError(
            f"{file}: expected format {FORMAT}, got {described.format}; another version wrote it"
        )
    return described


WEIGHTS = "probattn.safetensors"
"""The sites' weights, apart from the host's own: transformers reads the folder as a plain network."""


def is_site(name: str) -> bool:
    """Whether a name in a state dict is that of a weight which conversion added."""
    return f".{ATTRIBUTE}." in f".{name}"


def plain(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights that are the host's own."""
    return {name: tensor for name, tensor in weights.items() if not is_site(name)}


def fill_sites(net: nn.Module, source: Path) -> None:
    """Reads the sites' weights of a converted network from a folder; :class:`StoredNetworkError` if they do not fit."""
    with reading(source, OSError, SafetensorError):
        weights = load_file(source / WEIGHTS)
    expected = {name: tensor.shape for name, tensor in net.state_dict().items() if is_site(name)}
    stored = {name: tensor.shape for name, tensor in weights.items()}
    differing = [name for name in sorted(expected | stored) if expected.get(name) != stored.get(name)]
    if differing:
        raise StoredNetworkError(
            f"{source}: {len(differing)} site parameters in {WEIGHTS} do not fit {FILE}, {differing[0]} first"
        )
    net.load_state_dict(weights, strict=False)


ACCESS = ("token", "cache_dir", "local_files_only", "force_download")
"""Options of ``from_pretrained`` that are about the hub."""


class OutOfReachError(StoredNetworkError):
    """A name on the hub of which it is not known whether this library's files are there."""


def fetched(source: Path | str, revision: str | None, options: dict[str, Any]) -> Path:
    """The folder of a saved network, downloaded if on the hub, whose options leave ``options``."""
    access = {name: options.pop(name) for name in ACCESS if name in options}
    if not is_name(source):
        return Path(source)
    folder = download(str(source), revision=revision, **access)
    if folder is None:
        raise StoredNetworkError(
            f"{source}: no {FILE} there; expected a network that save_pretrained or push_to_hub of a converted network "
            "wrote; a plain one is read by transformers, and probattn.models.convert makes it probabilistic"
        )
    return folder


def download(name: str, **access: Any) -> Path | None:
    """The folder of a network on the hub after its download; None if it holds none of this library."""
    from huggingface_hub import constants, hf_hub_download, snapshot_download

    try:
        described = _description(name, access)
    except Exception as error:  # of many kinds: of the hub, of its client, of the network, of the disk
        raise OutOfReachError(str(unreadable(name, error))) from error
    if described is None:
        return None
    where: dict[str, Any] = {"repo_id": name, **access}
    where["revision"] = described.parent.name  # the commit, so that all files are of one
    with reading(name):
        sums = Path(hf_hub_download(filename=MANIFEST, **where))
        names = list(read_json(sums, TypeAdapter(Manifest)).files)
        if constants.HF_HUB_OFFLINE:  # older releases ask nevertheless
            where["local_files_only"] = True
        return Path(snapshot_download(allow_patterns=[FILE, MANIFEST, *names], **where))


def _description(name: str, access: dict[str, Any]) -> Path | None:
    """The description of a network on the hub, after its download; None where the hub is known to have none."""
    from huggingface_hub import _CACHED_NO_EXIST, hf_hub_download, try_to_load_from_cache
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    try:
        return Path(hf_hub_download(repo_id=name, filename=FILE, **access))
    except LocalEntryNotFoundError:
        location = {key: access[key] for key in ("cache_dir", "revision") if key in access}
        if try_to_load_from_cache(name, FILE, **location) is not _CACHED_NO_EXIST:
            raise
    except EntryNotFoundError:
        pass
    return None


def is_name(source: Path | str) -> bool:
    """Whether a place is a name on the hub, and no local folder."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils._validators import validate_repo_id

    if isinstance(source, Path) or Path(source).exists():
        return False
    try:
        validate_repo_id(source)
    except HFValidationError:
        return False
    return True
