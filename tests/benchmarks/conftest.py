"""Fixtures of ``tiny.py``."""

from tiny import _offline, network, recipe, reviews

__all__ = ["_offline", "network", "recipe", "reviews"]
