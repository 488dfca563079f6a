"""What the tests of the trainer share."""

from __future__ import annotations

import gc
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

PROGRAMS = Path(__file__).parent / "programs"
collect_ignore = ["programs"]  # run as scripts, from their own folder


@pytest.fixture(scope="session")
def scene() -> ModuleType:
    """``programs/scene.py``: networks, rows and trainers of milliseconds."""
    spec = importlib.util.spec_from_file_location("scene", PROGRAMS / "scene.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["scene"] = module
    spec.loader.exec_module(module)
    gc.collect()
    gc.freeze()  # what it imports, see the folder above
    return module
