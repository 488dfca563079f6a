"""Public data sets reach the tests that take ``public_data``, and no others."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest


def test_hidden_without_the_fixture() -> None:
    assert "PROBATTN_DATA" not in os.environ


def test_shown_by_the_fixture(public_data: Callable[..., Path]) -> None:
    folder = public_data(".")
    assert os.environ["PROBATTN_DATA"] == str(folder)


def test_skipped_where_a_part_is_missing(public_data: Callable[..., Path]) -> None:
    public_data("no such part")
    pytest.fail("it was shown")


@pytest.mark.slow
def test_with_the_variable(tmp_path: Path) -> None:
    """The tests above, in a process of their own; without the variable the last two are skipped in every run."""
    tests = (test_hidden_without_the_fixture, test_shown_by_the_fixture, test_skipped_where_a_part_is_missing)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += [f"{__file__}::{test.__name__}" for test in tests]
    environment = os.environ | {"PROBATTN_DATA": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert "2 passed, 1 skipped" in done.stdout, done.stdout + done.stderr
    assert f"{tmp_path} lacks no such part" in done.stdout
