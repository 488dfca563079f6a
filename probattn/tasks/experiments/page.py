"""The page of a synthetic experiment, and its results for a terminal."""

from __future__ import annotations

from statistics import median

from markupsafe import Markup

from probattn.report import Group as Rows
from probattn.report import Sheet
from probattn.report.lines import Group, runs_chart
from probattn.report.markup import Figure, Section, exact, formatted, plain
from probattn.report.page import render_page, run_section
from probattn.report.svg import isolated
from probattn.tasks.experiments.results import ConditionRuns, ExperimentResults, leaders
from probattn.tasks.view import View

STYLES = ("bay", "out", "shift", "better", "det", "in")
"""Colours of the conditions, in their order."""

MEASURES = (
    ("attention", "Attention is largest at the right position", "output words"),
    ("probe", "The lexical probe is largest at the right position", "output words"),
    ("agreement", "Agreement of attention with the model's own probe", "output words"),
    ("agreement_uniform", "Agreement of attention with the probe under uniform attention", "output words"),
)
PLACES = (
    ("keyword", "keyword", "bay"),
    ("next_word", "word after it", "shift"),
    ("mean", "mean of all", "in"),
    ("last", "last word", "out"),
)
ROWS = 9
"""Steps, at most, that a table of log-odds shows."""


def _learned_section(results: ExperimentResults) -> Section:
    rows = [(item, _style(index), _cells(results, item)) for index, item in enumerate(results.conditions)]
    accuracy = [_figure(results, "accuracy", "Accuracy", "share")]
    context = {"results": results, "rows": rows, "accuracy": accuracy, "legend": _legend(results)}
    return Section("learned", "Runs", "How many runs learn, and when?", "learned.html", context)


def _search_section(results: ExperimentResults) -> Section | None:
    section = Section("search", "Heads", "Which heads are good?", "search.html", {"results": results})
    return section if results.search else None


def _positions_section(results: ExperimentResults) -> Section | None:
    charts = [
        _figure(results, name, heading, f"share of {unit}")
        for name, heading, unit in MEASURES
        if any(name in item.measures for item in results.conditions)
    ]
    context = {
        "positions": charts,
        "legend": _legend(results),
        "beside_uniform": any("agreement_uniform" in item.measures for item in results.conditions),
        "chance": sorted({item.chance for item in results.conditions if item.chance is not None}),
    }
    heading = "Do attention and the probe find the right position?"
    return Section("positions", "Positions", heading, "positions.html", context) if charts else None


def _odds_section(results: ExperimentResults) -> Section | None:
    measured = [item for item in results.conditions if "keyword" in item.measures]
    context = {
        "charts": [_odds_figure(item) for item in measured],
        "tables": [(item.title, _odds_rows(item), _runs(item)) for item in measured],
        "places": PLACES,
    }
    heading = "Which word determines the prediction?"
    return Section("odds", "Log-odds", heading, "odds.html", context) if measured else None


def _legend(results: ExperimentResults) -> list[tuple[str, str]]:
    return [(_style(index), item.title) for index, item in enumerate(results.conditions)]


def _runs(item: ConditionRuns) -> int:
    return len(item.first_steps)


def _style(index: int) -> str:
    return STYLES[index % len(STYLES)]


def _cells(results: ExperimentResults, item: ConditionRuns) -> list[Markup]:
    """Numbers of a condition: runs that reached the threshold, median step, accuracy at the end, p values."""
    final = [value for value in item.measures["accuracy"][-1] if value is not None]
    cells = [
        exact(item.reached, f"{item.reached} of {_runs(item)}"),
        formatted(item.median_step, ",.0f"),
        formatted(float(median(final)), ".3f"),
        formatted(min(final), ".3f"),
    ]
    if results.tests:
        test = next((test for test in results.tests if test.condition == item.key), None)
        cells += [_p(None if test is None else test.fisher), _p(None if test is None else test.log_rank)]
    return cells


