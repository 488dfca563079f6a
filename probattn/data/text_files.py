"""Reading text files, with errors that say where."""

from __future__ import annotations

import gzip
import zlib
from difflib import get_close_matches
from pathlib import Path

from probattn.data.errors import DataError


def read_text(path: Path, *, encoding: str = "utf-8") -> str:
    """The text of a file, its line ends as they are and without a byte-order mark.

    Args:
        path: the file; unpacked if its name ends in ``.gz``.
        encoding: UTF-8 unless a data set is known to be otherwise.

    Returns:
        The text, not blank.

    Raises:
        DataError: no such file, a folder, an unreadable, damaged or empty file, or bytes that are not of the encoding.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise DataError(f"{path}: no such file{_neighbour(path)}") from None
    except IsADirectoryError:
        raise DataError(f"{path}: expected a file, got a folder") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from None
    if path.suffix == ".gz":
        data = _unpacked(path, data)
    if not data.strip():
        raise DataError(f"{path}: expected text, got an empty file")
    try:
        return data.decode(encoding).removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise DataError(
            f"{path} line {line}: expected UTF-8 text, got the byte 0x{data[error.start]:02x} (offset {error.start}); "
            f"save the file as UTF-8, for instance: iconv -f ISO-8859-1 -t UTF-8 {path.name}"
        ) from None


def _unpacked(path: Path, data: bytes) -> bytes:
    try:
        return gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: expected a gzip file, got another or a damaged one ({error})") from None


def _neighbour(path: Path) -> str:
    try:
        names = [entry.name for entry in path.parent.iterdir()]
    except OSError:
        return f"; there is no folder {path.parent}" if not path.parent.exists() else ""
    near = get_close_matches(path.name, names, n=1, cutoff=0.6)
    return f"; did you mean {near[0]!r}?" if near else f" in {path.parent.resolve()}"
