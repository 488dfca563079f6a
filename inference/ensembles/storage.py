"""The file of an ensemble: tensors and names, written at once and read without running code."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from pickle import UnpicklingError
from typing import NamedTuple

import torch
from torch import Tensor

from probattn.files.durable import replace_atomically
from probattn.inference.checkpoint import plain_values

FORMAT = 1


class StoredEnsemble(NamedTuple):
    """What the file holds.

    Attributes:
        num_particles: P.
        parameters: names of the stacked parameters.
        buffers: names of the stacked buffers.
        state: state dictionary of the model, stacks included, on the CPU.
    """

    num_particles: int
    parameters: list[str]
    buffers: list[str]
    state: dict[str, Tensor]


def write_ensemble(
    path: Path,
    num_particles: int,
    parameters: Sequence[str],
    buffers: Sequence[str],
    state: Mapping[str, Tensor],
) -> None:
    """Writes the file.

    Raises:
        OSError: the write failed; what was there is untouched.
    """
    stored = StoredEnsemble(num_particles, list(parameters), list(buffers), dict(state))
    content = plain_values({"format": FORMAT, **stored._asdict()}, str(path))
    replace_atomically(path, lambda file: torch.save(content, file))


def read_ensemble(path: Path) -> StoredEnsemble:
    """Reads the file.

    Raises:
        OSError: no such file.
        ValueError: not such a file, or of another version.
    """
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (RuntimeError, ValueError, EOFError, UnpicklingError, zipfile.BadZipFile) as error:
        raise ValueError(
            f"{path}: expected an ensemble that was saved, got an unreadable file ({error})"
        ) from error
    found = content.get("format") if isinstance(content, dict) else None
    if found != FORMAT:
        raise ValueError(
            f"{path}: expected a saved ensemble of format {FORMAT}, got {found!r}; it is no ensemble, or from another "
            "version of probattn"
        )
    return StoredEnsemble(**{name: content[name] for name in StoredEnsemble._fields})
