"""Experiments: when runs have learned, tests on that, records and page."""

import itertools
import math
import re
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError
from runs import described
from scipy import stats

from probattn import report
from probattn.inference.records import RecordsError
from probattn.tasks import Experiments, experiments, write_page
from probattn.tasks.experiments.results import (
    first_steps,
    fisher_p,
    log_rank_p,
    median_step,
    reached,
    runs_of,
)


def log_rank_by_hand(first, others, last):
    """Mantel's statistic, time by time (Mantel 1966)."""
    times = sorted({step for step in (*first, *others) if step is not None})
    ends = [[(last, False) if s is None else (s, True) for s in group] for group in (first, others)]
    observed = expected = variance = 0.0
    for time in times:
        at_risk = [sum(end >= time for end, _ in group) for group in ends]
        died = [sum(end == time and event for end, event in group) for group in ends]
        n, d = sum(at_risk), sum(died)
        observed += died[0]
        expected += d * at_risk[0] / n
        if n > 1:
            variance += d * (at_risk[0] / n) * (at_risk[1] / n) * (n - d) / (n - 1)
    return math.erfc(abs(observed - expected) / math.sqrt(2 * variance))


@pytest.mark.parametrize("seed", range(5))
def test_log_rank_is_mantels(seed):
    draw = np.random.default_rng(seed)

    def group(scale, size):
        steps = (10 * np.ceil(draw.exponential(scale, size))).astype(int)
        return tuple(None if step > 60 else int(step) for step in steps)

    first, others = group(3, 12), group(6, 17)
    assert log_rank_p(first, others, (60, 60)) == pytest.approx(log_rank_by_hand(first, others, 60), rel=1e-9)


def test_log_rank_is_none_where_nothing_can_be_said():
    assert log_rank_p((None,) * 3, (None,) * 3, (60, 60)) is None
    assert log_rank_p((10,) * 3, (10,) * 3, (60, 60)) is None
    assert log_rank_p((10,) * 20, (None,) * 20, (60, 60)) < 1e-6


def test_fishers_test_is_that_of_the_hypergeometric_distribution():
    first, others = (10,) * 19 + (None,), (10,) * 9 + (90,) * 4 + (None,) * 7
    weights = stats.hypergeom(40, 20, 28).pmf(range(41))
    expected = weights[weights <= weights[19] * (1 + 1e-9)].sum()
    assert fisher_p(first, others, 50) == pytest.approx(expected)


def test_first_steps_by_brute_force():
    steps, values = (0, 5, 9), ((0.2, 0.99, None), (0.99, 0.1, 0.98), (0.5, 1.0, 0.98))
    assert first_steps(steps, values, 0.99) == (5, 0, None)
    assert reached((5, 0, None), 4) == 1
    for first in itertools.product((10, 30, None), repeat=4):
        by_hand = float(np.median([1e9 if step is None else step for step in first]))
        assert median_step(first) == (by_hand if by_hand < 1e8 else None)


def test_records_of_a_condition_give_its_runs():
    records: list[dict[str, Any]] = [
        {"kind": "train", "step": 1, "accuracy": 3},
        {"kind": "validation", "step": 0, "accuracy": [0.1, None], "other": [1, 2]},
        {"kind": "validation", "step": 9, "accuracy": [0.2, 0.3]},
    ]
    assert runs_of(records, "accuracy") == ((0, 9), ((0.1, None), (0.2, 0.3)))
    assert runs_of(records, "attention") == ((), ())


def condition(key, last, **changes):
    accuracy = ((0.1, 0.1), last)
    fields = {
        "key": key,
        "title": f"words <{key}>",
        "task": "4 words",
        "steps": (0, 10),
        "measures": {"accuracy": accuracy, "attention": accuracy, "probe": accuracy},
        "first_steps": tuple(10 if value > 0.9 else None for value in last),
        "reached": sum(value > 0.9 for value in last),
        "median_step": 10.0 if min(last) > 0.9 else None,
        "chance": 0.25,
    }
    return experiments.ConditionRuns(**{**fields, **changes})


def results(**changes):
    fields = {
        "run": described(name="copy <b>", steps=10),
        "task": "copy",
        "threshold": 0.9,
        "by_step": 10,
        "conditions": (condition("a", (1.0, 0.95)), condition("b", (0.2, 0.3))),
        "tests": (experiments.ConditionTest(condition="b", against="a", fisher=0.33333, log_rank=0.00001),),
    }
    return experiments.ExperimentResults(**{**fields, **changes})


