"""Intervals of means over seeds against scipy's."""

import pytest
from scipy import stats

from probattn.metrics.functional import mean_interval


@pytest.mark.parametrize("values", [[0.2, 0.5], [0.2, 0.5, 0.9], [-3.0, 1e-3, 4.0, 4.5, 100.0]])
@pytest.mark.parametrize("level", [0.5, 0.95])
def test_it_is_students(values, level):
    low, high = stats.t.interval(
        level, len(values) - 1, loc=sum(values) / len(values), scale=stats.sem(values)
    )
    found = mean_interval(iter(values), level=level)
    assert found == (
        pytest.approx(sum(values) / len(values)),
        pytest.approx(low),
        pytest.approx(high),
        len(values),
    )


def test_that_of_differences_is_that_of_the_paired_test():
    ours, theirs = [0.83, 0.82, 0.84, 0.80], [0.81, 0.83, 0.82, 0.79]
    low, high = stats.ttest_rel(ours, theirs).confidence_interval(0.95)
    found = mean_interval(a - b for a, b in zip(ours, theirs, strict=True))
    assert (found.low, found.high) == (pytest.approx(low), pytest.approx(high))


def test_one_value_has_no_interval():
    assert mean_interval([0.25]) == (0.25, None, None, 1)


@pytest.mark.parametrize(("values", "level"), [([], 0.95), ([1.0, 2.0], 1.0), ([1.0, 2.0], 0.0)])
def test_what_has_none_is_refused(values, level):
    with pytest.raises(ValueError, match=rf"got {len(values)} values and {level}"):
        mean_interval(values, level=level)
