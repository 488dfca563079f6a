"""A run that was interrupted and resumed is the uninterrupted one: by errors, by SIGKILL, by a full disk."""

import errno
import json
import math
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler, OneCycleLR, SequentialLR

from probattn.files import durable
from probattn.inference.checkpoint import (
    CheckpointError,
    CheckpointStore,
    ConfigurationMismatchError,
    CorruptCheckpointError,
    DiskFullError,
    require_same_configuration,
)
from probattn.inference.optimizers import OptimizerOptions
from probattn.inference.options import EarlyStopping, KLSchedule
from probattn.inference.records import Record, read_records

STEPS = 11


class InterruptedRunError(Exception):
    pass


def interrupt_after(step: int) -> Any:
    def callback(record: Record, _: nn.Module) -> None:
        if record["step"] == step:
            raise InterruptedRunError

    return callback


def one_cycle(optimizer: torch.optim.Optimizer, total: int) -> LRScheduler:
    return OneCycleLR(optimizer, max_lr=0.05, total_steps=total)


def sequence(optimizer: torch.optim.Optimizer, total: int) -> LRScheduler:
    halves = [torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 4]) for _ in range(2)]
    return SequentialLR(optimizer, halves, milestones=[total // 2])


def final_state(folder: Path) -> dict[str, Any]:
    store = CheckpointStore(folder / "checkpoints")
    return store.load(store.steps()[-1]).tensors


def assert_same_state(first: Any, second: Any) -> None:
    assert type(first) is type(second)
    if isinstance(first, torch.Tensor):
        assert torch.equal(first, second)
    elif isinstance(first, dict):
        assert first.keys() == second.keys()
        for key in first:
            assert_same_state(first[key], second[key])
    elif isinstance(first, (list, tuple)):
        assert len(first) == len(second)
        for one, other in zip(first, second, strict=True):
            assert_same_state(one, other)
    else:
        assert first == second


def assert_same_run(tiny: ModuleType, folder: Path, whole: Path) -> None:
    """Every number of every record and of the final state, generators included."""
    first, second = (tiny.without_times(read_records(path / "metrics.jsonl")) for path in (folder, whole))
    assert first == second
    assert_same_state(final_state(folder), final_state(whole))


def fit(tiny: ModuleType, folder: Path, resume: Any = False, **options: Any) -> Any:
    defaults = {"folder": folder, "batch_size": 2, "accumulation": 2, "checkpoint_every": 3, "eval_every": 4}
    driver = tiny.tiny_driver(tiny.tiny_model(dropout=0.2), **(defaults | options))
    return driver.fit(tiny.NoisyRows(tiny.tiny_data()), tiny.tiny_data(6, seed=2), steps=STEPS, resume=resume)


@pytest.fixture(scope="module")
def whole(tiny: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The uninterrupted run; its epochs are of 4 steps, the last of two rows."""
    folder = tmp_path_factory.mktemp("whole")
    fit(tiny, folder)
    return folder


@pytest.mark.parametrize("after", [4, 5, 6, 7, 10])
def test_a_resumed_run_is_the_uninterrupted_one(
    tiny: ModuleType, tmp_path: Path, whole: Path, after: int
) -> None:
    with pytest.raises(InterruptedRunError):
        fit(tiny, tmp_path, callbacks=[interrupt_after(after)])
    assert not any((tmp_path / "checkpoints").glob(f"step-{STEPS:06d}"))
    result = fit(tiny, tmp_path, resume=True)
    assert result.step == STEPS
    assert_same_run(tiny, tmp_path, whole)


def test_a_run_may_be_interrupted_again_and_again(tiny: ModuleType, tmp_path: Path, whole: Path) -> None:
    for after in (2, 3, 5, 7, 8, 10):
        with pytest.raises(InterruptedRunError):
            fit(tiny, tmp_path, resume="auto", callbacks=[interrupt_after(after)], checkpoint_every=1)
    fit(tiny, tmp_path, resume="auto", checkpoint_every=3)
    assert_same_run(tiny, tmp_path, whole)


@pytest.mark.slow_but("precision", "early_stopping", "kl_schedule-shuffle-drop_last")
@pytest.mark.parametrize(
    "options",
    [
        {"optimizer": OptimizerOptions("SGD", learning_rate=0.1, arguments={"momentum": 0.9})},
        {"optimizer": OptimizerOptions("NAdam", learning_rate=0.01)},
        {"scheduler": one_cycle},
        {"scheduler": sequence},
        {"scheduler": None, "max_grad_norm": None},
        {"precision": "bf16"},
        {"log_every": 4},
        {"kl_schedule": KLSchedule("sigmoid"), "shuffle": False, "drop_last": True},
        {"early_stopping": EarlyStopping(patience=9)},
        {"seed": 3, "num_workers": 0, "batch_size": 3, "accumulation": 1},
    ],
    ids="-".join,
)
def test_whatever_the_options(tiny: ModuleType, tmp_path: Path, options: dict[str, Any]) -> None:
    fit(tiny, tmp_path / "whole", **options)
    with pytest.raises(InterruptedRunError):
        fit(tiny, tmp_path / "cut", **options, callbacks=[interrupt_after(8)])
    fit(tiny, tmp_path / "cut", resume=True, **options)
    assert_same_run(tiny, tmp_path / "cut", tmp_path / "whole")


def send_after(step: int, *numbers: signal.Signals) -> Any:
    def callback(record: Record, _: nn.Module) -> None:
        if (record["kind"], record["step"]) == ("train", step):
            for number in numbers:
                os.kill(os.getpid(), number)

    return callback


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_waits_for_the_update_and_its_checkpoint(
    tiny: ModuleType, tmp_path: Path, whole: Path, number: signal.Signals
) -> None:
    former = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(KeyboardInterrupt, match=r"after update 4 of 11; checkpoint: .*step-000004$"):
        fit(tiny, tmp_path, callbacks=[send_after(4, number)])  # an evaluation is due after it
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == former
    kinds = [record["kind"] for record in read_records(tmp_path / "metrics.jsonl")]
    assert kinds == ["train"] * 4 + ["validation"]
    assert CheckpointStore(tmp_path / "checkpoints").steps() == [3, 4]
    fit(tiny, tmp_path, resume=True)
    assert_same_run(tiny, tmp_path, whole)


def test_a_second_signal_does_not_wait(tiny: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt) as caught:
        fit(tiny, tmp_path, callbacks=[send_after(4, signal.SIGINT, signal.SIGINT)])
    assert str(caught.value) == ""
    assert CheckpointStore(tmp_path / "checkpoints").steps() == [3]


def test_a_signal_after_the_last_update_finds_the_run_complete(
    tiny: ModuleType, tmp_path: Path, whole: Path
) -> None:
    with pytest.raises(KeyboardInterrupt, match="after update 11 of 11"):
        fit(tiny, tmp_path, callbacks=[send_after(STEPS, signal.SIGINT)])
    assert_same_run(tiny, tmp_path, whole)


def test_without_a_folder_a_signal_ends_the_run_too(tiny: ModuleType) -> None:
    driver = tiny.tiny_driver(callbacks=[send_after(2, signal.SIGTERM)])
    with pytest.raises(
        KeyboardInterrupt, match="after update 2 of 5; without a folder there is no checkpoint"
    ):
        driver.fit(tiny.tiny_data(), steps=5)


def test_a_signal_that_is_ignored_stays_so(tiny: ModuleType) -> None:
    former = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        driver = tiny.tiny_driver(callbacks=[send_after(2, signal.SIGINT)])
        assert driver.fit(tiny.tiny_data(), steps=3).step == 3
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, former)


def test_in_another_thread_signals_are_the_callers(tiny: ModuleType) -> None:
    seen = []
    driver = tiny.tiny_driver(callbacks=[lambda *_: seen.append(signal.getsignal(signal.SIGINT))])
    thread = threading.Thread(target=driver.fit, args=(tiny.tiny_data(),), kwargs={"steps": 2})
    thread.start()
    thread.join()
    assert seen == [signal.getsignal(signal.SIGINT)] * 2


@pytest.mark.slow
@pytest.mark.fork
def test_a_program_that_is_interrupted_says_where_it_was(
    tiny: ModuleType, tmp_path: Path, whole: Path
) -> None:
    program = Path(__file__).parent / "programs" / "interrupt.py"
    command = [sys.executable, "-W", "error", str(program), str(tmp_path), str(STEPS)]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **streams, env=os.environ | {"OMP_NUM_THREADS": "1"}) as process:
        assert process.stdout is not None and process.stderr is not None
        for line in process.stdout:
            if line.strip() == "3":
                process.send_signal(signal.SIGTERM)
        step = CheckpointStore(tmp_path / "checkpoints").steps()[-1]
        assert process.stderr.read().startswith(
            f"interrupted: training was interrupted after update {step} of {STEPS}; checkpoint: {tmp_path}"
        )
    assert process.returncode == 1 and 3 <= step < STEPS
    fit(tiny, tmp_path, resume=True)
    assert_same_run(tiny, tmp_path, whole)


def test_the_driver_can_be_told_to_resume(tiny: ModuleType, tmp_path: Path, whole: Path) -> None:
    with pytest.raises(InterruptedRunError):
        fit(tiny, tmp_path, callbacks=[interrupt_after(5)])
    driver = tiny.tiny_driver(
        tiny.tiny_model(dropout=0.2), batch_size=2, accumulation=2, checkpoint_every=3, eval_every=4
    )
    driver.resume(tmp_path).fit(tiny.NoisyRows(tiny.tiny_data()), tiny.tiny_data(6, seed=2), steps=STEPS)
    assert_same_run(tiny, tmp_path, whole)


def test_a_finished_run_resumes_to_its_result(tiny: ModuleType, tmp_path: Path) -> None:
    model = tiny.tiny_model()
    first = tiny.tiny_driver(model, folder=tmp_path).fit(tiny.tiny_data(), steps=3)
    other = tiny.tiny_model()
    again = tiny.tiny_driver(other, folder=tmp_path).fit(tiny.tiny_data(), steps=3, resume=True)
    assert (again.step, again.train, again.validation) == (first.step, first.train, first.validation)
    assert_same_state(model.state_dict(), other.state_dict())
    assert len(read_records(tmp_path / "metrics.jsonl")) == 3


def test_early_stopping_goes_on_where_it_was(tiny: ModuleType, tmp_path: Path) -> None:
    """The scores fall until step 3; the run is cut after step 4, and stops at 6 with the weights of 3."""
    scores = {1: 5.0, 2: 4.0, 3: 1.0, 4: 2.0, 5: 2.0, 6: 2.0, 7: 0.0}

    def run(folder: Path, cut: int | None, resume: bool) -> Any:
        step = [CheckpointStore(folder / "checkpoints").steps()[-1] if resume else 0]
        step[0] -= 1  # one call before training, for the metric's name

        def score(*_: Any) -> dict[str, torch.Tensor]:
            step[0] += 1
            return {"score": torch.tensor(scores.get(step[0], math.nan))}

        driver = tiny.tiny_driver(
            folder=folder,
            eval_every=1,
            checkpoint_every=1,
            keep_last=1,
            early_stopping=EarlyStopping("score", patience=3),
            validation_metrics=score,
            callbacks=[] if cut is None else [interrupt_after(cut)],
        )
        return driver.fit(tiny.tiny_data(), tiny.tiny_data(3), steps=9, resume=resume), driver.model

    result, model = run(tmp_path / "whole", None, False)
    assert (result.step, result.best_step, result.stopped_early) == (6, 3, True)
    with pytest.raises(InterruptedRunError):
        run(tmp_path / "cut", 5, False)
    assert CheckpointStore(tmp_path / "cut" / "checkpoints").steps() == [3, 4]
    resumed, other = run(tmp_path / "cut", None, True)
    assert (resumed.step, resumed.best_step, resumed.stopped_early) == (6, 3, True)
    assert_same_state(model.state_dict(), other.state_dict())
    assert_same_run(tiny, tmp_path / "cut", tmp_path / "whole")
    again, other = run(tmp_path / "cut", None, True)  # a stopped run stays stopped
    assert (again.step, again.best_step, again.stopped_early) == (6, 3, True)
    assert_same_state(model.state_dict(), other.state_dict())


def damage(folder: Path, step: int, file: str = "model.pt") -> None:
    path = folder / "checkpoints" / f"step-{step:06d}" / file
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


def test_a_corrupt_checkpoint_is_refused_or_passed_over_aloud(
    tiny: ModuleType, tmp_path: Path, whole: Path
) -> None:
    with pytest.raises(InterruptedRunError):
        fit(tiny, tmp_path, callbacks=[interrupt_after(7)])
    damage(tmp_path, 6, "training.pt")
    with pytest.raises(
        CorruptCheckpointError, match=r'step-000006: .*training.pt.*resume="auto" would fall back'
    ):
        fit(tiny, tmp_path, resume=True)
    with pytest.warns(UserWarning, match=r"step-000006: .*training.pt.*falling back to .*step-000003"):
        fit(tiny, tmp_path, resume="auto")
    assert_same_run(tiny, tmp_path, whole)


def test_nothing_but_corrupt_checkpoints_is_an_error(tiny: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(InterruptedRunError):
        fit(tiny, tmp_path, callbacks=[interrupt_after(4)])
    damage(tmp_path, 3)
    before = (tmp_path / "metrics.jsonl").read_bytes()
    with pytest.raises(CorruptCheckpointError, match="step-000003"):
        fit(tiny, tmp_path, resume="auto")
    assert (tmp_path / "metrics.jsonl").read_bytes() == before


def test_a_corrupt_best_checkpoint_is_found_before_training(tiny: ModuleType, tmp_path: Path) -> None:
    calls = []

    def worse_and_worse(*_: Any) -> dict[str, torch.Tensor]:
        calls.append(1)
        return {"score": torch.tensor(float(len(calls)))}

    options = {
        "early_stopping": EarlyStopping("score", patience=9),
        "eval_every": 1,
        "validation_metrics": worse_and_worse,
    }
    with pytest.raises(InterruptedRunError):
        fit(tiny, tmp_path, **options, callbacks=[interrupt_after(4)])
    assert CheckpointStore(tmp_path / "checkpoints").steps() == [1, 3]
    damage(tmp_path, 1)
    with pytest.raises(CorruptCheckpointError, match="step-000001"):
        fit(tiny, tmp_path, resume=True, **options)


def test_nothing_to_resume_is_an_error_unless_automatic(
    tiny: ModuleType, tmp_path: Path, whole: Path
) -> None:
    with pytest.raises(CheckpointError, match="no checkpoint to resume from"):
        fit(tiny, tmp_path, resume=True)
    with pytest.raises(InterruptedRunError):
        fit(tiny, tmp_path, callbacks=[interrupt_after(2)])  # before the first checkpoint
    with pytest.raises(FileExistsError, match=r"holds a run already \(metrics.jsonl\)"):
        fit(tiny, tmp_path)
    fit(tiny, tmp_path, resume="auto")
    assert_same_run(tiny, tmp_path, whole)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"seed": 1}, r"data.seed: checkpoint 0, this run 1"),
        ({"batch_size": 1}, r"data.batch_size: checkpoint 2, this run 1"),
        (
            {"optimizer": OptimizerOptions(learning_rate=0.5, site_learning_rate=0.02)},
            r"optimizer.groups.pretrained.lr: checkpoint 0.01, this run 0.5",
        ),
        ({"scheduler": one_cycle}, r"scheduler: checkpoint 'tiny.half_linear', this run '.*one_cycle'"),
        (
            {"kl_schedule": KLSchedule("linear", final=0.5)},
            r"kl_schedule.final: checkpoint 1.0, this run 0.5",
        ),
        ({"precision": "bf16"}, r"precision: checkpoint 'no', this run 'bf16'"),
        ({"max_grad_norm": None}, "max_grad_norm"),
        ({"fingerprint": {"data": "b"}}, r"fingerprint.data: checkpoint 'a', this run 'b'"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_checkpoint_of_another_configuration_is_refused(
    tiny: ModuleType, tmp_path: Path, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(InterruptedRunError):
        fit(tiny, tmp_path, fingerprint={"data": "a"}, callbacks=[interrupt_after(4)])
    before = (tmp_path / "metrics.jsonl").read_bytes()
    with pytest.raises(ConfigurationMismatchError, match=words):
        fit(tiny, tmp_path, resume="auto", **({"fingerprint": {"data": "a"}} | options))
    assert (tmp_path / "metrics.jsonl").read_bytes() == before


def test_where_in_the_library_a_class_lies_may_change(tiny: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "step-000001"
    name, theirs = "probattn.inference.program_elbo.TraceGraphMeanFieldELBO", "tiny.TraceGraphMeanFieldELBO"
    require_same_configuration({"elbo": name}, {"elbo": "probattn.elbo.TraceGraphMeanFieldELBO"}, path)
    for other in ("probattn.inference.program_elbo.Trace", theirs, "(absent)"):
        with pytest.raises(ConfigurationMismatchError, match="elbo: checkpoint"):
            require_same_configuration({"elbo": name}, {"elbo": other}, path)
    with pytest.raises(ConfigurationMismatchError, match="elbo: checkpoint"):
        require_same_configuration({"elbo": theirs}, {"elbo": f"other.{theirs}"}, path)


def test_a_checkpoint_of_another_model_is_refused(tiny: ModuleType, tmp_path: Path) -> None:
    tiny.tiny_driver(folder=tmp_path).fit(tiny.tiny_data(), steps=1)
    with pytest.raises(ConfigurationMismatchError, match=r"model.sites.site.*this run '\(absent\)'"):
        tiny.tiny_driver(tiny.tiny_model(attend=False), folder=tmp_path).fit(
            tiny.tiny_data(), steps=1, resume=True
        )


def test_what_does_not_change_the_run_may_differ(tiny: ModuleType, tmp_path: Path, whole: Path) -> None:
    with pytest.raises(InterruptedRunError):
        fit(tiny, tmp_path, callbacks=[interrupt_after(4)])
    fit(tiny, tmp_path, resume=True, keep_last=5, checkpoint_every=2, num_workers=0)
    assert_same_run(tiny, tmp_path, whole)


def test_two_programs_cannot_write_one_run(tiny: ModuleType, tmp_path: Path) -> None:
    def again(record: Record, _: nn.Module) -> None:
        fit(tiny, tmp_path, resume="auto")

    with pytest.raises(FileExistsError, match="another program is writing this run"):
        fit(tiny, tmp_path, callbacks=[again])
    fit(tiny, tmp_path, resume="auto")  # the lock went with the run that held it


def test_a_full_disk_stops_the_run_and_room_lets_it_go_on(
    tiny: ModuleType, tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = durable.DigestingFile.write
    full = [False]

    def limited(self: durable.DigestingFile, data: Any) -> int:
        if full[0]:
            self.error = OSError(errno.ENOSPC, "No space left on device")
            raise self.error
        return write(self, data)

    def fill(record: Record, _: nn.Module) -> None:
        full[0] = record["step"] >= 5

    monkeypatch.setattr(durable.DigestingFile, "write", limited)
    with pytest.raises(DiskFullError, match=r"step-000006: the disk is full.*step-000003 is untouched"):
        fit(tiny, tmp_path, callbacks=[fill])
    assert sorted(entry.name for entry in (tmp_path / "checkpoints").iterdir()) == ["step-000003"]
    full[0] = False
    fit(tiny, tmp_path, resume=True)
    assert_same_run(tiny, tmp_path, whole)


@pytest.mark.fork
@pytest.mark.slow
@pytest.mark.parametrize(("kills", "steps"), [(4, 24), (20, 60)], ids=["4", "20"])
def test_killed_at_random_moments_and_resumed_the_run_is_the_same(
    tiny: ModuleType, tmp_path: Path, kills: int, steps: int
) -> None:
    if kills > 4 and not os.environ.get("PROBATTN_SLOW"):
        pytest.skip("set PROBATTN_SLOW=1 for twenty kills (about a minute)")
    program = Path(__file__).parent / "programs" / "kill.py"
    done = subprocess.run(
        [sys.executable, "-W", "error", str(program), str(tmp_path), str(kills), "0", str(steps)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["killed"] == kills
    for run in range(found["runs"]):
        if (tmp_path / f"run-{run}").exists():
            assert_same_run(tiny, tmp_path / f"run-{run}", tmp_path / "whole")
