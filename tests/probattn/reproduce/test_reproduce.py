"""Tables of papers: their declarations, their runs, and what is shown of them."""

import itertools
import json
import re
import shutil
import statistics
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml
from runs import ADDITIVE
from safetensors.torch import load_file
from scipy import stats

from probattn.data import DataError
from probattn.inference import NonFiniteError
from probattn.recipes import load_any_recipe
from probattn.report import Agreement, read_results
from probattn.report.alignment import SiteAlignment
from probattn.report.dynamics import Contextualized, PairAgreement
from probattn.report.heads import Heads, SiteHeads
from probattn.report.record import Entropy, RunDescription
from probattn.report.sites import EdgeAttention, SiteHealth
from probattn.reproduce import (
    CellRecord,
    Paper,
    ReproduceOptions,
    TableRecord,
    claims,
    declarations,
    find_table,
    listing,
    measured,
    papers,
    reproduce,
    running,
    sheet,
)
from probattn.reproduce.records import figure
from probattn.tasks import RunError, load_network, progress, run_task
from probattn.tasks.agreement import measure_agreement
from probattn.tasks.errors import RecipeError

pytestmark = pytest.mark.filterwarnings("ignore::probattn.data.DataWarning")
ALL = [(f"{name}/{key}", table) for name, paper in papers().items() for key, table in paper.tables.items()]
PINNED = Path(__file__).parents[2] / "pins" / "results"
RUN = [(key, table) for key, table in ALL if table.rows]


@pytest.mark.parametrize(("key", "table"), RUN, ids=[key for key, _ in RUN])
@pytest.mark.parametrize("size", ["small", "paper"])
def test_every_cell_has_a_recipe_that_loads(key, table, size):
    cells = list(table.cells(size))
    without = {name for name, axis in (table.rows | table.columns).items() if axis.without}
    assert set(table.rows) - {cell.row for cell in cells} <= without
    assert set(table.columns) - {cell.column for cell in cells} <= without
    for recipe, keys in {(cell.recipe, cell.keys) for cell in cells}:
        load_any_recipe(recipe, keys)
    made = [cell for cell in cells if not cell.without]
    runs = {(cell.run, cell.recipe, cell.keys) for cell in made}
    assert len({run for run, _, _ in runs}) == len(runs), "cells of one run have one recipe and the same keys"
    shown = [(cell.run, cell.measure, cell.data, cell.model) for cell in made]
    assert len(set(shown)) == len(shown), "no cell shows the figure of another"


def whole_agreement(value):
    """A record that has everything, and the same value everywhere."""
    xi = Contextualized(performance=value, step=1, reached=True)
    measures = {"agreement": value, "tau": value, "xi": xi, "xi_bleu": xi, "xi_tau": xi, "xi_tau_bleu": xi}
    ratings = ["attention", "probe", "uniform", "proxy", "saliency", "frozen"]
    numbers = ["accuracy", "second_accuracy", "second_bleu", "frozen_accuracy", "frozen_agreement"]
    return Agreement(
        run="runs/a",
        outputs=1,
        chance=value,
        pairs=tuple(
            PairAgreement(first=u, second=v, **measures) for u, v in itertools.permutations(ratings, 2)
        ),
        **dict.fromkeys(numbers, value),
        **dict.fromkeys(["course", "second_course", "frozen_course"], dict.fromkeys(range(4001), value)),
    )


SECTIONS = {
    "heads": SiteHeads,
    "alignment": SiteAlignment,
    "edges": EdgeAttention,
    "entropy": Entropy,
    "health": SiteHealth,
    "run": RunDescription,
}


@pytest.mark.parametrize(("key", "table"), RUN, ids=[key for key, _ in RUN])
def test_measures_of_sections_exist(key, table):
    for measure in {cell.measure for cell in table.cells() if "." in cell.measure} - {"run.step_seconds"}:
        section, _, name = measure.partition(".")
        if section == "agreement":
            assert whole_agreement(0.5).value(name) is not None
            continue
        kind = Heads if name in ("removable", "harmful") else SECTIONS[section]
        assert name in kind.model_fields or hasattr(kind, name)


def test_every_record_is_of_a_declared_table():
    for key, table in ALL:
        record = measured(key)
        if record is None:
            continue
        assert record.table == key
        declared = {(cell.row, cell.column): cell for cell in table.cells(record.size)}
        for row, columns in record.cells.items():
            for column, kept in columns.items():
                cell = declared[row, column]
                assert (kept.recipe, kept.keys) == (cell.recipe, cell.keys), (key, row, column)
                assert cell.scale != 100 or all(abs(value) <= 100 for value in kept.values.values())


def test_a_measure_of_several_data_sets_is_their_mean():
    scores = {"shifted": 0.0, "shifted_2": 0.5}
    results = SimpleNamespace(compared="expected", value=lambda *key: scores.get(key[-1]))
    assert figure(results, "accuracy", None, "shifted, shifted_2") == 0.25
    assert figure(results, "accuracy", None, "shifted, shifted_2, shifted_3") is None


def test_every_table_is_listed(command):
    text = command("reproduce").output
    for key, _ in ALL:
        assert key in text
    assert all(len(line) <= 80 for line in listing().text(80).splitlines())
    states = [(int(number), int(cells)) for number, cells in re.findall(r"(\d+) of (\d+) cells", text)]
    assert any(number == cells for number, cells in states)
    assert all(number <= cells for number, cells in states)