def test_records_are_read_as_written(tmp_path):
    written = results(search=(experiments.HeadCounts(model=3, good=1, bad=5),), search_steps=7)
    path = report.write_results(written, tmp_path / "metrics.json")
    assert report.read_results(path, experiments.ExperimentResults) == written


def test_measures_have_a_value_for_each_step_and_run():
    with pytest.raises(ValidationError, match=r"measures.accuracy: expected a value for each step and run"):
        condition("a", (1.0, 1.0), measures={"accuracy": ((0.1, 0.1),)})


def test_the_page_says_what_the_records_say(tmp_path):
    page = experiments.ExperimentView().page(
        results(search=(experiments.HeadCounts(model=3, good=1, bad=5),), search_steps=7)
    )
    assert (
        "By step 10, 2 of 2 runs have learned with \u2068words &lt;a&gt;\u2069; 0 with \u2068words &lt;b&gt;\u2069"
        in page
    )
    assert "0.3333" in page and "&lt; 0.0001" in page and "by step 7" in page
    assert len(re.findall(r'<path class="thin', page)) == 3 * 4
    assert len(re.findall(r'<path class="middle', page)) == 3 * 2
    assert "Which word determines" not in page and "<b>copy" not in page
    same = write_page(Experiments, results(), tmp_path / "report.html").read_text(encoding="utf-8")
    assert same == experiments.ExperimentView().page(results())
    assert "Which heads are good?" not in same


def test_the_page_of_keywords_counts_where_log_odds_are_largest():
    places = {
        "accuracy": ((0.5, 0.5), (1.0, 1.0)),
        "keyword": ((0.3, 0.1), (1.0, 9.0)),
        "next_word": ((0.1, 0.2), (2.0, None)),
        "mean": ((0.0, 0.0), (1.0, 1.0)),
        "last": ((0.0, 0.0), (3.0, 4.0)),
    }
    page = experiments.ExperimentView().page(
        results(task="keyword", conditions=(condition("a", (1.0, 1.0), measures=places),), tests=())
    )
    assert "largest at the" in page and "in 1 of 2 runs" in page
    assert "Fisher" not in page and "Do attention and the probe find" not in page
    row = page.split("Which word determines")[1].split("<tbody>")[1].split("</tr>")[1]
    expected = ["10", "1.00", "5.00", "2.00", "1.00", "3.50", "1", "0", "1"]
    assert re.findall(r'<data value="[^"]*">([^<]*)</data>', row) == expected


def test_figures_of_a_condition_at_a_step():
    places = {
        "accuracy": ((0.5, 0.5), (1.0, 0.6)),
        "keyword": ((0.3, 0.1), (1.0, 9.0)),
        "next_word": ((0.1, 0.2), (2.0, None)),
        "mean": ((9.0, 9.0), (9.0, 9.0)),
        "last": ((0.0, 0.0), (3.0, 4.0)),
    }
    one = condition("a", (1.0, 0.6), measures=places)
    found = results(task="keyword", conditions=(one,), tests=())
    assert found.value("accuracy", "a", "0") == 0.5 and found.value("accuracy", "a", "test") == 0.8
    assert found.value("next_word", "a", "10") == 2 and found.value("accuracy", "a", "7") is None
    assert [found.value("learned", "a", step) for step in ("0", "10")] == [0, 0.5]
    assert [found.value(f"largest_{name}", "a", "10") for name in ("keyword", "next_word", "last")] == [
        0.5,
        0,
        0.5,
    ]
    assert found.value("largest_next_word", "a", "0") == 0.5


@pytest.mark.parametrize("values", [0.5, "x", [0.5], [0.5, 0.6, 0.7], {}])
def test_records_without_a_value_for_each_run_are_refused(values: object) -> None:
    records = [
        {"kind": "validation", "step": 0, "accuracy": [0.1, 0.2]},
        {"kind": "validation", "step": 5, "accuracy": values},
    ]
    with pytest.raises(RecordsError, match=r"expected 2 values of 'accuracy' at step 5"):
        runs_of(records, "accuracy")
    with pytest.raises(RecordsError, match=r"expected 4 values of 'accuracy' at step 0"):
        runs_of(records, "accuracy", 4)
