"""The words follow the intervals: no claim where one covers 0, and losses are told like gains."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probattn.inference.report.measurements import Difference
from probattn.inference.report.measures import TEXTS, listed
from probattn.inference.report.record import MEASURES
from probattn.inference.report.results import Results
from probattn.inference.report.wording import findings, headline, interval_words, opening, posterior_words

BOUNDS = st.floats(-1, 1, allow_nan=False)


def with_intervals(results: Results, intervals: dict[tuple[str, str], tuple[float, float]]) -> Results:
    """Results whose mean-over-draws differences have the given intervals, by data set and measure."""
    differences = []
    for item in results.differences:
        low, high = intervals.get((item.data, item.measure), (-0.1, 0.1))
        differences.append(item.model_copy(update={"low": low, "high": high, "value": (low + high) / 2}))
    return results.model_copy(update={"differences": tuple(differences)})


@given(st.sampled_from(MEASURES), BOUNDS, BOUNDS)
def test_an_interval_over_0_decides_nothing(measure: str, one: float, other: float) -> None:
    low, high = sorted((one, other))
    verdict = TEXTS[measure].verdict(low, high)
    assert (verdict == "unclear") == (low <= 0 <= high)
    if verdict != "unclear":
        gain = low > 0 if TEXTS[measure].better == "higher" else high < 0
        assert verdict == ("better" if gain else "worse")


def test_the_direction_of_every_measure() -> None:
    higher = {measure for measure in MEASURES if TEXTS[measure].better == "higher"}
    assert higher == {"accuracy", "matthews", "f1", "pavpu", "auroc"}
    assert set(TEXTS) == set(MEASURES)


def test_without_a_clear_difference_nothing_is_claimed(results: Results) -> None:
    found = findings(with_intervals(results, {}))
    assert {finding.verdict for finding in found} == {"unclear"}
    assert headline(found) == "No clear difference between Bayesian and deterministic attention here."
    words = {phrase for text in TEXTS.values() for phrase in (text.gain, text.loss)}
    assert not any(finding.claim.lower() in words for finding in found)


@pytest.mark.parametrize(
    ("intervals", "title"),
    [
        ({("test", "ece"): (-0.1, -0.05)}, "Here, Bayesian attention is better calibrated."),
        ({("test", "accuracy"): (-0.03, -0.01)}, "Here, Bayesian attention is less accurate."),
        (
            {
                ("test", "accuracy"): (-0.03, -0.01),
                ("test", "ece"): (-0.2, -0.1),
                ("news", "auroc"): (0.1, 0.2),
            },
            "Here, Bayesian attention is better calibrated and better at noticing foreign inputs, but less accurate.",
        ),
        (
            {("imdb", "ece"): (-0.2, -0.1)},
            "No clear difference between Bayesian and deterministic attention here.",
        ),
    ],
)
def test_the_headline_tells_gains_and_losses(
    results: Results, intervals: dict[tuple[str, str], tuple[float, float]], title: str
) -> None:
    assert headline(findings(with_intervals(results, intervals))) == title


@pytest.mark.parametrize(
    ("interval", "words"),
    [
        (
            (-0.02, 0.01),
            "too small a difference for this test set to tell (−0.5 points, 95% interval −2.0 to 1.0)",
        ),
        ((0.01, 0.03), "a gain beyond what the choice of test examples explains (+2.0 points"),
        ((-0.03, -0.01), "a loss beyond what the choice of test examples explains (−2.0 points"),
    ],
)
def test_the_opening_speaks_of_accuracy(results: Results, interval: tuple[float, float], words: str) -> None:
    assert words in opening(with_intervals(results, {("test", "accuracy"): interval}))


def test_the_opening_without_baseline_or_labels(results: Results) -> None:
    ours = tuple(score for score in results.scores if score.model == "bayesian_mean")
    alone = results.model_copy(update={"scores": ours, "differences": ()})
    assert opening(alone).endswith("No deterministic baseline was measured.")
    none = results.model_copy(update={"scores": (), "differences": ()})
    assert "was measured on 400 examples" in opening(none)


def test_findings_quote_both_values_and_the_interval(results: Results) -> None:
    for finding in findings(results):
        text, item = TEXTS[finding.difference.measure], finding.difference
        for model in ("bayesian_mean", "deterministic"):
            assert text.value(results.score(model, item.data).measure(item.measure)) in finding.figures
        for value in (item.low, item.high):
            assert text.difference(value, sign=False) in finding.figures


def test_numbers_as_people_write_them() -> None:
    d = Difference(
        measure="nll",
        model="bayesian_mean",
        data="t",
        value=0.01234,
        low=-0.0004,
        high=0.05,
        resamples=9,
        level=0.9,
    )
    assert interval_words(d) == "+0.012, 90% interval 0.000 to 0.050"
    assert TEXTS["accuracy"].value(0.80349) == "80.3%"
    assert TEXTS["accuracy"].difference(-0.0004) == "0.0"


def test_a_dead_posterior_is_called_dead(results: Results) -> None:
    def spread(*values: float) -> Results:
        sites = [
            site.model_copy(update={"spread": value})
            for site, value in zip(results.health, values, strict=False)
        ]
        return results.model_copy(update={"health": tuple(sites)})

    assert "alive" in posterior_words(spread(0.2, 0.4))
    assert "20% to 40%" in posterior_words(spread(0.2, 0.4))
    assert "by 20% of their mean: the posterior is alive" in posterior_words(spread(0.2))
    assert "1 of 2 sites have collapsed" in posterior_words(spread(0.001, 0.4))
    assert "The posterior has collapsed" in posterior_words(spread(0.001, 0.002))
    assert posterior_words(spread()) == ""


def test_enumeration() -> None:
    assert listed([]) == ""
