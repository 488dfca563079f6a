"""Tables and figures of the page, ready for the template."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from markupsafe import Markup, escape

from probattn.inference.report.charts.glyphs import bar_glyph, draws_glyph, interval_glyph
from probattn.inference.report.charts.lines import entropy_chart, pavpu_chart, risk_chart, training_chart
from probattn.inference.report.charts.reliability import common_floor, reliability_chart
from probattn.inference.report.charts.svg import printable
from probattn.inference.report.examples import Example
from probattn.inference.report.measurements import Curve, Difference, Scores
from probattn.inference.report.measures import MODEL_STYLES, MODEL_TITLES, TEXTS
from probattn.inference.report.record import MEASURES, MODELS, Measure, Role
from probattn.inference.report.results import DataSet, Results
from probattn.inference.report.wording import COLLAPSED

ROLES: Mapping[Role, tuple[str, str]] = MappingProxyType(
    {"in_domain": ("in domain", "in"), "shifted": ("shifted", "shift"), "out_of_domain": ("foreign", "out")}
)
"""Words and classes of the style sheet."""

QUANTITIES: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "loss": ("Loss", "per example"),
        "log_likelihood": ("Log-likelihood", "per example"),
        "kl": ("KL in the loss", "per example"),
        "kl_nats": ("KL from the prior", "nats per example"),
        "kl_weight": ("Weight of the KL", ""),
        "accuracy": ("Accuracy", "share"),
    }
)
"""Headings and units of training curves by their name in the records."""


@dataclass(frozen=True)
class Figure:
    """A drawing with its heading."""

    heading: str
    svg: Markup
    style: str = ""
    note: str = ""


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


@dataclass(frozen=True)
class Card:
    """One input with its prediction."""

    example: Example
    data: str
    text: str
    long: bool
    sure: Markup
    spread: Markup
    baseline: Markup | None
    draws: Markup | None


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


def exact(value: float | None, words: str) -> Markup:
    """A number as people read it, with its exact value for machines."""
    if value is None:
        return Markup("\N{EN DASH}")
    return Markup('<data value="{}">{}</data>').format(repr(value), words)


def tables(results: Results) -> list[Table]:
    """One table per data set that any model was measured on."""
    found = []
    explained: set[Measure] = set()
    for data in results.data:
        measures = [measure for measure in MEASURES if _measured(results, data, measure)]
        rows = [_row(results, data, measure, explain=measure not in explained) for measure in measures]
        explained.update(measures)
        if rows:
            found.append(Table(data, ROLES[data.role][0], tuple(rows)))
    return found


def _measured(results: Results, data: DataSet, measure: Measure) -> bool:
    scores = (results.score(model, data.key) for model in MODELS)
    return any(score is not None and score.measure(measure) is not None for score in scores)


def _row(results: Results, data: DataSet, measure: Measure, *, explain: bool) -> Row:
    text = TEXTS[measure]
    values = []
    for model in MODELS:
        score = results.score(model, data.key)
        value = score.measure(measure) if score else None
        values.append(exact(value, text.value(value)))
    gaps = [_gap(results.difference(measure, model, data.key)) for model in MODELS[1:]]
    meaning = f"{text.meaning}; {text.better} is better" if explain else f"{text.better} is better"
    return Row(text.title, meaning, values[0], values[1], gaps[0], values[2], gaps[1])


def _gap(difference: Difference | None) -> Gap | None:
    if difference is None:
        return None
    text = TEXTS[difference.measure]
    verdict = text.verdict(difference.low, difference.high)
    ends = [text.difference(value, sign=False) for value in (difference.low, difference.high)]
    interval = Markup("{} to {}").format(exact(difference.low, ends[0]), exact(difference.high, ends[1]))
    turn = 1 if text.better == "higher" else -1
    low, high = sorted((turn * difference.low, turn * difference.high))
    says = {"better": "better", "worse": "worse", "unclear": "no clear difference"}[verdict]
    title = f"{text.title}: {says}, {text.difference(difference.value)}, interval {ends[0]} to {ends[1]}"
    glyph = Markup(interval_glyph(turn * difference.value, low, high, verdict, title))
    return Gap(exact(difference.value, text.difference(difference.value)), interval, verdict, glyph)


def reliability_figures(results: Results) -> list[tuple[str, list[Figure]]]:
    """Reliability diagrams side by side, by data set."""
    groups = []
    for data in results.data:
        scores = [score for score in _scores(results, data) if score.reliability]
        floor = common_floor([score.reliability for score in scores])
        figures = []
        for score in scores:
            title = f"Reliability, {MODEL_TITLES[score.model]}, {data.title}"
            style = MODEL_STYLES[score.model]
            note = Markup("calibration error {}").format(exact(score.ece, TEXTS["ece"].value(score.ece)))
            svg = Markup(reliability_chart(score.reliability, floor, style, title))
            figures.append(Figure(MODEL_TITLES[score.model], svg, style, note))
        if figures:
            groups.append((data.title, figures))
    return groups


def entropy_figures(results: Results) -> list[Figure]:
    """Entropy distributions by model, one line per data set."""
    figures = []
    for model in MODELS:
        scores = [(data, results.score(model, data.key)) for data in results.data]
        curves = [
            (ROLES[data.role][0], ROLES[data.role][1], score.entropy) for data, score in scores if score
        ]
        if curves:
            title = f"Predictive entropy, {MODEL_TITLES[model]}"
            svg = Markup(entropy_chart(curves, len(results.classes), title))
            figures.append(Figure(MODEL_TITLES[model], svg, MODEL_STYLES[model]))
    return figures


def risk_figures(results: Results) -> list[Figure]:
    """Risk-coverage curves by data set, one line per model."""
    figures = []
    for data in results.data:
        curves = [
            (_short(score), MODEL_STYLES[score.model], score.risk_coverage)
            for score in _scores(results, data)
            if score.risk_coverage is not None
        ]
        if curves:
            svg = Markup(risk_chart(curves, f"Risk against coverage, {data.title}"))
            figures.append(Figure(data.title, svg))
    return figures


def pavpu_figures(results: Results) -> list[Figure]:
    """PAvPU by data set, one line per model that has draws."""
    figures = []
    for data in results.data:
        curves = [
            (_short(score), MODEL_STYLES[score.model], score.pavpu_curve)
            for score in _scores(results, data)
            if score.pavpu_curve
        ]
        if curves:
            figures.append(Figure(data.title, Markup(pavpu_chart(curves, f"PAvPU, {data.title}"))))
    return figures


def training_figures(results: Results) -> list[Figure]:
    """Training curves by quantity, one line per model."""
    groups: dict[tuple[str, str], list[Curve]] = {}
    for curve in results.curves:
        groups.setdefault((curve.name, curve.kind), []).append(curve)
    figures = []
    for (name, kind), curves in groups.items():
        named = [(_model_word(curve.model), MODEL_STYLES[curve.model], curve) for curve in curves]
        title, unit = QUANTITIES.get(name, (name.replace("_", " "), ""))
        heading = title + (", validation" if kind == "validation" else "")
        window = max(curve.window for curve in curves)
        note = f"each point the mean of {window} records" if window > 1 else ""
        svg = Markup(training_chart(named, f"{heading} during training", unit))
        figures.append(Figure(heading, svg, note=note))
    return figures


def _scores(results: Results, data: DataSet) -> list[Scores]:
    return [score for model in MODELS if (score := results.score(model, data.key)) is not None]


def _short(score: Scores) -> str:
    return _model_word(score.model)


def _model_word(model: str) -> str:
    return {
        "deterministic": "deterministic",
        "bayesian_mean": "Bayesian",
        "bayesian_expectation": "expected",
    }[model]


def cards(results: Results, examples: Sequence[Example]) -> list[Card]:
    """Inputs with their predictions."""
    titles = {data.key: data.title for data in results.data}
    return [_card(example, titles.get(example.data or "", "")) for example in examples]


def _card(example: Example, data: str) -> Card:
    text = printable(example.text)
    baseline = draws = None
    if example.baseline_probability is not None:
        baseline = exact(example.baseline_probability, f"{example.baseline_probability:.0%}")
    if example.draws:
        title = f"Probability of {example.predicted} in {len(example.draws)} draws"
        draws = Markup(draws_glyph(example.draws, example.probability, example.baseline_same, title))
    return Card(
        example,
        data,
        text,
        len(text) > 420,
        exact(example.probability, f"{example.probability:.0%}"),
        exact(example.spread, f"{100 * example.spread:.0f}"),
        baseline,
        draws,
    )


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
        return {name: part[-1] if len(names) < 2 else name for name, part in parts.items()}
    differing = [index for index in range(lengths.pop()) if len({part[index] for part in parts.values()}) > 1]
    labels = {}
    for name, part in parts.items():
        words = [
            f"{part[index - 1]} {part[index]}" if part[index].isdigit() and index else part[index]
            for index in differing
        ]
        labels[name] = " ".join(words)
    return labels


def plain(words: str) -> Markup:
    """Text without control characters, escaped, kept apart from the direction of the text around it."""
    return Markup("<bdi>{}</bdi>").format(escape(printable(words)))
