"""The study of closed-form moments on a tiny network, and its table."""

import importlib
import json
from pathlib import Path

import moments_study
import pytest


@pytest.mark.filterwarnings("ignore::probattn.data.DataWarning")
def test_the_study_compares_moments_with_draws(recipe, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(moments_study, "RECIPE", str(recipe))
    monkeypatch.setattr(moments_study, "ALWAYS", ("report.baseline=false", "training.steps=2"))
    monkeypatch.setattr(moments_study, "DATA", {"rt": ()})
    monkeypatch.setattr(moments_study, "METHODS", {"bam": moments_study.METHODS["bam"]})
    options = {"folder": tmp_path, "output": tmp_path / "out.json", "rows": 2, "draws": 200, "test": 10}
    moments_study.STUDY(**options).main()
    assert "largest gap of a measure" in capsys.readouterr().out
    content = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    (run,) = content["runs"]
    assert (run["rows"], run["draws"], run["texts"]) == (2, 200, 10)
    assert run["error"] < 0.2  # 200 draws know a standard deviation to 5%
    gaps = {name: run["scores"]["moments"][name] - value for name, value in run["scores"]["draws"].items()}
    assert run["gaps"] == pytest.approx(gaps)
    assert content["summary"]["rt bam"]["error"]["mean"] == pytest.approx(run["error"])
    assert run["deletion"]["share"] > run["deletion"]["random"]
    monkeypatch.syspath_prepend(Path(__file__).resolve().parents[2] / "docs" / "_extensions")
    text = importlib.import_module("measured_tables.moments").tables(content)
    assert "200 draws, median over 2 test texts" in text
    assert f"| film reviews, BAM, k = 10 | 10 | {100 * run['error']:.1f}% (" in text