def test_lists_are_one_json_object(command):
    tables, shown_claims = (
        json.loads(command("reproduce", *words, "--json").output) for words in ([], ["claims"])
    )
    assert [row[0] for _, rows in map(dict.values, tables["groups"]) for row in rows] == [
        key for key, _ in ALL
    ]
    assert sum(len(group["rows"]) for group in shown_claims["groups"]) == len(claims())


@pytest.fixture(scope="module")
def declared(recipe):
    """A paper with one table of two rows and two columns."""
    table = {
        "title": "Reviews",
        "shows": "Accuracy and likelihood.",
        "recipe": str(recipe),
        "small": ["training.steps=3"],
        "rows": {
            "soft": {"title": "soft attention", "keys": ["attention={method: deterministic}"]},
            "babn": {"title": "BABN", "keys": ["attention={method: babn}"]},
            "copy": {"title": "Another BABN", "keys": ["attention={method: babn}"], "reference": "babn"},
        },
        "columns": {
            "closed": {
                "title": "Closed",
                "measure": "accuracy",
                "data": "shifted",
                "without": "Nobody has it.",
            },
            "accuracy": {"title": "Accuracy", "measure": "accuracy", "scale": 100},
            "nll": {"title": "NLL", "measure": "nll"},
            "spread": {"title": "Spread of weights", "measure": "health.spread"},
            "entropy": {"title": "Entropy", "measure": "entropy.mean", "data": "shifted"},
            "seconds": {"title": "Seconds of an update", "measure": "run.step_seconds"},
            "parameters": {"title": "Parameters", "measure": "run.parameters"},
            "other": {"title": "Other", "measure": "accuracy", "keys": ["data.train=trec"], "scale": 100},
        },
        "paper": {"soft": {"accuracy": 80.0}, "babn": {"accuracy": 81.5}},
        "note": "Small.",
    }
    drawing = {"title": "A drawing", "shows": "Nothing.", "not_measured": "A drawing."}
    source = {"title": "A paper", "authors": "Somebody 2021", "url": "https://example.org"}
    return Paper.model_validate(
        {"paper": source, "tables": {"table-1": table, "figure-1": drawing}}, strict=False
    )


@pytest.fixture
def declared_paper(declared, monkeypatch):
    monkeypatch.setattr(declarations, "papers", lambda: {"tests": declared})
    return declared


OPTIONS = ReproduceOptions(seeds=2, columns=("accuracy", "nll", "spread", "entropy", "seconds", "parameters"))


@pytest.fixture(scope="module")
def folder(declared, tmp_path_factory):
    """The folder of a table that was run."""
    folder = tmp_path_factory.mktemp("reproduced")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(declarations, "papers", lambda: {"tests": declared})
        reproduce("tests/table-1", OPTIONS, folder, quiet=True)
    return folder


def test_a_table_is_run_once_and_its_figures_are_those_of_the_runs(declared_paper, folder):
    file, record = reproduce("tests/table-1", OPTIONS, folder, quiet=True)
    assert TableRecord.model_validate_json(file.read_text()) == record
    for row in ("soft", "babn"):
        for seed in (0, 1):
            results = json.loads((folder / row / f"seed-{seed}" / "metrics.json").read_text())
            model = "deterministic" if row == "soft" else "bayesian_mean"
            score = next(one for one in results["scores"] if (one["model"], one["data"]) == (model, "test"))
            cells = record.cells[row]
            assert cells["accuracy"].values[str(seed)] == pytest.approx(
                100 * score["values"]["accuracy"], abs=1e-4
            )
            assert cells["nll"].values[str(seed)] == pytest.approx(score["values"]["nll"], abs=1e-4)
            spreads = [site["spread"] for site in results["health"]]
            assert (row == "soft") == (not spreads) == ("spread" not in cells)
            if spreads:
                assert cells["spread"].values[str(seed)] == pytest.approx(statistics.mean(spreads), abs=1e-4)
            shifted = next(
                one for one in results["scores"] if (one["model"], one["data"]) == (model, "shifted")
            )
            assert cells["entropy"].values[str(seed)] == pytest.approx(shifted["entropy"]["mean"], abs=1e-4)
            assert cells["seconds"].values[str(seed)] == pytest.approx(
                results["run"]["seconds"] / 3, abs=1e-4
            )
            files = (folder / row / f"seed-{seed}" / "model").glob("*.safetensors")
            sizes = [weight.numel() for file in files for weight in load_file(file).values()]
            assert cells["parameters"].values[str(seed)] == sum(sizes)
            saved = yaml.safe_load((folder / row / f"seed-{seed}" / "recipe.yaml").read_text())
            assert saved["training"]["seed"] == seed
            assert saved["training"]["steps"] == 3
            assert saved["report"]["baseline"] is False
        assert not (folder / row / "seed-0" / "checkpoints").exists()
    times = {path: path.stat().st_mtime_ns for path in folder.rglob("metrics.json")}
    assert reproduce("tests/table-1", OPTIONS, folder, quiet=True)[1] == record
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("metrics.json")} == times
    assert len(times) == 4


