"""The command line; the one place that composes models and inference."""

from probattn.cli.app import app as app
