"""Saving networks: plain weights, parameters that conversion added, their description, and the sums of all files.

``save_pretrained`` and ``push_to_hub`` of transformers' networks, which ``transformers.Trainer`` calls, are wrapped:
for a network that has what :func:`give_exits` leaves, they call the functions here.
"""

from __future__ import annotations

import copy
import functools
import json
import re
import shutil
import stat
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.models.auto import modeling_auto
from transformers.utils import CONFIG_NAME

from probattn.checks import shown
from probattn.files.durable import full_disk_explained, sync_folder, tensor_bytes
from probattn.files.manifest import MANIFEST, verify_manifest, write_manifest
from probattn.models.hosts.adapter import ATTRIBUTE
from probattn.models.hosts.description import (
    CARD,
    FILE,
    WEIGHTS,
    Description,
    card_sections,
    described_noise,
    is_site,
    leave_out_folders,
    notes,
    plain,
    write_card,
)
from probattn.models.hosts.hosting import Conversion, conversion, host_of

DRAFT = ".probattn-draft"
"""Folder in which files are written before they replace those of an earlier save."""
EXIT = "_probattn_description"
"""Attribute of a converted network, and of its parts that are networks: what a save describes, None for a part."""
STORED = re.compile(
    r"(?:adapter_)?model(?P<variant>\.[^-]+?)?(?:-\d{5}-of-\d{5})?\.safetensors(?:\.index\.json)?"
)
"""Files of weights by the names that transformers and PEFT give them."""

Writer = Callable[[Path, dict[str, Tensor]], object]
"""Writes a host's files into a folder, from its weights without those of sites."""


def give_exits(net: PreTrainedModel, record: Conversion | None) -> None:
    """Has a network and its parts save their sites; None for a record: it has the scale of its numbers alone."""
    names = {name: module for name, module in net.named_modules() if isinstance(module, PreTrainedModel)}
    for name, module in names.items() if record is not None else (("", net),):
        touched = () if record is None else record.plan.touched
        whole = all(f"{call.module}.".startswith(f"{name}." if name else "") for call in touched)
        vars(module)[EXIT] = Description.of(module, record, {}) if whole else None


def take_exits(net: PreTrainedModel) -> None:
    """Undoes :func:`give_exits`."""
    for module in net.modules():
        vars(module).pop(EXIT, None)


def save(net: PreTrainedModel, folder: Path | str, *, beside: Callable[[Path], object] | None = None) -> Path:
    """Saves a network, converted or not, in Hugging Face's format, with the description ``probattn.json``.

    Parameters that conversion added are in ``probattn.safetensors``; ``manifest.json`` has the size and the SHA-256 sum
    of every file except the model card, ``README.md``. An error leaves no incomplete folder behind.
    ``net.save_pretrained`` of a converted network writes the same files and also replaces those of an earlier save.

    Args:
        net: the network. If the PEFT library wraps it, only adapters and the parameters of conversion are saved.
        folder: a folder that does not exist yet, or is empty.
        beside: function that writes further files into the folder that it gets, such as a tokenizer's
            ``save_pretrained``; the manifest includes these files.

    Returns:
        The folder.

    Raises:
        FileExistsError: the folder holds files.
        OSError: the folder cannot be written.
    """
    target = Path(folder)
    if target.exists() and any(target.iterdir()):
        raise FileExistsError(f"{target}: expected a new folder, it holds files; choose another or remove it")
    target.parent.mkdir(parents=True, exist_ok=True)
    host = host_of(net)
    with _draft(target.parent / f".{target.name}.{uuid.uuid4().hex}", target) as draft:
        _write(host, Description.of(host, conversion(host), notes(host)), draft, writer(net), None, beside)
        if target.exists():
            target.rmdir()
        draft.rename(target)
    return target


def save_over(
    net: nn.Module,
    description: Description | None,
    folder: Path | str,
    write: Writer,
    weights: Mapping[str, Tensor] | None = None,
) -> None:
    """Saves a converted network over an earlier save: sums first, so that what an interruption mixes does not fit."""
    if description is None:
        raise ValueError(
            f"{type(net).__name__}.save_pretrained: this is a part of a converted network and has some of its sites; "
            "save the whole network, or revert it first"
        )
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(target / DRAFT, ignore_errors=True)  # left by a save that was killed
    with _draft(target / DRAFT, target) as draft:
        if (target / CARD).exists():
            shutil.copy(target / CARD, draft / CARD)
        present = description.model_copy(update={"card": notes(net), "noise": described_noise(net)})
        _write(net, present, draft, write, weights)
        _publish(draft, target)


