"""What was found, in plain words: gains, losses and what the data cannot tell."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from probattn.inference.report.charts.svg import isolated
from probattn.inference.report.measurements import Difference
from probattn.inference.report.measures import MODEL_LABELS, TEXTS, listed
from probattn.inference.report.record import MEASURES, Measure
from probattn.inference.report.results import DataSet, Results

COLLAPSED = 0.01
"""Mean std/mean of the weights below which a site's posterior counts as collapsed to a point."""

HEADLINE: tuple[tuple[str, Measure], ...] = (
    ("in_domain", "accuracy"),
    ("in_domain", "matthews"),
    ("in_domain", "ece"),
    ("in_domain", "overconfidence"),
    ("out_of_domain", "auroc"),
)
"""What the title may speak of: roles and measures, the most important first."""

Verdict = Literal["better", "worse", "unclear"]


@dataclass(frozen=True)
class Finding:
    """One comparison and what follows from it.

    Attributes:
        difference: the measured difference.
        data: the data set.
        verdict: "unclear" whenever the interval covers 0.
        claim: what may be said, without the data set.
        figures: both values, the difference and its interval.
        order: place of the data set among the others.
    """

    difference: Difference
    data: DataSet
    verdict: Verdict
    claim: str
    figures: str
    order: int


def findings(results: Results) -> list[Finding]:
    """Comparisons of the run's own network with the deterministic baseline, in the order of data sets and measures."""
    found = []
    for data in results.data:
        for measure in MEASURES:
            difference = results.difference(measure, results.contender, data.key)
            if difference is not None:
                found.append(_finding(results, data, difference))
    return found


def _finding(results: Results, data: DataSet, difference: Difference) -> Finding:
    text = TEXTS[difference.measure]
    verdict = text.verdict(difference.low, difference.high)
    claim = {"better": text.gain, "worse": text.loss, "unclear": text.title}[verdict]
    words = claim[0].upper() + claim[1:]
    figures = _figures(results, difference)
    if verdict != "unclear":
        figures = f"{text.short} {figures}"
    return Finding(difference, data, verdict, words, figures, results.data.index(data))


def _figures(results: Results, difference: Difference) -> str:
    text = TEXTS[difference.measure]
    ours = results.score(difference.model, difference.data)
    base = results.score("deterministic", difference.data)
    values = [text.value(score.measure(difference.measure) if score else None) for score in (ours, base)]
    low, high = (text.difference(value, sign=False) for value in (difference.low, difference.high))
    gap = f"{text.difference(difference.value)}{text.points}"
    return f"{values[0]} against {values[1]}: {gap} ({low} to {high})"


def interval_words(difference: Difference) -> str:
    """A difference with its interval.

    Example:
        >>> d = Difference(measure="ece", model="bayesian_mean", data="test", value=-0.031, low=-0.05, high=-0.01,
        ...                resamples=100)
        >>> interval_words(d)
        '−3.1 points, 95% interval −5.0 to −1.0'
    """
    text = TEXTS[difference.measure]
    low, high = (text.difference(value, sign=False) for value in (difference.low, difference.high))
    return (
        f"{text.difference(difference.value)}{text.points}, {difference.level:.0%} interval {low} to {high}"
    )


def headline(found: list[Finding]) -> str:
    """The title: gains and losses whose intervals exclude 0, and nothing else; there must be a finding."""
    name = MODEL_LABELS[found[0].difference.model]
    said: dict[str, list[str]] = {"better": [], "worse": []}
    for role, measure in HEADLINE:
        for finding in found:
            matches = (finding.data.role, finding.difference.measure) == (role, measure)
            if matches and finding.verdict != "unclear":
                said[finding.verdict].append(finding.claim[0].lower() + finding.claim[1:])
    gains, losses = listed(said["better"]), listed(said["worse"])
    if gains and losses:
        return f"Here, {name} attention is {gains}, but {losses}."
    if gains or losses:
        return f"Here, {name} attention is {gains or losses}."
    return f"No clear difference between {name} and deterministic attention here."


def opening(results: Results) -> str:
    """The paragraph under the title: accuracy first, whatever it is."""
    data = results.home
    place = f"{data.size:,} examples of {isolated(data.title)}"
    model = results.contender
    ours, base = results.score(model, data.key), results.score("deterministic", data.key)
    if ours is None or ours.accuracy is None:
        return f"{isolated(results.run.network)} was measured on {place}."
    text = TEXTS["accuracy"]
    words = f"Of {place}, {MODEL_LABELS[model]} attention got {text.value(ours.accuracy)} right"
    if base is None or base.accuracy is None:
        return f"{words}. No deterministic baseline was measured."
    words += f" and deterministic attention {text.value(base.accuracy)}"
    difference = results.difference("accuracy", model, data.key)
    if difference is None:
        return f"{words}."
    verdict = text.verdict(difference.low, difference.high)
    ending = {
        "unclear": "too small a difference for this test set to tell",
        "better": "a gain beyond what the choice of test examples explains",
        "worse": "a loss beyond what the choice of test examples explains",
    }[verdict]
    return f"{words}: {ending} ({interval_words(difference)})."


def posterior_words(results: Results) -> str:
    """What the sites say about the posterior: whether it is alive, and how much its weights vary."""
    if not results.health:
        return ""
    spreads = [site.spread for site in results.health]
    collapsed = [site.site for site in results.health if site.spread < COLLAPSED]
    if len(collapsed) == len(spreads):
        return (
            "The posterior has collapsed: attention weights vary by less than 1% of their mean at every site, so the "
            "Bayesian network is a deterministic one in all but name."
        )
    span = f"{min(spreads):.0%} to {max(spreads):.0%}" if len(spreads) > 1 else f"{spreads[0]:.0%}"
    words = f"Attention weights vary from draw to draw by {span} of their mean"
    if collapsed:
        return f"{words}; {len(collapsed)} of {len(spreads)} sites have collapsed to a point."
    return f"{words}: the posterior is alive."
