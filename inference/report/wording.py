"""What was found, in plain words: gains, losses and what the data cannot tell."""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import Markup

from probattn.inference.report.charts.svg import isolated, printable
from probattn.inference.report.claims import LEAST_EFFECT, LEAST_EXAMPLES, LEAST_SEEDS, least_resamples
from probattn.inference.report.markup import exact
from probattn.inference.report.measurements import Difference
from probattn.inference.report.measures import MODEL_LABELS, TEXTS, Verdict, counted, listed
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


@dataclass(frozen=True)
class Finding:
    """One comparison and what follows from it.

    Attributes:
        difference: the measured difference.
        data: the data set.
        verdict: "unclear" unless the difference may be spoken of (:func:`~.claims.is_reliable`).
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

    @property
    def title(self) -> str:
        """The name of the measure."""
        return TEXTS[self.difference.measure].title

    def of_seed(self, place: int) -> Markup:
        """The difference of one of several seeds."""
        value = self.difference.seeds[place]
        return exact(value, TEXTS[self.difference.measure].difference(value))


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
    verdict = results.verdict(difference)
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
        ...                p=0.02, corrected=0.02, resamples=100)
        >>> interval_words(d)
        '−3.1 points, 95% interval −5.0 to −1.0'
    """
    text = TEXTS[difference.measure]
    low, high = (text.difference(value, sign=False) for value in (difference.low, difference.high))
    return (
        f"{text.difference(difference.value)}{text.points}, {difference.level:.0%} interval {low} to {high}"
    )


def headline(results: Results) -> str:
    """The title: reliable gains and losses and nothing else, with the numbers of seeds and of the task's examples."""
    found = findings(results)
    if not found:
        return printable(results.run.name)
    basis = f"({counted(len(results.seeds), 'seed')}, {results.home.size:,} {results.home.unit})"
    told: dict[str, list[str]] = {"better": [], "worse": []}
    for role, measure in HEADLINE:
        for finding in found:
            matches = (finding.data.role, finding.difference.measure) == (role, measure)
            if matches and finding.verdict != "unclear":
                told[finding.verdict].append(finding.claim[0].lower() + finding.claim[1:])
    gains, losses = listed(told["better"]), listed(told["worse"])
    reliable = [finding for finding in found if finding.verdict != "unclear"]
    if not reliable:
        return f"No reliable difference {basis}"
    subject = f"{MODEL_LABELS[found[0].difference.model]} attention"
    subject = subject[0].upper() + subject[1:] if results.runs else f"In this run, {subject}"
    if gains and losses:
        return f"{subject} is {gains}, but {losses} {basis}"
    if gains or losses:
        return f"{subject} is {gains or losses} {basis}"
    return f"{subject} differs in {len(reliable)} of {counted(len(found), 'comparison')} {basis}"


def evidence(results: Results) -> str:
    """What the title rests on: seeds, comparisons, and what was asked of a difference; empty without comparisons."""
    found = findings(results)
    if not found:
        return ""
    seeds, sets = len(results.seeds), len({finding.data.key for finding in found})
    comparisons = f"{counted(len(found), 'comparison')} on {counted(sets, 'data set')}"
    level = found[0].difference.level
    asked = (
        "A difference counts if its p value, corrected for all of them by Holm's method, is below "
        f"{1 - level:.2g}, if it is at least {LEAST_EFFECT:g} ({100 * LEAST_EFFECT:g} points), and if there are at "
        f"least {LEAST_EXAMPLES} examples{f' and {LEAST_SEEDS} seeds' if results.runs else ''}."
    )
    if results.runs:
        return (
            f"{counted(seeds, 'seed')}, {comparisons}. {asked} The p values are those of Student's t, paired by seed: "
            "they cover the chance of training, given these examples."
        )
    resamples = found[0].difference.resamples or 0
    needed = least_resamples(len(found), level)
    few = (
        f" {resamples:,} resamples are too few to tell any of {len(found)} comparisons: set report.resamples to "
        f"{needed:,} or more."
    )
    return (
        f"One seed, {comparisons}. {asked} This is evidence about this run; what holds of the method takes "
        f"several seeds: give probattn report the runs of several.{few if resamples < needed else ''}"
    )


def opening(results: Results) -> str:
    """The paragraph under the title: accuracy first, whatever it is."""
    data = results.home
    place = f"{data.size:,} {data.unit} of {isolated(data.title)}"
    model = results.contender
    ours, base = results.score(model, data.key), results.score("deterministic", data.key)
    if ours is None or ours.accuracy is None:
        return f"{isolated(results.run.network)} was measured on {place}."
    text = TEXTS["accuracy"]
    words = f"Of {place}, {MODEL_LABELS[model]} attention got {text.value(ours.accuracy)} right"
    if base is None or base.accuracy is None:
        return f"{words}. No deterministic baseline was measured."
    words += f" and deterministic attention {text.value(base.accuracy)}"
    if results.runs:
        words += ", on average over seeds"
    difference = results.difference("accuracy", model, data.key)
    if difference is None:
        return f"{words}."
    chance = "the choice of seeds" if results.runs else "the choice of test examples"
    ending = {
        "unclear": "no reliable difference",
        "better": f"a gain beyond what {chance} explains",
        "worse": f"a loss beyond what {chance} explains",
    }[results.verdict(difference)]
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
