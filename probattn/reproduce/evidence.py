"""Claims of the papers, the measurements about each, and the resulting verdict."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from math import floor, log10
from typing import Literal

import yaml
from pydantic import model_validator

from probattn.metrics.functional import MeanInterval, mean_interval
from probattn.report.record import Record
from probattn.reproduce.declarations import LOADER, papers
from probattn.reproduce.records import measured
from probattn.terminal import Group, Sheet

Verdict = Literal["holds", "direction", "no", "not measured"]
Outcome = Literal["holds", "direction", "no", "not measured", "against"]
VERDICTS: tuple[Verdict, ...] = ("holds", "direction", "no", "not measured")
POWER = 0.8
"""Power of the test in the minimum detectable effect: probability to detect a difference of this size."""


class Pick(Record):
    """Position of values in a data file of the documentation; keys within a path are separated by "/".

    Attributes:
        under: path of the list of runs.
        of: fields by which runs are selected.
        minus: fields that differ in the runs that are subtracted; empty if none are.
        at: paths of the number in a run; of several, the mean is taken.
        less: paths of a number of the same run that is subtracted, or a number.
        scale: factor of the values.
    """

    under: str = "runs"
    of: Mapping[str, str | float] = {}
    minus: Mapping[str, str | float] = {}
    at: tuple[str, ...]
    less: tuple[str, ...] | float = 0.0
    scale: float = 1.0


class Evidence(Record):
    """One measurement about a claim.

    Attributes:
        about: what was compared; empty for a statement.
        gain: table, row, subtracted row and column in this project's records; the subtracted row may be "row/column"
            for another column, or a number.
        less: another such gain, which is subtracted.
        values: differences by seed.
        summary: mean difference and interval, if single seeds are not known.
        statement: result that is not a mean over seeds: a count, a ratio, a shape.
        shows: verdict on the claim by the statement.
        seeds: number of seeds of a statement; None if it has none.
        better: claimed direction; "alike" for a claim that nothing changes.
        margin: largest difference that counts as alike, in ``unit``.
        unit: unit of the values.
        source: data file of the documentation; empty for records.
        pick: position of the values in that file.
    """

    about: str = ""
    gain: tuple[str, str, str, str] | None = None
    less: tuple[str, str, str, str] | None = None
    values: Mapping[str, float] = {}
    summary: MeanInterval | None = None
    statement: str = ""
    shows: Verdict | None = None
    seeds: int | None = None
    better: Literal["higher", "lower", "alike"] = "higher"
    margin: float | None = None
    unit: str = "points"
    source: str = ""
    pick: Pick | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> Evidence:
        if sum(map(bool, (self.gain, self.values, self.summary, self.statement))) != 1:
            raise ValueError("expected one of gain, values, summary and statement")
        if bool(self.statement) != (self.shows is not None) or (self.better == "alike") != bool(self.margin):
            raise ValueError("expected what a statement shows, and a margin for alike")
        return self

    def differences(self) -> Mapping[str, float]:
        """Differences by seed; empty for a statement and for a summary."""
        if self.gain is None:
            return self.values
        gained, less = _gained(*self.gain), {} if self.less is None else _gained(*self.less)
        return {
            seed: value - less.get(seed, 0.0)
            for seed, value in gained.items()
            if self.less is None or seed in less
        }

    def mean(self) -> MeanInterval | None:
        """Mean difference and its interval at 95%; None for a statement."""
        if self.summary is not None:
            return self.summary
        values = self.differences().values()
        return mean_interval(values) if values else None

    def detectable(self) -> float | None:
        r"""Minimum detectable effect of a two-sided paired t test at 5%; None with one seed and for a statement.

        .. math:: (t_{n - 1, 0.975} + t_{n - 1, 0.8})\, \frac{s}{\sqrt n}
        """
        mean = self.mean()
        if mean is None or mean.high is None:
            return None
        sample = list(self.differences().values()) or list(range(mean.seeds))
        halves = [_half(mean_interval(sample, level=level)) for level in (0.95, 2 * POWER - 1)]
        half = mean.high - mean.mean
        return half + (half * halves[1] / halves[0] if halves[0] else 0.0)

    def outcome(self) -> Outcome | None:
        """Outcome for the claim; "against" if the interval excludes the claimed side; None with one seed."""
        if self.statement:
            return None if self.seeds == 1 else self.shows
        mean = self.mean()
        if mean is None or mean.low is None or mean.high is None:
            return None
        sign, margin = (-1 if self.better == "lower" else 1), self.margin or 0.0
        low, high = sorted((sign * mean.low, sign * mean.high))
        if self.better == "alike":
            inside, near, outside = (
                max(-low, high) < margin,
                abs(mean.mean) < margin,
                max(low, -high) > margin,
            )
        else:
            inside, near, outside = low > 0, sign * mean.mean > 0, high < 0
        return "holds" if inside else "against" if outside else "direction" if near else "no"


def _half(mean: MeanInterval) -> float:
    return 0.0 if mean.high is None else mean.high - mean.mean


def _gained(table: str, row: str, base: str, column: str) -> dict[str, float]:
    """Differences by seed of two cells of a record."""
    record = measured(table)
    if record is None:
        raise KeyError(f"no record of {table}")
    minuend, (other, _, of_other) = record.cells[row][column].values, base.partition("/")
    if other not in record.cells:
        return {seed: value - float(other) for seed, value in minuend.items()}
    subtrahend = record.cells[other][of_other or column].values
    return {seed: value - subtrahend[seed] for seed, value in minuend.items() if seed in subtrahend}


class Claim(Record):
    """A claim of a paper.

    Attributes:
        paper: key of the paper.
        text: the claim, with the paper's numbers.
        where: table or section of the paper.
        evidence: measurements about the claim.
        verdict: "holds", "direction", "no" or "not measured".
        because: reason for the verdict, in one sentence.
    """

    paper: str
    text: str
    where: str
    evidence: tuple[Evidence, ...] = ()
    verdict: Verdict
    because: str

    def judged(self) -> Verdict:
        """The verdict that follows from the evidence.

        "holds" if every interval lies on the claimed side of 0 (within the margin, if nothing is to change);
        "direction" if most means do, and no interval lies on the other side; else "no". Measurements with one seed are
        ignored; a part of the claim that was not measured excludes "holds".
        """
        outcomes = [outcome for item in self.evidence if (outcome := item.outcome()) is not None]
        counted = [outcome for outcome in outcomes if outcome != "not measured"]
        if not counted:
            return "not measured"
        if all(outcome == "holds" for outcome in outcomes):
            return "holds"
        on_side = sum(outcome in ("holds", "direction") for outcome in counted)
        return "direction" if 2 * on_side > len(counted) and "against" not in counted else "no"


@cache
def claims() -> Mapping[int, Claim]:
    """The claims of the papers by number.

    Example:
        >>> claims()[64].verdict
        'holds'
    """
    content = yaml.load((files("probattn.reproduce") / "claims.yaml").read_bytes(), LOADER)
    return {number: Claim.model_validate(fields, strict=False) for number, fields in content.items()}


def shown(*numbers: float, sign: bool = True) -> list[str]:
    """Numbers to two digits of the largest, one decimal at least."""
    largest = max(map(abs, numbers))
    digits = max(1, 1 - floor(log10(largest))) if largest else 1
    texts = [f"{number:{'+' if sign else ''}.{digits}f}" for number in numbers]
    return [text if float(text) else text.lstrip("+-") for text in texts]


def shown_mean(mean: MeanInterval) -> str:
    """A mean difference and its interval."""
    if mean.low is None or mean.high is None:
        return shown(mean.mean)[0]
    middle, low, high = shown(mean.mean, mean.low, mean.high)
    return f"{middle} [{low}, {high}]"


def claims_sheet() -> Sheet:
    """Table of the claims with verdicts, and for each the first difference, its seeds and the detectable effect."""
    groups = []
    for name, paper in papers().items():
        rows = [
            (str(number), claim.text, claim.verdict, *_figures(claim))
            for number, claim in claims().items()
            if claim.paper == name
        ]
        groups.append(Group(paper.paper.title, tuple(rows)))
    note = (
        "holds: the interval of every measurement excludes 0 on the claimed side. direction: most means are on that "
        "side and no interval on the other. no: neither. The figure is the first of the measurements, a difference "
        "with its 95% interval over seeds; MDE is the difference that these seeds detect with a chance of 80%. The "
        "page of claims has all measurements."
    )
    headings = ("", "claim", "verdict", "figure", "seeds", "MDE")
    return Sheet(headings, tuple(groups), words=3, notes=(note,))


def _figures(claim: Claim) -> tuple[str, str, str]:
    for item in claim.evidence:
        mean, effect = item.mean(), item.detectable()
        if item.seeds is not None:
            return "", str(item.seeds), ""
        if mean is not None:
            return shown_mean(mean), str(mean.seeds), "" if effect is None else shown(effect, sign=False)[0]
    return "", "", ""
