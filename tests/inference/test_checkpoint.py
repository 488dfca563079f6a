"""Checkpoints: complete or absent, verified, safe to load; a failed write leaves the earlier ones."""

import errno
import json
import os
import signal
import subprocess
import sys
from collections import Counter, OrderedDict
from pathlib import Path
from shutil import which
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from probattn.files import durable
from probattn.inference.checkpoint import (
    Checkpoint,
    CheckpointError,
    CheckpointStore,
    ConfigurationMismatchError,
    CorruptCheckpointError,
    DiskFullError,
    flatten,
    plain_values,
    require_same_configuration,
    verify_checkpoint,
)


def parts(value: float = 1.0) -> dict[str, Any]:
    weight = torch.full((50, 40), value)
    return {"model": {"w": weight, "tied": weight}, "training": {"lr": 0.1, "milestones": Counter([3, 3])}}


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(tmp_path / "checkpoints", keep_last=2)


def names(store: CheckpointStore) -> list[str]:
    return sorted(entry.name for entry in store.folder.iterdir())


def test_what_is_saved_is_loaded(store: CheckpointStore) -> None:
    path = store.save(7, {"step": 7, "note": "é"}, parts())
    loaded = store.load(7)
    assert loaded == Checkpoint(path, 7, {"step": 7, "note": "é"}, loaded.tensors)
    assert torch.equal(loaded.tensors["model"]["w"], torch.ones(50, 40))
    assert loaded.tensors["training"] == {"lr": 0.1, "milestones": Counter([3, 3])}
    assert names(store) == ["step-000007"]


def test_shared_tensors_are_stored_once_and_stay_shared(store: CheckpointStore) -> None:
    path = store.save(1, {}, parts())
    assert (path / "model.pt").stat().st_size < 1.5 * 50 * 40 * 4
    loaded = store.load(1).tensors["model"]
    assert loaded["w"].data_ptr() == loaded["tied"].data_ptr()


def test_the_oldest_go_except_protected_ones(store: CheckpointStore) -> None:
    for step in range(1, 6):
        store.save(step, {}, parts(), protect=(2,))
    assert store.steps() == [2, 4, 5]
    assert names(store) == ["step-000002", "step-000004", "step-000005"]


def test_steps_are_ordered_by_number(store: CheckpointStore) -> None:
    for step in (999_999, 1_000_000, 3):
        store.save(step, {}, {}, protect=(3, 999_999, 1_000_000))
    assert store.steps() == [3, 999_999, 1_000_000]


def test_a_checkpoint_may_be_replaced(store: CheckpointStore) -> None:
    store.save(1, {}, parts(1.0))
    store.save(1, {}, parts(2.0))
    assert float(store.load(1).tensors["model"]["w"][0, 0]) == 2.0
    assert names(store) == ["step-000001"]


def test_leftovers_of_killed_processes_are_removed_and_nothing_else(store: CheckpointStore) -> None:
    store.save(1, {}, parts())
    for name in (".step-000002.99.tmp", ".step-000001.99.deleted"):
        (store.folder / name).mkdir()
        (store.folder / name / "model.pt").touch()
    (store.folder / "notes.txt").touch()
    assert store.steps() == [1]
    store.remove_leftovers()
    assert names(store) == ["notes.txt", "step-000001"]


@pytest.mark.parametrize("file", ["model.pt", "training.pt", "state.json"])
@pytest.mark.parametrize("damage", ["cut", "flip", "gone", "grow"])
def test_damage_to_any_file_is_found_and_named(store: CheckpointStore, file: str, damage: str) -> None:
    path = store.save(1, {"step": 1}, parts()) / file
    content = path.read_bytes()
    middle = len(content) // 2
    flipped = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes({"cut": content[:-1], "flip": flipped, "grow": content + b"0"}[damage])
    words = {
        "cut": "bytes, expected",
        "flip": "SHA-256 differs",
        "gone": "is missing",
        "grow": "bytes, expected",
    }
    with pytest.raises(
        CorruptCheckpointError, match=f"step-000001: .*{file}.*{words[damage]}|{words[damage]}"
    ) as caught:
        store.load(1)
    assert file in str(caught.value)
    assert str(path.parent) in str(caught.value)


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"format": 1}', '{"files": {}}', '{"format": 1, "files": 3}']
)
def test_an_unreadable_manifest_is_named(store: CheckpointStore, content: str) -> None:
    path = store.save(1, {}, parts())
    (path / "manifest.json").write_text(content)
    with pytest.raises(CorruptCheckpointError, match=r"step-000001: no readable manifest.json"):
        verify_checkpoint(path)


def test_another_format_is_refused(store: CheckpointStore) -> None:
    path = store.save(1, {}, parts())
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps(manifest | {"format": 2}))
    with pytest.raises(CorruptCheckpointError, match="expected format 1, got 2"):
        verify_checkpoint(path)


