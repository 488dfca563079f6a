"""The study of alignment over seeds on a tiny network, and the tables made of it."""

import importlib
import json
import math
from pathlib import Path

import alignment_study
import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def study(recipe, tmp_path_factory):
    """A study of one alignment over two seeds, from the soft networks of another; run twice."""
    folder = tmp_path_factory.mktemp("study")
    first = folder / "first"
    options = {
        "recipe": str(recipe),
        "methods": "mmd",
        "output": folder / "data" / "alignment.json",
        "alone_steps": 40,
        "set_": ["attention.method=deterministic", "training.steps=2", "report.alignment_examples=60"],
    }

    begun = options | {"methods": "", "output": folder / "first.json"}
    alignment_study.STUDY(folder=first, seeds=2, **begun).main()

    def run():
        start = first / "soft" / "weight-0"
        alignment_study.STUDY(folder=folder / "main", seeds=2, **options, start=start).main()
        return json.loads(options["output"].read_text(encoding="utf-8"))

    found = run()
    stamps = {file: file.stat().st_mtime_ns for file in folder.rglob("measured.json")}
    again = run()
    assert {file: file.stat().st_mtime_ns for file in folder.rglob("measured.json")} == stamps
    assert found == again
    return found | {"first": json.loads((folder / "first.json").read_text(encoding="utf-8"))}


pytestmark = pytest.mark.filterwarnings("ignore::probattn.data.DataWarning")


def test_everything_is_run_that_the_bars_ask_for(tmp_path):
    found = [*alignment_study.STUDY(folder=tmp_path).jobs()]
    kinds = {(job.head["kind"], job.head["method"], job.head["weight"]) for job in found}
    for method in alignment_study.METHODS:
        best = {"kind": "tuned", "method": method, "weight": alignment_study.RECOMMENDED[method]}
        assert [job.head["seed"] for job in found if best.items() <= job.head.items()] == [*range(5)]
        assert {("tuned", method, weight) for weight in (0.01, 0.1, 1.0)} | {("alone", method, 1.0)} <= kinds
    assert len(found) == len({job.folder for job in found}) == 5 * 6 + 3 * 3 + 1 * 4
    assert found[0].head == {"kind": "tuned", "method": "soft", "weight": 0.0, "seed": 0}
    longer = alignment_study.STUDY(folder=tmp_path, start=tmp_path).jobs()
    started = {job.folder for job in longer} - {job.folder for job in found}
    assert started == {f"start-soft/weight-0/seed-{seed}" for seed in range(5)}


def test_summed_divergences_have_the_weight_of_the_text(tmp_path):
    summed = alignment_study.STUDY(folder=tmp_path, reduction="sum", sweep=False)
    weights = {(job.head["method"], job.head["weight"]) for job in summed.jobs()}
    assert weights == {("soft", 0.0), *((method, 0.01) for method in alignment_study.METHODS)}
    figures = dict.fromkeys(("mmd", "mmd_centred", "query_norm", "key_norm", "auc", "auc_centred"), 1.0)
    runs = [
        {"kind": "tuned", "seed": 0, "method": method, "weight": weight, **figures}
        for method, weight in weights
    ]
    assert summed.summarise(runs)["main"].keys() == {"soft", *alignment_study.METHODS}
    averaged = alignment_study.STUDY(folder=tmp_path).summarise(runs)
    assert averaged["main"].keys() == {"soft", *alignment_study.METHODS} - {"ot"}


def test_runs_start_from_the_networks_of_another_study(study):
    earlier = {run["seed"]: run for run in study["first"]["runs"] if run["kind"] == "tuned"}
    found = {(run["kind"], run["seed"]): run for run in study["runs"] if run["method"] == "soft"}
    for seed in (0, 1):
        assert found["start", seed]["accuracy"] == earlier[seed]["accuracy"]
        assert math.isclose(found["start", seed]["query_norm"], earlier[seed]["query_norm"], rel_tol=1e-5)
        assert found["tuned", seed]["query_norm"] != earlier[seed]["query_norm"]
        assert found["before", seed]["query_norm"] != earlier[seed]["query_norm"]
    assert study["first"]["setting"]["start"] is None
    assert study["setting"]["start"]["steps"] == 2


def test_runs_are_paired_by_seed(study):
    runs = {(run["kind"], run["method"], run["weight"], run["seed"]): run for run in study["runs"]}
    gaps = [
        runs["tuned", "mmd", 0.01, seed]["accuracy"] - runs["tuned", "soft", 0.0, seed]["accuracy"]
        for seed in (0, 1)
    ]
    row = study["summary"]["main"]["mmd"]
    assert math.isclose(row["difference"]["accuracy"]["mean"], sum(gaps) / 2, abs_tol=1e-12)
    assert row["mmd"]["seeds"] == 2
    ratios = [
        runs["tuned", "soft", 0.0, seed]["mmd"] / runs["tuned", "mmd", 0.01, seed]["mmd"] for seed in (0, 1)
    ]
    assert math.isclose(row["ratio"]["mmd"]["mean"], sum(ratios) / 2, rel_tol=1e-9)
    assert {(run["method"], run["weight"]) for run in study["summary"]["sweep"]} == {
        ("soft", 0.0),
        ("mmd", 0.01),
        ("mmd", 0.1),
        ("mmd", 1.0),
    }


def test_alignment_alone_draws_queries_and_keys_together(study):
    before, alone = (
        next(run for run in study["summary"]["alone"] if run["kind"] == kind) for kind in ("before", "alone")
    )
    assert alone["mmd"] < 0.7 * before["mmd"]
    assert "accuracy" not in alone


def test_the_documentation_shows_what_was_written(study, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs" / "_extensions")
    shown = importlib.import_module("measured_tables.alignment").tables(study)
    lines = shown.splitlines()
    accuracies, distances, *_ = (line for line in lines if line.startswith("| aligned, MMD |"))
    main = study["summary"]["main"]["mmd"]
    assert f"| {100 * main['accuracy']['mean']:.2f} |" in accuracies
    assert f"| {main['mmd']['mean']:.3g} | **{main['ratio']['mmd']['mean']:.3g}** [" in distances
    assert f"| {main['mmd_centred']['mean']:.3g} |" in distances
    for run in study["summary"]["sweep"]:
        assert f"{100 * run['accuracy']:.1f}" in shown
    assert all(
        line.count("|") == lines[number - 1].count("|")
        for number, line in enumerate(lines)
        if "| --- |" in line
    )
