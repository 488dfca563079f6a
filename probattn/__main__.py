"""The program ``probattn``, also as ``python -m probattn`` for launchers that start modules."""

import sys

from probattn.checks import MissingPackageError


def main() -> None:
    """Runs the command line; what an extra would bring and is not installed is one line and exit status 2."""
    try:
        from probattn.cli import app

        app(prog_name="probattn")
    except MissingPackageError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2)


if __name__ == "__main__":
    main()
