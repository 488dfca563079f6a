"""transformers' example scripts on real data, killed and resumed."""

import difflib
import importlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import pytest

PROGRAMS = Path(__file__).parent / "programs"


class Flow(NamedTuple):
    program: str
    needs: str
    metric: str
    arguments: tuple[str, ...] = ()
    above: bool = True
    """Whether the metric is to be above that of the trivial prediction, or below."""
    since: str = "5.6"
    """Release of transformers whose checkpoints hold what resuming needs: older ones lose MiniLM's LayerNorms."""


FLOWS = {
    "texts": Flow("sentiment", "sentiment", "test_accuracy"),
    "tokens": Flow("tags", "restaurant8k", "test_f1"),
    "spans": Flow("questions", "restaurant8k", "test_f1", ("restaurant8k",)),
    "questions": Flow("questions", "squad", "test_log_likelihood", ("squad",)),
    "numbers": Flow("relatedness", "sick", "test_rmse", above=False),
    "translation": Flow("captions", "multi30k", "test_log_likelihood", since="5.0"),
}


@pytest.mark.parametrize("name", sorted({flow.program for flow in FLOWS.values()}))
def test_three_lines_are_not_those_of_transformers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the trainer's own options, which have defaults."""
    monkeypatch.syspath_prepend(PROGRAMS)
    plain = importlib.import_module("plain")
    source = (PROGRAMS / f"{name}.py").read_text(encoding="utf-8")
    without = re.sub(plain.OPTIONS, "", source, flags=re.MULTILINE)
    changes = difflib.ndiff(without.splitlines(), plain.plain(source).splitlines())
    assert len([line for line in changes if line.startswith("- ")]) == 3


def start(flow: Flow, folder: Path) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, str(PROGRAMS / f"{flow.program}.py"), str(folder), *flow.arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


def wait_for_checkpoint(process: subprocess.Popen, folder: Path) -> None:
    """Until the first checkpoint is complete, or the process has ended."""
    while process.poll() is None and not list(folder.glob("checkpoint-*/trainer_state.json")):
        time.sleep(0.05)


@pytest.mark.minutes
@pytest.mark.fork
@pytest.mark.parametrize("flow", [pytest.param(flow, id=name) for name, flow in FLOWS.items()])
def test_a_script_killed_and_resumed(families, flow, tmp_path, public_data) -> None:
    """SIGKILL somewhere after the first checkpoint; the figures are those of the run that was left alone."""
    families.needs(flow.since, "a checkpoint with the LayerNorms of MiniLM")
    public_data(flow.needs)
    whole, killed = start(flow, tmp_path / "whole"), start(flow, tmp_path / "killed")
    wait_for_checkpoint(killed, tmp_path / "killed")
    time.sleep(0.5)
    killed.kill()
    said, _ = killed.communicate()
    assert killed.returncode == -signal.SIGKILL, said
    again = start(flow, tmp_path / "killed")
    for process in (whole, again):
        text, _ = process.communicate(timeout=1800)
        assert process.returncode == 0, text
        assert flow.metric in text
    one, other = (json.loads((tmp_path / name / "report.json").read_text()) for name in ("whole", "killed"))
    assert one["resumed"] is None and other["resumed"].startswith("checkpoint-")
    assert all(other[name] == one[name] for name in ("metrics", "steps", "evaluations"))
    expected = one["evaluations"][0]
    assert one["evaluations"][-1] < expected
    metrics, likelihoods = one["metrics"], [step["log_likelihood"] for step in one["steps"]]
    values = pytest.approx(metrics["test_kl"] - metrics["test_log_likelihood"], rel=1e-6)
    assert metrics["test_loss"] == values
    third = len(likelihoods) // 3
    assert sum(likelihoods[-third:]) > sum(likelihoods[:third])
    reached, trivial = metrics[flow.metric], one["trivial"][flow.metric]
    assert reached > trivial if flow.above else reached < trivial