def test_a_run_of_another_table_is_copied(declared_paper, folder, tmp_path, monkeypatch):
    def refused(*args, **kwargs):
        raise AssertionError("trained again")

    monkeypatch.setattr(running, "train", refused)
    copy = tmp_path / "copy"
    reproduce("tests/table-1", OPTIONS, copy, reuse=folder.parent, quiet=True)
    first = json.loads((folder / "table.json").read_text())["cells"]
    assert json.loads((copy / "table.json").read_text())["cells"] == first
    assert run_task(copy / "babn" / "seed-1").recipe.output == str(copy / "babn" / "seed-1")
    assert load_network(copy / "babn" / "seed-1") is not None
    with pytest.raises(AssertionError, match="trained again"):
        reproduce("tests/table-1", replace(OPTIONS, seeds=3), copy, reuse=folder.parent, quiet=True)
    changed = replace(OPTIONS, set=("training.batch_size=3",))
    with pytest.raises(AssertionError, match="trained again"):
        reproduce("tests/table-1", changed, tmp_path / "other", reuse=folder.parent, quiet=True)


@pytest.fixture
def agreement_paper(reviews, tmp_path, monkeypatch):
    """A paper with a table of agreement, of tiny networks."""
    recipe = tmp_path / "additive.yaml"
    recipe.write_text(
        f"""{ADDITIVE}data: {{train: {reviews}}}
training: {{steps: 4, batch_size: 4, log_every: 2, learning_rate: 1e-2, device: cpu}}
""",
        encoding="utf-8",
    )
    measures = [
        "attention_uniform",
        "attention_uniform.xi",
        "frozen_course.last",
        "course.2",
        "second_course.last",
    ]
    table = {
        "title": "Reviews",
        "shows": "Agreement.",
        "recipe": str(recipe),
        "keys": ["probe.steps=[0, 2]", "probe.examples=9"],
        "agreement": {
            "uniform": ["network.config.uniform_attention=true"],
            "second": [],
            "frozen": ["training.frozen_probe=true"],
        },
        "rows": {"reviews": {"title": "Reviews"}},
        "columns": {
            **{str(at): {"title": name, "measure": f"agreement.{name}"} for at, name in enumerate(measures)},
            "accuracy": {"title": "accuracy", "measure": "accuracy"},
        },
    }
    source = {"title": "A paper", "authors": "Somebody 2021", "url": "https://example.org"}
    paper = Paper.model_validate({"paper": source, "tables": {"table-1": table}}, strict=False)
    monkeypatch.setattr(declarations, "papers", lambda: {"tests": paper})


@pytest.mark.slow
def test_agreement_is_measured_with_the_runs_that_it_needs(agreement_paper, tmp_path, monkeypatch):
    folder, options = tmp_path / "runs", ReproduceOptions(seeds=1)
    _, record = reproduce("tests/table-1", options, folder, quiet=True)
    run = folder / "reviews" / "seed-0"
    expected = measure_agreement(run, run / "uniform", run / "second", run / "frozen")
    pair = expected.pair("attention", "uniform")
    values = [cell.values["0"] for cell in record.cells["reviews"].values()][:5]
    assert values == pytest.approx(
        [
            pair.agreement,
            pair.xi.performance,
            expected.frozen_course[4],
            expected.course[2],
            expected.second_course[4],
        ],
        abs=1e-4,
    )
    seeds = {name: run_task(run / name).recipe.training.seed for name in ("uniform", "second", "frozen")}
    assert seeds == {"uniform": 0, "second": 1000, "frozen": 0}
    times = {path: path.stat().st_mtime_ns for path in run.rglob("*.json")}
    assert reproduce("tests/table-1", options, folder, quiet=True)[1] == record
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*.json")} == times
    (run / "agreement.json").unlink()
    shutil.rmtree(run / "second")
    assert reproduce("tests/table-1", options, folder, quiet=True)[1].cells == record.cells
    (run / "agreement.json").unlink()
    shutil.rmtree(run / "second")

    def diverging(task, folder, **kwargs):
        folder.mkdir()
        raise NonFiniteError("the loss is not finite")

    monkeypatch.setattr(running, "train", diverging)
    for _ in range(2):
        cells = reproduce("tests/table-1", options, folder, quiet=True)[1].cells["reviews"]
        assert cells["accuracy"] == record.cells["reviews"]["accuracy"]
        assert [(cells[name].values, cells[name].diverged) for name in map(str, range(5))] == [
            ({}, ("0",))
        ] * 5