def test_loading_runs_no_code(store: CheckpointStore, tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(tmp_path / "trap"),)

    path = store.save(1, {}, parts())
    found = (path / "training.pt").open("wb")
    with found as file:
        torch.save({"x": Trap()}, file)
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["files"]["training.pt"] = {
        "size": (path / "training.pt").stat().st_size,
        "sha256": durable.file_sha256(path / "training.pt"),
    }
    (path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CorruptCheckpointError, match=r"training.pt is unreadable"):
        store.load(1)
    assert not (tmp_path / "trap").exists()


def test_values_that_cannot_be_loaded_safely_are_refused_before_writing(store: CheckpointStore) -> None:
    with pytest.raises(CheckpointError, match=r"training.optimizer\[1\].hook: .*got Linear"):
        store.save(1, {}, {"training": {"optimizer": [0, {"hook": nn.Linear(1, 1)}]}})
    assert not store.folder.exists()


def test_plain_values_keep_containers_and_turn_numpys_numbers() -> None:
    value = {"a": np.float64(0.5), "b": (1, [None, "x"]), "c": OrderedDict(d=Counter("aa"))}
    plain = plain_values(value, "x")
    assert plain == value
    assert type(plain["a"]) is float
    assert type(plain["c"]) is OrderedDict
    assert type(plain["c"]["d"]) is Counter


@pytest.mark.parametrize("room", [0, 100, 5000])
def test_a_full_disk_leaves_the_earlier_checkpoint(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    store.save(1, {"step": 1}, parts(1.0))
    write = durable.DigestingFile.write

    def limited(self: durable.DigestingFile, data: Any) -> int:
        if self.size + memoryview(data).nbytes > room:
            self.error = OSError(errno.ENOSPC, "No space left on device")
            raise self.error
        return write(self, data)

    monkeypatch.setattr(durable.DigestingFile, "write", limited)
    with pytest.raises(DiskFullError, match=r"step-000002: the disk is full.*step-000001 is untouched"):
        store.save(2, {"step": 2}, parts(2.0))
    assert names(store) == ["step-000001"]
    assert float(store.load(1).tensors["model"]["w"][0, 0]) == 1.0


def test_a_really_full_disk_leaves_the_earlier_checkpoint(tmp_path: Path) -> None:
    command = ["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(tmp_path)]
    allowed = which("mount") and subprocess.run(command, capture_output=True, check=False).returncode == 0
    if not allowed:
        pytest.skip("needs the right to mount a small disk, which only root has")
    try:
        store = CheckpointStore(tmp_path, keep_last=5)
        saved = fill(store)
        assert saved >= 2
        assert [entry for entry in names(store) if entry.startswith(".")] == []
        assert store.steps()[-1] == saved
        assert float(store.load(saved).tensors["model"]["w"][0, 0]) == saved
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def fill(store: CheckpointStore) -> int:
    """Saves until the disk is full; the last step that had room."""
    for step in range(1, 30):
        try:
            store.save(step, {"step": step}, parts(step))
        except DiskFullError:
            return step - 1
    pytest.fail("the disk never filled")


@pytest.mark.slow
@pytest.mark.fork
def test_killed_at_any_file_operation_a_save_leaves_complete_checkpoints_only(tmp_path: Path) -> None:
    """The program verifies every folder with a checkpoint's name after each kill."""
    program = Path(__file__).parent / "programs" / "crash.py"
    done = subprocess.run(
        [sys.executable, "-W", "error", str(program), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    outcomes = json.loads(done.stdout)
    assert outcomes[-1]["status"] == 0
    killed = [outcome for outcome in outcomes if outcome["status"] == -signal.SIGKILL]
    assert len(killed) > 20
    assert {tuple(outcome["steps"]) for outcome in killed} == {(1,), (1, 2), (2,)}
    for outcome in outcomes:
        assert outcome["left"] == [f"step-{step:06d}" for step in outcome["steps"]]


def test_other_failures_to_write_name_the_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(
        CheckpointError, match=r"file/checkpoints/step-000001: Not a directory.*no earlier one"
    ):
        CheckpointStore(tmp_path / "file" / "checkpoints").save(1, {}, parts())


def test_every_differing_key_is_named() -> None:
    here = {"seed": 0, "data": {"rows": 10, "order": (1, 2)}, "new": 1, "same": None}
    there = {"seed": 1, "data": {"rows": 10, "order": [1, 3]}, "old": {"a": 2}, "same": None}
    with pytest.raises(ConfigurationMismatchError) as caught:
        require_same_configuration(here, there, Path("c/step-000001"))
    message = str(caught.value)
    for words in (
        "c/step-000001 is of another configuration",
        "seed: checkpoint 1, this run 0",
        "data.order: checkpoint [1, 3], this run [1, 2]",
        "new: checkpoint '(absent)', this run 1",
        "old.a: checkpoint 2, this run '(absent)'",
    ):
        assert words in message
    assert "rows" not in message
    require_same_configuration(here, json.loads(json.dumps(here)), Path("c"))


def test_flat_keys_are_joined_by_dots() -> None:
    assert flatten({"a": {"b": {"c": 1}}, "d": {}, "e": [1]}) == {"a.b.c": 1, "d": {}, "e": [1]}


def test_at_least_one_checkpoint_is_kept(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"keep_last.*>= 1.*0"):
        CheckpointStore(tmp_path, keep_last=0)
