"""The file of an IBM Model 1: safetensors, the words in its header."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save
from scipy.sparse import csr_matrix

from probattn.data import DataError
from probattn.files.durable import write_atomically

_FORMAT = "probattn.IBMModel1/1"


class Content(NamedTuple):
    """What the file holds."""

    counts: csr_matrix
    """``[I, O]``, or ``[I + 1, O]`` with NULL."""
    source_words: tuple[str, ...]
    target_words: tuple[str, ...]
    steps: int
    null: bool


def write(path: Path, content: Content) -> None:
    """Writes a file beside ``path`` and puts it in its place.

    Args:
        path: of the file.
        content: of the file.

    Raises:
        OSError: it cannot be written.
    """
    counts = content.counts
    arrays = {"data": counts.data, "indices": counts.indices, "indptr": counts.indptr.astype(np.int64)}
    header = {
        "format": _FORMAT,
        "source_words": json.dumps(content.source_words),
        "target_words": json.dumps(content.target_words),
        "steps": str(content.steps),
        "null": json.dumps(content.null),
    }
    write_atomically(path, save(arrays, metadata=header))


def read(path: Path) -> Content:
    """Reads a file and checks that its parts fit each other.

    Args:
        path: of the file.

    Returns:
        What it holds.

    Raises:
        DataError: there is no such file, or it is damaged or something else.
    """
    if not path.is_file():
        raise DataError(
            f"{path}: expected the file of an IBM Model 1, got {'a folder' if path.is_dir() else 'no file'}"
        )
    try:
        with safe_open(path, framework="numpy") as file:
            header = file.metadata() or {}
            if header.get("format") != _FORMAT:
                raise DataError(
                    f"{path}: expected a file that IBMModel1.save wrote ({_FORMAT}), "
                    f"got one of format {header.get('format', 'unknown')!r}"
                )
            arrays = {name: file.get_tensor(name) for name in ("data", "indices", "indptr")}
        words = [tuple(json.loads(header[name])) for name in ("source_words", "target_words")]
        steps, null = int(header["steps"]), bool(json.loads(header["null"]))
        shape = len(words[0]) + null, len(words[1])
        counts = csr_matrix((arrays["data"], arrays["indices"], arrays["indptr"]), shape=shape)
        counts.check_format(full_check=True)
    except DataError:
        raise
    except (SafetensorError, KeyError, ValueError, TypeError, OSError) as error:
        raise DataError(
            f"{path}: damaged, cannot be read as an IBM Model 1 ({error}); fit and save it again"
        ) from error
    return Content(counts, words[0], words[1], steps, null)