@pytest.fixture
def columns_paper(recipe, tmp_path, monkeypatch):
    """A paper with a table whose second column starts from the runs of the first."""
    other = tmp_path / "three.csv"
    other.write_text("text,label\n" + "".join(f"a film {n},class {n % 3}\n" for n in range(48)))
    still = [
        "training.steps=1",
        "training.learning_rate=1e-12",
        "data.shifted=null",
        "data.out_of_domain=null",
    ]
    table = {
        "title": "Reviews",
        "shows": "One data set after another.",
        "recipe": str(recipe),
        "keys": ["training.steps=2"],
        "rows": {
            "soft": {"title": "Soft attention", "keys": ["attention={method: deterministic}"]},
            "again": {"title": "The same", "keys": ["attention={method: deterministic}"]},
            "none": {"title": "Random weights", "without": "Its weights are random."},
        },
        "columns": {
            "first": {"title": "First", "measure": "accuracy"},
            "refused": {"title": "Refused", "after": "first", "recipe": str(recipe), "measure": "accuracy"},
            "second": {
                "title": "Second",
                "after": "first",
                "recipe": str(recipe),
                "keys": ["attention={method: deterministic}", f"data.train={other}", *still],
                "measure": "accuracy",
            },
        },
    }
    table["columns"]["second"]["keys"].append("network.new_head=true")
    table["columns"]["refused"]["keys"] = table["columns"]["second"]["keys"][:-1]
    source = {"title": "A paper", "authors": "Somebody 2021", "url": "https://example.org"}
    paper = Paper.model_validate({"paper": source, "tables": {"table-1": table}}, strict=False)
    monkeypatch.setattr(declarations, "papers", lambda: {"tests": paper})
    return paper


SECOND = ReproduceOptions(seeds=2, columns=("second",))


@pytest.mark.slow
def test_a_run_starts_from_that_of_the_column_before(columns_paper, tmp_path):
    paper = columns_paper
    reasons = {(cell.row, cell.column): cell.without for cell in paper.tables["table-1"].cells()}
    assert reasons["none", "second"] == "Its weights are random."
    assert reasons["again", "second"].startswith(
        "at this size it has no recipe that differs from that of soft"
    )
    starts = {
        cell.after
        for cell in paper.tables["table-1"].cells()
        if cell.column == "second" and cell.row != "none"
    }
    assert starts == {"soft"}
    folder = tmp_path / "runs #1: 'all'"
    with pytest.raises(RunError, match=r"got one for 2; .*network\.new_head=true"):
        reproduce("tests/table-1", ReproduceOptions(seeds=1, columns=("refused",)), folder, quiet=True)
    _, record = reproduce("tests/table-1", SECOND, folder, quiet=True)
    assert {column: len(cell.values) for column, cell in record.cells["soft"].items()} == {
        "first": 2,
        "second": 2,
    }
    for seed in (0, 1):
        first, second = (folder / name / f"seed-{seed}" for name in ("soft", "soft/second"))
        assert run_task(second).recipe.network.name == str(first / "model")
        assert run_task(second).recipe.training.steps == 1
        begun, ended = (load_network(run).net.state_dict() for run in (first, second))
        new = {name for name, weight in ended.items() if weight.shape != begun[name].shape}
        assert new == {"classifier.weight", "classifier.bias"}
        for name in begun.keys() - new:
            torch.testing.assert_close(ended[name], begun[name], atol=1e-9, rtol=0)
    shutil.rmtree(folder / "soft" / "second" / "seed-1")
    assert reproduce("tests/table-1", SECOND, folder, quiet=True)[1].cells == record.cells
    table = json.loads(paper.tables["table-1"].model_dump_json())
    columns = table["columns"] | {"first": {"title": "First", "measure": "nll", "after": "second"}}
    with pytest.raises(ValueError, match="after: expected the key of a column before"):
        declarations.Table.model_validate(table | {"columns": columns}, strict=False)


def test_the_record_has_the_reason_of_what_starts_from_missing_data(columns_paper, tmp_path, monkeypatch):
    def without_data(*args, **kwargs):
        raise DataError("no such data")

    monkeypatch.setattr(running, "train", without_data)
    reproduce("tests/table-1", SECOND, tmp_path, quiet=True)
    cells = json.loads((tmp_path / "table.json").read_text())["cells"]["soft"]
    assert [cells[name]["reason"] for name in ("first", "second")] == ["no such data"] * 2


@pytest.mark.slow
def test_what_a_run_starts_from_may_move_be_removed_or_diverge(columns_paper, tmp_path, monkeypatch):
    folder = tmp_path / "runs"
    _, record = reproduce("tests/table-1", SECOND, folder, quiet=True)
    moved = folder.rename(tmp_path / "moved")
    shutil.rmtree(moved / "soft" / "seed-0" / "model")
    with monkeypatch.context() as patch:
        patch.setattr(running, "train", untrained)
        assert reproduce("tests/table-1", SECOND, moved, quiet=True)[1].cells == record.cells
        shutil.rmtree(moved / "soft" / "second" / "seed-0")
        with pytest.raises(
            RunError, match=r"soft/seed-0: expected its network, from which soft/second starts"
        ):
            reproduce("tests/table-1", SECOND, moved, quiet=True)

    def diverging(task, folder, **kwargs):
        folder.mkdir(parents=True)
        (folder / "recipe.yaml").write_text(task.recipe.dump())
        raise NonFiniteError("the loss is not finite")

    with monkeypatch.context() as patch:
        patch.setattr(running, "train", diverging)
        for _ in range(2):
            cells = reproduce("tests/table-1", SECOND, tmp_path / "diverged", quiet=True)[1].cells["soft"]
            assert [cells[name].diverged for name in ("first", "second")] == [("0", "1")] * 2
    shutil.rmtree(tmp_path / "diverged" / "soft" / "seed-0")
    cells = reproduce("tests/table-1", replace(SECOND, seeds=1), tmp_path / "diverged", quiet=True)[1].cells
    values = {name: record.cells["soft"][name].values["0"] for name in ("first", "second")}
    assert {name: cells["soft"][name].values["0"] for name in values} == values


