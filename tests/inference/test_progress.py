"""The progress bar on a terminal that is a buffer; observers see the model at their steps and leave no trace."""

import io
import re
from pathlib import Path
from types import ModuleType

import pytest
import torch
from rich.console import Console
from torch import nn

from probattn.inference import StepObserver
from probattn.inference.options import EarlyStopping
from probattn.inference.progress import TrainingProgress

WORDS = "loss 0.7123  log-likelihood -0.6  KL 0.11 (mean, weight 0.001; 1.23e+04 nats)"


def drawn(*, terminal: bool, shown: bool = True, width: int = 80, title: str = "baseline 1/2") -> str:
    buffer = io.StringIO()
    console = Console(file=buffer, force_terminal=terminal, width=width, color_system=None)
    with TrainingProgress(total=8, done=2, title=title, shown=shown, console=console) as bar:
        bar.show(3, lambda: WORDS)
    return buffer.getvalue()


@pytest.mark.parametrize("width", [60, 80, 120])
def test_title_step_and_time_left_come_first_and_nothing_is_cut(width: int) -> None:
    lines = re.sub(r"\x1b\[[0-9?]*[A-Za-z]", "", drawn(terminal=True, width=width)).split("\n")
    lines = [line.rpartition("\r")[2].rstrip() for line in lines]
    last = max(index for index, line in enumerate(lines) if "/8" in line)
    assert re.match(r"baseline 1/2 3/8 \S+ left ━+", lines[last])
    assert " ".join(lines[last + 1 :]).split() == WORDS.split()
    assert all(len(line) <= width for line in lines)


def test_a_training_that_was_complete_has_no_time_left() -> None:
    buffer = io.StringIO()
    with TrainingProgress(total=8, done=8, console=Console(file=buffer, force_terminal=True, width=80)):
        pass
    assert "8/8" in buffer.getvalue() and "done" in buffer.getvalue() and "left" not in buffer.getvalue()


def test_nothing_is_written_where_no_one_looks() -> None:
    assert drawn(terminal=False) == ""
    assert drawn(terminal=True, shown=False) == ""


def test_lines_of_a_log_come_after_twice_the_time_and_say_what_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seconds = 0.0
    monkeypatch.setattr("probattn.terminal.time.monotonic", lambda: seconds)
    buffer = io.StringIO()
    with TrainingProgress(total=2002, done=2, title="model", console=Console(file=buffer)) as bar:
        for step in range(3, 2003):
            seconds += 1
            bar.show(step, lambda: "loss 0.7")
    lines = buffer.getvalue().splitlines()
    assert lines[0] == "model: 12 of 2,002, 33.2 minutes left; loss 0.7"
    assert [int(line.split()[1].replace(",", "")) - 2 for line in lines] == [
        10,
        20,
        40,
        80,
        160,
        320,
        640,
        1240,
        1840,
    ]
    assert lines[-1] == "model: 1,842 of 2,002, 2.7 minutes left; loss 0.7"


class Seen:
    """Keeps the step, and whether it was a moment of evaluation; draws random numbers, which must not be missed."""

    def __init__(self) -> None:
        self.steps: list[int] = []

    def __call__(self, step: int, model: nn.Module) -> None:
        assert not torch.is_grad_enabled()
        assert not any(module.training for module in model.modules())
        torch.rand(7)
        self.steps.append(step)


def test_sees_its_steps_and_leaves_the_training_as_it_is(tiny: ModuleType) -> None:
    data, seen = tiny.tiny_data(10), Seen()
    plain, watched = tiny.tiny_model(), tiny.tiny_model()
    tiny.tiny_driver(plain).fit(data, steps=9)
    tiny.tiny_driver(watched, observers=[StepObserver(seen, (0, 4, 5, 100))]).fit(data, steps=9)
    assert seen.steps == [0, 4, 5, 9]
    for expected, found in zip(plain.state_dict().values(), watched.state_dict().values(), strict=True):
        assert torch.equal(expected, found)


def test_a_resumed_run_looks_again_at_what_follows_its_checkpoint(tiny: ModuleType, tmp_path: Path) -> None:
    data, seen = tiny.tiny_data(10), Seen()

    def stop(step: int, _: nn.Module) -> None:
        if step == 7:
            raise KeyboardInterrupt

    observers = [StepObserver(seen, (0, 3, 4, 6, 7)), StepObserver(stop, (7,))]
    options = {"folder": tmp_path, "checkpoint_every": 4}
    with pytest.raises(KeyboardInterrupt):
        tiny.tiny_driver(tiny.tiny_model(), observers=observers, **options).fit(data, steps=9)
    assert seen.steps == [0, 3, 4, 6, 7]
    tiny.tiny_driver(tiny.tiny_model(), observers=observers[:1], **options).fit(data, steps=9, resume=True)
    assert seen.steps == [0, 3, 4, 6, 7, 6, 7, 9]


def test_looks_at_the_last_step_of_a_run_that_stops_early(tiny: ModuleType) -> None:
    data, seen = tiny.tiny_data(10), Seen()
    driver = tiny.tiny_driver(
        tiny.tiny_model(),
        observers=[StepObserver(seen)],
        eval_every=1,
        early_stopping=EarlyStopping(metric="loss", patience=1, min_delta=1e6),
    )
    result = driver.fit(data, data, steps=9)
    assert result.stopped_early
    assert len(seen.steps) == 1
    assert seen.steps[0] < 9


@pytest.mark.parametrize("step", [-1, 2.0, True])
def test_a_step_that_is_none_is_refused(step: object) -> None:
    with pytest.raises(ValueError, match=r"StepObserver.steps: expected integers >= 0"):
        StepObserver(Seen(), (0, step))
