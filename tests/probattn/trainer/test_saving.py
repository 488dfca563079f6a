"""Checkpoints appear whole whatever interrupts a save, and what was damaged is refused by name."""

import errno
import json
import os
import re
import shutil
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from transformers import Trainer
from transformers.trainer_utils import get_last_checkpoint

import probattn
from probattn.files.durable import full_disk_explained
from probattn.files.manifest import verify_manifest
from probattn.inference.checkpoint import CorruptCheckpointError
from probattn.trainer.checkpoints import DRAFT, last_checkpoint, verify_checkpoint

pytestmark = pytest.mark.filterwarnings("ignore:mtime may not be reliable")  # transformers', of quick saves
CALLS = ((os, ("mkdir", "open", "rename", "replace", "rmdir", "unlink")), (torch, ("save",)))
"""What a save changes a disk with; a kill may come before or after each call."""


def trainer_of(scene, folder, kind=probattn.ProbabilisticTrainer, *, steps=6, seed=0, **options):
    usual = {"per_device_train_batch_size": 4, "max_steps": steps, "save_strategy": "steps", "save_steps": 2}
    return kind(
        model=scene.network(lambda: scene.bert(dropout=0.2), probattn.BayesianAttention(), seed=seed),
        args=scene.arguments(folder, **usual | options),
        train_dataset=scene.classes(32),
        eval_dataset=scene.classes(8, seed=1),
    )


def finished(scene, folder, resume=None, **options):
    """Weights and losses of a run until its end."""
    trainer = trainer_of(scene, folder, seed=9 if resume else 0, **options)
    trainer.train(resume_from_checkpoint=resume)
    return scene.weights(trainer.model), scene.losses(trainer)


def same(first, second):
    return first[1] == second[1] and all(
        torch.equal(value, second[0][name]) for name, value in first[0].items()
    )


@pytest.fixture(scope="module")
def whole(scene, tmp_path_factory):
    """A run with checkpoints of the steps 2, 4 and 6, and what it gave in the end."""
    folder = tmp_path_factory.mktemp("whole")
    return folder, finished(scene, folder)


@pytest.fixture
def run(whole, tmp_path):
    """The same, stopped after step 4."""
    shutil.copytree(whole[0], tmp_path / "run", ignore=shutil.ignore_patterns("checkpoint-6"))
    return tmp_path / "run", whole[1]


def test_a_kill_at_any_moment_of_a_save_leaves_a_run_that_goes_on(scene, tmp_path, monkeypatch):
    """The folder as it is around every call of the system, which is what a kill leaves behind."""
    folder, states = tmp_path / "run", {}

    def keep():
        entries = sorted(file for file in folder.rglob("*") if file.is_file())
        state = tuple((str(file.relative_to(folder)), file.stat().st_size) for file in entries)
        if state not in states:
            states[state] = tmp_path / f"killed-{len(states)}"
            shutil.copytree(folder, states[state])

    class Watched(probattn.ProbabilisticTrainer):
        def _save_checkpoint(self, model, trial, **kwargs):
            if self.state.global_step < 6:  # the last one replaces an earlier one, as save_total_limit has it
                super()._save_checkpoint(model, trial, **kwargs)
                return
            for module, names in CALLS:
                for name in names:
                    monkeypatch.setattr(module, name, partial(self.call, getattr(module, name)))
            super()._save_checkpoint(model, trial, **kwargs)
            monkeypatch.undo()

        def call(self, original, *args, **kwargs):
            with monkeypatch.context() as patch:
                patch.setattr(self, "call", lambda original, *args, **kwargs: original(*args, **kwargs))
                keep()
                try:
                    return original(*args, **kwargs)
                finally:
                    keep()

    trainer = trainer_of(scene, folder, Watched, save_total_limit=2)
    trainer.train()
    whole = scene.weights(trainer.model), scene.losses(trainer)
    assert len(states) > 12
    for number, killed in enumerate(states.values()):
        last = last_checkpoint(killed)
        assert str(last) == get_last_checkpoint(str(killed))
        verify_checkpoint(last)
        if number % 16 == 0 or number == len(states) - 1:
            assert same(finished(scene, killed, resume=True, save_total_limit=2), whole), killed
            assert not (killed / DRAFT).exists()
    assert {last_checkpoint(killed).name for killed in states.values()} == {"checkpoint-4", "checkpoint-6"}