def test_an_experiment_has_a_figure_a_condition_and_step(tmp_path, monkeypatch):
    recipe = tmp_path / "copying.yaml"
    recipe.write_text(
        """
experiment: {conditions: {one: {types: 5, length: 4}, two: {types: 4, length: 4}}}
network: {width: 8}
training: {runs: 3, steps: 4, batch_size: 8, evaluate_every: 2, test_sentences: 4, device: cpu}
""",
        encoding="utf-8",
    )
    table = {
        "title": "Copying",
        "shows": "Accuracy.",
        "recipe": str(recipe),
        "measure": "accuracy",
        "rows": {name: {"title": name, "model": name} for name in ("one", "two")}
        | {"agreeing": {"title": "agreement", "model": "one", "measure": "agreement"}},
        "columns": {
            "2": {"title": "2", "data": "2"},
            "3": {"title": "3", "data": "3"},
            "end": {"title": "end"},
        },
    }
    source = {"title": "A paper", "authors": "Somebody 2021", "url": "https://example.org"}
    paper = Paper.model_validate({"paper": source, "tables": {"table-1": table}}, strict=False)
    monkeypatch.setattr(declarations, "papers", lambda: {"tests": paper})
    _, record = reproduce("tests/table-1", ReproduceOptions(seeds=2), tmp_path / "runs", quiet=True)
    for name, seed, step, column in itertools.product(("one", "two"), (0, 1), (2, 4), ("2", "end")):
        if (step == 4) == (column == "end"):
            lines = (tmp_path / "runs" / "one" / f"seed-{seed}" / name / "metrics.jsonl").read_text()
            rows = [json.loads(line) for line in lines.splitlines()]
            row = next(row for row in rows if row["step"] == step and "accuracy" in row)
            value = record.cells[name][column].values[str(seed)]
            assert value == pytest.approx(statistics.mean(row["accuracy"]), abs=1e-4)
            if name == "one":
                value = record.cells["agreeing"][column].values[str(seed)]
                assert value == pytest.approx(statistics.mean(row["agreement"]), abs=1e-4)
    assert "3" not in record.cells["one"]
    saved = yaml.safe_load((tmp_path / "runs" / "one" / "seed-1" / "recipe.yaml").read_text())
    assert saved["training"]["seed"] == 3, "runs of two seeds share none"


def test_runs_of_other_recipes_are_refused(declared_paper, folder):
    options = ReproduceOptions(seeds=1, columns=("accuracy",), set=("training.learning_rate=7e-3",))
    with pytest.raises(
        RunError, match="with the same --set, got that of tests/table-1, size small; use another --output"
    ):
        reproduce("tests/table-1", options, folder, quiet=True)


def test_the_size_of_the_paper_has_no_small_keys(declared):
    small, paper = (list(declared.tables["table-1"].cells(size)) for size in ("small", "paper"))
    assert small[0].keys == ("training.steps=3", "attention={method: deterministic}")
    assert paper[0].keys == ("attention={method: deterministic}",)
    assert [cell.run for cell in small if not cell.without] == [
        *(6 * ["soft"] + ["soft/other"]),
        *(6 * ["babn"] + ["babn/other"]),
    ]


def test_a_part_of_a_table_leaves_the_record_of_the_rest(declared_paper, folder):
    before = reproduce("tests/table-1", ReproduceOptions(seeds=2, columns=("accuracy",)), folder, quiet=True)[
        1
    ]
    _, record = reproduce(
        "tests/table-1", ReproduceOptions(seeds=1, rows=("soft",), columns=("nll",)), folder, quiet=True
    )
    assert record == before
    assert record.seeds == 2


@pytest.mark.slow
def test_a_table_may_have_baselines(declared, tmp_path, monkeypatch):
    bayesian = declarations.Axis(title="BABN", keys=("attention={method: babn}",))
    rows = {"soft": bayesian.model_copy(update={"model": "deterministic"}), "babn": bayesian}
    changed = {"keys": ("report.baseline=true",), "rows": rows, "paper": {}}
    table = declared.tables["table-1"].model_copy(update=changed)
    paper = declared.model_copy(update={"tables": {"table-1": table}})
    monkeypatch.setattr(declarations, "papers", lambda: {"tests": paper})
    options = ReproduceOptions(seeds=1, columns=("nll",))
    _, record = reproduce("tests/table-1", options, tmp_path, quiet=True)
    (file,) = tmp_path.rglob("metrics.json")  # both rows are of one run
    scores = {
        one["model"]: one["values"] for one in json.loads(file.read_text())["scores"] if one["data"] == "test"
    }
    for row, model in (("soft", "deterministic"), ("babn", "bayesian_mean")):
        assert record.cells[row]["nll"].values["0"] == pytest.approx(scores[model]["nll"], abs=1e-4)


