"""``python -m probattn``: the command line, for launchers that start modules."""

from probattn.cli import app

if __name__ == "__main__":
    app(prog_name="probattn")
