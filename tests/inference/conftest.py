"""Fixtures of the driver's tests."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

PROGRAMS = Path(__file__).parent / "programs"
collect_ignore = ["programs"]  # run as scripts, from their own folder


@pytest.fixture(scope="session")
def tiny() -> ModuleType:
    """``programs/tiny.py``: a model that trains in milliseconds."""
    spec = importlib.util.spec_from_file_location("tiny", PROGRAMS / "tiny.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["tiny"] = module
    spec.loader.exec_module(module)
    return module
