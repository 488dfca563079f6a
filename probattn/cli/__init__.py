"""The command line: reads arguments and prints; what commands do is in :mod:`probattn.tasks`."""

from importlib.util import find_spec

from probattn.checks import missing

if absent := [package for package in ("typer", "rich") if find_spec(package) is None]:
    raise missing("probattn", absent[0], "cli")

from probattn.cli.app import app as app
