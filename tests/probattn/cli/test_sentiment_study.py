"""The study over seeds on a tiny network."""

from __future__ import annotations

import json
import math
import runpy
from pathlib import Path

import pytest

STUDY = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "sentiment_study.py"))


@pytest.mark.filterwarnings("ignore::probattn.data.DataWarning")
def test_study_is_resumable_and_paired(recipe, tmp_path):
    options = {
        "recipe": str(recipe),
        "variants": "deterministic,bam",
        "set_": ["training.steps=2", "data.limits.train=60"],
    }
    STUDY["main"](tmp_path, seeds=2, rest=30, **options)
    summary = json.loads((tmp_path / "study.json").read_text(encoding="utf-8"))["variants"]
    row = summary["bam"]["measures"]["test.accuracy"]
    assert row["difference"]["seeds"] == 2
    plain = summary["deterministic"]["measures"]["test.accuracy"]["value"]["mean"]
    assert math.isclose(row["difference"]["mean"], row["value"]["mean"] - plain, abs_tol=1e-9)
    assert all(site["spread"] > 0 and site["kl_nats"] > 0 for site in summary["bam"]["health"].values())
    assert not summary["deterministic"]["health"]
    assert 0 <= summary["bam"]["measures"]["rest.accuracy"]["value"]["mean"] <= 1
    assert json.loads((tmp_path / "bam" / "seed-0" / "rest.json").read_text(encoding="utf-8"))["texts"] == 30
    stamps = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("metrics.json")}
    STUDY["main"](tmp_path, seeds=2, rest=30, **options)
    assert {file: file.stat().st_mtime_ns for file in tmp_path.rglob("metrics.json")} == stamps
