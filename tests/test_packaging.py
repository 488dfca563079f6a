"""What is shipped, and what the guards of the linked folders say."""

import importlib.util
import os
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.metadata import Metadata
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
CONDA_NAMES = {"matplotlib": "matplotlib-base", "torch": "pytorch"}
"""Packages that have another name there."""


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


def test_the_index_is_told_what_it_shows(installed: Path) -> None:
    file = next(installed.glob("*.dist-info")) / "METADATA"
    shown = Metadata.from_email(file.read_bytes(), validate=True)
    assert (shown.name, str(shown.version)) == (PROJECT["name"], PROJECT["version"])
    assert (shown.license_expression, shown.license_files) == ("Apache-2.0", ["LICENSE"])
    assert (shown.summary, shown.description_content_type) == (PROJECT["description"], "text/markdown")
    assert shown.description == (ROOT / "README.md").read_text(encoding="utf-8")
    assert str(shown.requires_python) == PROJECT["requires-python"]
    assert set(shown.provides_extra or ()) == {
        name.replace("_", "-") for name in PROJECT["optional-dependencies"]
    }
    assert {"selective prediction", "uncertainty quantification", "conformal prediction"} <= set(
        shown.keywords or ()
    )
    assert (
        f"Programming Language :: Python :: {PROJECT['requires-python'].removeprefix('>=')}"
        in PROJECT["classifiers"]
    )


def test_links_of_the_readme_lead_somewhere_on_the_index() -> None:
    spec = importlib.util.spec_from_file_location("dist", ROOT / ".ci" / "dist.py")
    assert spec is not None and spec.loader is not None
    dist = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(dist)
    text = "![a](b.png) [c](d.md#e), [f](https://g.h) and [i](#j)"
    absolute = "![a](https://s/raw/v1/b.png) [c](https://s/blob/v1/d.md#e), [f](https://g.h) and [i](#j)"
    assert dist.for_index(text, "https://s", "1") == absolute
    assert dist.for_index(text, None, "1") == " c, [f](https://g.h) and [i](#j)"
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert dist.LINK.search(readme) and not dist.LINK.search(dist.for_index(readme, None, "1"))


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


@pytest.mark.slow
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


def test_packages_are_attributes_after_one_import() -> None:
    code = (
        "import probattn; print(probattn.models.revert, probattn.inference.SVIDriver); probattn.no_such_name"
    )
    done = run(sys.executable, "-c", code, cwd=ROOT)
    assert done.stdout.startswith("<function revert")
    assert done.stderr.strip().endswith("AttributeError: module 'probattn' has no attribute 'no_such_name'")


@pytest.mark.parametrize("name", ["models", "inference"])
def test_links_are_relative(name: str) -> None:
    link = ROOT / "probattn" / name
    assert link.is_symlink()
    assert link.readlink() == Path("..", name)


@pytest.fixture(scope="module")
def recipe() -> dict[str, Any]:
    """The recipe for conda, its few Jinja expressions replaced."""
    text = (ROOT / ".conda" / "meta.yaml").read_text(encoding="utf-8")
    first, version = next(line.split('"')[:2] for line in text.splitlines() if line.startswith("{% set"))
    assert first == "{% set version = "
    lines = [line for line in text.splitlines() if not line.startswith("{%")]
    text = "\n".join(lines).replace("{{ version }}", version).replace("{{ PYTHON }}", "python")
    parsed: dict[str, Any] = yaml.safe_load(text)
    return parsed


def for_conda(*requirements: str) -> set[str]:
    parsed = map(Requirement, requirements)
    return {f"{CONDA_NAMES.get(each.name, each.name)} {each.specifier}" for each in parsed}


def test_conda_requires_what_the_project_does(recipe: dict[str, Any]) -> None:
    python = f"python {PROJECT['requires-python']}"
    extras = PROJECT["optional-dependencies"]
    optional = [each for extra in ("report", "cli", "transport") for each in extras[extra] if "[" not in each]
    required = recipe["requirements"]
    assert set(required["run"]) == {python, *for_conda(*PROJECT["dependencies"])}
    assert set(required["run_constrained"]) == for_conda(*optional)
    built_with = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["build-system"][
        "requires"
    ]
    assert set(required["host"]) == {python, "pip", *for_conda(*built_with)}


def test_conda_describes_this_version(recipe: dict[str, Any]) -> None:
    assert recipe["package"] == {"name": PROJECT["name"], "version": PROJECT["version"]}
    assert recipe["build"]["entry_points"] == [
        f"{name} = {where}" for name, where in PROJECT["scripts"].items()
    ]
    about = recipe["about"]
    assert (about["summary"], about["license"]) == (PROJECT["description"], PROJECT["license"])


def test_what_is_shipped_is_small_and_holds_no_caches(built: Path) -> None:
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        shipped = [Path(name) for name in wheel.namelist() if not name.endswith("/")]
    assert not [path for path in shipped if "tests" in path.parts]
    assert {path.suffix for path in shipped} <= {
        *{".css", ".html", ".js", ".json", ".py", ".svg", ".txt", ".typed", ".yaml"},
        "",  # of the wheel's own records
    }
    with tarfile.open(next(built.glob("*.tar.gz"))) as sdist:
        names = {part for member in sdist.getmembers() for part in Path(member.name).parts}
    assert not names & {"__pycache__", "runs", "bench", "shared", "site", ".venv", ".pytest_cache"}
    assert all(path.stat().st_size < 6_000_000 for path in built.iterdir())
