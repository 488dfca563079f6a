"""The page of the study shows what the study wrote."""

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


def measure(number: float, **difference: float) -> dict[str, Any]:
    value = {"value": {"mean": number, "low": None, "high": None, "seeds": 5}}
    return {**value, "difference": {**difference, "seeds": 5}} if difference else value


CONTENT = {
    "variants": {
        "deterministic": {"measures": {"test.accuracy": measure(0.8)}, "health": {}},
        "babn": {
            "measures": {"test.accuracy": measure(0.79, mean=-0.01, low=-0.02, high=0.0)},
            "health": {
                "layer.0": {"spread": 0.5, "concentration": 2.0, "kl_nats": 12345.6, "kl_reduced": 1.5}
            },
        },
    }
}


@pytest.fixture
def extension() -> ModuleType:
    path = ROOT / "docs" / "_extensions" / "study.py"
    spec = importlib.util.spec_from_file_location("study_extension", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_mark_becomes_tables(extension: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "sentiment_study.json").write_text(json.dumps(CONTENT))
    page = extension.on_page_markdown("before\n\n<!-- sentiment study -->", {"docs_dir": str(tmp_path)})
    lines = page.splitlines()
    assert "| deterministic | 5 |  | 0.800 |  |  |  |  |  |" in lines
    assert "| babn | 5 |  | -0.010 [-0.020, +0.000] |  |  |  |  |  |" in lines
    assert "| babn | `layer.0` | 0.50 | 2.00 | 12,346 | 1.50 |" in lines


def test_pages_without_mark_or_figures(extension: ModuleType, tmp_path: Path) -> None:
    where = {"docs_dir": str(tmp_path)}
    assert extension.on_page_markdown("text", where) == "text"
    assert extension.on_page_markdown(extension.MARK, where) == extension.UNMEASURED
