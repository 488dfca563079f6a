"""Runs the tests with the lowest and with the newest versions that ``pyproject.toml`` allows: ``make compat``.

Environments are kept in a folder and brought up to date by the next run. torch from the index brings gigabytes of CUDA
packages; ``--torch`` keeps to a version, such as one that pip finds on disk.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
# Among the lowest versions, packages use what newer ones of their own dependencies no longer recommend.
LENIENT = ["-W", "default::DeprecationWarning"]
SHOWN = ("torch", "transformers", "pyro-ppl", "numpy", "typer")
COUNTS = ("passed", "failed", "skipped")


def lowest(project: dict[str, Any], extras: Iterable[str]) -> Iterator[str]:
    """The lowest version that each requirement allows, as constraints.

    Args:
        project: the table of this name in ``pyproject.toml``.
        extras: whose requirements count beside the project's own; an extra may name others of the same project.

    Raises:
        ValueError: a requirement gives no lowest version.

    Example:
        >>> extras = {"all": ["own[plot]"], "plot": ["figures>=3.9"]}
        >>> list(lowest({"name": "own", "dependencies": ["sums>=2,<3"], "optional-dependencies": extras}, ["all"]))
        ['sums==2', 'figures==3.9']
    """
    optional = project["optional-dependencies"]
    for text in [*project["dependencies"], *(text for extra in extras for text in optional[extra])]:
        requirement = Requirement(text)
        if canonicalize_name(requirement.name) == canonicalize_name(project["name"]):
            yield from lowest({**project, "dependencies": []}, sorted(requirement.extras))
            continue
        floors = [each.version for each in requirement.specifier if each.operator == ">="]
        if not floors:
            raise ValueError(f"{text}: expected a lowest version, NAME>=VERSION")
        yield f"{requirement.name}=={floors[0]}"


def constraints(environment: str, torch: str | None) -> list[str]:
    """What pip is held to in an environment, ``"lowest"`` or ``"newest"``; ``torch`` replaces torch's version."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    pins = sorted(set(lowest(project, ["demo", "dev"]))) if environment == "lowest" else []
    if torch is None:
        return pins
    return [*(pin for pin in pins if not pin.startswith("torch==")), f"torch=={torch}"]


def build(folder: Path, pins: list[str], alone: list[str]) -> Path:
    """Makes an environment; returns its interpreter. ``alone`` are packages without what they declare."""
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    held = folder / "constraints.txt"
    held.write_text("".join(f"{pin}\n" for pin in pins), encoding="utf-8")
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--constraint", held]
    newest = ["--upgrade", "--upgrade-strategy", "eager"]
    subprocess.run([*install, *newest, "--editable", f"{ROOT}[dev]"], check=True)
    if alone:
        subprocess.run([*install, "--upgrade", "--no-deps", *alone], check=True)
    return python


def versions(python: Path) -> list[str]:
    """The versions of ``SHOWN`` in an environment."""
    code = "import sys; from importlib.metadata import version; print(*map(version, sys.argv[1:]))"
    done = subprocess.run([python, "-c", code, *SHOWN], check=True, capture_output=True, text=True)
    return done.stdout.split()


def run_tests(python: Path, options: list[str], record: Path) -> list[int]:
    """Runs pytest from the repository's folder; returns ``COUNTS``, of which errors are failures."""
    record.unlink(missing_ok=True)
    subprocess.run(
        [python, "-m", "pytest", "--quiet", f"--junitxml={record}", *options], cwd=ROOT, check=False
    )
    return counts(ET.parse(record).getroot()) if record.exists() else [0, 1, 0]


def counts(record: ET.Element) -> list[int]:
    """``COUNTS`` of a record in JUnit's format.

    Example:
        >>> counts(ET.fromstring('<a><testsuite tests="9" failures="1" errors="1" skipped="2"/></a>'))
        [5, 2, 2]
    """
    total = dict.fromkeys(("tests", "failures", "errors", "skipped"), 0)
    for suite in record.iter("testsuite"):
        total = {name: total[name] + int(suite.get(name, 0)) for name in total}
    failed = total["failures"] + total["errors"]
    return [total["tests"] - failed - total["skipped"], failed, total["skipped"]]


def main() -> int:
    """Builds the environments, runs the tests in each and prints a table; 1 where a test failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "probattn-compat")
    parser.add_argument("--only", choices=("lowest", "newest"), help="one environment instead of both")
    parser.add_argument("--torch", metavar="VERSION", help="torch's version in both")
    parser.add_argument("--alone", nargs="*", default=[], metavar="PACKAGE", help="installed with --no-deps")
    parser.add_argument(
        "--pytest", default="", metavar="OPTIONS", help="such as 'tests/models -m \"not slow\"'"
    )
    arguments = parser.parse_args()
    rows = [["environment", *SHOWN, *COUNTS]]
    for environment in [arguments.only] if arguments.only else ["lowest", "newest"]:
        folder = arguments.folder / environment
        python = build(folder, constraints(environment, arguments.torch), arguments.alone)
        options = [*(LENIENT if environment == "lowest" else []), *shlex.split(arguments.pytest)]
        counted = run_tests(python, options, folder / "tests.xml")
        rows.append([environment, *versions(python), *map(str, counted)])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    return int(any(int(row[-2]) for row in rows[1:]))


if __name__ == "__main__":
    sys.exit(main())