def test_a_figure_may_be_that_of_one_site():
    results = read_results(PINNED / "graph.json")
    values = {(site.model, site.site): site.from_uniform for site in results.edges}
    layers = [values["deterministic", site] for site in ("hidden.attention", "output.attention")]
    measure = partial(figure, results, "edges.from_uniform", "deterministic")
    assert measure("test") == statistics.mean(layers)
    assert [measure(site) for site in ("hidden.attention", "output.attention", "other")] == [*layers, None]
    assert (
        figure(results, "run.parameters", None, "test") is None
    )  # they were not counted when this file was written


def test_a_damaged_file_of_results_is_measured_again(declared_paper, folder):
    options = ReproduceOptions(seeds=1, rows=("soft",), columns=("accuracy",))
    before = reproduce("tests/table-1", options, folder, quiet=True)[1]
    file = folder / "soft" / "seed-0" / "metrics.json"
    file.write_text(file.read_text()[:100])
    after = reproduce("tests/table-1", options, folder, quiet=True)[1]
    assert all(after.cells[row]["nll"] == cells["nll"] for row, cells in before.cells.items())
    json.loads(file.read_text())


@pytest.fixture
def runs(declared_paper, folder, tmp_path, monkeypatch):
    """A copy of the folder that a test may damage; nothing is trained in it."""
    monkeypatch.setattr(running, "train", untrained)
    return shutil.copytree(folder, tmp_path / "runs")


def untrained(*args, **kwargs):
    raise AssertionError("trained")


def test_runs_of_another_recipe_are_left_out(runs, declared, monkeypatch, capsys):
    """After a declaration has changed, and where no record says what the runs have."""
    before = reproduce("tests/table-1", OPTIONS, runs, quiet=True)[1]
    table = declared.tables["table-1"]
    rows = dict(table.rows)
    rows["soft"] = rows["soft"].model_copy(
        update={"keys": (*rows["soft"].keys, "training.learning_rate=0.9")}
    )
    changed = declared.model_copy(update={"tables": {"table-1": table.model_copy(update={"rows": rows})}})
    monkeypatch.setattr(declarations, "papers", lambda: {"tests": changed})
    only = replace(OPTIONS, rows=("babn",))
    capsys.readouterr()
    with progress.shown(quiet=False):
        record = reproduce("tests/table-1", only, runs, quiet=True)[1]
    assert not any(cell.values for cell in record.cells["soft"].values())
    assert record.cells["babn"] == before.cells["babn"]
    words = (
        r"soft/seed-1: its recipe differs: expected training\.learning_rate \S+, got 0\.9; .*the table leaves"
    )
    assert re.search(words, record.cells["soft"]["nll"].reason)
    assert re.search(words, " ".join(capsys.readouterr().err.split()))
    assert not json.loads((runs / "table.json").read_text())["cells"].get("soft", {}).get("nll")
    with pytest.raises(RunError, match=r"its recipe differs: expected training\.learning_rate"):
        reproduce("tests/table-1", replace(OPTIONS, rows=("soft",)), runs, quiet=True)
    monkeypatch.setattr(declarations, "papers", lambda: {"tests": declared})
    (runs / "table.json").unlink()
    other = replace(only, set=("training.batch_size=3",))
    with pytest.raises(RunError, match=r"babn/seed-0: its recipe differs: expected training\.batch_size"):
        reproduce("tests/table-1", other, runs, quiet=True)
    assert not (runs / "table.json").exists()


def test_a_command_claims_its_folder_before_it_trains(declared_paper, tmp_path, monkeypatch):
    def interrupted(task, folder, **kwargs):
        folder.mkdir(parents=True)
        (folder / "recipe.yaml").write_text(task.recipe.dump())
        raise KeyboardInterrupt

    monkeypatch.setattr(running, "train", interrupted)
    with pytest.raises(KeyboardInterrupt):
        reproduce("tests/table-1", OPTIONS, tmp_path, quiet=True)
    with pytest.raises(RunError, match="with the same --set, got that of tests/table-1"):
        reproduce("tests/table-1", replace(OPTIONS, set=("training.batch_size=3",)), tmp_path, quiet=True)


def test_a_run_measured_in_part_is_measured_again(runs, folder, declared_paper, tmp_path):
    file = runs / "soft" / "seed-0" / "metrics.json"
    results = json.loads(file.read_text())
    results["run"]["restricted"] = "--limit 3"
    file.write_text(json.dumps(results))
    with pytest.raises(AssertionError, match="trained"):  # by continuing it: its network is whole
        reproduce("tests/table-1", OPTIONS, runs, quiet=True)
    with pytest.raises(AssertionError, match="trained"):
        reproduce("tests/table-1", OPTIONS, tmp_path / "copy", reuse=runs / "soft" / "seed-0", quiet=True)


def test_damaged_files_and_other_folders_are_left_alone(runs, declared_paper, capsys):
    before = (runs / "table.json").read_text()
    for content in ("", before[:50], before.replace('"table"', '"tables"', 1)):
        (runs / "table.json").write_text(content)
        with progress.shown(quiet=False):
            record = reproduce("tests/table-1", OPTIONS, runs, quiet=True)[1]
        assert "it is made again from the runs" in " ".join(capsys.readouterr().err.split())
        assert (runs / "table.json").read_text() == before
    shutil.copytree(runs / "soft" / "seed-0", runs / "soft" / "seed-0.bak")
    (runs / "soft" / "seed-0.bak" / "diverged.txt").write_text("no")
    (runs / "babn" / "seed-7").mkdir()
    (runs / "babn" / "seed-7" / "recipe.yaml").write_text("")
    with progress.shown(quiet=False):
        assert reproduce("tests/table-1", OPTIONS, runs, quiet=True)[1] == record
    assert re.search(r"babn/seed-7.*the table leaves it out", " ".join(capsys.readouterr().err.split()))


