"""The page of a run that has measures of its own, and its results for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from markupsafe import Markup

from probattn.report import MODEL_LABELS, MODEL_TITLES, DataSet, Group, Sheet
from probattn.report.alignment import alignment_section
from probattn.report.attribution import attribution_section
from probattn.report.charts.lines import common_floor, reliability_chart
from probattn.report.charts.svg import isolated
from probattn.report.dynamics import dynamics_section
from probattn.report.heads import heads_section
from probattn.report.markup import Figure, Section, exact, plain
from probattn.report.measures import (
    BESIDE_COLUMNS,
    MODEL_STYLES,
    ROLE_TITLES,
    MeasureText,
    capital,
    listed,
)
from probattn.report.page import budget, render_page, run_section
from probattn.report.record import BESIDE
from probattn.report.sections import QUANTITIES, gap_words, training_section
from probattn.report.sites import posterior_section
from probattn.tasks.fine_tuning.results import MeasuredDifference, MeasuredResults

Measures = Mapping[str, MeasureText]
RELIABLE = "*"
"""Marks a reliable difference."""


def render(
    results: MeasuredResults,
    measures: Measures,
    unit: str,
    *,
    more: Iterable[Section | None] = (),
    head_measure: str = "accuracy",
    prediction: str | None = None,
    package: str = "probattn.tasks.fine_tuning",
    quantities: Mapping[str, tuple[str, str]] = QUANTITIES,
) -> str:
    """The page as text: HTML with its styles and drawings inside; equal records give an equal page.

    Args:
        results: the records.
        measures: what was measured.
        unit: what the data are counted in.
        head_measure: what is measured without each head, in words.
        more: further sections, which stand after the comparison; ``package`` has their templates.
        prediction: how was predicted, in words; None for the number of draws.
        package: where templates are.
        quantities: headings and units of training curves.
    """
    run, several = results.run, bool(results.runs)
    note = Markup(
        "Every number of this page is in <code>{}</code>, beside it, to the last digit. Intervals by {}; p values "
        "corrected by Holm's method."
    ).format("seeds.json" if several else "metrics.json", results.intervals)
    latent = results.compared == "bayesian_mean"
    return render_page(
        [
            _comparison(results, measures),
            _runs(results, measures),
            *more,
            _calibration(results, measures),
            Section("listings", "Details", "Details", "listing.html", {"listings": results.listings})
            if results.listings
            else None,
            alignment_section(results.alignment, unit),
            heads_section(results.heads, unit, head_measure),
            attribution_section(results.attribution, [item.site for item in results.health]),
            posterior_section(results.health),
            dynamics_section(results.dynamics),
            training_section(results.curves, quantities),
            run_section(run, results.data, note, results.seeds),
        ],
        kind=results.kind,
        run=run,
        headline=headline(results, measures),
        opening=opening(results, measures),
        facts=(
            ("Network", plain(run.network)),
            ("Method", plain(run.method)),
            ("Trained on", budget(run, unit, each=several or len(results.scores) > 1)),
            ("Prediction", prediction or (f"{run.num_samples} posterior draws" if latent else "one pass")),
        ),
        package=package,
    )


def _comparison(results: MeasuredResults, measures: Measures) -> Section:
    own, base = results.compared, "deterministic"
    tables = []
    for data in results.data:
        rows = []
        for name, text in measures.items():
            found = {key: results.score(key, data.key) for key in (base, own, *BESIDE)}
            values = {key: None if score is None else score.values.get(name) for key, score in found.items()}
            if any(value is not None for value in values.values()):
                gaps = {
                    key: _gap(results, results.difference(name, key, data.key), text)
                    for key in (own, *BESIDE)
                }
                rows.append(
                    {
                        "title": text.title,
                        "meaning": f"{text.meaning}; {text.better} is better",
                        "number": {key: exact(value, text.value(value)) for key, value in values.items()},
                        "gap": gaps,
                    }
                )
        tables.append((data, rows))
    level = f"{results.differences[0].level:.0%}" if results.differences else ""
    context = {
        "findings": results.differences,
        "tables": tables,
        "results": results,
        "models": {score.model for score in results.scores},
        "latent": own == "bayesian_mean",
        "own": own,
        "beside": [column for column in BESIDE_COLUMNS if column[0] != own],
        "level": level,
    }
    heading = f"Deterministic against {MODEL_LABELS[own]}" if results.differences else "Scores"
    return Section("compare", "Comparison", heading, "compare.html", context)


class _Compared(NamedTuple):
    """A difference as the table of single runs shows it."""

    difference: MeasuredDifference
    data: DataSet
    text: MeasureText

    @property
    def title(self) -> str:
        """The name of the measure."""
        return self.text.title

    def of_seed(self, place: int) -> Markup:
        """The difference of one of several seeds."""
        value = self.difference.seeds[place]
        return exact(value, self.text.difference(value))


def _runs(results: MeasuredResults, measures: Measures) -> Section | None:
    home, own = results.in_domain, results.compared
    found = [
        _Compared(difference, home, text)
        for name, text in measures.items()
        if (difference := results.difference(name, own, home.key)) is not None
    ]
    context = {"results": results, "findings": found}
    return Section("runs", "Runs", "The single runs", "runs.html", context) if results.runs else None


def _gap(
    results: MeasuredResults, difference: MeasuredDifference | None, text: MeasureText
) -> dict[str, Any] | None:
    return None if difference is None else gap_words(difference, text, results.verdict(difference, text))


def _calibration(results: MeasuredResults, measures: Measures) -> Section | None:
    groups = []
    for data in results.data:
        scores = [score for score in results.scores if score.data == data.key and score.reliability]
        floor = common_floor([score.reliability for score in scores])
        figures = []
        for score in scores:
            name, style = MODEL_TITLES[score.model], MODEL_STYLES[score.model]
            error = score.values.get("ece")
            note = Markup("calibration error {}").format(exact(error, measures["ece"].value(error)))
            title = f"Reliability, {name}, {isolated(data.title)}"
            figures.append(
                Figure(name, reliability_chart(score.reliability, floor, style, title), style, note)
            )
        if figures:
            groups.append((data.title, figures))
    heading = "Is the confidence calibrated?"
    section = Section("calibration", "Calibration", heading, "calibration.html", {"groups": groups})
    return section if groups else None


def headline(results: MeasuredResults, measures: Measures) -> str:
    """Reliable gains and losses of the run's own network, or that there are none."""
    own, seeds = results.compared, len(results.seeds)
    home = results.in_domain
    basis = f"({seeds} seed{'s' * (seeds > 1)}, {home.size:,} {home.unit})"
    if not results.differences:
        name, text = next(iter(measures.items()))
        score = results.score(own, home.key)
        value = None if score is None else score.values.get(name)
        return f"{MODEL_TITLES[own]} attention: {text.short} {text.value(value)} {basis}"
    claims = [
        text.gain if verdict == "better" else text.loss
        for text, verdict in _verdicts(results, measures)
        if verdict != "unclear"
    ]
    name = MODEL_LABELS[own]
    if not claims:
        return f"No reliable difference between {name} and deterministic attention {basis}"
    where = "" if results.runs else "In this run, "
    return capital(f"{where}{name} against deterministic attention: {listed(claims)} {basis}")


