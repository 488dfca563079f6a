"""The benchmark of learning runs and its file says what was measured; its figures are not judged here."""

import json
from pathlib import Path

import learning
import pytest
import typer
from typer.testing import CliRunner


def test_a_small_run_without_data_writes_what_it_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(learning, "UPDATES", 1)
    file, app = tmp_path / "made" / "figures.json", typer.Typer()
    app.command()(learning.main)
    words = f"--rounds 2 --runs 2 --width 4 --words 6 --output {file}"
    done = CliRunner().invoke(app, words.split(), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert "IBM Model 1 is left out" in done.output and "PROBATTN_DATA" in done.output
    content = json.loads(file.read_text(encoding="utf-8"))
    assert content["ibm_model1"] is None and content["rounds"] == 2
    assert content["padded_texts"]["words"] == 6
    for part, (variant, reference) in {
        "many_runs": ("batched", "cores"),
        "padded_texts": ("padded", "packed"),
    }.items():
        found = content[part]["variants"]
        assert list(found) == [variant, reference] and found[reference]["ratio"]["median"] == 1
        assert 0 < found[variant]["ratio"]["quartiles"][0] <= found[variant]["ratio"]["median"]
