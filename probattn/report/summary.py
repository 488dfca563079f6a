"""Findings in words, and several runs of one recipe combined over their seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TypeVar

from markupsafe import Markup

from probattn.report import bootstrap, measures
from probattn.report.markup import exact
from probattn.report.record import DETECTION, Comparison, DataSet, Difference, Scores, SingleRun
from probattn.report.results import Results
from probattn.report.svg import isolated
from probattn.terminal import printable

AnyResults = TypeVar("AnyResults", bound=Results)


def combine(runs: Mapping[str, AnyResults]) -> AnyResults:
    r"""Comparison over seeds from the results of several runs of one recipe.

    Scores are means over seeds. For the differences d to the deterministic network of the same seed, interval and
    p-value are those of the paired t-test,

    .. math:: \bar d \pm t_{n - 1, (1 + level) / 2}\, \frac{s}{\sqrt n},

    with s their standard deviation (Student 1908); p-values are corrected by Holm's method over all comparisons of a
    model. They reflect the randomness of training (initial values, order of batches, noise) for fixed test examples.
    They assume that differences are normally distributed over seeds, which few seeds cannot confirm.

    Args:
        runs: results of n >= 2 single runs, by the path of the run's folder relative to that of the combined results.

    Returns:
        Results whose ``runs`` name the single ones. Records of single networks (curves, attention maps, inputs, state
        of the posterior, commands) are left out, and so are measures that one run lacks.

    Raises:
        ValueError: fewer than two runs, two with the same seed, one that is itself a combination, or data sets,
            measures, classes or models that differ from those of the first run; the message names the run.
    """
    singles = _checked(runs)
    first = singles[0]
    scores = tuple(_mean(same) for same in zip(*(results.scores for results in singles), strict=True))
    differences: list[Difference] = []
    for item in first.differences:
        others = [results.difference(item.measure, item.model, item.data) for results in singles]
        values = [other.value for other in others if other is not None]
        if len(values) == len(singles):
            differences.append(bootstrap.over_seeds(item, values))
    seconds = sum(results.run.seconds for results in singles)
    return type(first)(
        kind=first.kind,
        measures=first.measures,
        run=first.run.model_copy(update={"seconds": seconds, "commands": ()}),
        runs=tuple(SingleRun(folder=name, seed=results.run.seed) for name, results in runs.items()),
        classes=first.classes,
        data=first.data,
        scores=scores,
        differences=bootstrap.corrected(differences),
    )


def _checked(runs: Mapping[str, AnyResults]) -> list[AnyResults]:
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
        for what, expected, its in (
            ("data sets", first.data, results.data),
            ("measures", tuple(first.measures), tuple(results.measures)),
            ("classes", first.classes, results.classes),
            ("models", _models(first), _models(results)),
        ):
            if expected != its:
                raise ValueError(
                    f"{name}: expected the {what} of {first_name} ({_words(expected)}), got {_words(its)}; evaluate "
                    "both again"
                )
    return list(runs.values())


def _models(results: Results) -> tuple[tuple[str, str], ...]:
    return tuple((score.model, score.data) for score in results.scores)


def _words(values: Sequence[object]) -> str:
    return ", ".join(dict.fromkeys(str(value) for value in values))


def _mean(scores: Sequence[Scores]) -> Scores:
    """Means of the values that every score has."""
    means: dict[str, float | None] = {}
    for name in scores[0].values:
        values = [value for score in scores if (value := score.values.get(name)) is not None]
        means[name] = fmean(values) if len(values) == len(scores) else None
    return Scores(model=scores[0].model, data=scores[0].data, values=means)


@dataclass(frozen=True)
class Finding:
    """One comparison with its verdict.

    Attributes:
        difference: the measured difference.
        text: texts of the measure.
        data: the data set.
        verdict: "unclear" unless the difference is significant (:func:`~probattn.report.is_reliable`).
        figures: the two values, the difference and its interval, as text.
        order: index of the data set in the results.
    """

    difference: Difference
    text: measures.MeasureText
    data: DataSet
    verdict: measures.Verdict
    figures: str
    order: int

    @property
    def title(self) -> str:
        """The name of the measure."""
        return self.text.title

    @property
    def claim(self) -> str:
        """The verdict in words, without the data set."""
        return {"better": self.text.gain, "worse": self.text.loss, "unclear": self.text.title}[self.verdict]

    @property
    def leads(self) -> bool:
        """Whether the finding may appear in the headline, because it concerns the task itself or OOD detection."""
        return self.text.leads and (
            self.data.role == "in_domain"
            or (self.difference.measure in DETECTION and self.data.role == "out_of_domain")
        )

    def of_seed(self, index: int) -> Markup:
        """The difference of one of several seeds."""
        value = self.difference.seeds[index]
        return exact(value, self.text.difference(value))


def findings(results: Results) -> list[Finding]:
    """Comparisons of the run's network with the deterministic baseline, in the order of data sets and measures."""
    return [
        _finding(results, data, difference)
        for data in results.data
        for measure in results.measures
        if (difference := results.difference(measure, results.compared, data.key)) is not None
    ]