def test_interrupted_copies_and_damaged_recipes_are_not_reused(runs, declared_paper, tmp_path):
    (runs / "soft" / "seed-0").rename(runs / "soft" / ".seed-0.copy")
    (runs / "soft" / "seed-1" / "recipe.yaml").write_bytes(b"\xff\xfe")
    options = replace(OPTIONS, rows=("soft",), seeds=1)
    with pytest.raises(AssertionError, match="trained"):
        reproduce("tests/table-1", options, tmp_path / "copy", reuse=runs, quiet=True)
    assert (runs / "soft" / ".seed-0.copy" / "model").is_dir()
    with pytest.raises(RunError, match="--reuse: expected a folder with runs"):
        reproduce("tests/table-1", options, tmp_path / "copy", reuse=runs / "typo", quiet=True)


def test_overrides_are_checked_before_anything_is_trained(declared_paper, tmp_path, monkeypatch):
    monkeypatch.setattr(running, "train", untrained)
    for item, words in {
        "training.seed=7": "expected a key that all runs share, got training.seed",
        "output=/tmp": "expected a key that all runs share, got output",
        "data.nothing=1": "nothing",
    }.items():
        with pytest.raises((RunError, RecipeError), match=words):
            reproduce("tests/table-1", replace(OPTIONS, set=(item,)), tmp_path / "new", quiet=True)
    assert not (tmp_path / "new").exists()


def test_the_order_of_overrides_does_not_matter(declared_paper, tmp_path, monkeypatch):
    def diverging(task, folder, **kwargs):
        folder.mkdir(parents=True)
        (folder / "recipe.yaml").write_text(task.recipe.dump())
        raise NonFiniteError("the loss is not finite")

    monkeypatch.setattr(running, "train", diverging)
    changed = ("training.batch_size=3", "data.max_length=9")
    first = reproduce("tests/table-1", replace(OPTIONS, set=changed), tmp_path, quiet=True)[1]
    second = reproduce("tests/table-1", replace(OPTIONS, set=changed[::-1]), tmp_path, quiet=True)[1]
    assert first.cells == second.cells
    assert first.cells["soft"]["accuracy"].diverged == ("0", "1")


def test_gains_say_how_many_seeds_they_have(declared_paper):
    values = {"soft": {"1": 75.0, "2": 74.0}, "babn": {"0": 71.0, "1": 75.5, "2": 75.0}}
    cells = {row: {"accuracy": CellRecord(values=of_row, recipe="r")} for row, of_row in values.items()}
    text = sheet(TableRecord(table="tests/table-1", size="small", cells=cells)).text(None)
    assert re.search(r"BABN \(gain of 2 seeds\) .* \+0\.75 ", text)


def test_a_row_is_compared_with_the_one_that_it_names(declared_paper):
    values = {"soft": {"0": 70.0, "1": 75.0}, "babn": {"0": 71.0, "1": 75.5}, "copy": {"0": 73.0, "1": 76.5}}
    cells = {row: {"accuracy": CellRecord(values=of_row, recipe="r")} for row, of_row in values.items()}
    record = TableRecord(table="tests/table-1", size="small", set=("training.epochs=1",), cells=cells)
    text = sheet(record).text(None)
    assert "Another BABN, over BABN " in text
    assert "+1.50  [-4.9, +7.9]" in text
    assert "Changed: training.epochs=1." in text


def test_a_cell_without_data_has_the_reason(declared_paper, tmp_path, monkeypatch):
    monkeypatch.delenv("PROBATTN_DATA", raising=False)
    options = ReproduceOptions(seeds=2, rows=("soft",), columns=("other",))
    _, record = reproduce("tests/table-1", options, tmp_path, quiet=True)
    cell = record.cells["soft"]["other"]
    assert cell.values == {}
    assert "trec" in cell.reason
    assert record.measured == 0


def test_a_run_that_diverges_is_recorded_and_does_not_stop_the_others(declared_paper, tmp_path):
    changed = ("training.kl_weight=1.0e+38", "training.kl_schedule=constant", "attention.kl_reduction=sum")
    options = ReproduceOptions(seeds=2, rows=("babn",), columns=("accuracy",), set=changed)
    _, record = reproduce("tests/table-1", options, tmp_path, quiet=True)
    cell = record.cells["babn"]["accuracy"]
    assert (cell.values, cell.diverged, cell.diverged_words) == ({}, ("0", "1"), "2 of 2 runs diverged")
    assert record.measured == 0
    assert "is not finite" in (tmp_path / "babn" / "seed-1" / "diverged.txt").read_text()
    assert "Not measured, babn/accuracy" in sheet(record).text(200)
    assert "2 of 2 runs diverged" in sheet(record).text(200)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.pt")}
    assert reproduce("tests/table-1", options, tmp_path, quiet=True)[1] == record
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.pt")} == before


