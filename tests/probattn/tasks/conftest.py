"""Recipes of every task and runs of them, made once for all processes that run the tests."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import runs
from filelock import FileLock

NEEDS = {
    "graph": "torch_geometric",
    "translation": "sentencepiece",
    "graph_text": "nltk",
    "images": "PIL",
    "sequences": "sacrebleu",
}
"""Packages of extras that tasks need."""
PREDICTION = "prediction: {num_samples: 3}\n"
REST = f"training: {{{runs.TRAINING}}}\n{PREDICTION}report: {{resamples: 100, uncertain: 2}}\n"
NUMBERS = (
    f"numbers: {{rows: 48}}\ntraining: {{{runs.TRAINING}, learning_rate: 1e-2}}\n"
    f"{PREDICTION}report: {{resamples: 100}}\n"
)
"""The recipe of the task that the page on adding a task writes."""


def _once(place: Path, make: Callable[[], object]) -> Path:
    """The folder or file, made by the process that needs it first."""
    made = place.with_name(f"{place.name}.made")
    with FileLock(place.with_name(f"{place.name}.lock")):
        if not made.exists():
            make()
            made.touch()
    return place


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the recipes of every task that all processes of the tests share."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "tasks"
    folder.mkdir(exist_ok=True)

    def write() -> None:
        texts = runs.recipes(folder) | {"numbers": NUMBERS} | runs.head_recipes(folder, REST)
        for name, text in texts.items():
            (folder / f"{name}.yaml").write_text(text, encoding="utf-8")

    _once(folder / "recipes", write)
    return folder


@pytest.fixture(scope="session")
def recipe_of(shared: Path) -> Callable[[str], Path]:
    """The file of a tiny recipe of a task, by name."""

    def file(name: str) -> Path:
        if name in NEEDS:
            pytest.importorskip(NEEDS[name], reason=f"needs {NEEDS[name]}, of an extra")
        return shared / f"{name}.yaml"

    return file


@pytest.fixture(scope="session")
def finished(recipe_of: Callable[[str], Path]) -> Callable[..., Path]:
    """The folder of a finished run, trained once; tests that change something take a copy."""

    def make(name: str, seed: int = 0) -> Path:
        file = recipe_of(name)
        place = file.parent / f"{name}-{seed}"
        key = ("--set", f"training.seed={seed}") if seed else ()
        return _once(place, lambda: runs.succeeds("train", file, "-o", place, "--quiet", *key))

    return make


@pytest.fixture(scope="session")
def reported(finished: Callable[..., Path]) -> Callable[..., Path]:
    """A finished run that was evaluated and reported once, with what the commands said in ``said.json``."""

    def make(name: str, seed: int = 0) -> Path:
        run = finished(name, seed)
        place = run.with_name(f"{run.name}-reported")

        def report() -> None:
            shutil.copytree(run, place)
            said = [runs.succeeds("evaluate", place), runs.succeeds("report", place, "--json")]
            (place / "said.json").write_text(json.dumps(said), encoding="utf-8")

        return _once(place, report)

    return make


@pytest.fixture
def copied(finished: Callable[..., Path], tmp_path: Path) -> Callable[..., Path]:
    """A finished run's folder to write in."""

    def make(name: str, seed: int = 0) -> Path:
        return shutil.copytree(finished(name, seed), tmp_path / f"{name}-{seed}")

    return make
