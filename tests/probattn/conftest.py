"""Fixtures of ``tiny.py``, and garbage collections that pass over what is imported."""

import gc

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


def pytest_collection_finish() -> None:
    """Collections took half of the time of tests of the trainer: transformers' own asks for one in every training."""
    gc.collect()
    gc.freeze()
