"""What a saved network says of itself: ``probattn.json``, the sites' weights, both on the hub, and the model card."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path, PureWindowsPath
from typing import Any, TypeVar, cast

from huggingface_hub import ModelCard
from pydantic import BaseModel, ConfigDict, Field, JsonValue, TypeAdapter, model_validator
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from probattn.checks import shown
from probattn.files.json_files import JSONError, read_json
from probattn.files.manifest import MANIFEST, Manifest
from probattn.models.hosts.adapter import ATTRIBUTE
from probattn.models.hosts.calls import Kind, Layers, Part
from probattn.models.hosts.hosting import Conversion, host_of, scale_of
from probattn.models.hosts.pretrained import StoredNetworkError, reading, unreadable
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
            methods = record.methods
            content["methods"] = [{"kind": method.kind, **asdict(cast(Any, method))} for method in methods]
            content["layers"] = record.layers if isinstance(record.layers, str) else list(record.layers)
            content["attention"] = record.attention
        content |= {"noise": described_noise(net), "card": dict(card)}
        return cls.model_validate_json(json.dumps(content))

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
    unknown = sorted(stored.keys() - {field.name for field in fields(cast(Any, method))})
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


Network = TypeVar("Network")
CARD = "README.md"
MARK = "<!-- Written by probattn, anew with every save. Remove this line to keep changes of yours. -->"
NOTES = "_probattn_card"
MEASURED = "measured"
"""Key of the notes under which evaluations stand that a trainer made of the present weights."""
NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")


def describe(
    net: Network,
    *,
    data: str | None = None,
    metrics: Mapping[str, float] | None = None,
    base_model: str | None = None,
) -> Network:
    """Sets what the model card (``README.md``) of a converted network states whenever the network is saved.

    Args:
        net: a converted network. Entries of an earlier call stay unless they are set again.
        data: name of the training data, such as "SST-2".
        metrics: measured values by name, such as the accuracy and the expected calibration error.
        base_model: name on the hub of the network before training. Default: where the network was loaded from.

    Returns:
        The same network.

    Example:
        >>> from transformers import BertConfig, BertModel
        >>> config = BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
        >>> net = describe(BertModel(config), data="film reviews", metrics={"ECE": 0.03})
    """
    said = {"data": data, "metrics": None if metrics is None else dict(metrics), "base_model": base_model}
    vars(host_of(net))[NOTES] = notes(net) | {key: value for key, value in said.items() if value is not None}
    return net


def notes(net: Any) -> dict[str, Any]:
    """What :func:`describe` was told of a network, and where the network was loaded from."""
    host = host_of(net)
    path = str(host.name_or_path or "") if isinstance(host, PreTrainedModel) else ""
    defaults = {"base_model": without_folders(path)}
    said: dict[str, Any] = vars(host).get(NOTES, {})
    return {key: value for key, value in (defaults | said).items() if value}


def evaluations_in(card: Mapping[str, Any]) -> dict[str, Any]:
    """The evaluations among the notes for a card, by name; see :func:`note_evaluations`."""
    return dict(_mapping(card.get(MEASURED)))


def note_evaluations(net: Any, evaluations: Mapping[str, Mapping[str, Any]]) -> None:
    """Has the card show these evaluations: ``figures``, by name, and in words what they were measured ``on``."""
    if evaluations or MEASURED in vars(host_of(net)).get(NOTES, {}):
        vars(host_of(net))[NOTES] = notes(net) | {MEASURED: dict(evaluations)}


def write_card(folder: Path, description: Description, auto_class: str) -> None:
    """Writes the card of a converted network, unless the folder has one that somebody else wrote."""
    file = folder / CARD
    if not file.exists() or MARK in file.read_text(encoding="utf-8", errors="replace"):
        file.write_text(_card(description, auto_class), encoding="utf-8")


def without_folders(words: str) -> str:
    """Words that begin with a path, without its folders; what begins with a name on the hub stays."""
    path = re.split("[,:] ", words)[0]
    local = Path(words).exists() or Path(path).exists() or bool(PureWindowsPath(path).anchor)
    return re.sub(r".*[/\\]", "", words) if local or path.count("/") > 1 else words


def leave_out_folders(card: Path) -> None:
    """Removes the base model from the header of a card that PEFT wrote, where it is a path."""
    written = ModelCard.load(card)
    base = str(written.data.base_model or "")
    if without_folders(base) != base:
        written.data.base_model = None
        written.data.tags = [tag for tag in written.data.tags or [] if not tag.endswith(base)]
        written.save(card)


def _card(description: Description, auto_class: str) -> str:
    card = description.card
    base = str(card.get("base_model", ""))
    header = ["library_name: transformers", "tags:", "- probattn", "- bayesian"]
    if "/" in base and NAME.fullmatch(base):
        header.append(f"base_model: {base}")
    title = f"# {description.name} with probabilistic attention"
    lines = ["---", *header, "---", MARK, "", title, "", f"Base model: {base or 'not known'}.", ""]
    return "\n".join([*lines, card_sections(description, auto_class)])


def card_sections(description: Description, auto_class: str) -> str:
    """What a card says of a converted network: methods, data, what was measured, how to load it."""
    card = description.card
    pairs = zip(description.built(), description.methods, strict=True)
    methods = [f"* {type(method).__name__}: {_options(stored)}" for method, stored in pairs]
    where = f"layers {_value(description.layers)}, attention {_value(description.attention)}"
    lines = [f"Attention methods ({where}):", "", *methods, ""]
    lines += [f"Training data: {card.get('data', 'not stated')}.", ""]
    tables = _table(card.get("metrics"))
    for name, evaluation in evaluations_in(card).items():
        told = _mapping(evaluation)
        table = _table(told.get("figures"))
        tables += [f"Evaluation `{name}` on {told.get('on', 'unknown data')}:", "", *table] if table else []
    lines += tables or ["Calibration: not measured.", ""]
    lines += ["## How to load", "", "```python", "import probattn, transformers  # pip install probattn", ""]
    lines += [f"net = probattn.from_pretrained(transformers.{auto_class}, FOLDER_OR_NAME)", "```", ""]
    alone = "`from_pretrained` of transformers alone reads the same folder as a network with deterministic attention;"
    return "\n".join([*lines, alone, "the posterior is in `probattn.json` and `probattn.safetensors`.", ""])


def _table(figures: Any) -> list[str]:
    values = {n: f"{v:.4g}" if isinstance(v, float | int) else v for n, v in _mapping(figures).items()}
    rows = [f"| {name} | {value} |" for name, value in values.items()]
    return ["| Measured | Value |", "| --- | --- |", *rows, ""] if rows else []


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _options(stored: Mapping[str, Any]) -> str:
    options = {key: value for key, value in stored.items() if key != "kind" and value is not None}
    return ", ".join(f"{key} {_value(value)}" for key, value in options.items())


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
