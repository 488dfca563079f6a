"""Tables of papers: their declarations, their runs, and what is shown of them."""

import json
import statistics
from types import SimpleNamespace

import pytest
import yaml
from scipy import stats

from probattn.recipes import load_any_recipe
from probattn.report.alignment import SiteAlignment
from probattn.report.heads import SiteHeads
from probattn.report.record import RunDescription
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
    sheet,
)
from probattn.reproduce.records import figure
from probattn.tasks import RunError

pytestmark = pytest.mark.filterwarnings("ignore::probattn.data.DataWarning")
ALL = [(f"{name}/{key}", table) for name, paper in papers().items() for key, table in paper.tables.items()]
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


SECTIONS = {
    "heads": SiteHeads,
    "alignment": SiteAlignment,
    "edges": EdgeAttention,
    "health": SiteHealth,
    "run": RunDescription,
}


@pytest.mark.parametrize(("key", "table"), RUN, ids=[key for key, _ in RUN])
def test_measures_of_sections_exist(key, table):
    for measure in {cell.measure for cell in table.cells() if "." in cell.measure} - {"run.step_seconds"}:
        section, name = measure.split(".")
        kind = SECTIONS[section]
        assert name in kind.model_fields or isinstance(getattr(kind, name), property)


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
            "seconds": {"title": "Seconds of an update", "measure": "run.step_seconds"},
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


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("reproduced")


def test_a_table_is_run_once_and_its_figures_are_those_of_the_runs(declared_paper, folder):
    options = ReproduceOptions(seeds=2, columns=("accuracy", "nll", "spread", "seconds"))
    file, record = reproduce("tests/table-1", options, folder, quiet=True)
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
            assert cells["seconds"].values[str(seed)] == pytest.approx(
                results["run"]["seconds"] / 3, abs=1e-4
            )
            saved = yaml.safe_load((folder / row / f"seed-{seed}" / "recipe.yaml").read_text())
            assert saved["training"]["seed"] == seed
            assert saved["training"]["steps"] == 3
            assert saved["report"]["baseline"] is False
        assert not (folder / row / "seed-0" / "checkpoints").exists()
    times = {path: path.stat().st_mtime_ns for path in folder.rglob("metrics.json")}
    assert reproduce("tests/table-1", options, folder, quiet=True)[1] == record
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("metrics.json")} == times
    assert len(times) == 4


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
        *(4 * ["soft"] + ["soft/other"]),
        *(4 * ["babn"] + ["babn/other"]),
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


def test_a_damaged_file_of_results_is_measured_again(declared_paper, folder):
    options = ReproduceOptions(seeds=1, rows=("soft",), columns=("accuracy",))
    before = reproduce("tests/table-1", options, folder, quiet=True)[1]
    file = folder / "soft" / "seed-0" / "metrics.json"
    file.write_text(file.read_text()[:100])
    after = reproduce("tests/table-1", options, folder, quiet=True)[1]
    assert all(after.cells[row]["nll"] == cells["nll"] for row, cells in before.cells.items())
    json.loads(file.read_text())


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
    with pytest.raises(ValueError, match="expected rows and columns, a study or a command, or a reason"):
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
    ],
)
@pytest.mark.parametrize("size", ["small", "paper"])
def test_rows_are_of_the_methods_that_they_name(key, row, kinds, size):
    cell = next(cell for cell in find_table(key).cells(size) if cell.row == row)
    methods = load_any_recipe(cell.recipe, cell.keys).methods()
    assert tuple(type(method).__name__ for method in methods) == kinds
