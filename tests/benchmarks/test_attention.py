"""The benchmark runs and its file says what was measured; its figures are not judged here."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(__file__).with_name("attention.py")
BAYESIAN = ["BAM", "BAM, log-normal", "BABN", "BABN, sigma 1e-6"]
VARIANTS = ["eager", "sdpa", *BAYESIAN]
COMPILED = ["BABN, compiled"] if any(map(shutil.which, ("g++", "clang++"))) else []
REPULSIVE = ["repulsive", "repulsive, first layer"]
ALIGNED = ["aligned, GAN", "aligned, CT", "aligned, OT", "aligned, MMD"]


def run(folder: Path, *arguments: str) -> str:
    command = [sys.executable, str(PROGRAM), *arguments]
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "COLUMNS": "120",
    }
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.minutes
def test_a_quick_run_writes_every_kind_and_variant(tmp_path: Path) -> None:
    printed = run(tmp_path, "--quick", "--shape", "tiny", "--output", "made/figures.json")
    content = json.loads((tmp_path / "made" / "figures.json").read_text())
    assert content["rounds"] == 2 and content["shape"]["layers"] == 2
    measured: dict[str, list[str]] = {}
    for result in content["results"]:
        measured.setdefault(result["kind"], []).append(result["variant"])
        low, high = result["ratio"]["range"]
        lower, upper = result["ratio"]["quartiles"]
        assert 0 < low <= lower <= result["ratio"]["median"] <= upper <= high
        assert result["passed"] == (
            None if result["bar"] is None else result["ratio"]["median"] <= result["bar"]
        )
        if result["variant"] == "eager":
            assert low == high == 1
    kinds = ["train", "expectation", "site-train", "site-expectation"]
    assert measured == dict.fromkeys(kinds, VARIANTS) | {
        "train": [*VARIANTS, *COMPILED, *ALIGNED, *REPULSIVE],
        "undriven": ["sdpa", "BAM", "BABN"],
        "draws": ["MC dropout", "BAM", "BABN", *COMPILED, "BABN, last layer"],
        "moments": ["BAM", "BAM, log-normal", "BABN"],
    }
    bars = {
        (result["kind"], result["variant"]): result["bar"] for result in content["results"] if result["bar"]
    }
    assert bars == {("train", name): 1.2 for name in COMPILED} | {
        ("draws", name): 25 for name in COMPILED
    } | {
        ("train", "BAM"): 1.15,
        ("train", "BABN"): 1.2,
        ("train", "aligned, CT"): 1.25,
        ("train", "aligned, GAN"): 1.2,
        ("train", "aligned, OT"): 3.0,
        ("train", "repulsive"): 1.1,
        ("train", "repulsive, first layer"): 1.03,
        ("expectation", "BABN"): 1.15,
        ("undriven", "BABN"): 1.03,
        ("draws", "BABN"): 25,
        ("draws", "BABN, last layer"): 5.3,
        ("moments", "BABN"): 2.5,
    }
    added = {
        result["variant"]: result["parameters"] for result in content["results"] if result["kind"] == "train"
    }
    assert (
        added["eager"]
        == added["aligned, OT"]
        == added["repulsive"]
        == 0
        == added["BAM, log-normal"] - added["BAM"]
    )
    assert added["BABN"] > added["BAM"] > 0 and added["aligned, CT"] > added["aligned, GAN"] > 0
    assert all(name in printed for name in VARIANTS)


@pytest.mark.minutes
def test_several_lengths_and_types(tmp_path: Path) -> None:
    arguments = ["--lengths", "4,12", "--dtypes", "float32,bfloat16", "--kinds", "train,draws"]
    run(tmp_path, "--quick", "--shape", "tiny", *arguments, "--output", "figures.json")
    content = json.loads((tmp_path / "figures.json").read_text())
    sizes = [
        (each["shape"]["dtype"], each["shape"]["batch"], each["shape"]["length"]) for each in content["runs"]
    ]
    assert sizes == [(dtype, *size) for dtype in ("float32", "bfloat16") for size in ((6, 4), (2, 12))]
    for each in content["runs"]:
        assert [row["variant"] for row in each["results"] if row["kind"] == "train"] == [
            *("eager", "sdpa", "BAM", "BABN"),
            *COMPILED,
        ]


@pytest.fixture
def benchmark_module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("attention_benchmark", PROGRAM)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


def test_peak_memory_is_that_of_the_step(benchmark_module: ModuleType) -> None:
    number = 2**20 // 4  # float32 numbers in a MiB

    def step() -> None:
        first = torch.ones(3 * number)
        second = first + 1
        del first
        torch.ones(2 * number).add_(second[: 2 * number])

    held = torch.ones(50 * number)
    assert benchmark_module.peak_memory(step, torch.device("cpu")) == pytest.approx(6, abs=0.01)
    assert len(held) == 50 * number
