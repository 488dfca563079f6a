"""Whatever a method asks to be measured is measured and shown, whatever the task."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import runs
from runs import succeeds

from probattn.recipes import load_any_recipe
from probattn.sites import METHODS
from probattn.tasks import TASKS
from probattn.tasks.topics import TOPICS

METHODS_OF_TOPICS = {
    "posterior": "attention={method: babn}",
    "heads": "repulsion={weight: 0.1}",
    "alignment": "alignment={method: ct}",
}
"""An override of a recipe that brings a method with the topic."""
REPORT = (
    "report.resamples=100",
    "report.baseline=false",
    "report.head_examples=4",
    "report.masked_examples=3",
    "report.alignment_examples=4",
)
TRAINING = "training: {steps: 2, batch_size: 8, log_every: 1, device: cpu}\nprediction: {num_samples: 2}\n"
SYSTEMS = ("texts", "translation", "graph_text", "visual_questions", "pretraining")
HEADS = ("choices", "images", "labels", "language", "regression", "sequences", "spans", "tokens")
LEFT_OUT = {"graph": "its heads are measured on edges", "experiment": "its methods are its conditions"}
"""Sections of the tasks that the table leaves out, and why."""
WITHOUT_SHARE = ("regression",)
"""Tasks without a share among their measures, which is measured without each head."""
NEEDS = {"translation": "sentencepiece", "graph_text": "nltk", "images": "PIL", "sequences": "sacrebleu"}
"""Packages of extras that tasks need."""

pytestmark = pytest.mark.filterwarnings("ignore::probattn.data.DataWarning")


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The file of a tiny recipe of a task."""
    folder = tmp_path_factory.mktemp("topics")
    texts = {name: text for name, text in runs.recipes(folder).items() if name in SYSTEMS}
    texts |= runs.head_recipes(folder, TRAINING)

    def write(name: str) -> Path:
        if name in NEEDS:
            pytest.importorskip(NEEDS[name], reason=f"needs {NEEDS[name]}, of an extra")
        file = folder / f"{name}.yaml"
        file.write_text(texts[name], encoding="utf-8")
        return file

    return write


def test_every_topic_has_a_method_and_every_task_a_row() -> None:
    assert {topic for method in METHODS for topic in method.measured} == set(TOPICS) == set(METHODS_OF_TOPICS)
    sections = {task.section or "texts" for task in TASKS}
    assert sections - set(LEFT_OUT) == {*HEADS, *SYSTEMS}


@pytest.mark.parametrize("name", [*SYSTEMS, *HEADS])
def test_a_report_has_what_the_methods_ask_for(
    name: str, recipe: Callable[[str], Path], tmp_path: Path
) -> None:
    file, run = recipe(name), tmp_path / "run"
    keys = [word for key in (*REPORT, *METHODS_OF_TOPICS.values()) for word in ("--set", key)]
    succeeds("train", file, "--output", run, "--quiet", *keys)
    succeeds("report", run, "--quiet")
    records = json.loads((run / "metrics.json").read_text(encoding="utf-8"))
    page = (run / "report.html").read_text(encoding="utf-8")
    for topic, (field, _) in TOPICS.items():
        assert records[field], f"{name}: no records of {topic}"
        assert f'<section id="{topic}"' in page, f"{name}: no section on {topic}"
    sites = {site["site"] for site in records["heads"]["sites"]}
    assert (
        sites
        >= {site["site"] for site in records["alignment"]["sites"]}
        >= {site["site"] for site in records["health"]}
    )
    assert bool(records["heads"]["drops"]) == (name not in WITHOUT_SHARE)
    assert load_any_recipe(run / "recipe.yaml").report.head_examples == records["heads"]["texts"] == 4
