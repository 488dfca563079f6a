"""Evaluations of several runs of one recipe as one: means over seeds, and differences paired by seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from probattn.inference.report.claims import corrected, over_seeds
from probattn.inference.report.measurements import Difference, Scores
from probattn.inference.report.record import MEASURES
from probattn.inference.report.results import Results, SingleRun

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
    scores = tuple(_mean([_same_score(results, score) for results in each]) for score in first.scores)
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


def _same_score(results: Results, score: Scores) -> Scores:
    found = results.score(score.model, score.data)
    assert found is not None
    return found


def _mean(scores: Sequence[Scores]) -> Scores:
    means: dict[str, float | None] = {}
    for name in (*MEASURES, "mutual_information"):
        values = [value for score in scores if (value := getattr(score, name)) is not None]
        means[name] = fmean(values) if len(values) == len(scores) else None
    return Scores.model_validate({"model": scores[0].model, "data": scores[0].data, **means})
