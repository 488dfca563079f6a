"""The study of domains on a tiny network."""

from __future__ import annotations

import json

import domain_study
import pytest

from probattn.recipes import load_recipe
from probattn.tasks import load_task


@pytest.mark.filterwarnings("ignore::probattn.data.DataWarning")
def test_every_variant_is_measured_in_every_domain(recipe, tmp_path, monkeypatch):
    source = load_recipe(str(recipe)).data.train.source
    monkeypatch.setattr(domain_study, "TASKS", {"tiny": [f"data.shifted=[{source}, {source}]"]})
    options = {
        "recipe": str(recipe),
        "tasks": "tiny",
        "variants": "soft,label smoothing,bam",
        "output": tmp_path / "domains.json",
        "set_": ["training.epochs=null", "training.steps=2", "data.limits={train: 60, shifted: 30}"],
    }
    domain_study.STUDY(folder=tmp_path / "runs", seeds=2, **options).main()
    content = json.loads((tmp_path / "domains.json").read_text(encoding="utf-8"))
    assert len(content["runs"]) == 6
    assert all(run["data"]["validation"]["temperature"] > 0 for run in content["runs"])
    for variants in content["summary"]["tiny"].values():
        assert set(variants) == {"soft", "label smoothing", "bam"}
        assert variants["bam"]["accuracy"]["difference"]["seeds"] == 2
        assert all(0 <= row["scaled_ece"]["value"]["mean"] <= 1 for row in variants.values())
    one, two = content["runs"][0]["data"], domain_study.with_mean(content["runs"][0])["data"]
    assert one == two  # of one other domain the mean is itself
    task = load_task(str(recipe), [f"data.shifted={source}", "data.limits={train: 60, shifted: 30}"]).texts
    (shifted,) = task.shifted
    left = len(shifted) - shifted.shared_with(task.train)
    assert left < len(shifted) == 30  # training texts are among them
    assert {run["data"][source]["texts"] for run in content["runs"]} == {left}
    soft, smoothed = (content["runs"][place]["data"]["home"] for place in (0, 1))
    assert soft != smoothed


def test_the_mean_of_other_domains_has_an_interval_of_its_own():
    def run(variant, seed, *accuracies):
        names = ("home", "near", "far")
        figures = [dict.fromkeys(domain_study.MEASURES, 0.5) | {"accuracy": each} for each in accuracies]
        data = {"validation": {"temperature": 1.0}} | dict(zip(names, figures, strict=True))
        return {"task": "sentiment", "variant": variant, "seed": seed, "data": data}

    runs = [run("soft", 0, 0.9, 0.8, 0.6), run("soft", 1, 0.9, 0.7, 0.5)]
    runs += [run("babn", 0, 0.9, 0.9, 0.7), run("babn", 1, 0.9, 0.8, 0.8)]
    summary = domain_study.summarise(runs)["sentiment"]
    assert [*summary] == ["home", "near", "far", "other domains"]
    found = summary["other domains"]["babn"]["accuracy"]
    assert found["value"]["mean"] == pytest.approx(0.8)
    assert found["difference"]["mean"] == pytest.approx(0.15)  # 0.1 and 0.2
    assert found["difference"]["high"] == pytest.approx(0.15 + 12.7062047 * 0.05)


def test_the_jobs_are_recipes_that_keep_their_best_pass(tmp_path) -> None:
    jobs = [*domain_study.STUDY(folder=tmp_path, seeds=1, tasks=",".join(domain_study.TASKS)).jobs()]
    assert len(jobs) == len(domain_study.TASKS) * len(domain_study.VARIANTS)
    for job in jobs:
        training = load_recipe(job.recipe, job.keys).training
        assert (training.early_stopping.metric, training.early_stopping.mode) == ("log_likelihood", "max")
        assert training.epochs < training.early_stopping.patience
