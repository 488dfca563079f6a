"""Sections of the report on a classifier: comparison, calibration, entropy, selective prediction, single inputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from markupsafe import Markup

from probattn.inference.report.alignment import alignment_section
from probattn.inference.report.attention import Example, attention_section
from probattn.inference.report.charts.lines import (
    common_floor,
    entropy_chart,
    pavpu_chart,
    reliability_chart,
    risk_chart,
    training_chart,
)
from probattn.inference.report.charts.svg import draws_glyph, interval_glyph, isolated, printable
from probattn.inference.report.dynamics import dynamics_section
from probattn.inference.report.findings import findings
from probattn.inference.report.heads import heads_section
from probattn.inference.report.markup import Figure, Section, exact
from probattn.inference.report.measures import (
    MODEL_LABELS,
    MODEL_STYLES,
    MODEL_TITLES,
    ROLE_STYLES,
    ROLE_TITLES,
    TEXTS,
)
from probattn.inference.report.record import (
    MEASURES,
    MODELS,
    Curve,
    DataSet,
    Difference,
    Measure,
    ModelKey,
    Scores,
)
from probattn.inference.report.results import Results
from probattn.inference.report.sites import edges_section, posterior_section

LONG = 420
"""Characters from which on an input is folded."""


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
    models: tuple[ModelKey, ...] = ("deterministic", results.compared, "bayesian_expectation")
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
    result = {"better": "better", "worse": "worse", "unclear": "no reliable difference"}[verdict]
    title = f"{text.title}: {result}, {text.difference(difference.value)}, interval {ends[0]} to {ends[1]}"
    seeds = [turn * value for value in difference.seeds]
    glyph = Markup(interval_glyph(turn * difference.value, low, high, verdict, title, seeds))
    return Gap(exact(difference.value, text.difference(difference.value)), interval, verdict, glyph)


QUANTITIES: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "loss": ("Loss", "per example"),
        "log_likelihood": ("Log-likelihood", "per example"),
        "kl": ("KL in the loss", "per example"),
        "kl_nats": ("KL from the prior", "nats per example"),
        "kl_weight": ("Weight of the KL", ""),
        "accuracy": ("Accuracy", "share"),
        "cross_entropy": ("Cross-entropy", "nats per token"),
        "token_accuracy": ("Tokens right", "share"),
    }
)
"""Headings and units of training curves by their name in the records."""


def reliability_figures(results: Results) -> list[tuple[str, list[Figure]]]:
    """Reliability diagrams side by side, by data set."""
    groups = []
    for data in results.data:
        scores = [score for score in _scores(results, data) if score.reliability]
        floor = common_floor([score.reliability for score in scores])
        figures = []
        for score in scores:
            title = f"Reliability, {MODEL_TITLES[score.model]}, {isolated(data.title)}"
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
            (ROLE_TITLES[data.role], ROLE_STYLES[data.role], score.entropy)
            for data, score in scores
            if score is not None and score.entropy is not None
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
            (MODEL_LABELS[score.model], MODEL_STYLES[score.model], score.risk_coverage)
            for score in _scores(results, data)
            if score.risk_coverage is not None
        ]
        if curves:
            svg = Markup(risk_chart(curves, f"Risk against coverage, {isolated(data.title)}"))
            figures.append(Figure(data.title, svg))
    return figures


def pavpu_figures(results: Results) -> list[Figure]:
    """PAvPU by data set, one line per model that has draws."""
    figures = []
    for data in results.data:
        curves = [
            (MODEL_LABELS[score.model], MODEL_STYLES[score.model], score.pavpu_curve)
            for score in _scores(results, data)
            if score.pavpu_curve
        ]
        if curves:
            figures.append(Figure(data.title, Markup(pavpu_chart(curves, f"PAvPU, {isolated(data.title)}"))))
    return figures


def training_figures(
    curves: Sequence[Curve], quantities: Mapping[str, tuple[str, str]] = QUANTITIES
) -> list[Figure]:
    """Training curves by quantity, one line per model; ``quantities`` has their headings and units by name."""
    groups: dict[tuple[str, str], list[Curve]] = {}
    for curve in curves:
        groups.setdefault((curve.name, curve.kind), []).append(curve)
    figures = []
    for (name, kind), group in groups.items():
        named = [(MODEL_LABELS[curve.model], MODEL_STYLES[curve.model], curve) for curve in group]
        title, unit = quantities.get(name, (name.replace("_", " "), ""))
        heading = title + (", validation" if kind == "validation" else "")
        window = max(curve.window for curve in group)
        note = f"each point the mean of {window} records" if window > 1 else ""
        svg = Markup(training_chart(named, f"{heading} during training", unit))
        figures.append(Figure(heading, svg, note=note))
    return figures


def _scores(results: Results, data: DataSet) -> list[Scores]:
    return [score for model in MODELS if (score := results.score(model, data.key)) is not None]


def cards(results: Results, examples: Sequence[Example]) -> list[dict[str, Any]]:
    """Inputs with their predictions, for the template."""
    titles = {data.key: data.title for data in results.data}
    return [_card(example, titles.get(example.data or "", "")) for example in examples]


def _card(example: Example, data: str) -> dict[str, Any]:
    drawing = None
    if example.draws:
        title = f"Probability of {isolated(example.predicted)} in {len(example.draws)} draws"
        drawing = Markup(draws_glyph(example.draws, example.probability, example.baseline_same, title))
    return {
        "example": example,
        "data": data,
        "text": printable(example.text),
        "pair": None if example.pair is None else printable(example.pair),
        "long": len(printable(example.text)) + len(example.pair or "") > LONG,
        "spread": exact(example.spread, f"{100 * example.spread:.0f}"),
        "draws": drawing,
    }


def report_sections(results: Results) -> list[Section | None]:
    """The sections of the page in their order; None where nothing was measured."""
    latent = results.compared == "bayesian_mean"
    return [
        *_comparison(results, latent=latent),
        _calibration(results),
        _entropy(results),
        _selective(results, latent=latent),
        attention_section(results.attention, _site_names(results), results.compared),
        alignment_section(results.alignment),
        heads_section(results.heads),
        edges_section(results.edges, latent=latent),
        _examples(results, latent=latent),
        posterior_section(results.health),
        dynamics_section(results.dynamics),
        training_section(results.curves),
    ]


def _comparison(results: Results, *, latent: bool) -> Iterator[Section]:
    """Findings, tables and single runs."""
    found, shown = findings(results), tables(results)
    context = {
        "findings": found,
        "tables": shown,
        "results": results,
        "models": {score.model for score in results.scores},
        "latent": latent,
        "alone": results.compared == "deterministic",
        "compared": MODEL_TITLES[results.compared],
        "compared_label": MODEL_LABELS[results.compared],
        "level": f"{found[0].difference.level:.0%}" if found else "",
    }
    if found:
        yield Section("findings", "Findings", "Findings", "findings.html", context)
    if shown:
        heading = f"Deterministic against {MODEL_LABELS[results.compared]}" if found else "Scores"
        yield Section("compare", "Comparison", heading, "compare.html", context)
    if results.runs:
        yield Section("runs", "Runs", "The single runs", "runs.html", context)


def _calibration(results: Results) -> Section | None:
    groups = reliability_figures(results)
    heading = "Is the confidence calibrated?"
    return (
        Section("calibration", "Calibration", heading, "calibration.html", {"groups": groups})
        if groups
        else None
    )


def _entropy(results: Results) -> Section | None:
    found = entropy_figures(results)
    if not found:
        return None
    title = heading = "Predictive entropy"
    lead = (
        "The share of inputs whose predictive entropy is at most the value below. Curves that bend to the right are "
        "more uncertain"
    )
    if any(data.role != "in_domain" for data in results.data):
        title, heading = "OOD inputs", "Does the entropy detect out-of-distribution inputs?"
        lead += ": those of out-of-distribution (OOD) inputs should lie there, those of in-domain inputs on the left"
    return Section("entropy", title, heading, "figures.html", {"lead": f"{lead}.", "items": found})


def _selective(results: Results, *, latent: bool) -> Section | None:
    context = {
        "risk": risk_figures(results),
        "pavpu": pavpu_figures(results),
        "latent": latent,
        "dropout": any(score.draws == "dropout" for score in results.scores),
    }
    if not (context["risk"] or context["pavpu"]):
        return None
    heading = "Which predictions can be trusted?"
    return Section("selective", "Selective prediction", heading, "selective.html", context)


def _examples(results: Results, *, latent: bool) -> Section | None:
    context = {
        "uncertain": cards(results, results.uncertain),
        "mistakes": cards(results, results.mistakes),
        "latent": latent,
    }
    if not (results.uncertain or results.mistakes):
        return None
    heading = "The most uncertain inputs and the most confident mistakes"
    return Section("examples", "Inputs", heading, "examples.html", context)


def training_section(
    curves: Sequence[Curve], quantities: Mapping[str, tuple[str, str]] = QUANTITIES
) -> Section | None:
    """Training curves; ``quantities`` has headings and units by the names of the records."""
    found = training_figures(curves, quantities)
    context = {"lead": "", "items": found}
    return Section("training", "Training", "Training curves", "figures.html", context) if found else None


def _site_names(results: Results) -> list[str]:
    """All attention calls that anything is known of, so that one call's label is the same everywhere."""
    aligned = () if results.alignment is None else results.alignment.sites
    compared = () if results.heads is None else results.heads.sites
    return [site.site for sites in (results.health, aligned, compared) for site in sites]
