"""Tables of the page, ready for the template."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from markupsafe import Markup

from probattn.inference.report.charts.glyphs import bar_glyph, interval_glyph
from probattn.inference.report.charts.svg import printable
from probattn.inference.report.markup import exact
from probattn.inference.report.measurements import Difference
from probattn.inference.report.measures import ROLE_TITLES, TEXTS
from probattn.inference.report.record import MEASURES, MODELS, Measure, ModelKey
from probattn.inference.report.results import DataSet, Results
from probattn.inference.report.wording import COLLAPSED


@dataclass(frozen=True)
class Gap:
    """A difference as shown in a table."""

    words: Markup
    interval: Markup
    verdict: str
    glyph: Markup


@dataclass(frozen=True)
class Row:
    """A measure in the table of a data set, explained where it comes first; a missing difference is None."""

    title: str
    meaning: str
    baseline: Markup
    mean: Markup
    gap: Gap | None
    expectation: Markup
    expectation_gap: Gap | None


@dataclass(frozen=True)
class Table:
    """The comparison on one data set."""

    data: DataSet
    role: str
    rows: tuple[Row, ...]


def tables(results: Results) -> list[Table]:
    """One table per data set that any model was measured on."""
    found = []
    explained: set[Measure] = set()
    for data in results.data:
        measures = [measure for measure in MEASURES if _measured(results, data, measure)]
        rows = [_row(results, data, measure, explain=measure not in explained) for measure in measures]
        explained.update(measures)
        if rows:
            found.append(Table(data, ROLE_TITLES[data.role], tuple(rows)))
    return found


def _measured(results: Results, data: DataSet, measure: Measure) -> bool:
    scores = (results.score(model, data.key) for model in MODELS)
    return any(score is not None and score.measure(measure) is not None for score in scores)


def _row(results: Results, data: DataSet, measure: Measure, *, explain: bool) -> Row:
    text = TEXTS[measure]
    values = []
    models: tuple[ModelKey, ...] = ("deterministic", results.contender, "bayesian_expectation")
    for model in models:
        score = results.score(model, data.key)
        value = score.measure(measure) if score else None
        values.append(exact(value, text.value(value)))
    gaps = [_gap(results, results.difference(measure, model, data.key)) for model in models[1:]]
    meaning = f"{text.meaning}; {text.better} is better" if explain else f"{text.better} is better"
    return Row(text.title, meaning, values[0], values[1], gaps[0], values[2], gaps[1])


def _gap(results: Results, difference: Difference | None) -> Gap | None:
    if difference is None:
        return None
    text = TEXTS[difference.measure]
    verdict = results.verdict(difference)
    ends = [text.difference(value, sign=False) for value in (difference.low, difference.high)]
    interval = Markup("{} to {}").format(exact(difference.low, ends[0]), exact(difference.high, ends[1]))
    turn = 1 if text.better == "higher" else -1
    low, high = sorted((turn * difference.low, turn * difference.high))
    says = {"better": "better", "worse": "worse", "unclear": "no reliable difference"}[verdict]
    title = f"{text.title}: {says}, {text.difference(difference.value)}, interval {ends[0]} to {ends[1]}"
    seeds = [turn * value for value in difference.seeds]
    glyph = Markup(interval_glyph(turn * difference.value, low, high, verdict, title, seeds))
    return Gap(exact(difference.value, text.difference(difference.value)), interval, verdict, glyph)


@dataclass(frozen=True)
class Site:
    """A row of the table of sites."""

    name: str
    label: str
    spread: Markup
    bar: Markup
    collapsed: bool
    concentration: Markup
    kl_nats: Markup
    kl_reduced: Markup


def sites(results: Results) -> list[Site]:
    """The table of sites."""
    labels = site_labels([site.site for site in results.health])
    top = max((site.spread for site in results.health), default=1.0)
    return [
        Site(
            site.site,
            labels[site.site],
            exact(site.spread, f"{site.spread:.3f}"),
            Markup(bar_glyph(site.spread, top, f"spread {site.spread:.3f}")),
            site.spread < COLLAPSED,
            exact(site.concentration, f"{site.concentration or 0:.2f}"),
            exact(site.kl_nats, f"{site.kl_nats:,.1f}"),
            exact(site.kl_reduced, f"{site.kl_reduced or 0:.4g}"),
        )
        for site in results.health
    ]


def site_labels(names: Iterable[str]) -> dict[str, str]:
    """Short labels: what distinguishes the names, dots apart.

    Example:
        >>> site_labels(["net.layer.0.attention", "net.layer.1.attention"])
        {'net.layer.0.attention': 'layer 0', 'net.layer.1.attention': 'layer 1'}
        >>> site_labels(["net.attention"])
        {'net.attention': 'attention'}
    """
    names = list(dict.fromkeys(names))
    parts = {name: name.split(".") for name in names}
    lengths = {len(part) for part in parts.values()}
    if len(names) < 2 or len(lengths) > 1:
        return {name: printable(part[-1] if len(names) < 2 else name) for name, part in parts.items()}
    differing = [index for index in range(lengths.pop()) if len({part[index] for part in parts.values()}) > 1]
    labels = {}
    for name, part in parts.items():
        words = [
            f"{part[index - 1]} {part[index]}" if part[index].isdigit() and index else part[index]
            for index in differing
        ]
        labels[name] = printable(" ".join(words))
    return labels
