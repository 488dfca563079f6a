"""The command line: reads arguments and prints; what commands do is in :mod:`probattn.tasks`."""

from probattn.cli.app import app as app
