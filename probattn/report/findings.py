"""Findings in words, and several runs of one recipe combined over their seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from markupsafe import Markup

from probattn.report.charts.svg import isolated, printable
from probattn.report.claims import (
    LEAST_EFFECT,
    LEAST_EXAMPLES,
    LEAST_SEEDS,
    corrected,
    least_resamples,
    over_seeds,
)
from probattn.report.markup import exact
from probattn.report.measures import (
    MODEL_LABELS,
    TEXTS,
    MeasureText,
    Verdict,
    capital,
    counted,
    listed,
)
from probattn.report.record import (
    MEASURES,
    Comparison,
    DataSet,
    Difference,
    Measure,
    Scores,
    SingleRun,
)
from probattn.report.results import Results

LEVEL = 0.95
"""Of the intervals where single runs hold no difference to take it from."""


def combine(runs: Mapping[str, Results]) -> Results:
    r"""The comparison of the runs of one recipe over their seeds.

    A score is the mean over seeds. A difference d to the deterministic network of the same seed has the interval and
    the p value of Student's t,

    .. math:: \bar d \pm t_{n - 1, (1 + level) / 2}\, \frac{s}{\sqrt n},

    that is the paired test (Student 1908), corrected by Holm's method over all comparisons of a model. The chance that
    covers is that of training (initial values, order of batches, noise), given the examples; differences are taken to
    be normally distributed over seeds, which few seeds cannot show.

    Args:
        runs: evaluations of n >= 2 single runs by the path of their folder, seen from that of the records.

    Returns:
        Records whose ``runs`` name the single ones. What is of one network only (curves, maps, inputs, the state of a
        posterior, commands) stays with the single runs; a measure that one of them lacks is left out.

    Raises:
        ValueError: fewer than two runs, two of one seed, one that is itself of several runs, or other data sets,
            classes or models than the first has; the message names the run.
    """
    each = _checked(runs)
    first = each[0]
    scores = tuple(_mean(same) for same in zip(*(results.scores for results in each), strict=True))
    level = first.differences[0].level if first.differences else LEVEL
    differences: list[Difference] = []
    for item in first.differences:
        found = [results.difference(item.measure, item.model, item.data) for results in each]
        values = [one.value for one in found if one is not None]
        if len(values) == len(each):
            differences.append(over_seeds(item, values, level))
    seconds = sum(results.run.seconds for results in each)
    return Results(
        run=first.run.model_copy(update={"seconds": seconds, "commands": ()}),
        runs=tuple(SingleRun(folder=name, seed=results.run.seed) for name, results in runs.items()),
        classes=first.classes,
        data=first.data,
        scores=scores,
        differences=corrected(differences),
    )


def _checked(runs: Mapping[str, Results]) -> list[Results]:
    if len(runs) < 2:
        raise ValueError(f"combine: expected at least two runs, got {len(runs)}")
    (first_name, first), *others = runs.items()
    seeds = {first.run.seed: first_name}
    for name, results in runs.items():
        if results.runs:
            raise ValueError(f"{name}: expected a single run, got the comparison of {len(results.runs)}")
    for name, results in others:
        other = seeds.setdefault(results.run.seed, name)
        if other != name:
            raise ValueError(f"{name}: expected another seed than {results.run.seed}, which {other} has")
        for what, own, its in (
            ("data sets", first.data, results.data),
            ("classes", first.classes, results.classes),
            ("models", _models(first), _models(results)),
        ):
            if own != its:
                raise ValueError(
                    f"{name}: expected the {what} of {first_name} ({_words(own)}), got {_words(its)}; evaluate "
                    "both again"
                )
    return list(runs.values())


def _models(results: Results) -> tuple[tuple[str, str], ...]:
    return tuple((score.model, score.data) for score in results.scores)


def _words(values: Sequence[object]) -> str:
    return ", ".join(dict.fromkeys(str(value) for value in values))


def _mean(scores: Sequence[Scores]) -> Scores:
    means: dict[str, float | None] = {}
    for name in (*MEASURES, "mutual_information"):
        values = [value for score in scores if (value := getattr(score, name)) is not None]
        means[name] = fmean(values) if len(values) == len(scores) else None
    return Scores.model_validate({"model": scores[0].model, "data": scores[0].data, **means})


HEADLINE: tuple[tuple[str, Measure], ...] = (
    ("in_domain", "accuracy"),
    ("in_domain", "matthews"),
    ("in_domain", "ece"),
    ("in_domain", "overconfidence"),
    ("out_of_domain", "auroc"),
)
"""Roles and measures that the headline reports, the most important first."""


@dataclass(frozen=True)
class Finding:
    """One comparison and what follows from it.

    Attributes:
        difference: the measured difference.
        data: the data set.
        verdict: "unclear" unless the difference is reliable (:func:`~.claims.is_reliable`).
        claim: the finding without its data set.
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
    return [
        _finding(results, data, difference)
        for data in results.data
        for measure in MEASURES
        if (difference := results.difference(measure, results.compared, data.key)) is not None
    ]


