"""The folder of public data that an environment variable names."""

from __future__ import annotations

import os
from pathlib import Path

from probattn.data.errors import DataError

DATA_VARIABLE = "PROBATTN_DATA"


def data_file(name: str, relative: str, *, origin: str) -> Path:
    """Path of a file in the folder of public data.

    Args:
        name: the data set.
        relative: path below the folder.
        origin: where the file is to be had.

    Returns:
        The path, which exists.

    Raises:
        DataError: the folder is not named, or lacks the file.
    """
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
