"""Sections of the report on a classifier: comparison, calibration, entropy, selective prediction, single inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from markupsafe import Markup

from probattn.checks import grouped
from probattn.metrics.functional import bin_index
from probattn.report import lines as charts
from probattn.report import measures
from probattn.report.alignment import alignment_section
from probattn.report.attention import Example, attention_section
from probattn.report.dynamics import dynamics_section
from probattn.report.heads import heads_section
from probattn.report.markup import Figure, Section, exact
from probattn.report.record import BESIDE, MODELS, Comparison, Curve, DataSet, Scores
from probattn.report.results import Results
from probattn.report.sites import edges_section, posterior_section
from probattn.report.summary import findings, interval_ends
from probattn.report.svg import draws_glyph, interval_glyph, isolated
from probattn.report.words import words_section
from probattn.terminal import printable

LONG = 420
"""Characters from which on an input is folded."""


def _tables(results: Results) -> list[tuple[DataSet, list[dict[str, Any]]]]:
    """Rows of measures by data set that any model was measured on; a measure is explained where it comes first."""
    tables = []
    explained: set[str] = set()
    for data in results.data:
        rows = []
        for measure in results.measures:
            values = {score.model: score.values.get(measure) for score in _scores(results, data)}
            if any(value is not None for value in values.values()):
                rows.append(_row(results, data, measure, values, explain=measure not in explained))
                explained.add(measure)
        if rows:
            tables.append((data, rows))
    return tables


def _row(
    results: Results, data: DataSet, measure: str, values: Mapping[str, float | None], *, explain: bool
) -> dict[str, Any]:
    text, compared = results.measures[measure], results.compared
    gaps = {key: results.difference(measure, key, data.key) for key in (compared, *BESIDE)}
    return {
        "title": text.title,
        "meaning": f"{text.meaning + '; ' if explain else ''}{text.better} is better",
        "number": {
            key: exact(values.get(key), text.value(values.get(key)))
            for key in ("deterministic", compared, *BESIDE)
        },
        "gap": {
            key: None if gap is None else gap_words(gap, text, results.verdict(gap))
            for key, gap in gaps.items()
        },
    }


def gap_words(
    difference: Comparison, text: measures.MeasureText, verdict: measures.Verdict
) -> dict[str, Any]:
    """A difference in words and drawn, for the table of comparisons."""
    ends = interval_ends(difference, text)
    turn = 1 if text.better == "higher" else -1
    low, high = sorted((turn * difference.low, turn * difference.high))
    result = {"better": "better", "worse": "worse", "unclear": "no significant difference"}[verdict]
    title = f"{text.title}: {result}, {text.difference(difference.value)}, interval {ends[0]} to {ends[1]}"
    seeds = [turn * value for value in difference.seeds]
    return {
        "words": exact(difference.value, text.difference(difference.value)),
        "interval": Markup("{} to {}").format(
            exact(difference.low, ends[0]), exact(difference.high, ends[1])
        ),
        "verdict": verdict,
        "glyph": interval_glyph(turn * difference.value, low, high, verdict, title, seeds),
    }


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


def _bins(results: Results) -> list[dict[str, Any]]:
    """Bins of the run's own reliability diagram of which mistakes are shown, from the least confident on."""
    score = results.score(results.compared, results.in_domain.key)
    if score is None or not score.reliability or not results.binned:
        return []
    number = round(1 / (score.reliability[0].high - score.reliability[0].low))
    indices = bin_index(torch.tensor([item.probability for item in results.binned]), number).tolist()
    cards = grouped(zip(indices, [_card(example, {}) for example in results.binned], strict=True))
    bins = []
    for item in score.reliability:
        if shown := cards.get(round(number * item.low)):
            right = round(item.accuracy * item.count)
            stretch = (
                f"Confidence {100 * item.low:g} to {100 * item.high:g}%: {right:,} of {item.count:,} right"
            )
            some = f", {len(shown)} of them shown" if len(shown) < item.count - right else ""
            words, anchor = f"{stretch}, {item.count - right:,} wrong{some}", f"bin-{100 * item.low:g}"
            bins.append({"low": item.low, "anchor": anchor, "words": words, "cards": shown})
    return bins


