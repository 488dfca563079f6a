"""Writing files so that a crash, a kill or a full disk never leaves half of one under its final name."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from safetensors import SafetensorError

if TYPE_CHECKING:
    from torch import Tensor

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
"""Error numbers of a disk, or a quota, without room."""
NUMBER = re.compile(r"\(os error (\d+)\)")
PROBE = 1 << 16
"""Bytes that are written to see whether a disk has room."""


@dataclass(frozen=True)
class FileDigest:
    """Size of a file in bytes and its SHA-256 sum, hexadecimal."""

    size: int
    sha256: str


class DigestingFile:
    """A binary file being written that counts and hashes its bytes; ``error`` is the system's, which torch hides."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: BinaryIO = path.open("xb")
        self._digest = hashlib.sha256()
        self.size = 0
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        """Writes a bytes-like object."""
        try:
            self._file.write(data)
        except OSError as error:
            self.error = error
            raise
        self._digest.update(data)
        count = memoryview(data).nbytes
        self.size += count
        return count

    def flush(self) -> None:
        """Flushes Python's buffer."""
        try:
            self._file.flush()
        except OSError as error:
            self.error = error
            raise

    def close(self, *, sync: bool) -> None:
        """Closes the file, after forcing it onto the disk when ``sync``."""
        try:
            if sync:
                self._file.flush()
                os.fsync(self._file.fileno())
        finally:
            self._file.close()

    @property
    def sha256(self) -> str:
        """Hexadecimal digest of what was written."""
        return self._digest.hexdigest()


def write_digested(path: Path, write: Callable[[Any], None]) -> FileDigest:
    """Writes and syncs a file through ``write(file)``; raises the system's ``OSError`` even where ``write`` hid it."""
    file = DigestingFile(path)
    try:
        write(file)
    except BaseException as failure:
        try:
            file.close(sync=False)
        except OSError as error:
            file.error = file.error or error
        if file.error is not None and file.error is not failure:
            raise file.error from failure
        raise
    file.close(sync=True)
    return FileDigest(file.size, file.sha256)


def file_sha256(path: Path) -> str:
    """SHA-256 of a file, in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest(chunks: Iterable[str | bytes]) -> str:
    """A fingerprint of data."""
    hasher = hashlib.sha256()
    for chunk in chunks:
        hasher.update(chunk.encode(errors="replace") if isinstance(chunk, str) else chunk)
    return hasher.hexdigest()[:16]


def sync_folder(folder: Path) -> None:
    """Forces a folder's entries (names, renames) onto the disk, where the system allows to open folders."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def publish_folder(draft: Path, target: Path) -> None:
    """Gives a complete folder its name by one rename; one that has the name already is moved beside it and removed."""
    replaced = draft.with_name(f"{draft.name}.replaced")
    if target.exists():
        target.rename(replaced)
    draft.rename(target)
    sync_folder(target.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def write_atomically(path: Path, content: bytes) -> None:
    """Replaces a file's content at once: readers see the old or the new content, also when the write fails."""
    replace_atomically(path, lambda file: file.write(content))


def replace_atomically(path: Path, write: Callable[[Any], None]) -> None:
    """As :func:`write_atomically` through ``write(file)``, for content that need not be in memory as a whole."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.unlink(missing_ok=True)
        write_digested(temporary, write)
        temporary.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        raise explain_os_error(error, f"writing {path}") from error
    finally:
        temporary.unlink(missing_ok=True)  # what is left of it after an error or an interruption


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Replaces a file of safetensors atomically, with the permissions of a new file."""
    write_atomically(path, tensor_bytes(tensors))


def tensor_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    """The content of a file of safetensors."""
    from safetensors.torch import save

    return save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})


def explain_os_error(error: OSError, doing: str) -> OSError:
    """The same kind of error with a message that names the operation and gives advice."""
    return OSError(error.errno, f"{doing}: {os_error_words(error)}")


@contextmanager
def full_disk_explained(folder: Path, doing: str) -> Iterator[None]:
    """Raises ``OSError`` with advice where a write inside fails for want of room, which torch does not name."""
    try:
        yield
    except (OSError, RuntimeError, SafetensorError) as error:
        named = NUMBER.search(str(error))
        number = error.errno if isinstance(error, OSError) else int(named[1]) if named else _probed(folder)
        if number not in FULL:
            raise
        raise explain_os_error(OSError(number, os.strerror(number)), doing) from error


def _probed(folder: Path) -> int | None:
    """Number of the error of a write into a folder; None if it succeeds."""
    probe = folder / f".{os.getpid()}.probe"
    try:
        probe.write_bytes(bytes(PROBE))
    except OSError as error:
        return error.errno
    finally:
        probe.unlink(missing_ok=True)
    return None


def os_error_words(error: OSError) -> str:
    """Text of a system error about a path, with advice."""
    if error.errno in FULL:
        return "the disk is full: free some space and resume"
    return (
        f"{error.strerror or error}; expected a path that this user may read and write: check it and its permissions, "
        "or choose another"
    )