def _verdicts(results: MeasuredResults, measures: Measures) -> Iterator[tuple[MeasureText, str]]:
    for name, text in measures.items():
        difference = results.difference(name, results.compared, results.in_domain.key)
        if difference is not None:
            yield text, results.verdict(difference, text)


def opening(results: MeasuredResults, measures: Measures) -> str:
    """The sentence below it: the first measure of all models."""
    name, text = next(iter(measures.items()))
    models = [
        score for score in results.scores if score.model not in BESIDE or score.model == results.compared
    ]
    numbers = ", ".join(
        f"{MODEL_LABELS[score.model]} {text.value(score.values.get(name))}" for score in models
    )
    return f"{text.title}: {numbers}."


def results_sheet(results: MeasuredResults, measures: Measures) -> Sheet:
    """Deterministic against the run's own network, measure by measure, with the difference and its interval."""
    own = results.compared
    models = [
        key
        for key in dict.fromkeys(("deterministic", own))
        if any(key == score.model for score in results.scores)
    ]
    headings = ["measure", *(MODEL_LABELS[key] for key in models)]
    if results.differences:
        headings += ["difference", f"{results.differences[0].level:.0%} interval"]
    groups = []
    for data in results.data:
        rows = []
        for name, text in measures.items():
            scores = [results.score(key, data.key) for key in models]
            values = [None if score is None else score.values.get(name) for score in scores]
            if all(value is None for value in values):
                continue
            cells = ["" if value is None else f"{value:.3f}" for value in values]
            rows.append((text.title, *cells, *_gap_cells(results, name, data.key, text)))
        groups.append(
            Group(f"{data.title} ({ROLE_TITLES[data.role]}, {data.size:,} {data.unit})", tuple(rows))
        )
    legend = (
        f"Intervals: {results.intervals}, each of its comparison alone. {RELIABLE} marks what holds among all "
        "comparisons (Holm's method), is large enough and rests on enough examples."
    )
    notes = (f"{headline(results, measures)}.", *([legend] if results.differences else []))
    return Sheet(tuple(headings), tuple(groups), notes=notes)


def _gap_cells(results: MeasuredResults, name: str, data: str, text: MeasureText) -> tuple[str, ...]:
    if not results.differences:
        return ()
    difference = results.difference(name, results.compared, data)
    if difference is None:
        return "", ""
    mark = " " if results.verdict(difference, text) == "unclear" else RELIABLE
    return f"{difference.value:+.3f}", f"[{difference.low:+.3f}, {difference.high:+.3f}]{mark}"