@pytest.mark.parametrize("content", [None, "", '{"global_step": 6'])
def test_an_incomplete_checkpoint_is_left_out_with_a_word(scene, run, caplog, content):
    """As earlier versions, and other trainers, leave it."""
    folder, whole = run
    shutil.copytree(folder / "checkpoint-2", folder / "checkpoint-6")
    (folder / "checkpoint-6" / "manifest.json").unlink()
    (folder / "checkpoint-6" / "trainer_state.json").unlink()
    if content is not None:
        (folder / "checkpoint-6" / "trainer_state.json").write_text(content)
    (folder / DRAFT / "checkpoint-6").mkdir(parents=True)  # and one that was killed while it was written
    message = r"checkpoint-6: trainer_state\.json.*resume from another"
    with pytest.raises(CorruptCheckpointError, match=message):
        finished(scene, folder, resume=str(folder / "checkpoint-6"))
    assert same(finished(scene, folder, resume=True), whole)
    told = [record.getMessage() for record in caplog.records if "is incomplete" in record.getMessage()]
    assert len(told) == 1 and f"{folder / 'checkpoint-6'} is incomplete and left out: trainer_" in told[0]
    verify_checkpoint(folder / "checkpoint-6")
    assert not (folder / DRAFT).exists()


def test_a_run_without_a_whole_checkpoint_says_so(scene, tmp_path):
    (tmp_path / "checkpoint-2").mkdir()
    with pytest.raises(ValueError, match="expected a whole checkpoint, found none; train without resume"):
        trainer_of(scene, tmp_path).train(resume_from_checkpoint=True)


FILES = (
    "config.json", "model.safetensors", "optimizer.pt", "probattn.json", "probattn.safetensors", "rng_state.pth",
    "scheduler.pt", "trainer_state.json", "training_args.bin",
)  # fmt: skip


