"""Every study on tiny networks: it lists its jobs, measures each once, and its file has the figures and their summary.

Tests of single studies look at what those runs measured.
"""

import contextlib
import io
import json
import math
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import effects_measures
import effects_study
import pytest
import runs
import triage_study
from study import MEASURED, read_json

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::probattn.data.DataWarning")]


class Tiny:
    """A folder, the session's fixtures by name, and ``patch``, which ends with the tests of this file."""

    def __init__(self, request, folder, patch):
        self.fixture, self.folder, self.patch = request.getfixturevalue, folder, patch

    def written(self, text, name="tiny.yaml"):
        """A recipe."""
        (self.folder / name).write_text(text, encoding="utf-8")
        return str(self.folder / name)

    def saved(self, net):
        """A network and its tokenizer."""
        for part in (runs.tokenizer(), net):
            part.save_pretrained(self.folder / "network")


def of_reviews(tiny):
    """A recipe of 200 reviews, which are written, and of a tiny network."""
    tiny.saved(runs.bert())
    runs.write_reviews(tiny.folder / "reviews.csv", 200)
    return tiny.written(
        f"network: {{name: {tiny.folder}/network}}\ndata: {{train: {tiny.folder}/reviews.csv}}\n"
        f"attention: {{method: deterministic}}\ntraining: {{{runs.TRAINING}}}\nreport: {{baseline: false}}\n"
    )


def effects(tiny):
    """Two data sets of files, one of pairs; methods that need no further package."""
    recipe = of_reviews(tiny)
    babn = tiny.written(
        Path(recipe).read_text(encoding="utf-8").replace("deterministic", "babn"), "babn.yaml"
    )
    tiny.patch.setattr(effects_study, "RECIPES", {"deterministic": recipe, "babn": babn})
    sizes = effects_measures.Sizes(texts=3, costly=2, planted=2, varied=2, control=2, words=4, pool=20)
    tiny.patch.setattr(effects_study, "SHORT", sizes)
    tiny.patch.setattr(effects_measures, "SURE", 0.0)
    data = f"{tiny.folder}/reviews.csv"
    methods = "slope,screened,knockout,attention_gradient,chefer,rollout,random"
    keys = ["data.limits={train: 60}", "data.max_length=16"]
    more = {"methods": methods, "texts": 3, "reviews": 3, "set_": keys}
    return {"sets": data, "latent": data, "reviewed": data} | more


def sentiment(tiny):
    keys = ["training.steps=2", "data.limits.train=60"]
    return {"recipe": str(tiny.fixture("recipe")), "variants": "deterministic,bam", "set_": keys, "rest": 30}


def triage(tiny):
    recipe = of_reviews(tiny)
    keys = {f"{tiny.folder}/reviews.csv": ("data.limits={train: 60}", "data.max_length=null")}
    tiny.patch.setattr(triage_study, "SETTINGS", keys)
    tiny.patch.setattr(triage_study, "HELD", 100)
    return {"recipe": recipe, "splits": 20, "seeds": 1}


NAMES = ("effects", "sentiment", "triage")


class Ran(NamedTuple):
    """A study that was run, its options, what its file then holds, what it printed, and a further run."""

    study: Any
    options: dict[str, Any]
    content: dict[str, Any]
    printed: str
    jobs: list[Any]
    runs: list[Any]
    again: Any = None


@pytest.fixture(scope="module")
def ran(request, tmp_path_factory):
    """A function that runs a study once, by name, and again where it is told so; its job list is read there."""
    made = {}

    def run(name):
        if name not in made:
            folder = tmp_path_factory.mktemp(name)
            with pytest.MonkeyPatch.context() as patch:
                options = {"seeds": 2} | globals()[name](Tiny(request, folder, patch))
                options |= {"folder": folder / "runs"}
                options |= {} if name == "sentiment" else {"output": folder / "data" / "figures.json"}
                kind = import_module(f"{name}_study").STUDY
                first = finished(kind, options)
                patch.setattr(kind, "measure", None)  # nothing is measured again
                made[name] = first._replace(again=finished(kind, options))
        return made[name]

    return run


def finished(kind, options):
    study, printed = kind(**options), io.StringIO()
    with contextlib.redirect_stdout(printed):
        study.main()
    content = read_json(options.get("output") or study.folder / "study.json")
    jobs = [*study.jobs()]
    return Ran(study, options, content, printed.getvalue(), jobs, [study.read(job) for job in jobs])


