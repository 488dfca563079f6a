"""Figures of the page, ready for the template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from markupsafe import Markup

from probattn.inference.report.charts.lines import entropy_chart, pavpu_chart, risk_chart, training_chart
from probattn.inference.report.charts.reliability import common_floor, reliability_chart
from probattn.inference.report.charts.svg import isolated
from probattn.inference.report.markup import exact
from probattn.inference.report.measurements import Curve, Scores
from probattn.inference.report.measures import (
    MODEL_LABELS,
    MODEL_STYLES,
    MODEL_TITLES,
    ROLE_STYLES,
    ROLE_TITLES,
    TEXTS,
)
from probattn.inference.report.record import MODELS
from probattn.inference.report.results import DataSet, Results

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


@dataclass(frozen=True)
class Figure:
    """A drawing with its heading."""

    heading: str
    svg: Markup
    style: str = ""
    note: str = ""


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
