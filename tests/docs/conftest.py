"""The hooks of the documentation, loaded as mkdocs loads them: with their folder on the path."""

import importlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

EXTENSIONS = Path(__file__).resolve().parents[2] / "docs" / "_extensions"


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """The module of a name in docs/_extensions."""
    monkeypatch.syspath_prepend(EXTENSIONS)
    return importlib.import_module
