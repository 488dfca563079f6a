"""The command line; the one place that composes models and inference."""

from probattn.cli.app import app

__all__ = ["app"]
