"""The model card of a saved network: ``README.md``, as the hub shows it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path, PureWindowsPath
from typing import Any, TypeVar

from huggingface_hub import ModelCard
from transformers import PreTrainedModel

from probattn.models.hosts.description import Description
from probattn.models.hosts.hosting import host_of

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
    """Says what the model card of a converted network shall tell, however the network is saved.

    Args:
        net: a converted network; what an earlier call said of it stays unless it is given again.
        data: what it was trained on, such as "SST-2".
        metrics: measured values by name, such as the accuracy and the expected calibration error.
        base_model: what it was before training, a name on the hub. Default: where it was loaded from.

    Returns:
        The network.

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
    methods = [
        f"* {type(method).__name__}: {_options(stored)}"
        for method, stored in zip(description.built(), description.methods, strict=True)
    ]
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
    lines += [
        "`from_pretrained` of transformers alone reads the same folder as a network with deterministic attention;"
    ]
    lines += ["the posterior is in `probattn.json` and `probattn.safetensors`.", ""]
    return "\n".join(lines)


def _table(figures: Any) -> list[str]:
    rows = [
        f"| {name} | {f'{value:.4g}' if isinstance(value, float | int) else value} |"
        for name, value in _mapping(figures).items()
    ]
    return ["| Measured | Value |", "| --- | --- |", *rows, ""] if rows else []


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _options(stored: Mapping[str, Any]) -> str:
    options = {key: value for key, value in stored.items() if key != "kind" and value is not None}
    return ", ".join(f"{key} {_value(value)}" for key, value in options.items())


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
