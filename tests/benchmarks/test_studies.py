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
import graph_study
import moments_study
import pretraining_study
import pytest
import runs
import triage_study
import typer
from study import MEASURED, FileStudy, VariantStudy, read_json

from probattn.recipes import load_any_recipe, load_recipe
from probattn.sites.repulsive import RepulsiveAttention

pytestmark = pytest.mark.filterwarnings("ignore::probattn.data.DataWarning")


class Tiny:
    """A folder, the session's fixtures by name, and ``patch``, which ends with the tests of this file."""

    def __init__(self, request, folder, patch):
        self.fixture, self.folder, self.patch = request.getfixturevalue, folder, patch

    def written(self, text, name="tiny.yaml"):
        """A recipe."""
        (self.folder / name).write_text(text, encoding="utf-8")
        return str(self.folder / name)

    def source(self):
        """The file of the texts of the recipe of classification."""
        return load_recipe(str(self.fixture("recipe"))).data.train.source

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


def graph(tiny):
    pytest.importorskip("torch_geometric", reason="needs torch-geometric (the extra 'graph')")
    tiny.patch.setitem(graph_study.RECIPES, "cora", str(tiny.fixture("graph_recipe")))
    return {"variants": "mmd,bam", "seeds": 1}


def moments(tiny):
    tiny.patch.setattr(moments_study, "RECIPE", str(tiny.fixture("recipe")))
    tiny.patch.setattr(moments_study, "ALWAYS", ("report.baseline=false", "training.steps=2"))
    tiny.patch.setattr(moments_study, "DATA", {"rt": ()})
    tiny.patch.setattr(moments_study, "METHODS", {"bam": moments_study.METHODS["bam"]})
    return {"rows": 2, "draws": 200, "test": 10, "seeds": 1}


def pretraining(tiny):
    text = runs.recipes(tiny.folder)["pretraining"]
    recipe = tiny.written(text.replace("steps: 6", "steps: 2").replace("positions: 16", "positions: 64"))
    tasks = f"{tiny.folder}/reviews.csv,{tiny.folder}/reviews.csv:8"
    return {"recipe": recipe, "tasks": tasks, "steps": 1, "rates": "1e-3,1e-2", "seeds": 1}


def sentiment(tiny):
    keys = ["training.steps=2", "data.limits.train=60"]
    return {"recipe": str(tiny.fixture("recipe")), "variants": "deterministic,bam", "set_": keys, "rest": 30}


def triage(tiny):
    recipe = of_reviews(tiny)
    keys = {f"{tiny.folder}/reviews.csv": ("data.limits={train: 60}", "data.max_length=null")}
    tiny.patch.setattr(triage_study, "SETTINGS", keys)
    tiny.patch.setattr(triage_study, "HELD", 100)
    return {"recipe": recipe, "splits": 20, "seeds": 1}


NAMES = (
    "effects",
    "graph",
    "moments",
    "pretraining",
    "sentiment",
    "triage",
)


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
                options |= {} if name == "graph" else {"folder": folder / "runs"}
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


@pytest.fixture
def tables(monkeypatch):
    """A module that makes a page's tables of a file, by name."""
    monkeypatch.syspath_prepend(Path(__file__).resolve().parents[2] / "docs" / "_extensions")
    return lambda name: import_module(f"measured_tables.{name}")


@pytest.mark.parametrize("name", NAMES)
def test_a_study_measures_each_of_its_jobs_once(name, ran):
    study, _, content, printed, jobs, runs, again = ran(name)
    lines = [study.words.format(job.folder, **job.head) + ": " for job in jobs]
    assert len(set(lines)) == len(jobs) > 0 and all(line in printed for line in lines)
    assert all(job.head.items() <= run.items() for job, run in zip(jobs, runs, strict=True))
    if isinstance(study, FileStudy):
        assert content["runs"] == sorted(runs, key=study.order)
    else:
        assert content.get("runs", runs) == runs
        assert all((study.place(job) / MEASURED).exists() for job in jobs)
        summary = json.loads(json.dumps(study.summarise(runs)))
        assert content["variants" if name == "sentiment" else "summary"] == summary
    assert again.content == content and not any(line in again.printed for line in lines)


def test_variants_are_compared_with_the_first_of_the_same_seed(ran):
    study, content = ran("pretraining").study, ran("pretraining").content
    assert isinstance(study, VariantStudy)
    base, other = (next(run for run in content["runs"] if run["variant"] == name) for name in study.names[:2])
    differences = content["summary"][other["variant"]]["difference"]
    assert differences
    assert "difference" not in content["summary"][base["variant"]]
    table = study.table(content["summary"])
    assert [column.header for column in table.columns] == ["figure", *study.names]
    cells = dict(zip(table.columns[0].cells, table.columns[2].cells, strict=True))
    for measure, gap in differences.items():
        assert gap["mean"] == pytest.approx(other[measure] - base[measure])
        assert cells[measure].startswith(f"{other[measure]:.4f} ({gap['mean']:+.4f})")


