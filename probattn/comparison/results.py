"""Records of a comparison: the content of ``comparison.json``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from probattn.comparison.variants import MEASURES
from probattn.report import Comparison
from probattn.report.claims import is_reliable
from probattn.report.measures import Verdict
from probattn.report.record import Count, Record


class Interval(Record):
    """A mean over seeds, or of a cost over repeats, and its 95% interval (Student's t); None for a single one."""

    mean: float
    low: float | None
    high: float | None
    seeds: Count

    def times(self, factor: float) -> Interval:
        """The interval of a multiple."""
        low, high = (None if bound is None else factor * bound for bound in (self.low, self.high))
        return Interval(mean=factor * self.mean, low=low, high=high, seeds=self.seeds)


class Row(Record):
    """One variant of predicting with the networks of one recipe.

    Attributes:
        recipe: its name.
        variant: how is predicted; "ensemble" is the mean over the networks of all seeds, in one pass each.
        cost: time of a prediction in units of one pass of the reference's network, the two measured in turn.
        closed_form: of moments the share of the test texts that have them in closed form; draws replace the others.
        values: by measure; of variants that differ in how they detect out-of-distribution inputs, the AUROC alone.
        gaps: differences to the reference of the same seeds, by measure, with p values that are corrected by Holm's
            method over all variants; empty for the reference, for the ensemble, and for a single seed.
    """

    recipe: str
    variant: str
    cost: Interval
    closed_form: float | None = None
    values: Mapping[str, Interval]
    gaps: Mapping[str, Comparison]


class ComparisonResults(Record):
    """Everything that the page on a comparison shows.

    Attributes:
        kind: "comparison".
        error: at which is asked how much can be answered.
        reference: recipe and variant that differences are taken to.
        methods: attention methods in words, by recipe.
        data: the data, in words.
        sizes: number of texts by data set.
        seeds: of the runs.
        set: keys that all recipes share.
        versions: of packages.
        rows: the figures.
    """

    kind: Literal["comparison"] = "comparison"
    error: Annotated[float, Field(gt=0, lt=1)]
    reference: tuple[str, str]
    methods: Mapping[str, str]
    data: str
    sizes: Mapping[str, Count]
    seeds: tuple[int, ...]
    set: tuple[str, ...]
    versions: Mapping[str, str]
    rows: tuple[Row, ...]

    def verdict(self, measure: str, gap: Comparison) -> Verdict:
        """The result of a difference by its sign; "unclear" where it is not reliable, as in the report of a run."""
        roles = ("test", "out_of_domain") if measure == "auroc" else ("test",)
        examples = min(self.sizes[role] for role in roles)
        return MEASURES[measure].verdict(gap.value) if is_reliable(gap, examples) else "unclear"