@pytest.mark.parametrize("name", NAMES)
def test_a_study_measures_each_of_its_jobs_once(name, ran):
    study, _, content, printed, jobs, runs, again = ran(name)
    lines = [study.words.format(job.folder, **job.head) + ": " for job in jobs]
    assert len(set(lines)) == len(jobs) > 0 and all(line in printed for line in lines)
    assert all(job.head.items() <= run.items() for job, run in zip(jobs, runs, strict=True))
    assert content.get("runs", runs) == runs
    assert all((study.place(job) / MEASURED).exists() for job in jobs)
    summary = json.loads(json.dumps(study.summarise(runs)))
    assert content["variants" if name == "sentiment" else "summary"] == summary
    assert again.content == content and not any(line in again.printed for line in lines)


def test_methods_are_measured_on_every_network_and_the_posterior_on_one(ran):
    ran_study = ran("effects")
    heads = [(run["network"], run["seed"]) for run in ran_study.runs]
    assert heads == [("deterministic", 0), ("babn", 0), ("deterministic", 1)]
    for run in ran_study.runs:
        assert len(run["texts"]) == 3 and len(run["planted"]) <= 2 and len(run["control"]) in (0, 2)
        for row in run["texts"]:
            assert row["removable"] is None or all(
                method["removed"] <= row["removable"] for method in row["methods"].values()
            )
            costs = {name: method["passes"] for name, method in row["methods"].items()}
            assert costs["slope"] == 2 and costs["knockout"] == 2 + row["words"] and costs["random"] == 0
    plain, latent = (ran_study.content["summary"][kind] for kind in ("deterministic", "babn"))
    (figures,), (drawn,) = plain.values(), latent.values()
    assert figures["seeds"] == [0, 1] and drawn["seeds"] == [0] and figures["texts"] == 6
    of_slope = [row["methods"]["slope"]["deleted"] for run in ran_study.runs[::2] for row in run["texts"]]
    assert figures["methods"]["slope"]["deleted"][0] == pytest.approx(sum(of_slope) / 6, abs=1e-4)
    gap = figures["methods"]["slope"]["deleted"][0] - figures["methods"]["random"]["deleted"][0]
    assert figures["methods"]["random"]["compared"][0] == pytest.approx(gap, abs=2e-4)
    assert set(figures["reviewed"]) == {"causes_of_doubt"} and set(drawn["reviewed"]) == {
        "causes_of_doubt",
        "shares",
    }
    for counted in drawn["reviewed"].values():
        assert counted["function_words"] <= counted["words"] <= 9 and counted["texts"] == 3
    assert drawn["reviewed"]["causes_of_doubt"]["neither"] == 0
    assert "distrust" in drawn and "distrust" not in figures and "chefer" not in drawn["methods"]


def test_variants_are_paired_and_the_posteriors_health_is_kept(ran):
    study, _, content, *_ = ran("sentiment")
    summary = content["variants"]
    row = summary["bam"]["measures"]["test.accuracy"]
    assert row["difference"]["seeds"] == 2
    plain = summary["deterministic"]["measures"]["test.accuracy"]["value"]["mean"]
    assert math.isclose(row["difference"]["mean"], row["value"]["mean"] - plain, abs_tol=1e-9)
    assert all(site["spread"] > 0 and site["kl_nats"] > 0 for site in summary["bam"]["health"].values())
    assert not summary["deterministic"]["health"]
    assert 0 <= summary["bam"]["measures"]["rest.accuracy"]["value"]["mean"] <= 1
    assert read_json(study.folder / "bam" / "seed-0" / MEASURED)["rest_texts"] == 30


def test_predictions_are_recorded_and_drawn_from(ran):
    content = ran("triage").content
    (run,) = content["runs"]
    assert run["predictions"] <= 140 and set(run["promises"]) == {"0.02", "0.05", "0.1"}
    rates = [
        one["held"]
        for row in run["promises"].values()
        for one in (row, row["novelty"]["0.01"], row["novelty"]["0.05"])
    ]
    assert content["summary"] == {"worst": min(rates)} and all(0 <= rate <= 1 for rate in rates)
    assert all(row["answered"] <= 1 and row["oracle"] <= 1 for row in run["promises"].values())
