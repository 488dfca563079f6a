"""Records of what a task measures by measures of its own, their differences, and several runs over their seeds."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from statistics import fmean
from typing import Annotated, Literal, TypeVar

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor

from probattn.report import (
    Alignment,
    AttributionExample,
    Comparison,
    Curve,
    DataSet,
    Dynamics,
    Heads,
    ModelKey,
    RunDescription,
    bootstrap_p,
)
from probattn.report.claims import corrected, is_reliable, over_seeds
from probattn.report.measures import MeasureText, Verdict
from probattn.report.record import BESIDE, LATENT, MODELS, SINGLE, Record, ReliabilityBin, SingleRun
from probattn.report.sites import SiteHealth

Columns = Mapping[str, Tensor]
"""What measures are computed from: tensors with one row an example, ``[N, ...]``."""

Figures = Callable[[Columns], Mapping[str, float | None]]
"""Measures of some examples by name."""


class MeasuredScores(Record):
    """Measures of one model on one data set, by name; None where one cannot be measured."""

    model: ModelKey
    data: str
    values: Mapping[str, float | None]
    reliability: tuple[ReliabilityBin, ...] = ()


class MeasuredDifference(Comparison):
    """A comparison by one measure on one data set: on the same examples, or of the same seeds."""

    measure: str
    data: str


class Listing(Record):
    """A table of words and numbers that the report shows as it is.

    Attributes:
        title: what it shows.
        headings: of its columns.
        rows: cells; a number has the digits that are shown.
        words: columns, from the left, that hold words.
        about: how it is read.
    """

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words: Annotated[int, Field(ge=0)] = 1
    about: str = ""

    @model_validator(mode="after")
    def _whole_rows(self) -> Listing:
        for row in self.rows:
            if len(row) != len(self.headings):
                raise ValueError(f"expected {len(self.headings)} cells in each row, got {len(row)}: {row}")
        return self


class MeasuredResults(Record):
    """Everything that the report of such a run shows.

    Attributes:
        schema_version: version of these records.
        kind: the task, by its section of a recipe.
        run: what was run; of several runs the first, with the time of all.
        runs: the single runs whose means these are; empty for the records of one run.
        data: the data sets, the in-domain one first.
        scores: one entry a model and data set.
        differences: the run's own network minus the deterministic one, on the same examples or of the same seeds.
        listings: tables of single classes, examples and so on.
        attribution: where the variance of some answers comes from.
        alignment: distances of queries and keys; None where no method aligns them.
        heads: how heads differ; None where no method keeps them apart.
        health: the posterior, per site.
        dynamics: how attention came about, by network, the run's own last; empty where that was not recorded.
        curves: training curves.
    """

    schema_version: Literal[2] = 2
    kind: str
    run: RunDescription
    runs: tuple[SingleRun, ...] = ()
    data: Annotated[tuple[DataSet, ...], Field(min_length=1)]
    scores: Annotated[tuple[MeasuredScores, ...], Field(min_length=1)]
    differences: tuple[MeasuredDifference, ...] = ()
    listings: tuple[Listing, ...] = ()
    attribution: tuple[AttributionExample, ...] = ()
    alignment: Alignment | None = None
    heads: Heads | None = None
    health: tuple[SiteHealth, ...] = ()
    dynamics: tuple[Dynamics, ...] = ()
    curves: tuple[Curve, ...] = ()

    @property
    def seeds(self) -> tuple[int, ...]:
        """Seeds of the runs behind these records."""
        return tuple(run.seed for run in self.runs) or (self.run.seed,)

    @property
    def in_domain(self) -> DataSet:
        """The data set of the task itself."""
        return self.data[0]

    @property
    def compared(self) -> ModelKey:
        """The run's own model: a network of one pass, the mean over draws, or the baseline where it stands alone."""
        models = {score.model for score in self.scores}
        return next(
            (model for model in (*SINGLE, LATENT, *BESIDE, "deterministic") if model in models), LATENT
        )

    def score(self, model: ModelKey, data: str) -> MeasuredScores | None:
        """Measures of a model on a data set; None if it was not measured."""
        return next((item for item in self.scores if (item.model, item.data) == (model, data)), None)

    def difference(self, measure: str, model: ModelKey, data: str) -> MeasuredDifference | None:
        """Difference to the baseline; None if it was not measured."""
        wanted = (measure, model, data)
        matches = (item for item in self.differences if (item.measure, item.model, item.data) == wanted)
        return next(matches, None)

    def verdict(self, difference: MeasuredDifference, text: MeasureText) -> Verdict:
        """Result of one of the differences; "unclear" where it is not reliable."""
        drawn = next(item.drawn for item in self.data if item.key == difference.data)
        return text.verdict(difference.value) if is_reliable(difference, drawn) else "unclear"

    @property
    def intervals(self) -> str:
        """What the intervals of differences come from, in words."""
        if self.runs:
            return "Student's t over seeds"
        return f"a paired bootstrap over {self.in_domain.cluster or 'examples'}"


AnyMeasured = TypeVar("AnyMeasured", bound=MeasuredResults)


