"""The manifest of a folder: the size and the SHA-256 sum of each of its files, so that a changed one is noticed.

Checkpoints, saved networks and the networks of a run have one each. Files that the manifest does not name are not
checked, so others may be added to a folder.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path, PureWindowsPath
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from probattn.checks import shown
from probattn.files.durable import FileDigest, file_sha256, write_atomically
from probattn.files.json_files import JSONError, read_json

FORMAT = 1
MANIFEST = "manifest.json"


class DamagedFolderError(ValueError):
    """A folder with a file that is missing or not what was written; the message names the file, not the folder."""


class Manifest(BaseModel):
    """The files of a folder, by path below it with ``/``; ``step`` is the number of updates of a checkpoint."""

    model_config = ConfigDict(frozen=True, strict=True)

    format: int
    step: Annotated[int, Field(ge=0)] | None = None
    files: dict[str, FileDigest]


def write_manifest(
    folder: Path,
    files: Mapping[str, FileDigest] | None = None,
    *,
    step: int | None = None,
    without: Collection[str] = (),
    draft: bool = False,
) -> None:
    """Writes a folder's manifest, from digests or its files ``without`` some; not atomically in a ``draft``."""
    content = _content(_digests(folder, {MANIFEST, *without}) if files is None else files, step)
    if draft:
        (folder / MANIFEST).write_bytes(content)
    else:
        write_atomically(folder / MANIFEST, content)


def manifest_content(folder: Path, *, without: Collection[str] = ()) -> bytes:
    """The manifest of a folder; of a folder without one what :func:`write_manifest` would write."""
    file = folder / MANIFEST
    return file.read_bytes() if file.exists() else _content(_digests(folder, {MANIFEST, *without}))


def _content(digests: Mapping[str, FileDigest], step: int | None = None) -> bytes:
    manifest = Manifest(format=FORMAT, step=step, files=dict(digests))
    return manifest.model_dump_json(indent=1, exclude_none=True).encode()


def extend_manifest(folder: Path, *, without: Collection[str] = ()) -> None:
    """Writes a manifest of all files of a draft; of files older than the manifest that it has, the sums stay."""
    digests: dict[str, FileDigest] = {}
    if (folder / MANIFEST).exists():
        written = (folder / MANIFEST).stat().st_mtime_ns
        stored = read_json(folder / MANIFEST, TypeAdapter(Manifest)).files
        digests = {name: stored[name] for name in stored if (folder / name).stat().st_mtime_ns < written}
    write_manifest(folder, digests | _digests(folder, {MANIFEST, *without, *digests}), draft=True)


def verify_manifest(folder: Path, *, sizes_only: bool = False) -> Manifest:
    """Compares a folder's files, or their ``sizes_only``, with its manifest; :class:`DamagedFolderError` names one."""
    try:
        manifest = read_json(folder / MANIFEST, TypeAdapter(Manifest))
    except (JSONError, OSError) as error:
        reason = str(error).removeprefix(f"{folder / MANIFEST}: ")
        raise DamagedFolderError(f"no readable {MANIFEST} ({reason})") from error
    if manifest.format != FORMAT:
        raise DamagedFolderError(
            f"{MANIFEST}: expected format {FORMAT}, got {manifest.format}; it is from another version of probattn"
        )
    for name, expected in manifest.files.items():
        if not is_within(name):
            raise DamagedFolderError(f"{MANIFEST}: expected names of files in its folder, got {shown(name)}")
        try:
            _compare(folder / name, name, expected, sizes_only=sizes_only)
        except (OSError, ValueError) as error:
            raise DamagedFolderError(str(error)) from error
    return manifest


def verify_folder(folder: Path, *, sizes_only: bool = False) -> None:
    """As :func:`verify_manifest` for a folder that may have no manifest, as those of other programs."""
    if (folder / MANIFEST).exists():
        verify_manifest(folder, sizes_only=sizes_only)


def is_within(name: str) -> bool:
    """Whether a name with ``/`` is that of a file in a folder or below it, whatever the system."""
    path = PureWindowsPath(name)  # knows both separators, and drives
    return bool(path.parts) and not path.anchor and ".." not in path.parts and "\0" not in name


def _digests(folder: Path, without: Collection[str]) -> dict[str, FileDigest]:
    return {
        name: FileDigest(file.stat().st_size, file_sha256(file))
        for file in sorted(folder.rglob("*"))
        if file.is_file() and (name := file.relative_to(folder).as_posix()) not in without
    }


def _compare(file: Path, name: str, expected: FileDigest, *, sizes_only: bool) -> None:
    if not file.is_file():
        raise DamagedFolderError(f"{name} is missing")
    size = file.stat().st_size
    if size != expected.size:
        raise DamagedFolderError(f"{name} has {size} bytes, expected {expected.size}")
    if not sizes_only and file_sha256(file) != expected.sha256:
        raise DamagedFolderError(f"the content of {name} has changed (SHA-256 differs)")
