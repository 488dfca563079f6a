"""The page of graphs shows what the study wrote."""

import importlib.util
import json
import statistics
from pathlib import Path
from types import ModuleType

import pytest
from scipy import stats

ROOT = Path(__file__).resolve().parents[2]
ACCURACY = {"deterministic": [0.83, 0.82, 0.84], "ct": [0.831, 0.83, 0.835], "babn": [0.81, 0.80, 0.82]}


def run(variant: str, seed: int) -> dict[str, object]:
    layer = {"from_uniform": 0.012, "query_norm": 0.5, "key_norm": 0.25, "value_norm": 1.5}
    found = {
        "graph": "cora",
        "variant": variant,
        "seed": seed,
        "steps": 600 + seed,
        "test_accuracy": ACCURACY[variant][seed],
        "test_nll": 0.7,
        "layers": [layer, layer | {"from_uniform": 0.2}],
    }
    if variant == "babn":
        found |= {"draws_accuracy": ACCURACY[variant][seed], "test_accuracy": 0.5, "draws_nll": 0.9}
    return found


CONTENT = {
    "set": [],
    "versions": {},
    "runs": [run(variant, seed) for variant in ACCURACY for seed in range(3)],
}


@pytest.fixture
def extension() -> ModuleType:
    path = ROOT / "docs" / "_extensions" / "graphs.py"
    spec = importlib.util.spec_from_file_location("graphs_extension", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_mark_becomes_tables(extension: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "graphs.json").write_text(json.dumps(CONTENT))
    page = extension.on_page_markdown("before\n\n<!-- graphs -->\n\nafter", {"docs_dir": str(tmp_path)})
    assert "| deterministic | **83.00** | 1.00 |  | 0.700 | 601 | 3 |" in page.splitlines()
    assert "| BABN | **81.00** | 1.00 | -2.00 [-2.00, -2.00] | 0.900 | 601 | 3 |" in page.splitlines()
    assert "| aligned, CT | 1.2%, 20.0% | 0.50, 0.50 | 0.25, 0.25 | 1.50, 1.50 |" in page.splitlines()
    assert page.startswith("before") and page.endswith("after")


def test_intervals_are_those_of_a_paired_t_test(extension: ModuleType) -> None:
    gaps = [0.1, 1.0, -0.5]
    low, high = stats.ttest_rel(gaps, [0, 0, 0]).confidence_interval(0.95)
    assert extension.interval(gaps) == f"{statistics.fmean(gaps):+.2f} [{low:+.2f}, {high:+.2f}]"
    assert extension.interval([0.25]) == "+0.25"
    assert extension.interval([]) == ""


def test_without_figures_the_page_says_so(extension: ModuleType, tmp_path: Path) -> None:
    assert extension.on_page_markdown("<!-- graphs -->", {"docs_dir": str(tmp_path)}) == extension.UNMEASURED


def test_other_pages_stay(extension: ModuleType, tmp_path: Path) -> None:
    assert extension.on_page_markdown("text", {"docs_dir": str(tmp_path)}) == "text"


def test_the_figures_of_this_version_make_tables(extension: ModuleType) -> None:
    path = ROOT / "docs" / "data" / "graphs.json"
    if not path.exists():
        pytest.skip("no figures of the graph study are in this version")
    assert "deterministic" in extension.tables(json.loads(path.read_text()))