def save_pretrained(
    net: PreTrainedModel,
    description: Description | None,
    save_directory: Path | str,
    is_main_process: bool = True,
    state_dict: Mapping[str, Tensor] | None = None,
    push_to_hub: bool = False,
    **options: Any,
) -> None:
    """``save_pretrained`` of a converted network, with the options of transformers' own."""
    if options.get("distributed_checkpoint"):
        raise ValueError(
            "save_pretrained: expected distributed_checkpoint=False, since a converted network is saved with its sites "
            "by one process; leave it out"
        )
    hub = {key: options.pop(key) for key in HUB_OPTIONS & options.keys()}
    if not is_main_process:
        # Every process takes part where weights are gathered; releases before 5.9 write them in every one.
        weights = plain(net.state_dict() if state_dict is None else state_dict)
        with tempfile.TemporaryDirectory() as nowhere:
            type(net).save_pretrained(_for_transformers(net), nowhere, False, weights, **options)
        return
    save_over(net, description, save_directory, writer(net, **options), state_dict)
    if push_to_hub:
        upload(Path(save_directory), hub.pop("repo_id", Path(save_directory).name), **hub)


HUB_OPTIONS = {"repo_id", "commit_message", "commit_description", "private", "token", "revision", "create_pr"}
"""Options of a save that are about the hub."""


def push_to_hub(
    net: PreTrainedModel,
    description: Description | None,
    repo_id: str,
    *,
    tags: list[str] | None = None,
    max_shard_size: int | str | None = "50GB",
    **options: Any,
) -> Any:
    """``push_to_hub`` of a converted network, with the options of transformers' own."""
    unknown = sorted(options.keys() - HUB_OPTIONS)
    if unknown:
        listed = ", ".join(sorted(HUB_OPTIONS))
        raise TypeError(f"push_to_hub: expected one of {listed}, got {shown(unknown[0])}")
    with tempfile.TemporaryDirectory() as folder:
        save_over(net, description, folder, writer(net, max_shard_size=max_shard_size))
        return upload(Path(folder), repo_id, tags=tags, **options)


def upload(
    folder: Path,
    repo_id: str,
    *,
    tags: list[str] | None = None,
    private: bool | None = None,
    token: bool | str | None = None,
    revision: str | None = None,
    commit_message: str | None = None,
    **options: Any,
) -> Any:
    """Uploads the files of a saved network in one commit; a model card on the hub that another wrote is kept."""
    from huggingface_hub import HfApi, ModelCard
    from huggingface_hub.errors import EntryNotFoundError

    from probattn.models.hosts.description import MARK

    hub = HfApi(token=token)
    repo = hub.create_repo(repo_id, private=private, exist_ok=True).repo_id
    if revision is not None and not revision.startswith("refs/pr"):
        hub.create_branch(repo_id=repo, branch=revision, exist_ok=True)
    names = [*verify_manifest(folder).files, MANIFEST]
    try:
        theirs = MARK not in ModelCard.load(repo, token=token if isinstance(token, str) else None).content
    except EntryNotFoundError:
        theirs = False
    if not theirs:
        names.append(CARD)
        if tags:
            card = ModelCard.load(folder / CARD)
            card.data.tags = [*dict.fromkeys([*(card.data.tags or []), *tags])]
            card.save(folder / CARD)
    options |= {"revision": revision, "commit_message": commit_message or "Upload model"}
    return hub.upload_folder(repo_id=repo, folder_path=folder, allow_patterns=names, **options)


def card_of(net: Any) -> str:
    """What the card of a network says of its attention; empty for one that is not converted."""
    host, record = host_of(net), conversion(net)
    if record is None:
        return ""
    return card_sections(Description.of(host, record, notes(host)), _auto_class(host))


def writer(net: Any, *args: Any, **options: Any) -> Writer:
    """Writes a network as its class does, or the adapters that PEFT has put on it."""
    method = type(net).save_pretrained
    if host_of(net) is net:
        return lambda folder, weights: method(_for_transformers(net), folder, state_dict=weights, **options)
    original = getattr(method, "__wrapped__", method)

    def write(folder: Path, _: dict[str, Tensor]) -> None:
        weights = plain(net.state_dict())
        with without_sites(net):
            original(net, str(folder), *args, state_dict=weights, **options)
        leave_out_folders(folder / CARD)

    return write


