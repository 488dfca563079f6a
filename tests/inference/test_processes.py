"""Two gloo processes: the same parameters, different noise, and one process's numbers where they should be."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from probattn.inference.checkpoint import CheckpointStore
from probattn.inference.records import read_records

PROGRAM = Path(__file__).parent / "programs" / "processes.py"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.fork,
    pytest.mark.gloo,
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("processes")
    done = subprocess.run(
        [sys.executable, "-W", "error", str(PROGRAM), str(folder)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def ranks(folder: Path) -> list[dict[str, Any]]:
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(2)]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    store = CheckpointStore(folder / "checkpoints")
    return store.load(store.steps()[-1]).tensors["model"]


@pytest.mark.parametrize("scene", ["without_noise", "fewer_rows_than_ranks", "with_noise", "interrupted"])
def test_ranks_hold_the_same_parameters(ranks: list[dict[str, Any]], scene: str) -> None:
    assert ranks[0][scene]["weights"] == ranks[1][scene]["weights"]


def test_ranks_draw_different_noise_at_every_step(ranks: list[dict[str, Any]]) -> None:
    first, second = (rank["with_noise"]["noise"] for rank in ranks)
    assert len(first) == len(second) == 7
    assert not set(first) & set(second)


@pytest.mark.parametrize(
    ("scene", "rows", "validation", "options", "steps"),
    [
        ("without_noise", 13, 5, {"batch_size": 8, "eval_every": 1}, 6),
        ("fewer_rows_than_ranks", 3, 1, {"batch_size": 2}, 4),
    ],
)
def test_two_processes_compute_what_one_does(
    tiny: ModuleType,
    tmp_path: Path,
    folder: Path,
    scene: str,
    rows: int,
    validation: int,
    options: dict[str, Any],
    steps: int,
) -> None:
    """Without noise: the same rows a step, the same loss, gradient norm and evaluation, up to the order of sums."""
    model: nn.Module = tiny.tiny_model(attend=False)
    driver = tiny.tiny_driver(model, folder=tmp_path, **options)
    driver.fit(tiny.tiny_data(rows), tiny.tiny_data(validation, seed=2), steps=steps)
    alone, together = read_records(tmp_path / "metrics.jsonl"), read_records(folder / scene / "metrics.jsonl")
    assert [(record["kind"], record["step"]) for record in alone] == [
        (record["kind"], record["step"]) for record in together
    ]
    for one, two in zip(alone, together, strict=True):
        for name in {"loss", "log_likelihood", "gradient_norm"} & one.keys():
            assert two[name] == pytest.approx(one[name], rel=1e-5)
    for name, value in weights(folder / scene).items():
        torch.testing.assert_close(value, model.state_dict()[name], rtol=1e-4, atol=1e-6)


def test_a_cut_run_of_two_processes_resumes_as_the_uninterrupted_one(
    tiny: ModuleType, folder: Path, ranks: list[dict[str, Any]]
) -> None:
    assert ranks[0]["interrupted"] == {"weights": ranks[0]["with_noise"]["weights"]}
    cut, whole = (
        tiny.without_times(read_records(folder / scene / "metrics.jsonl"))
        for scene in ("interrupted", "with_noise")
    )
    assert [record["step"] for record in whole] == list(range(1, 8))
    assert cut == whole


def test_a_signal_to_one_rank_ends_both_after_the_same_update(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        assert "after update 4 of 7; checkpoint: " in rank["signalled"]["said"]
        assert rank["signalled"]["weights"] == ranks[0]["with_noise"]["weights"]


def test_a_step_that_is_not_finite_on_one_rank_stops_both(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        error = rank["one_rank_not_finite"]["error"]
        assert "step 1 (epoch 1, its step 1) is not finite" in error
        assert "sites: attention (kl_nats nan" in error


def test_a_full_disk_of_the_first_rank_stops_both(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        assert "step-000004: the disk is full" in rank["full_disk"]["error"]
        assert rank["full_disk"]["left"] == ["step-000002"]
    assert "the first process failed" in ranks[1]["full_disk"]["error"]
