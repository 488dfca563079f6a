"""The command line as a launcher starts it: two processes, one run folder."""

import os
import platform
import subprocess
import sys

import pytest
from runs import free_port, started

from probattn.inference.records import read_records
from probattn.tasks import load_network


@pytest.mark.slow
@pytest.mark.fork
@pytest.mark.gloo
def test_two_processes_leave_one_run(recipe, tmp_path, monkeypatch):
    folder, words = (
        tmp_path / "run",
        ["train", recipe, "--quiet", "--set", "report.baseline=false", "--output"],
    )

    def launch():
        """Two processes with the variables that launchers set; whether they failed, and what they wrote."""
        port, processes = free_port(), []
        for rank in (0, 1):
            environment = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
            for name, value in (environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)}).items():
                monkeypatch.setenv(name, value)
            processes.append(started(*words, folder, output=tmp_path / f"said-{rank}"))
        for process in processes:
            process.join(300)
        said = "".join((tmp_path / f"said-{rank}").read_text(encoding="utf-8") for rank in (0, 1))
        return [process.exitcode for process in processes], said

    codes, said = launch()
    assert codes == [0, 0] and said.count("run: ") == 1, said
    assert [record["step"] for record in read_records(folder / "metrics.jsonl")][-1] == 6
    assert load_network(folder).key == "bayesian_mean"
    codes, said = launch()
    assert any(codes) and "expected a new folder" in said


def test_the_demo_asks_for_one_process(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WORLD_SIZE", "2")
    done = command("demo")
    assert done.exit_code == 2 and "expected one process" in done.stderr
    assert not any(tmp_path.iterdir())


ALLOCATING = """
import resource
from probattn.__main__ import keep_freed_memory
keep_freed_memory()
size = 16_000_000
for _ in range(40):
    b"x" * size  # freed at once
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
"""


@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc",
    reason="tests a setting of glibc's malloc, and the C library here is another",
)
def test_freed_memory_is_kept_unless_the_environment_says_how():
    bare = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}

    def faults(**more):
        made = subprocess.run(
            [sys.executable, "-c", ALLOCATING], env=bare | more, capture_output=True, text=True, check=True
        )
        return int(made.stdout)

    as_it_is = faults(MALLOC_MMAP_THRESHOLD_="131072")  # 40 times 16 MB are mapped, and 4,096 bytes a page
    assert as_it_is > 40 * 3_900
    assert faults() < as_it_is - 35 * 3_900