def _finding(results: Results, data: DataSet, difference: Difference) -> Finding:
    text, verdict = results.measures[difference.measure], results.verdict(difference)
    ours, base = (
        text.value(results.value(difference.measure, model, data.key))
        for model in (difference.model, "deterministic")
    )
    low, high = interval_ends(difference, text)
    gap = f"{text.difference(difference.value)}{text.points}"
    figures = f"{ours} against {base}: {gap} ({low} to {high})"
    if verdict != "unclear":
        figures = f"{text.short} {figures}"
    return Finding(difference, text, data, verdict, figures, results.data.index(data))


def interval_ends(difference: Comparison, text: measures.MeasureText) -> tuple[str, str]:
    """The ends of a difference's interval as text, without unit."""
    return text.difference(difference.low, sign=False), text.difference(difference.high, sign=False)


def headline(results: Results) -> str:
    """Title of the report: the significant gains and losses only, with the numbers of seeds and of examples."""
    comparisons, data = findings(results), results.in_domain
    basis = f"({measures.counted(len(results.seeds), 'seed')}, {data.size:,} {data.unit})"
    model = measures.MODEL_LABELS[results.compared]
    if not comparisons:
        name, text = next(iter(results.measures.items()))
        value = results.value(name, results.compared, data.key)
        if value is None:
            return printable(results.run.name)
        return (
            f"{measures.MODEL_TITLES[results.compared]} attention: {text.short} {text.value(value)} {basis}"
        )
    clear = [finding for finding in comparisons if finding.verdict != "unclear"]
    if not clear:
        return f"No significant difference between {model} and deterministic attention {basis}"
    gains, losses = (
        measures.listed([finding.claim for finding in clear if finding.leads and finding.verdict == verdict])
        for verdict in ("better", "worse")
    )
    words = f"{gains}, but {losses}" if gains and losses else gains or losses
    words = (
        words or f"{len(clear)} of {measures.counted(len(comparisons), 'comparison')} differ significantly"
    )
    subject = f"{model} against deterministic attention"
    return f"{measures.capital(subject) if results.runs else f'In this run, {subject}'}: {words} {basis}"


def evidence(results: Results) -> str:
    """Evidence for the headline: seeds, comparisons and criteria; empty without comparisons."""
    compared = findings(results)
    if not compared:
        return ""
    seeds, sets = len(results.seeds), len({finding.data.key for finding in compared})
    comparisons = f"{measures.counted(len(compared), 'comparison')} on {measures.counted(sets, 'data set')}"
    level = compared[0].difference.level
    criteria = (
        "A difference counts if its p value, corrected for all of them by Holm's method, is below "
        f"{1 - level:.2g}, if it is at least {bootstrap.LEAST_EFFECT:g} ({100 * bootstrap.LEAST_EFFECT:g} points), and "
        f"if there are at least {bootstrap.LEAST_EXAMPLES} examples"
        f"{f' and {bootstrap.LEAST_SEEDS} seeds' if results.runs else ''}."
    )
    if results.runs:
        return (
            f"{measures.counted(seeds, 'seed')}, {comparisons}. {criteria} The p values are those of Student's t, "
            "paired by seed: they cover the chance of training, given these examples."
        )
    resamples = compared[0].difference.resamples or 0
    needed = bootstrap.least_resamples(len(compared), level)
    few = (
        f" {resamples:,} resamples are too few to tell any of {len(compared)} comparisons: set report.resamples to "
        f"{needed:,} or more."
    )
    return (
        f"One seed, {comparisons}. {criteria} This is evidence about this run; a claim about the method "
        f"needs several seeds: pass several runs to probattn report.{few if resamples < needed else ''}"
    )


def opening(results: Results) -> str:
    """The paragraph under the title: the first measure, whatever it is."""
    data, model = results.in_domain, results.compared
    basis = f"{data.size:,} {data.unit} of {isolated(data.title)}"
    name, text = next(iter(results.measures.items()))
    ours, base = (results.value(name, key, data.key) for key in (model, "deterministic"))
    if ours is None:
        return f"{isolated(results.run.network)} was measured on {basis}."
    seeds = ", on average over seeds" if results.runs else ""
    words = f"{text.title} on {basis}: {text.value(ours)} with {measures.MODEL_LABELS[model]} attention"
    if model == "deterministic":
        return f"{words}{seeds}."
    if base is None:
        return f"{words}{seeds}. No deterministic baseline was measured."
    words += f", {text.value(base)} with deterministic attention{seeds}"
    difference = results.difference(name, model, data.key)
    if difference is None:
        return f"{words}."
    chance = "the choice of seeds" if results.runs else f"the choice of test {data.unit}"
    ending = {
        "unclear": "no significant difference",
        "better": f"a gain beyond what {chance} explains",
        "worse": f"a loss beyond what {chance} explains",
    }[results.verdict(difference)]
    low, high = interval_ends(difference, text)
    gap = f"{text.difference(difference.value)}{text.points}"
    return f"{words}: {ending} ({gap}, {difference.level:.0%} interval {low} to {high})."
