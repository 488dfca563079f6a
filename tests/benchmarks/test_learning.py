"""The benchmark of learning runs and its file says what was measured; its figures are not judged here."""

import json
import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).with_name("learning.py")


def test_a_small_run_without_data_writes_what_it_can(tmp_path: Path) -> None:
    options = [
        "--rounds",
        "2",
        "--runs",
        "2",
        "--width",
        "4",
        "--words",
        "6",
        "--output",
        "made/figures.json",
    ]
    environment = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(PROGRAM.parents[2]), "COLUMNS": "120"}
    done = subprocess.run(
        [sys.executable, str(PROGRAM), *options],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "IBM Model 1 is left out" in done.stdout and "PROBATTN_DATA" in done.stdout
    content = json.loads((tmp_path / "made" / "figures.json").read_text(encoding="utf-8"))
    assert content["ibm_model1"] is None and content["rounds"] == 2
    assert content["padded_texts"]["words"] == 6
    for part, (variant, reference) in {
        "many_runs": ("batched", "cores"),
        "padded_texts": ("padded", "packed"),
    }.items():
        found = content[part]["variants"]
        assert list(found) == [variant, reference] and found[reference]["ratio"]["median"] == 1
        assert 0 < found[variant]["ratio"]["quartiles"][0] <= found[variant]["ratio"]["median"]
