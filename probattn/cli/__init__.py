"""The command line: reads arguments and prints; what commands do is in :mod:`probattn.tasks`."""

from probattn.checks import optional

for _package in ("typer", "rich"):
    optional("probattn", _package, "cli")

from probattn.cli.app import app as app