def _finding(results: Results, data: DataSet, difference: Difference) -> Finding:
    text, verdict = TEXTS[difference.measure], results.verdict(difference)
    claim = {"better": text.gain, "worse": text.loss, "unclear": text.title}[verdict]
    scores = [results.score(model, difference.data) for model in (difference.model, "deterministic")]
    ours, base = (text.value(score.measure(difference.measure) if score else None) for score in scores)
    low, high = interval_ends(difference, text)
    gap = f"{text.difference(difference.value)}{text.points}"
    figures = f"{ours} against {base}: {gap} ({low} to {high})"
    if verdict != "unclear":
        figures = f"{text.short} {figures}"
    return Finding(difference, data, verdict, capital(claim), figures, results.data.index(data))


def interval_ends(difference: Comparison, text: MeasureText) -> tuple[str, str]:
    """The ends of its interval, without unit."""
    return text.difference(difference.low, sign=False), text.difference(difference.high, sign=False)


def interval_words(difference: Difference) -> str:
    """A difference with its interval."""
    text = TEXTS[difference.measure]
    low, high = interval_ends(difference, text)
    return (
        f"{text.difference(difference.value)}{text.points}, {difference.level:.0%} interval {low} to {high}"
    )


def headline(results: Results) -> str:
    """The title: reliable gains and losses and nothing else, with the numbers of seeds and of the task's examples."""
    comparisons = findings(results)
    if not comparisons:
        return printable(results.run.name)
    basis = f"({counted(len(results.seeds), 'seed')}, {results.in_domain.size:,} {results.in_domain.unit})"
    phrases: dict[str, list[str]] = {"better": [], "worse": []}
    for role, measure in HEADLINE:
        for finding in comparisons:
            matches = (finding.data.role, finding.difference.measure) == (role, measure)
            if matches and finding.verdict != "unclear":
                phrases[finding.verdict].append(finding.claim[0].lower() + finding.claim[1:])
    gains, losses = listed(phrases["better"]), listed(phrases["worse"])
    reliable = [finding for finding in comparisons if finding.verdict != "unclear"]
    if not reliable:
        return f"No reliable difference {basis}"
    subject = f"{MODEL_LABELS[comparisons[0].difference.model]} attention"
    subject = capital(subject) if results.runs else f"In this run, {subject}"
    if gains and losses:
        return f"{subject} is {gains}, but {losses} {basis}"
    if gains or losses:
        return f"{subject} is {gains or losses} {basis}"
    return f"{subject} differs in {len(reliable)} of {counted(len(comparisons), 'comparison')} {basis}"


def evidence(results: Results) -> str:
    """Evidence for the headline: seeds, comparisons and criteria; empty without comparisons."""
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
        f"One seed, {comparisons}. {asked} This is evidence about this run; a claim about the method "
        f"needs several seeds: pass several runs to probattn report.{few if resamples < needed else ''}"
    )


def opening(results: Results) -> str:
    """The paragraph under the title: accuracy first, whatever it is."""
    data = results.in_domain
    place = f"{data.size:,} {data.unit} of {isolated(data.title)}"
    model = results.compared
    ours, base = results.score(model, data.key), results.score("deterministic", data.key)
    if ours is None or ours.accuracy is None:
        return f"{isolated(results.run.network)} was measured on {place}."
    text = TEXTS["accuracy"]
    words = f"Of {place}, {MODEL_LABELS[model]} attention got {text.value(ours.accuracy)} right"
    seeds = ", on average over seeds" if results.runs else ""
    if ours is base:
        return f"{words}{seeds}."
    if base is None or base.accuracy is None:
        return f"{words}. No deterministic baseline was measured."
    words += f" and deterministic attention {text.value(base.accuracy)}{seeds}"
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
