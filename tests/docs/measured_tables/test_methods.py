"""The tables of comparisons: what is bold, and what has an interval."""

from __future__ import annotations

import pytest

from probattn.comparison import ComparisonResults, Interval, Row
from probattn.report import Comparison


def interval(mean):
    return Interval(mean=mean, low=mean - 0.01, high=mean + 0.01, seeds=3)


def row(variant, gaps, **values):
    found = {name: interval(mean) for name, mean in values.items()}
    return Row(recipe="two_words", variant=variant, cost=interval(1.0), values=found, gaps=gaps)


def gap(value, corrected, seeds=3):
    return Comparison(
        model="draws",
        value=value,
        low=value - 0.01,
        high=value + 0.01,
        p=corrected,
        corrected=corrected,
        seeds=(value,) * seeds,
    )


def results(texts, *rows):
    found = ComparisonResults(
        error=0.05,
        reference=("two_words", "point"),
        methods={"two_words": "BABN"},
        data="trec",
        sizes={"train": 400, "test": texts},
        seeds=(0, 1, 2),
        set=(),
        versions={},
        rows=rows,
    )
    return found.model_dump(mode="json")


@pytest.mark.parametrize(
    ("value", "corrected", "seeds", "texts", "bold"),
    [
        (0.05, 0.01, 3, 300, True),
        (-0.05, 0.01, 3, 300, True),
        (0.05, 0.06, 3, 300, False),
        (0.004, 0.01, 3, 300, False),
        (0.05, 0.01, 2, 300, False),
        (0.05, 0.01, 3, 100, False),
    ],
)
def test_reliable_differences_alone_are_bold(load, value, corrected, seeds, texts, bold):
    difference = {"coverage": gap(value, corrected, seeds)}
    content = results(texts, row("point", {}, coverage=0.5), row("draws", difference, coverage=0.5 + value))
    shown = load("measured_tables.methods").tables({"trec": content}).splitlines()
    assert shown[0].startswith(f"**TREC**: 400 training texts, {texts} test texts, 3 seeds.")
    assert "| two words | one pass | 50.0% | 1.0 |" in shown
    mean = f"{50 + 100 * value:.1f}%"
    (last,) = [line for line in shown if "posterior draws" in line]
    assert f"| **{mean}** [" in last if bold else f"| {mean} [" in last
    assert last.count("[") == 1 and f"{abs(100 * (value + 0.01)):.1f}" in last


def test_shares_are_those_of_what_an_ensemble_gains(load):
    def of(recipe, way, nll, coverage):
        values = {"nll": interval(nll), "coverage": interval(coverage)}
        return Row(recipe=recipe, variant=way, cost=interval(1.0), values=values, gaps={})

    rows = [
        of("two_words", "point", 0.5, 0.8),
        of("two_words", "ensemble", 0.4, 0.9),
        of("particles", "point", 0.45, 0.875),
    ]
    content = results(300, *rows)
    content["methods"]["particles"] = "5 particles"
    lines = load("measured_tables.methods").tables({"trec": content}).splitlines()
    assert lines[2].endswith("| 0.50 | 0.75 |") and "| particles | 1.0 |" in lines[2]
    assert lines[3].startswith("| TREC | ensemble of 3 | 3.0 | 0.400 | 90.0%")
