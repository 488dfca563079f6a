"""The page of costs shows what the benchmark wrote."""

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
CONTENT = {
    "machine": {"cores": 2, "threads": 2, "device": "cpu", "torch": "2.13.0", "load_before": 0.1},
    "shape": {"layers": 6, "hidden": 384, "heads": 12, "batch": 16, "length": 128},
    "rounds": 12,
    "results": [
        {
            "kind": "train",
            "variant": "BABN",
            "seconds": 1.25,
            "ratio": {"median": 1.5, "quartiles": [1.4, 1.6], "range": [1.3, 1.8]},
            "peak_mib": 900.4,
            "parameters": 0.00031,
            "bar": 1.6,
            "passed": True,
        }
    ],
}
ROW = "| BABN | 1.25 | **1.50** | 1.40 to 1.60 | 1.30 to 1.80 | 900 | 0.03% | 1.6: met |"


@pytest.fixture
def extension() -> ModuleType:
    path = ROOT / "docs" / "_extensions" / "benchmark.py"
    spec = importlib.util.spec_from_file_location("benchmark_extension", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_mark_becomes_tables(extension: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "benchmark.json").write_text(json.dumps(CONTENT))
    page = extension.on_page_markdown("before\n\n<!-- benchmark -->\n\nafter", {"docs_dir": str(tmp_path)})
    assert ROW in page.splitlines() and "12 rounds on 2 cores" in page
    assert page.startswith("before") and page.endswith("after")


def test_without_figures_the_page_says_so(extension: ModuleType, tmp_path: Path) -> None:
    page = extension.on_page_markdown("<!-- benchmark -->", {"docs_dir": str(tmp_path)})
    assert page == extension.UNMEASURED


def test_other_pages_stay(extension: ModuleType, tmp_path: Path) -> None:
    assert extension.on_page_markdown("text", {"docs_dir": str(tmp_path)}) == "text"
