"""What is shipped, and what the guards of the linked folders say."""

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def run(*command: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **variables}
    return subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, check=False, timeout=120
    )


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and the wheel that was built from that sdist."""
    folder = tmp_path_factory.mktemp("dist")
    done = run(
        sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT), cwd=folder
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def installed(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel's files, as an installer lays them."""
    folder = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        wheel.extractall(folder)
    return folder


def modules(folder: Path) -> set[Path]:
    return {path.relative_to(folder) for path in folder.rglob("*.py") if "__pycache__" not in path.parts}


def test_wheel_holds_one_top_level_name(installed: Path) -> None:
    names = {path.name for path in installed.iterdir()}
    information = {name for name in names if name.endswith(".dist-info")}
    assert len(information) == 1
    assert names - information == {"probattn"}


def test_wheel_holds_every_module_once_and_no_link(installed: Path) -> None:
    own = {path for path in modules(ROOT / "probattn") if path.parts[0] not in {"models", "inference"}}
    linked = {Path(name) / path for name in ("models", "inference") for path in modules(ROOT / name)}
    assert modules(installed / "probattn") == own | linked
    assert (installed / "probattn" / "py.typed").is_file()
    assert not [path for path in installed.rglob("*") if path.is_symlink()]


def test_wheel_holds_recipes_and_templates(installed: Path) -> None:
    kinds = {".yaml", ".html", ".css", ".js", ".j2", ".jinja"}
    for name in ("models", "inference"):
        wanted = {path.relative_to(ROOT) for path in (ROOT / name).rglob("*") if path.suffix in kinds}
        assert {path for path in wanted if not (installed / "probattn" / path).is_file()} == set()


def test_wheel_imports_from_where_it_is_installed(installed: Path, tmp_path: Path) -> None:
    names = ("probattn", "probattn.models", "probattn.inference")
    code = f"import {', '.join(names)}; print(*(m.__file__ for m in ({', '.join(names)})), sep='\\n')"
    done = run(sys.executable, "-c", code, cwd=tmp_path, PYTHONPATH=str(installed))
    assert done.returncode == 0, done.stderr
    files = [Path(line) for line in done.stdout.split("\n")[:3]]
    assert [file.relative_to(installed).as_posix() for file in files] == [
        "probattn/__init__.py",
        "probattn/models/__init__.py",
        "probattn/inference/__init__.py",
    ]


def test_sdist_holds_what_a_wheel_is_built_from(built: Path) -> None:
    with tarfile.open(next(built.glob("*.tar.gz"))) as sdist:
        members = {Path(*Path(member.name).parts[1:]).as_posix(): member for member in sdist.getmembers()}
    assert {"pyproject.toml", "models/__init__.py", "inference/__init__.py", "LICENSE"} <= set(members)


@pytest.mark.parametrize("name", ["models", "inference"])
def test_bare_import_names_the_import_to_write(name: str) -> None:
    done = run(sys.executable, "-c", f"import {name}", cwd=ROOT)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: ")
    assert f"write `import probattn.{name}`" in last


@pytest.mark.parametrize("name", ["models", "inference"])
def test_links_are_relative(name: str) -> None:
    link = ROOT / "probattn" / name
    assert link.is_symlink()
    assert link.readlink() == Path("..", name)
