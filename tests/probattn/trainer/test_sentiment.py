"""transformers' example of text classification on real texts, killed and resumed."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent / "programs" / "sentiment.py"


def start(folder: Path) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, str(PROGRAM), str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.fork
def test_film_reviews_killed_and_resumed(tmp_path: Path) -> None:
    """SIGKILL somewhere after the first checkpoint; the figures are those of the run that was left alone."""
    data = os.environ.get("PROBATTN_DATA")
    if not data or not (Path(data) / "sentiment").is_dir():
        pytest.skip("needs the folder sentiment in PROBATTN_DATA")
    whole, killed = start(tmp_path / "whole"), start(tmp_path / "killed")
    state = tmp_path / "killed" / "checkpoint-20" / "trainer_state.json"
    while killed.poll() is None and not state.exists():
        time.sleep(0.05)
    time.sleep(0.5)
    killed.kill()
    said, _ = killed.communicate()
    assert killed.returncode == -signal.SIGKILL, said
    again = start(tmp_path / "killed")
    for process in (whole, again):
        text, _ = process.communicate(timeout=600)
        assert process.returncode == 0, text
    assert "test_calibration_error" in text
    one, other = (json.loads((tmp_path / name / "report.json").read_text()) for name in ("whole", "killed"))
    assert one["resumed"] is None and other["resumed"].startswith("checkpoint-")
    assert other["metrics"] == one["metrics"] and other["steps"] == one["steps"]
    likelihoods = [step[2] for step in one["steps"]]
    assert likelihoods[-1] > likelihoods[0]
    assert one["metrics"]["test_accuracy"] > 0.6
    assert one["metrics"]["test_loss"] == pytest.approx(
        one["metrics"]["test_kl"] - one["metrics"]["test_log_likelihood"], rel=1e-6
    )
