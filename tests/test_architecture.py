"""Which package may import which, on the tree and on trees that break the rules."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def lint_imports(root: Path) -> subprocess.CompletedProcess[str]:
    code = "import sys; from importlinter.cli import lint_imports_command; sys.exit(lint_imports_command())"
    return subprocess.run(
        [sys.executable, "-c", code, "--no-cache"],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


FORBIDDEN = [
    ("models", "probattn.inference"),
    ("inference", "probattn.models"),
    ("probattn/sites", "probattn.models"),
    ("probattn/distributions", "probattn.sites"),
    ("probattn/metrics", "probattn.inference"),
    ("probattn/data", "probattn.models"),
]


@pytest.fixture(scope="module")
def complaints(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The linter's report on a copy of the tree with all these imports."""
    tree = tmp_path_factory.mktemp("tree")
    for name in ("probattn", "models", "inference"):
        shutil.copytree(ROOT / name, tree / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tree)
    for where, what in FORBIDDEN:
        (tree / where / "intruder.py").write_text(f"import {what}\n")
    done = lint_imports(tree)
    assert done.returncode != 0
    return done.stdout


def test_every_arrow_points_its_way() -> None:
    done = lint_imports(ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(("where", "what"), FORBIDDEN)
def test_a_forbidden_import_is_found(complaints: str, where: str, what: str) -> None:
    intruder = where.removeprefix("probattn/").replace("/", ".") + ".intruder"
    assert f"probattn.{intruder} -> {what}" in complaints
