"""The page of particles shows what the study wrote."""

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
INDEPENDENT = ("1,0", "10,0", "100,0", "1000,0")
CORRELATED = ("2,0.9", "10,0.9", "50,0.5")


def run(method: str, case: str, seed: int, variance: float, collapse: str | None = None) -> dict[str, object]:
    correlation = None if case == "1,0" else 0.85 + 0.02 * seed
    return {
        "method": method,
        "case": case,
        "seed": seed,
        "variance": variance,
        "correlation": correlation,
        "collapse": collapse,
    }


CONTENT = {
    "versions": {},
    "inverse_temperatures": {"spos": 1.0},
    "runs": [
        *(
            run("median", case, seed, 0.25, "particles have collapsed")
            for case in INDEPENDENT
            for seed in (0, 1)
        ),
        *(run("median", case, seed, 0.8 + 0.1 * seed) for case in CORRELATED for seed in (0, 1)),
        run("median", "50,0.5", 2, 0.123, "particles have collapsed"),
        *(run("spos", case, 0, 0.98) for case in INDEPENDENT),
    ],
}


@pytest.fixture
def extension() -> ModuleType:
    path = ROOT / "docs" / "_extensions" / "particles.py"
    spec = importlib.util.spec_from_file_location("particles_extension", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_mark_becomes_tables(extension: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "particles.json").write_text(json.dumps(CONTENT))
    page = extension.on_page_markdown("before\n\n<!-- particles -->\n\nafter", {"docs_dir": str(tmp_path)})
    lines = page.splitlines()
    assert "| `MedianRBF` | 0.250 † | 0.250 † | 0.250 † | 0.250 † | 2 |" in lines
    assert "| SPOS, `MedianRBF`, b = 1 | 0.98 | 0.98 | 0.98 | 0.98 | 1 |" in lines
    assert "| `MedianRBF` | 0.85, 0.86 | 0.85, 0.86 | 0.61, 0.87 | 2 |" in lines
    assert page.startswith("before") and page.endswith("after")


def test_a_cell_is_marked_where_most_runs_have_collapsed(extension: ModuleType) -> None:
    runs = [run("median", "50,0.5", seed, 0.2, "collapsed" if seed else None) for seed in range(3)]
    content = {"inverse_temperatures": {}, "runs": runs}
    assert "| `MedianRBF` |  |  | 0.20, 0.87 † | 0 |" in extension.tables(content).splitlines()


def test_without_figures_the_page_says_so(extension: ModuleType, tmp_path: Path) -> None:
    assert (
        extension.on_page_markdown("<!-- particles -->", {"docs_dir": str(tmp_path)}) == extension.UNMEASURED
    )


def test_other_pages_stay(extension: ModuleType, tmp_path: Path) -> None:
    assert extension.on_page_markdown("text", {"docs_dir": str(tmp_path)}) == "text"


def test_the_figures_of_this_version_make_tables(extension: ModuleType) -> None:
    path = ROOT / "docs" / "data" / "particles.json"
    if not path.exists():
        pytest.skip("no figures of the particle study are in this version")
    found = extension.tables(json.loads(path.read_text()))
    assert all(name in found for name in extension.NAMES.values())