def _curve_figures(
    results: Results,
    title: str,
    draw: Callable[[list[tuple[str, str, Any]], str], Markup],
    curve: Callable[[Scores], Any],
) -> list[Figure]:
    """A drawing a data set, with a line for each model that has the curve."""
    figures = []
    for data in results.data:
        curves = [
            (measures.MODEL_LABELS[score.model], measures.MODEL_STYLES[score.model], curve(score))
            for score in _scores(results, data)
            if curve(score)
        ]
        if curves:
            figures.append(Figure(data.title, draw(curves, f"{title}, {isolated(data.title)}")))
    return figures


def _scores(results: Results, data: DataSet) -> list[Scores]:
    return [score for model in MODELS if (score := results.score(model, data.key)) is not None]


def _card(example: Example, titles: Mapping[str, str]) -> dict[str, Any]:
    """An input with its prediction, for the template."""
    drawing = None
    if example.draws:
        title = f"Probability of {isolated(example.predicted)} in {len(example.draws)} draws"
        drawing = draws_glyph(example.draws, example.probability, example.baseline_same, title)
    return {
        "example": example,
        "data": titles.get(example.data or "", ""),
        "text": printable(example.text),
        "pair": None if example.pair is None else printable(example.pair),
        "long": len(printable(example.text)) + len(example.pair or "") > LONG,
        "spread": exact(example.spread, f"{100 * example.spread:.0f}"),
        "draws": drawing,
    }


def report_sections(
    results: Results,
    further: Iterable[Section | None] = (),
    quantities: Mapping[str, tuple[str, str]] = QUANTITIES,
) -> list[Section | None]:
    """The page's sections, ``further`` ones after the comparison; ``quantities``: headings and units of curves."""
    latent, unit = results.compared == "bayesian_mean", results.in_domain.unit
    details = Section("listings", "Details", "Details", "listing.html", {"listings": results.listings})
    return [
        words_section(results.words),
        *_comparison(results, latent=latent),
        *further,
        _calibration(results),
        _entropy(results),
        _selective(results, latent=latent),
        attention_section(results.attention, _site_names(results), results.compared),
        details if results.listings else None,
        alignment_section(results.alignment, unit),
        heads_section(results.heads, unit),
        edges_section(results.edges, latent=latent),
        _examples(results, latent=latent),
        posterior_section(results.health),
        dynamics_section(results.dynamics),
        training_section(results.curves, quantities),
    ]


def _comparison(results: Results, *, latent: bool) -> Iterator[Section]:
    """Findings, tables and single runs."""
    comparisons, shown = findings(results), _tables(results)
    context = {
        "findings": comparisons,
        "tables": shown,
        "results": results,
        "models": {score.model for score in results.scores},
        "latent": latent,
        "own": results.compared,
        "beside": [column for column in measures.BESIDE_COLUMNS if column[0] != results.compared],
        "level": f"{comparisons[0].difference.level:.0%}" if comparisons else "",
    }
    if comparisons:
        yield Section("findings", "Findings", "Findings", "findings.html", context)
    if shown:
        heading = (
            f"Deterministic against {measures.MODEL_LABELS[results.compared]}" if comparisons else "Scores"
        )
        yield Section("compare", "Comparison", heading, "compare.html", context)
    if results.runs:
        yield Section("runs", "Runs", "The single runs", "runs.html", context)


def _calibration(results: Results) -> Section | None:
    """Reliability diagrams side by side, by data set; points of the run's own lead to the mistakes of their bin."""
    bins, heading = _bins(results), "Is the confidence calibrated?"
    compared = (results.compared, results.in_domain.key)
    anchors = {item["low"]: item["anchor"] for item in bins}
    groups = []
    for data in results.data:
        scores = [score for score in _scores(results, data) if score.reliability]
        floor = charts.common_floor([score.reliability for score in scores])
        figures = []
        for score in scores:
            name, style = measures.MODEL_TITLES[score.model], measures.MODEL_STYLES[score.model]
            error = score.values.get("ece")
            note = Markup("calibration error {}").format(exact(error, results.measures["ece"].value(error)))
            title = f"Reliability, {name}, {isolated(data.title)}"
            leading = anchors if (score.model, data.key) == compared else {}
            chart = charts.reliability_chart(score.reliability, floor, style, title, leading)
            figures.append(Figure(name, chart, style, note))
        if figures:
            groups.append((data.title, figures))
    context = {"groups": groups, "bins": bins, "own": measures.MODEL_TITLES[results.compared]}
    return Section("calibration", "Calibration", heading, "calibration.html", context) if groups else None


