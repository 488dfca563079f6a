"""The command line under a launcher: two processes, one run folder."""

import subprocess
import sys

from probattn.inference.records import read_records
from probattn.tasks import load_network


def launch(*arguments):
    """Two processes of ``python -m probattn``."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return subprocess.run(
        [*command, "-m", "probattn", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_two_processes_leave_one_run(recipe, tmp_path):
    folder = tmp_path / "run"
    done = launch("train", recipe, "--output", folder, "--quiet", "--set", "report.baseline=false")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("run: ") == 1
    assert [record["step"] for record in read_records(folder / "metrics.jsonl")][-1] == 6
    assert load_network(folder).key == "bayesian_mean"

    again = launch("train", recipe, "--output", folder, "--quiet", "--set", "report.baseline=false")
    assert again.returncode != 0 and "expected a new folder" in again.stderr


def test_the_demo_asks_for_one_process(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WORLD_SIZE", "2")
    done = command("demo")
    assert done.exit_code == 2 and "expected one process" in done.stderr
    assert not any(tmp_path.iterdir())