def compare(
    table: Mapping[tuple[str, ModelKey], Columns],
    figures: Figures,
    *,
    clusters: Mapping[str, Sequence[Hashable]] | None = None,
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> tuple[MeasuredDifference, ...]:
    """Differences to the deterministic baseline, with percentile intervals of a paired bootstrap (Efron 1979).

    A resample draws as many examples as the data set has, with replacement, and measures both models on the same ones;
    p values come from the same resamples, corrected by Holm's method over all comparisons of a model. Examples that
    depend on each other, as questions about one image do, are drawn together: as many clusters as there are, each with
    all its examples (Davison and Hinkley 1997, section 3.8).

    Args:
        table: columns by data set and model.
        figures: measures of columns.
        clusters: the cluster of each example, by data set; where one is left out its examples are independent.
        resamples: how often examples are drawn.
        level: of the intervals.
        seed: of the draws.
    """
    generator = torch.Generator().manual_seed(seed)
    tails = [(1 - level) / 2, (1 + level) / 2]
    found = []
    for data in dict.fromkeys(key for key, _ in table):
        models = {model: table[data, model] for model in MODELS if (data, model) in table}
        base = models.pop("deterministic", None)
        if base is None or not models:
            continue
        size = len(next(iter(base.values())))
        members = _members((clusters or {}).get(data, ()))
        points = _gaps(base, models, figures, None)
        drawn: dict[tuple[ModelKey, str], list[float]] = {key: [] for key in points}
        for _ in range(resamples):
            number = len(members) or size
            rows = torch.randint(number, (number,), generator=generator)
            if members:
                rows = torch.cat([members[cluster] for cluster in rows.tolist()])
            for key, value in _gaps(base, models, figures, rows).items():
                if key in drawn:
                    drawn[key].append(value)
        for (model, measure), value in points.items():
            resampled = drawn[model, measure]
            if not resampled:
                continue
            low, high = np.quantile(resampled, tails).tolist()
            p = bootstrap_p(resampled)
            given = {"low": low, "high": high, "level": level, "p": p, "corrected": p, "resamples": resamples}
            found.append(MeasuredDifference(measure=measure, model=model, data=data, value=value, **given))
    return corrected(found)


def _members(clusters: Iterable[Hashable]) -> list[Tensor]:
    """The rows of each cluster."""
    rows: dict[Hashable, list[int]] = {}
    for row, cluster in enumerate(clusters):
        rows.setdefault(cluster, []).append(row)
    return [torch.tensor(row) for row in rows.values()]


def _gaps(
    base: Columns, models: Mapping[ModelKey, Columns], figures: Figures, rows: Tensor | None
) -> dict[tuple[ModelKey, str], float]:
    theirs = figures(chosen(base, rows))
    gaps = {}
    for model, columns in models.items():
        for measure, value in figures(chosen(columns, rows)).items():
            other = theirs.get(measure)
            if value is not None and other is not None:
                gaps[model, measure] = value - other
    return gaps


def chosen(columns: Columns, rows: Tensor | None) -> Columns:
    """Some rows of columns, or all of them."""
    return columns if rows is None else {name: column[rows] for name, column in columns.items()}


def combine(runs: Mapping[str, AnyMeasured]) -> AnyMeasured:
    """The comparison of the runs of one recipe over their seeds, as :func:`probattn.report.combine` makes it.

    Args:
        runs: evaluations of n >= 2 single runs by the path of their folder.

    Raises:
        ValueError: fewer than two runs, or evaluations that do not fit each other.
    """
    (first_name, first), *others = runs.items()
    if not others:
        raise ValueError("combine: expected at least two runs, got 1")
    for name, results in others:
        if _shape(results) != _shape(first):
            raise ValueError(
                f"{name}: expected the data sets and models of {first_name}; evaluate both again"
            )
    each = list(runs.values())
    differences = []
    for item in first.differences:
        same = [results.difference(item.measure, item.model, item.data) for results in each]
        values = [one.value for one in same if one is not None]
        if len(values) == len(each):
            differences.append(over_seeds(item, values, item.level))
    seconds = sum(results.run.seconds for results in each)
    return type(first)(
        kind=first.kind,
        run=first.run.model_copy(update={"seconds": seconds, "commands": ()}),
        runs=tuple(SingleRun(folder=name, seed=results.run.seed) for name, results in runs.items()),
        data=first.data,
        scores=tuple(_mean(same) for same in zip(*(results.scores for results in each), strict=True)),
        differences=corrected(differences),
    )


def _shape(results: MeasuredResults) -> tuple[object, ...]:
    return results.data, tuple((score.model, score.data) for score in results.scores)


def _mean(scores: Sequence[MeasuredScores]) -> MeasuredScores:
    values: dict[str, float | None] = {}
    for name in scores[0].values:
        found = [value for score in scores if (value := score.values.get(name)) is not None]
        values[name] = fmean(found) if len(found) == len(scores) else None
    return MeasuredScores(model=scores[0].model, data=scores[0].data, values=values)