@contextmanager
def without_sites(net: nn.Module) -> Iterator[None]:
    """Sets what conversion added to modules aside, so that what is done to them is done to the host's own."""
    hosts = [module for module in net.modules() if ATTRIBUTE in module._modules]
    added = [module._modules.pop(ATTRIBUTE) for module in hosts]
    try:
        yield
    finally:
        for module, item in zip(hosts, added, strict=True):
            module._modules[ATTRIBUTE] = item


def _for_transformers(net: Any) -> Any:
    """A shallow copy to save: some options are refused beside another implementation than transformers' own."""
    copied = copy.copy(net)
    vars(copied).pop(EXIT, None)
    copied.config = copy.deepcopy(net.config)
    copied.config._attn_implementation = None
    return copied


def _write(
    net: Any,
    description: Description,
    draft: Path,
    write: Writer,
    weights: Mapping[str, Tensor] | None,
    further: Callable[[Path], object] | None = None,
) -> None:
    """Writes every file of a save into an empty folder."""
    present: dict[str, Tensor] = net.state_dict()
    state_dict = present if weights is None else weights
    absent = [name for name in present if is_site(name) and name not in state_dict]
    if absent:
        raise ValueError(
            f"{type(net).__name__}.save_pretrained: expected the sites' weights in state_dict, {absent[0]} is missing; "
            "give the state dict of the converted network, or none"
        )
    if description.methods:
        write_card(draft, description, _auto_class(net))  # before the host's, to which PEFT adds its own card
    write(draft, plain(state_dict))
    if not (draft / CONFIG_NAME).exists():  # adapters, whose base network was read with options
        _for_transformers(net).config.save_pretrained(draft)
        config = json.loads((draft / CONFIG_NAME).read_bytes())
        description = description.model_copy(update={"config": config})
        (draft / CONFIG_NAME).unlink()
    sites = {name: state_dict[name] for name in present if is_site(name)}
    if sites or description.methods:
        (draft / WEIGHTS).write_bytes(tensor_bytes(sites))
    description.write(draft)
    if further is not None:
        further(draft)
    _give_usual_permissions(draft)
    write_manifest(draft, without=(CARD,), draft=True)


def _publish(draft: Path, target: Path) -> None:
    """Replaces the files of an earlier save by those of a draft."""
    files = sorted(file.relative_to(draft) for file in draft.rglob("*") if file.is_file())
    variants = {match["variant"] for file in files if (match := STORED.fullmatch(file.name))}
    (draft / MANIFEST).replace(target / MANIFEST)
    for file in target.iterdir():
        match = STORED.fullmatch(file.name)
        if match and match["variant"] in variants and Path(file.name) not in files:
            file.unlink()
    if Path(CONFIG_NAME) not in files:
        (target / CONFIG_NAME).unlink(missing_ok=True)  # beside adapters that an earlier version saved
    for name in files:
        if name != Path(MANIFEST):
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            (draft / name).replace(target / name)
    sync_folder(target)


@contextmanager
def _draft(draft: Path, target: Path) -> Iterator[Path]:
    """A folder beside the files of an earlier save, which is gone afterwards; a full disk is told of the target."""
    try:
        with full_disk_explained(draft, f"saving a network to {target}"):
            draft.mkdir()
            yield draft
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _give_usual_permissions(folder: Path) -> None:
    """Has every file be as readable as one that was simply written; safetensors keeps its own from everybody else."""
    usual = stat.S_IMODE((folder / FILE).stat().st_mode)
    for file in folder.rglob("*"):
        if file.is_file():
            file.chmod(usual)


def _auto_class(net: Any) -> str:
    """The auto class of transformers that reads a network, for its card."""
    classes = vars(modeling_auto)  # dir(transformers) would look at every optional package
    for name in sorted(name for name in classes if name.startswith("AutoModel")):
        mapping = getattr(classes[name], "_model_mapping", None)
        if mapping is not None and mapping.get(type(net.config), None) is type(net):
            return name
    return type(net).__name__


def _exiting(original: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def exit_of(net: Any, *args: Any, **options: Any) -> Any:
        if EXIT in vars(net):
            return function(net, vars(net)[EXIT], *args, **options)
        return original(net, *args, **options)

    return exit_of


# On import, so that an unpickled network is saved whole.
for _function in (save_pretrained, push_to_hub):
    _name = _function.__name__
    setattr(PreTrainedModel, _name, _exiting(getattr(PreTrainedModel, _name), _function))
