"""Saved networks on the Hugging Face hub."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from probattn.files.json_files import read_json
from probattn.files.manifest import MANIFEST, Manifest
from probattn.models.hosts.description import FILE
from probattn.models.hosts.pretrained import StoredNetworkError, unreadable

ACCESS = ("token", "cache_dir", "local_files_only", "force_download")
"""Options of ``from_pretrained`` that are about the hub."""


class OutOfReachError(StoredNetworkError):
    """A name on the hub of which it is not known whether this library's files are there."""


def fetched(source: Path | str, revision: str | None, options: dict[str, Any]) -> Path:
    """The folder of a saved network: a local one as it is, one on the hub after its files were downloaded.

    Options about the hub are taken out of ``options``.

    Raises:
        StoredNetworkError: no such name, no such revision, no access, or nothing of this library's there.
    """
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
    """The folder of a saved network on the hub, after its files were downloaded; None if it holds none of this library.

    Raises:
        OutOfReachError: no such name, no such revision, or no access.
        StoredNetworkError: files are missing.
    """
    from huggingface_hub import constants, hf_hub_download, snapshot_download

    try:
        described = _description(name, access)
    except Exception as error:  # of many kinds: of the hub, of its client, of the network, of the disk
        raise OutOfReachError(str(unreadable(name, error))) from error
    if described is None:
        return None
    where: dict[str, Any] = {"repo_id": name, **access}
    where["revision"] = described.parent.name  # the commit, so that all files are of one
    try:
        sums = Path(hf_hub_download(filename=MANIFEST, **where))
        names = list(read_json(sums, TypeAdapter(Manifest)).files)
        where |= (
            {"local_files_only": True} if constants.HF_HUB_OFFLINE else {}
        )  # older releases ask nevertheless
        return Path(snapshot_download(allow_patterns=[FILE, MANIFEST, *names], **where))
    except Exception as error:  # likewise
        raise unreadable(name, error) from error


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
