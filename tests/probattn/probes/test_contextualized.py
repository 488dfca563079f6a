"""The contextualized agreement on runs written down by hand."""

from __future__ import annotations

import pytest

from probattn.probes import EvaluatedStep, contextualized_agreement

RUN = [(0, 0.10, 0.07), (50, 0.31, 0.22), (100, 0.43, 0.40), (500, 0.50, 0.38), (1000, 0.66, 0.71)]


@pytest.mark.parametrize(
    ("agreement", "performance", "step"),
    [
        (0.0, 0.10, 0),
        (0.07, 0.31, 50),
        (0.31, 0.43, 100),
        (0.39, 0.43, 100),
        (0.40, 0.66, 1000),
        (0.709, 0.66, 1000),
    ],
)
def test_it_is_the_first_step_that_agrees_more(agreement, performance, step):
    found = contextualized_agreement(agreement, RUN)
    assert (found.performance, found.step, found.reached) == (performance, step, True)
    assert str(found) == f"{performance:.2f}"


@pytest.mark.parametrize("agreement", [0.71, 0.9, 1.0])
def test_it_is_starred_when_never_exceeded(agreement):
    found = contextualized_agreement(agreement, (EvaluatedStep(*each) for each in RUN))
    assert (found.performance, found.step, found.reached) == (0.66, 1000, False)
    assert str(found) == "0.66*"


@pytest.mark.parametrize(
    ("agreement", "run", "words"),
    [
        (0.5, [], "steps of a second run, got none"),
        (0.5, [RUN[1], RUN[0]], "rising steps, got 0 after 50; sort them"),
        (0.5, [RUN[0], RUN[0]], "rising steps, got 0 after 0"),
        (float("nan"), RUN, "an agreement of NaN"),
        (0.5, [(0, 0.1, float("nan"))], "an agreement of NaN"),
        (0.5, [(0, float("nan"), 0.1)], "a performance of NaN"),
        (0.5, [(-1, 0.1, 0.1)], "steps >= 0, got -1"),
    ],
)
def test_what_is_no_run_is_refused(agreement, run, words):
    with pytest.raises(ValueError, match=words):
        contextualized_agreement(agreement, run)