def test_every_file_of_a_checkpoint_is_compared_with_its_sum(scene, run):
    folder, whole = run
    assert {*verify_manifest(folder / "checkpoint-4").files} == {*FILES}
    for name in FILES:
        file = folder / "checkpoint-4" / name
        content = file.read_bytes()
        flipped = bytearray(content)
        flipped[len(content) // 2] ^= 1 << 4
        for damaged, problem in ((bytes(flipped), name), (content[:-1], name), (None, f"{name} is missing")):
            file.unlink()
            if damaged is not None:
                file.write_bytes(damaged)
            with pytest.raises(CorruptCheckpointError, match=rf"checkpoint-4: .*{re.escape(problem)}"):
                verify_checkpoint(file.parent)
            # The last checkpoint is told by the sizes alone, which are quick to compare.
            if name != "trainer_state.json":
                of_its_size = damaged is not None and len(damaged) == len(content)
                assert (last_checkpoint(folder) == file.parent) is of_its_size
        if name != FILES[-1]:
            file.write_bytes(content)
    with pytest.raises(CorruptCheckpointError, match=rf"{re.escape(name)} is missing"):
        finished(scene, folder, resume=str(file.parent))
    assert same(finished(scene, folder, resume=True), whole)  # a missing file is left out with its checkpoint


def test_a_full_disk_is_told_and_leaves_the_earlier_ones(scene, whole, tmp_path, monkeypatch):
    """torch reports it as an error of its own; a probe tells that there is no room."""
    save, write = torch.save, Path.write_bytes

    def full(value, file, *args, **kwargs):
        if f"{DRAFT}/checkpoint-4" not in str(file) or "optimizer" not in str(file):
            return save(value, file, *args, **kwargs)
        Path(file).write_bytes(b"half")
        raise RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 64 vs 0")

    def probed(file, content):
        if file.suffix == ".probe":
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(file, content)

    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", full)
        patch.setattr(Path, "write_bytes", probed)
        message = r"checkpoint \S+run/checkpoint-4: the disk is full: free some"
        with pytest.raises(OSError, match=message) as caught:
            trainer_of(scene, tmp_path / "run").train()
    assert caught.value.errno == errno.ENOSPC and "\n" not in str(caught.value)
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["checkpoint-2"]
    assert same(finished(scene, tmp_path / "run", resume=True), whole[1])


def test_other_errors_of_a_save_stay(tmp_path):
    told = pytest.raises(OSError, match="writing: the disk is full")
    with told, full_disk_explained(tmp_path, "writing"):
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")
    with pytest.raises(SafetensorError), full_disk_explained(tmp_path, "writing"):
        raise SafetensorError("Error while serializing: I/O error: Input/output error (os error 5)")
    with pytest.raises(RuntimeError, match="shapes"), full_disk_explained(tmp_path, "writing"):
        raise RuntimeError("shapes")
    with pytest.raises(OSError, match="cable"), full_disk_explained(tmp_path, "writing"):
        raise OSError(errno.EIO, "cable")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("limit", [1, 2])
def test_the_best_checkpoint_and_the_limit_are_those_of_transformers(scene, tmp_path, limit):
    options = {
        "save_total_limit": limit, "load_best_model_at_end": True, "eval_strategy": "steps", "eval_steps": 2,
        "metric_for_best_model": "eval_kl", "greater_is_better": True, "learning_rate": 1e-2,
    }  # fmt: skip
    trainer = trainer_of(scene, tmp_path, steps=8, **options)
    trainer.train()
    best = trainer.state.best_global_step
    assert trainer.state.best_model_checkpoint == str(tmp_path / f"checkpoint-{best}")
    expected = {f"checkpoint-{best}"} | ({"checkpoint-8"} if limit > 1 or best == 8 else set())
    assert {path.name for path in tmp_path.iterdir()} == expected
    for checkpoint in tmp_path.iterdir():
        stored = json.loads((checkpoint / "trainer_state.json").read_text())
        assert stored["best_model_checkpoint"] == str(tmp_path / f"checkpoint-{best}")
        verify_checkpoint(checkpoint)


def test_methods_of_a_subclass_see_what_transformers_shows_them(scene, tmp_path, monkeypatch):
    """``save_model`` a folder of the checkpoint's name, an upload the checkpoint where it stays."""
    seen = []

    class Mine(probattn.ProbabilisticTrainer):
        def save_model(self, output_dir=None, _internal_call=False):
            super().save_model(output_dir, _internal_call)
            (Path(output_dir) / "mine.txt").write_text("x")

        def _push_from_checkpoint(self, checkpoint_folder):
            seen.append((checkpoint_folder, verify_manifest(Path(checkpoint_folder)).files.keys()))

    monkeypatch.setattr(Trainer, "init_hf_repo", lambda *_, **__: None)
    trainer = trainer_of(scene, tmp_path, Mine, steps=2, push_to_hub=True, save_only_model=True)
    trainer.train()
    ((folder, files),) = seen
    assert folder == str(tmp_path / "checkpoint-2")
    expected = {"mine.txt", *FILES} - {"optimizer.pt", "rng_state.pth", "scheduler.pt"}
    assert {*files} == expected


def test_the_last_checkpoint_of_a_finished_run_adds_no_step(scene, tmp_path):
    options = {"lr_scheduler_type": "constant"}
    whole = finished(scene, tmp_path, **options)
    assert same(finished(scene, tmp_path, resume=str(tmp_path / "checkpoint-6"), **options), whole)


def test_a_checkpoint_of_a_plain_network_has_sums_too(scene, tmp_path):
    args = scene.arguments(tmp_path, max_steps=2, save_strategy="steps", save_steps=2)
    probattn.ProbabilisticTrainer(model=scene.network(), args=args, train_dataset=scene.classes(8)).train()
    assert "optimizer.pt" in verify_manifest(tmp_path / "checkpoint-2").files


@pytest.mark.parametrize("saves", [True, False])
def test_what_a_killed_save_left_goes_when_a_run_begins(scene, tmp_path, monkeypatch, saves):
    """Also where it saves nothing; another process, which saves for this one, may be at it."""
    left = tmp_path / DRAFT / "checkpoint-4" / "model.safetensors"
    left.parent.mkdir(parents=True)
    left.touch()
    trainer = trainer_of(scene, tmp_path, steps=1, save_strategy="no")
    monkeypatch.setattr(type(trainer.args), "should_save", saves)
    trainer.train()
    assert left.exists() is not saves
