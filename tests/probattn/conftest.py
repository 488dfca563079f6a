"""Fixtures of ``tiny.py``."""

from tiny import (
    _offline,
    command,
    graph_folder,
    graph_recipe,
    network,
    pairs_folder,
    recipe,
    reviews,
    run,
    translation_recipe,
    translation_run,
)

__all__ = [
    "_offline",
    "command",
    "graph_folder",
    "graph_recipe",
    "network",
    "pairs_folder",
    "recipe",
    "reviews",
    "run",
    "translation_recipe",
    "translation_run",
]