def _entropy(results: Results) -> Section | None:
    """Entropy distributions by model, one line per data set."""
    figures = []
    for model in MODELS:
        curves = [
            (measures.ROLE_TITLES[data.role], measures.ROLE_STYLES[data.role], score.entropy)
            for data in results.data
            if (score := results.score(model, data.key)) is not None and score.entropy is not None
        ]
        if curves:
            name = measures.MODEL_TITLES[model]
            chart = charts.entropy_chart(curves, len(results.classes), f"Predictive entropy, {name}")
            figures.append(Figure(name, chart, measures.MODEL_STYLES[model]))
    if not figures:
        return None
    title = heading = "Predictive entropy"
    lead = (
        "The share of inputs whose predictive entropy is at most the value below. Curves that bend to the right are "
        "more uncertain"
    )
    if any(data.role != "in_domain" for data in results.data):
        title, heading = "OOD inputs", "Does the entropy detect out-of-distribution inputs?"
        lead += ": those of out-of-distribution (OOD) inputs should lie there, those of in-domain inputs on the left"
    return Section("entropy", title, heading, "figures.html", {"lead": f"{lead}.", "items": figures})


def _selective(results: Results, *, latent: bool) -> Section | None:
    context = {
        "risk": _curve_figures(
            results, "Risk against coverage", charts.risk_chart, lambda score: score.risk_coverage
        ),
        "pavpu": _curve_figures(results, "PAvPU", charts.pavpu_chart, lambda score: score.pavpu_curve),
        "latent": latent,
        "dropout": any(score.draws == "dropout" for score in results.scores),
    }
    if not (context["risk"] or context["pavpu"]):
        return None
    heading = "Which predictions can be trusted?"
    return Section("selective", "Selective prediction", heading, "selective.html", context)


def _examples(results: Results, *, latent: bool) -> Section | None:
    titles = {data.key: data.title for data in results.data}
    context = {
        "uncertain": [_card(example, titles) for example in results.uncertain],
        "mistakes": [_card(example, titles) for example in results.mistakes],
        "latent": latent,
    }
    if not (results.uncertain or results.mistakes):
        return None
    heading = "The most uncertain inputs and the most confident mistakes"
    return Section("examples", "Inputs", heading, "examples.html", context)


def training_section(
    curves: Sequence[Curve], quantities: Mapping[str, tuple[str, str]] = QUANTITIES
) -> Section | None:
    """Training curves, one line per model; ``quantities`` has headings and units by the names of the records."""
    figures = []
    for (name, kind), group in grouped(((curve.name, curve.kind), curve) for curve in curves).items():
        named = [
            (measures.MODEL_LABELS[curve.model], measures.MODEL_STYLES[curve.model], curve) for curve in group
        ]
        title, unit = quantities.get(name, (name.replace("_", " "), ""))
        heading = title + (", validation" if kind == "validation" else "")
        window = max(curve.window for curve in group)
        note = f"each point the mean of {window} records" if window > 1 else ""
        figures.append(
            Figure(heading, charts.training_chart(named, f"{heading} during training", unit), note=note)
        )
    context = {"lead": "", "items": figures}
    return Section("training", "Training", "Training curves", "figures.html", context) if figures else None


def _site_names(results: Results) -> list[str]:
    """All attention calls that anything is known of, so that one call's label is the same everywhere."""
    aligned = () if results.alignment is None else results.alignment.sites
    compared = () if results.heads is None else results.heads.sites
    return [site.site for sites in (results.health, aligned, compared) for site in sites]