def _p(value: float | None) -> Markup:
    return exact(value, "< 0.0001" if value is not None and value < 1e-4 else f"{value or 0:.4f}")


def _figure(results: ExperimentResults, name: str, heading: str, y_title: str) -> Figure:
    groups = [
        Group(item.title, _style(index), item.steps, item.measures[name])
        for index, item in enumerate(results.conditions)
        if name in item.measures
    ]
    return Figure(heading, runs_chart(groups, heading, y_title))


def _odds_figure(item: ConditionRuns) -> Figure:
    groups = [Group(words, css, item.steps, item.measures[name]) for name, words, css in PLACES]
    chart = runs_chart(groups, f"Log-odds, {isolated(item.title)}", "log-odds", share=False)
    return Figure(item.title, chart)


def _odds_rows(item: ConditionRuns) -> list[list[Markup]]:
    count = len(item.steps)
    indices = sorted({round(index * (count - 1) / (ROWS - 1)) for index in range(ROWS)})
    rows = []
    for row in indices:
        cells = [exact(item.steps[row], f"{item.steps[row]:,}")]
        for name in ("accuracy", *(name for name, _, _ in PLACES)):
            values = [value for value in item.measures[name][row] if value is not None]
            middle = float(median(values)) if values else None
            cells.append(exact(middle, f"{middle or 0:.2f}"))
        cells += [exact(number, str(number)) for number in _leaders(item, row).values()]
        rows.append(cells)
    return rows


def _leaders(item: ConditionRuns, index: int) -> dict[str, int]:
    """In how many runs each position has the largest log-odds, at one step; by the words for it."""
    words = {name: text for name, text, _ in PLACES if name != "mean"}
    return {words[name]: count for name, count in leaders(item.measures, tuple(words), index).items()}


class ExperimentView(View[ExperimentResults]):
    """How the results of conditions read."""

    results_class = ExperimentResults
    no_seeds = "an experiment holds all its seeds itself (training.runs); give it alone"

    def headline(self, results: ExperimentResults) -> str:
        """The main finding in one line."""
        if results.task == "keyword":
            first = results.conditions[0]
            where = _leaders(first, len(first.steps) - 1)
            count, name = max((count, words) for words, count in where.items())
            sentence = f"largest at the {name} in {count} of {_runs(first)} runs"
            return f"After {first.steps[-1]:,} steps the log-odds are {sentence}"
        first, *others = results.conditions
        runs = f"{first.reached} of {_runs(first)} runs"
        sentence = f"By step {results.by_step:,}, {runs} have learned with {isolated(first.title)}"
        return "; ".join((sentence, *(f"{item.reached} with {isolated(item.title)}" for item in others)))

    def table(self, results: ExperimentResults) -> Sheet:
        """Conditions with the runs that learned, for a terminal."""
        reached = f"{results.threshold:g} by step {results.by_step}"
        tests = {test.condition: test for test in results.tests}
        rows = []
        for item in results.conditions:
            test = tests.get(item.key)
            values = (item.median_step, test and test.fisher, test and test.log_rank)
            cells = ["" if value is None else f"{value:.3g}" for value in values]
            rows.append((item.title, f"{item.reached} of {len(item.first_steps)}", *cells))
        headings = ("condition", reached, "median step", "Fisher p", "log-rank p")
        return Sheet(headings, (Rows("", tuple(rows)),))

    def page(self, results: ExperimentResults) -> str:
        """The page as text: HTML with its styles and drawings inside; equal records give an equal page."""
        run = results.run
        note = Markup("Every number of this page, for every run, is in <code>metrics.json</code>, beside it.")
        return render_page(
            [
                _learned_section(results),
                _search_section(results),
                _positions_section(results),
                _odds_section(results),
                run_section(run, (), note),
            ],
            kind="experiment",
            name=run.name,
            headline=self.headline(results),
            facts=(("Model", plain(run.network)), ("Training", plain(run.method))),
            package="probattn.tasks.experiments",
        )
