"""The program ``probattn``, also as ``python -m probattn`` for launchers that start modules."""

import contextlib
import ctypes
import os
import sys

from probattn.checks import MissingPackageError

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # of malloc.h


def main() -> None:
    """Runs the command line; what an extra would bring and is not installed is one line and exit status 2."""
    keep_freed_memory()
    try:
        from probattn.cli import app

        app(prog_name="probattn")
    except MissingPackageError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2)


def keep_freed_memory() -> None:
    """Lets glibc keep freed memory for the next update, see mallopt(3), unless the environment says how it is kept."""
    if any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ):
        return
    with contextlib.suppress(AttributeError, OSError, TypeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(M_MMAP_MAX, 0)
        libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


if __name__ == "__main__":
    main()