@pytest.mark.parametrize(
    ("name", "page", "words"),
    [
        ("moments", "moments", ["200 draws, median over 2 test texts", "| film reviews, BAM, k = 10 | 10 |"]),
    ],
)
def test_its_page_shows_the_figures(name, page, words, ran, tables):
    shown = tables(page).tables(ran(name).content)
    assert all(part in shown for part in words) and "nan" not in shown


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


def test_graphs_are_measured_and_other_overrides_refused(ran):
    study, options, content, *_ = ran("graph")
    assert [run["variant"] for run in content["runs"]] == ["bam", "mmd"] and content["set"] == []
    for run in content["runs"]:
        assert 0 <= run["draws_accuracy"] <= 1 and run["steps"] == 12 and len(run["layers"]) == 2
    with pytest.raises(typer.BadParameter, match=r"holds runs with --set \[\]; use another --output"):
        type(study)(**options, set_=["training.epochs=1"]).main()


@pytest.mark.parametrize("recipe", ["electra_reduced", "electra_small"])
def test_variants_of_pretraining_are_recipes_of_repulsion_in_the_first_layer(recipe):
    weights = {"plain": None, "weak": 1e-3, "paper": 0.1, "nothing": None}
    for name, keys in pretraining_study.VARIANTS.items():
        methods = load_any_recipe(recipe, keys).methods()
        assert [method.repulsion for method in methods] == ([] if weights[name] is None else [weights[name]])
        assert all(isinstance(method, RepulsiveAttention) and method.layers == (0,) for method in methods)


def test_every_variant_is_pretrained_and_fine_tuned(ran, tables, monkeypatch):
    study, _, content, *_ = ran("pretraining")
    assert [run["variant"] for run in content["runs"]] == list(pretraining_study.VARIANTS)
    for run in content["runs"]:
        assert run["reviews_rate"] in (1e-3, 1e-2)
        assert 0 <= run["reviews_accuracy"] <= 1 and 0 <= run["reviews_validation"] <= 1
        assert "reviews-8_accuracy" in run
        tuned = study.folder / run["variant"] / "seed-0" / "tuned" / "reviews-8-0.01"
        assert load_any_recipe(tuned / "recipe.yaml").data.limits.train == 8
    summary = content["summary"]
    assert set(summary["nothing"]) == {"reviews_accuracy", "reviews-8_accuracy", "difference"}
    assert summary["plain"]["majority"]["mean"] > 0.5 and summary["paper"]["relative"]["mean"] > 0
    of_paper, plain = (summary[name]["nll"]["mean"] for name in ("paper", "plain"))
    assert summary["paper"]["difference"]["nll"]["mean"] == pytest.approx(of_paper - plain)
    page = tables("pretraining")  # whose two forms are told apart by the number of data sets
    monkeypatch.setattr(page, "TASKS", {"reviews": "reviews"})
    shown = page.tables(content)
    assert shown.count("\n|") == 6 and "repulsive, weight 0.1" in shown and "nan" not in shown
    alone = f"{100 * summary['nothing']['reviews_accuracy']['mean']:.2f}"
    assert shown.splitlines()[-1].startswith(f"| not pre-trained |  |  |  |  | {alone} | ")
    monkeypatch.setattr(page, "TASKS", {"reviews": "reviews", "reviews-8": "8 reviews"})
    first, second = page.tables(content).split(
        "Test accuracy after fine-tuning, and differences to the pre-trained network:"
    )
    # without the network that was not pre-trained
    assert first.count("\n|") == 5 and second.count("\n|") == 4
    cells = second.splitlines()[-1].split(" | ")
    gap = summary["nothing"]["difference"]["reviews-8_accuracy"]["mean"]
    assert cells[0] == "| 8 reviews" and cells[-1] == f"{100 * gap:+.2f} |" and len(cells) == 8


def test_moments_are_compared_with_draws(ran):
    _, _, content, printed, *_ = ran("moments")
    (run,) = content["runs"]
    assert "largest gap of a measure" in printed
    assert (run["rows"], run["draws"], run["texts"]) == (2, 200, 10)
    assert run["error"] < 0.2  # 200 draws know a standard deviation to 5%
    gaps = {name: run["scores"]["moments"][name] - value for name, value in run["scores"]["draws"].items()}
    assert run["gaps"] == pytest.approx(gaps)
    assert content["summary"]["rt bam"]["error"]["mean"] == pytest.approx(run["error"])
    assert run["deletion"]["share"] > run["deletion"]["random"]


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
