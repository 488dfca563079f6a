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


def fetched(source: Path | str, revision: str | None, options: dict[str, Any]) -> Path:
    """The folder of a saved network: a local one as it is, one on the hub after its files were downloaded.

    Options about the hub are taken out of ``options``.

    Raises:
        StoredNetworkError: no such name, no such revision, no access, or nothing of this library's there.
    """
    access = {name: options.pop(name) for name in ACCESS if name in options}
    folder = Path(source)
    if isinstance(source, Path) or folder.exists() or not _is_name(source):
        return folder
    from huggingface_hub import hf_hub_download, snapshot_download
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    where: dict[str, Any] = {"repo_id": source, "revision": revision, **access}
    try:
        described = Path(hf_hub_download(filename=FILE, **where))
        where["revision"] = described.parent.name  # the commit, so that all files are of one
        sums = Path(hf_hub_download(filename=MANIFEST, **where))
        names = list(read_json(sums, TypeAdapter(Manifest)).files)
        return Path(snapshot_download(allow_patterns=[FILE, MANIFEST, *names], **where))
    except LocalEntryNotFoundError as error:
        raise unreadable(source, error) from error
    except EntryNotFoundError as error:
        raise StoredNetworkError(
            f"{source}: no {FILE} and {MANIFEST} there; expected a network that save_pretrained or push_to_hub of a "
            "converted network wrote; a plain one is read by transformers, and probattn.models.convert makes it "
            "probabilistic"
        ) from error
    except Exception as error:  # of many kinds: of the hub, of its client, of the network, of the disk
        raise unreadable(source, error) from error


def _is_name(source: str) -> bool:
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils._validators import validate_repo_id

    try:
        validate_repo_id(source)
    except HFValidationError:
        return False
    return True