def test_the_mean_of_the_other_runs_says_how_many_diverged(declared_paper):
    cells = {"soft": {"accuracy": CellRecord(values={"0": 70.0, "2": 71.0}, recipe="r", diverged=("1",))}}
    text = sheet(TableRecord(table="tests/table-1", size="small", cells=cells)).text(100)
    line = next(line for line in text.splitlines() if line.startswith("soft"))
    assert "(1 of 3 runs diverged)" in line
    assert "70.50" in line


def test_gains_are_paired_over_seeds(declared_paper):
    values = {"soft": {"0": 70.0, "1": 75.0, "2": 71.0}, "babn": {"0": 71.0, "1": 75.5, "2": 73.0}}
    cells = {row: {"accuracy": CellRecord(values=of_row, recipe="r")} for row, of_row in values.items()}
    text = sheet(TableRecord(table="tests/table-1", size="small", cells=cells)).text(80)
    pairs = [values["babn"][seed] - values["soft"][seed] for seed in values["soft"]]
    low, high = stats.t.interval(0.95, 2, statistics.mean(pairs), stats.sem(pairs))
    line = next(line for line in text.splitlines() if line.startswith("BABN"))
    assert f"[{low:+.1f}, {high:+.1f}]" in line
    assert line.split()[1:3] == ["81.50", "73.17"]
    assert f"{statistics.mean(pairs):+.2f}" in line
    assert "+1.50" in line
    assert all(len(line) <= 80 for line in text.splitlines())


@pytest.mark.parametrize(
    ("key", "options", "message"),
    [
        ("mine/table-1", {}, "expected PAPER/TABLE with one of the papers tests"),
        ("tests/table-2", {}, "expected one of the tables and figures of tests: table-1, figure-1"),
        ("tests/figure-1", {}, "there is nothing to run: A drawing"),
        (
            "tests/table-1",
            {"rows": ("copy",)},
            "no cell of these rows and columns is run at size small: .*; at this size",
        ),
        ("tests/table-1", {"columns": ("closed",)}, "is run at size small: Nobody has it."),
        ("tests/table-1", {"rows": ("hard",)}, "--rows: expected some of soft, babn, copy, got 'hard'"),
        ("tests/table-1", {"columns": ("f1",)}, "--columns: expected some of closed, accuracy, .*, got 'f1'"),
    ],
)
def test_what_is_not_there_is_refused(declared_paper, tmp_path, key, options, message):
    with pytest.raises(RunError, match=message):
        reproduce(key, ReproduceOptions(**options), tmp_path)


def test_declarations_are_checked():
    table = {"title": "T", "shows": "S."}
    with pytest.raises(ValueError, match="expected rows and columns, a command, or a reason"):
        declarations.Table.model_validate(table)
    axes = {"rows": {"a": {"title": "A"}}, "columns": {"b": {"title": "B"}}}
    with pytest.raises(ValueError, match="expected keys of rows and columns, got 'c'"):
        declarations.Table.model_validate({**table, **axes, "paper": {"a": {"c": 1.0}}})


def test_a_table_is_found_by_its_key():
    assert find_table("babn/table-5").rows


@pytest.mark.parametrize(
    ("key", "row", "kinds"),
    [
        ("babn/table-5", "soft", ()),
        ("babn/table-5", "babn", ("BayesianAttention",)),
        ("aa/table-5", "gan", ("AlignmentAttention",)),
        ("aa/table-5", "repulsive", ("RepulsiveAttention",)),
        ("rma/table-4", "gw", ()),
        ("rma/table-4", "r", ("DisagreementAttention",)),
        ("rma/table-4", "rma", ("RepulsiveAttention",)),
        ("rma/table-2b", "base_rma", ("RepulsiveAttention",)),
        ("rma/table-3", "ELECTRA_OpenWebText", ()),
        ("rma/table-3", "ELECTRA_OpenWebText_RMA", ("RepulsiveAttention",)),
        ("babn/table-4", "va_enum", ()),
        ("babn/table-4", "strength", ("BayesianAttention",)),
    ],
)
@pytest.mark.parametrize("size", ["small", "paper"])
def test_rows_are_of_the_methods_that_they_name(key, row, kinds, size):
    cell = next(cell for cell in find_table(key).cells(size) if cell.row == row)
    methods = load_any_recipe(cell.recipe, cell.keys).methods()
    assert tuple(type(method).__name__ for method in methods) == kinds


def test_rows_are_of_the_parts_that_they_name():
    every = ("query", "key", "value")
    cells = {cell.row: load_any_recipe(cell.recipe, cell.keys) for cell in find_table("rma/table-8").cells()}
    assert cells.pop("ma").methods() == ()
    parts = {
        row: (made.projections, made.layers) for row, recipe in cells.items() for made in recipe.methods()
    }
    assert parts.pop("all") == (every, "all")
    expected = {row: ((row,), "all") if row in every else (every, row) for row in parts}
    assert parts == expected
    assert len(parts) == 8
    weights = {
        cell.row: load_any_recipe(cell.recipe, cell.keys) for cell in find_table("rma/table-3").cells()
    }
    for row, weight in (("ELECTRA_OpenWebText_RMA", 0.1), ("weak", 1e-3)):
        (made,) = weights[row].methods()
        assert (made.repulsion, made.layers) == (weight, (0,))
