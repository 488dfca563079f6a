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


@pytest.mark.slow
def test_with_and_without_the_variable(tmp_path: Path) -> None:
    """Both tests above, in processes of their own: the second one needs the variable."""
    for variable, expected in ({"PROBATTN_DATA": str(tmp_path)}, "2 passed"), ({}, "1 passed, 1 skipped"):
        names = [
            f"{__file__}::{test.__name__}"
            for test in (test_hidden_without_the_fixture, test_shown_by_the_fixture)
        ]
        environment = {
            name: value for name, value in os.environ.items() if name != "PROBATTN_DATA"
        } | variable
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *names]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert expected in done.stdout, done.stdout + done.stderr
