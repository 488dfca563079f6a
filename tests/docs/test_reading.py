"""The page that leads through the code names the files that a step and a prediction run, in their order."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pyro
import pytest
import torch
import transformers as hf

from probattn import BayesianAttention, MultiheadAttention
from probattn.inference import AttentionELBO, AttentionGuide, posterior_predict
from probattn.models import Classifier, convert

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "reading.md").read_text(encoding="utf-8")
ENTRY = re.compile(r"`([\w/]+\.py)`, `(\w+)`")
Called = dict[tuple[str, str], int]
"""Files and functions in the order of their first call."""


@contextmanager
def calls() -> Iterator[Called]:
    """Records calls of the library's functions, in all threads."""
    called: Called = {}
    files: dict[str, str | None] = {}

    def path(name: str) -> str | None:
        if name not in files:
            file = Path(name).resolve()
            inside = (
                name.endswith(".py") and file.is_relative_to(ROOT) and not file.is_relative_to(ROOT / "tests")
            )
            files[name] = file.relative_to(ROOT).as_posix() if inside else None
        return files[name]

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and (file := path(code.co_filename)) is not None:
            called.setdefault((file, code.co_name), len(called))

    former = sys.getprofile()
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield called
    finally:
        sys.setprofile(former)
        threading.setprofile(None)


def traced(run: Callable[[], object]) -> Called:
    """What a second run calls: the first also prepares what is kept."""
    run()
    with calls() as called:
        run()
    return called


@pytest.fixture(scope="module")
def runs() -> dict[str, Called]:
    """A step and a prediction of a converted network, and a step of a layer in a user's model."""
    config = hf.BertConfig(
        vocab_size=40, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
    program = Classifier(convert(hf.BertForSequenceClassification(config), BayesianAttention()))
    batch = {"input_ids": torch.ones(2, 5, dtype=torch.long)}
    batch["attention_mask"] = batch["input_ids"]
    objective = AttentionELBO()(program, AttentionGuide(program))
    layer = MultiheadAttention(16, 2, batch_first=True, method=BayesianAttention())

    def model() -> None:
        with pyro.plate("data", 2):
            output, _ = layer(*torch.ones(3, 2, 5, 16))
            pyro.factor("output", output.sum(dim=(1, 2)))

    alone = AttentionELBO()(model, AttentionGuide(model))

    def step() -> None:
        objective({**batch, "labels": torch.tensor([0, 1])}).loss.backward()

    def predict() -> None:
        posterior_predict(program, batch, 2, seed=0)

    def step_alone() -> None:
        alone().loss.backward()

    return {"step": traced(step), "prediction": traced(predict), "layer": traced(step_alone)}


def section(title: str) -> str:
    return PAGE.split(f"## {title}\n")[1].split("\n## ")[0]


def test_the_page_names_every_file_that_runs_and_no_other(runs: dict[str, Called]) -> None:
    running = {file for called in runs.values() for file, _ in called}
    named = set(re.findall(r"`((?:probattn|models|inference)/[\w/]+\.py)`", PAGE))
    assert named == running


@pytest.mark.parametrize(("title", "run"), [("A training step", "step"), ("A prediction", "prediction")])
def test_files_come_in_the_order_of_their_first_call(title: str, run: str, runs: dict[str, Called]) -> None:
    entries = [entry for entry in ENTRY.findall(section(title)) if "multihead" not in entry[0]]
    missing = [entry for entry in entries if entry not in runs[run]]
    assert not missing
    order = [runs[run][entry] for entry in entries]
    assert order == sorted(order), sorted(entries, key=runs[run].__getitem__)


def test_a_layer_of_its_own_runs_through_the_file_that_the_page_names(runs: dict[str, Called]) -> None:
    assert ("probattn/sites/multihead.py", "forward") in runs["layer"]
    assert ENTRY.findall(section("A training step"))[-1] == ("probattn/sites/multihead.py", "forward")


@pytest.mark.parametrize("name", ["draw_terms", "prior_terms", "draw_gradients", "uniform", "trace_terms"])
def test_the_answers_name_functions_that_run(name: str, runs: dict[str, Called]) -> None:
    assert name in PAGE and any(function == name for _, function in runs["step"])
