"""Whatever a method asks to be measured is measured and shown, whatever the task."""

from __future__ import annotations

import json

import pytest
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
    "training.steps=2",
)
SYSTEMS = ("texts", "translation", "graph_text", "visual_questions", "pretraining")
HEADS = ("choices", "images", "labels", "language", "regression", "sequences", "spans", "tokens")
LEFT_OUT = {"graph": "its heads are measured on edges", "experiment": "its methods are its conditions"}
"""Sections of the tasks that the table leaves out, and why."""
WITHOUT_SHARE = ("regression",)
"""Tasks without a share among their measures, which is measured without each head."""

pytestmark = pytest.mark.filterwarnings("ignore::probattn.data.DataWarning")


def test_every_topic_has_a_method_and_every_task_a_row() -> None:
    assert {topic for method in METHODS for topic in method.measured} == set(TOPICS) == set(METHODS_OF_TOPICS)
    sections = {task.section or "texts" for task in TASKS}
    assert sections - set(LEFT_OUT) == {*HEADS, *SYSTEMS}


@pytest.mark.slow_but("texts", "regression")
@pytest.mark.parametrize("name", [*SYSTEMS, *HEADS])
def test_a_report_has_what_the_methods_ask_for(name, recipe_of, tmp_path) -> None:
    run = tmp_path / "run"
    keys = [word for key in (*REPORT, *METHODS_OF_TOPICS.values()) for word in ("--set", key)]
    succeeds("train", recipe_of(name), "--output", run, "--quiet", *keys)
    succeeds("report", run, "--quiet")
    records = json.loads((run / "metrics.json").read_text(encoding="utf-8"))
    page = (run / "report.html").read_text(encoding="utf-8")
    for topic, (field, _) in TOPICS.items():
        assert records[field], f"{name}: no records of {topic}"
        assert f'<section id="{topic}"' in page, f"{name}: no section on {topic}"
    sites = [records["heads"]["sites"], records["alignment"]["sites"], records["health"]]
    heads, aligned, latent = ({site["site"] for site in topic} for topic in sites)
    assert heads >= aligned >= latent
    assert bool(records["heads"]["drops"]) == (name not in WITHOUT_SHARE)
    assert load_any_recipe(run / "recipe.yaml").report.head_examples == records["heads"]["texts"] == 4
