"""Tables at any width: every number whole, words broken at spaces only, nothing read as markup."""

import json
import re
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from runs import described

from probattn import report
from probattn.cli.console import show
from probattn.tasks.agreement import agreement_table
from probattn.tasks.experiments import ConditionRuns, ExperimentResults, ExperimentView

WIDTHS = (None, 40, 80, 100, 120)
RUN = described()
HOSTILE = "[/x] [bold]fine[/bold] {0} \x1b[31m [link=x] \u202edrawkcab nettirw sdrow ynam\u2069"


def results(name: str = "Rotten tomatoes (test)") -> report.Results:
    """Every measure of three data sets, with the longest titles and numbers there are."""
    data = tuple(
        report.DataSet(key=role, title=name, role=role, size=1250, labelled=True, unit="texts")
        for role in ("in_domain", "shifted", "out_of_domain")
    )
    measures = ("accuracy", "nll", "ece", "overconfidence", "pavpu", "aurc", "auroc", "fpr95")
    scores = tuple(
        report.Scores(
            model=model,
            data=each.key,
            entropy=report.Entropy(mean=0.1, quantiles=(0.1, 0.1)),
            values={measure: (index + place / 10) / 10 for index, measure in enumerate(measures)},
        )
        for place, model in enumerate(("deterministic", "bayesian_mean"))
        for each in data
    )
    differences = tuple(
        report.Difference(
            measure=measure,
            model="bayesian_mean",
            data=each.key,
            value=-0.014,
            low=-0.042,
            high=0.013,
            p=0.001,
            corrected=0.001 if measure == "ece" else 0.2,
            resamples=1000,
        )
        for measure in measures
        for each in data
    )
    return report.Results(run=RUN, classes=("a", "b"), data=data, scores=scores, differences=differences)


def numbers(text: str) -> list[str]:
    return re.findall(r"[-+]?\d+\.\d+", text)


@pytest.mark.parametrize("width", WIDTHS)
def test_the_table_of_a_run_is_whole_at_every_width(width: int | None) -> None:
    sheet = report.results_table(results())
    text = sheet.text(width)
    expected = [number for group in sheet.groups for row in group.rows for number in numbers(" ".join(row))]
    assert numbers(text.partition("No significant")[0].partition("In this run")[0]) == expected
    assert text.count("[-0.042, +0.013]") == 24 and "…" not in text
    assert text.count("[-0.042, +0.013]*") == 3
    words = " ".join(text.split())
    for title in ("Area under risk-coverage", "Negative log-likelihood"):
        assert words.count(title) == 3 or all(part in text for part in title.split())
    if width is not None:
        assert max(map(cell_len, text.splitlines())) <= width
    if width in {80, 100, 120, None}:
        assert re.search(r"Negative log-likelihood +0\.100 +0\.110 +-0\.014  \[-0\.042, \+0\.013\]", text)


def test_below_its_columns_a_row_is_a_block() -> None:
    text = report.results_table(results()).text(40)
    assert "Accuracy\n  deterministic  0.000\n  Bayesian       0.010\n  difference     -0.014\n" in text
    assert "\n  95% interval   [-0.042, +0.013]\n" in text


CELLS = st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=30)


@given(
    st.lists(st.tuples(CELLS, CELLS, st.floats(-1e6, 1e6).map("{:+.3f}".format)), min_size=1, max_size=5),
    st.integers(20, 130),
)
def test_any_cells_at_any_width(rows: list[tuple[str, str, str]], width: int) -> None:
    sheet = report.Sheet(("text", "label", "probability"), (report.Group("", tuple(rows)),), words=2)
    text = sheet.text(width)
    for _, _, number in rows:
        assert re.search(rf"(^|\s){re.escape(number)}$", text, re.MULTILINE)
    longest = max(cell_len(word) for row in rows for cell in row for word in cell.split() or [""])
    if longest < 6:
        assert max(map(cell_len, text.splitlines())) <= width


@pytest.mark.parametrize("width", WIDTHS)
def test_markup_in_texts_labels_and_titles_is_text(width: int | None) -> None:
    rows = ((HOSTILE, "[red]b", "[/label]", "0.500"),)
    sheet = report.Sheet(("text", "second text", "label", "probability"), (report.Group("", rows),), words=3)
    shown = sheet.text(width)
    for text in (shown, report.results_table(results(HOSTILE)).text(width)):
        words = " ".join(text.split())
        assert all(part in words for part in ("[/x]", "[bold]fine[/bold]", "{0}", "[link=x]"))
        assert "\x1b" not in text and "\u202e" in text
        for line in text.splitlines():
            assert line.count("\u202e") == line.count("\u202c")
        assert "\u2069" not in text
    assert "[red]b" in shown and "[/label]" in shown


def test_other_tables_are_whole_at_80() -> None:
    condition = ConditionRuns(
        key="a",
        title=f"a condition of many words, {HOSTILE}",
        task="t",
        steps=(1,),
        measures={"accuracy": ((0.5,),)},
        first_steps=(None,),
        reached=0,
    )
    experiment = ExperimentResults(
        run=RUN, task="copy", threshold=0.99, by_step=10_000, conditions=(condition, condition)
    )
    pair = report.PairAgreement(first="attention", second="uniform", agreement=0.123, tau=0.456)
    agreement = report.Agreement(run="[/x]", outputs=3, chance=0.05, accuracy=0.9, pairs=(pair,))
    for sheet, expected in (
        (ExperimentView().table(experiment), ("0 of 1", "[bold]fine[/bold]", "0.99 by step")),
        (agreement_table(agreement), ("A(α, β^uf)", "12.3%", "45.6")),
    ):
        text = sheet.text(80)
        assert max(map(cell_len, text.splitlines())) <= 80
        for words in expected:
            assert words in " ".join(text.split())


@pytest.mark.parametrize(("terminal", "columns"), [(True, 60), (True, 200), (False, 60)])
def test_a_pipe_gets_the_natural_width(monkeypatch, capsys, terminal, columns) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    sheet = report.Sheet(("text", "n"), (report.Group("", (("word " * 20, "1.5"),)),))
    show(sheet)
    shown = capsys.readouterr().out
    assert shown == sheet.text(columns if terminal else None) + "\n"
    assert (max(map(len, shown.splitlines())) <= 60) == (terminal and columns == 60)


def test_no_rows_are_a_heading() -> None:
    assert report.Sheet(("text", "n"), ()).text(80).splitlines()[0] == "text  n"
    assert json.dumps(report.Sheet(("text", "n"), (report.Group("", ()),)).text(None))
