"""The core works without the packages of `report`, `cli` and `transport`; what needs one names its extra in a line."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from probattn.checks import MissingPackageError, optional
from probattn.inference.progress import TrainingProgress
from probattn.report import Sheet
from probattn.tasks.progress import note, shown, tracked

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = ("report", "cli", "transport")
ABSENT = sorted(
    {Requirement(each).name for extra in EXTRAS for each in PROJECT["optional-dependencies"][extra]}
    - {"probattn"}
)


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, check=False, timeout=300
    )


def advice(owner: str, package: str, extra: str) -> str:
    return f"{owner}: expected the package {package}, which is not installed; pip install 'probattn[{extra}]'"


def test_all_is_these_extras_and_development_has_them() -> None:
    extras = PROJECT["optional-dependencies"]
    assert ABSENT == ["geomloss", "jinja2", "markupsafe", "matplotlib", "rich", "typer"]
    assert Requirement(*extras["all"]).extras == set(EXTRAS)
    assert "all" in Requirement(extras["dev"][0]).extras
    assert not {Requirement(each).name for each in PROJECT["dependencies"]} & set(ABSENT)


@pytest.mark.slow
def test_core_works_and_what_needs_more_names_the_extra() -> None:
    done = python(str(ROOT / "tests" / "core.py"), *ABSENT, "torch_geometric")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout.splitlines()[-1])
    assert 0 < answer["done"].pop("calibration error") < 1
    assert answer["done"] == {
        "SVIDriver": 2,
        "SVGDDriver": 2,
        "ProbabilisticTrainer": 1,
        "draws": [3, 8, 2],
        "moments": [8, 2],
        "loaded draws are equal": True,
    }
    graph = "ImportError: probattn.models.graph needs torch-geometric: pip install 'probattn[graph]'"
    assert answer["refused"].pop("graph").startswith(graph)
    report = advice("probattn.report", "jinja2", "report")
    wanted = {
        "metric.plot": advice("CalibrationError.plot", "matplotlib", "report"),
        "diagram.plot": advice("ReliabilityDiagram.plot", "matplotlib", "report"),
        "posterior.plot": advice("Posterior.plot", "matplotlib", "report"),
        "report": report,
        "recipes": report,
        "cli": advice("probattn", "typer", "cli"),
        "alignment": advice("AlignmentAttention('ot')", "geomloss", "transport"),
        "sinkhorn": advice("sinkhorn", "geomloss", "transport"),
    }
    assert answer["refused"] == {name: f"MissingPackageError: {line}" for name, line in wanted.items()}


@pytest.mark.parametrize(
    ("absent", "line"),
    [
        ("typer", advice("probattn", "typer", "cli")),
        ("rich", advice("probattn", "rich", "cli")),
        pytest.param("jinja2", advice("probattn.report", "jinja2", "report"), marks=pytest.mark.slow),
    ],
)
def test_program_says_in_one_line_which_extra_it_needs(absent: str, line: str) -> None:
    code = (
        "import sys; sys.modules[sys.argv.pop()] = None; from probattn.__main__ import main; "
        "sys.argv = ['probattn', 'recipes']; main()"
    )
    done = python("-c", code, absent)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"error: {line}\n")


def test_program_is_that_of_the_module() -> None:
    assert PROJECT["scripts"] == {"probattn": "probattn.__main__:main"}


def test_progress_without_rich_is_lines_or_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "rich", None)
    with TrainingProgress(total=2, done=0) as progress:
        progress.show(1, lambda: pytest.fail("the words are computed"))
    assert capsys.readouterr() == ("", "")
    with shown():
        note("two are left out")
        assert list(tracked([1, 2], "numbers")) == [1, 2]
    assert capsys.readouterr() == ("", "note: two are left out\nnumbers ...\n")


def test_table_without_rich_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rich", None)
    monkeypatch.delitem(sys.modules, "rich.cells", raising=False)
    with pytest.raises(MissingPackageError, match=f"^{re.escape(advice('Sheet.text', 'rich', 'cli'))}$"):
        Sheet(("measure",), ()).text(None)


def test_error_inside_a_package_that_is_installed_stays(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "halfway.py").write_text("import nowhere_to_be_found\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="nowhere_to_be_found") as caught:
        optional("example", "halfway", "report")
    assert not isinstance(caught.value, MissingPackageError)
