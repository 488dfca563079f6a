"""The study over seeds on a tiny network."""

import json
import math

import pytest
import sentiment_study


@pytest.mark.filterwarnings("ignore::probattn.data.DataWarning")
def test_study_is_resumable_and_paired(recipe, tmp_path):
    options = {
        "recipe": str(recipe),
        "variants": "deterministic,bam",
        "set_": ["training.steps=2", "data.limits.train=60"],
    }
    sentiment_study.STUDY(folder=tmp_path, seeds=2, rest=30, **options).main()
    summary = json.loads((tmp_path / "study.json").read_text(encoding="utf-8"))["variants"]
    row = summary["bam"]["measures"]["test.accuracy"]
    assert row["difference"]["seeds"] == 2
    plain = summary["deterministic"]["measures"]["test.accuracy"]["value"]["mean"]
    assert math.isclose(row["difference"]["mean"], row["value"]["mean"] - plain, abs_tol=1e-9)
    assert all(site["spread"] > 0 and site["kl_nats"] > 0 for site in summary["bam"]["health"].values())
    assert not summary["deterministic"]["health"]
    assert 0 <= summary["bam"]["measures"]["rest.accuracy"]["value"]["mean"] <= 1
    measured = json.loads((tmp_path / "bam" / "seed-0" / "measured.json").read_text(encoding="utf-8"))
    assert measured["rest_texts"] == 30
    stamps = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("metrics.json")}
    sentiment_study.STUDY(folder=tmp_path, seeds=2, rest=30, **options).main()
    assert {file: file.stat().st_mtime_ns for file in tmp_path.rglob("metrics.json")} == stamps
