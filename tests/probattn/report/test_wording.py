"""The words follow the corrected p values: no claim without, and losses are told like gains."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probattn.report.measures import CLASS_MEASURES, counted, listed
from probattn.report.results import Results
from probattn.report.sites import SiteHealth, posterior_words
from probattn.report.summary import evidence, findings, headline, opening

BOUNDS = st.floats(-1, 1, allow_nan=False)


def with_differences(
    results: Results, found: dict[tuple[str, str], float], *, corrected: float = 0.01, **fields: object
) -> Results:
    """Results whose differences are unclear but for the given ones, by data set and measure."""
    differences = []
    for item in results.differences:
        value = found.get((item.data, item.measure), 0.0)
        p = corrected if value else 1.0
        changed = {
            "value": value,
            "low": value - 0.01,
            "high": value + 0.01,
            "p": p,
            "corrected": p,
            **fields,
        }
        differences.append(item.model_copy(update=changed))
    return results.model_copy(update={"differences": tuple(differences)})


@given(st.sampled_from(list(CLASS_MEASURES)), BOUNDS)
def test_a_verdict_follows_the_sign(measure: str, value: float) -> None:
    verdict = CLASS_MEASURES[measure].verdict(value)
    assert (verdict == "unclear") == (value == 0)
    if value:
        expected = "better" if (value > 0) == (CLASS_MEASURES[measure].better == "higher") else "worse"
        assert verdict == expected


def test_the_direction_of_every_measure() -> None:
    higher = {measure for measure in CLASS_MEASURES if CLASS_MEASURES[measure].better == "higher"}
    assert higher == {"accuracy", "matthews", "f1", "pavpu", "auroc"}


def test_without_a_reliable_difference_nothing_is_claimed(results: Results) -> None:
    none = with_differences(results, {})
    assert {finding.verdict for finding in findings(none)} == {"unclear"}
    expected = "No significant difference between Bayesian and deterministic attention (1 seed, 400 examples)"
    assert headline(none) == expected
    words = {phrase for text in CLASS_MEASURES.values() for phrase in (text.gain, text.loss)}
    assert not any(finding.claim.lower() in words for finding in findings(none))


def test_an_interval_beside_0_is_no_claim_by_itself(results: Results) -> None:
    """One of 18 intervals at 95% excludes 0 in every other run without any difference."""
    one = with_differences(results, {("news", "auroc"): 0.02}, corrected=0.3, low=0.002, high=0.04)
    assert headline(one).startswith("No significant difference")
    assert {finding.verdict for finding in findings(one)} == {"unclear"}


@pytest.mark.parametrize(
    ("found", "title"),
    [
        ({("test", "ece"): -0.1}, "In this run, Bayesian against deterministic attention: better calibrated"),
        (
            {("test", "accuracy"): -0.03},
            "In this run, Bayesian against deterministic attention: less accurate",
        ),
        (
            {("test", "accuracy"): -0.03, ("test", "ece"): -0.2, ("news", "auroc"): 0.1},
            (
                "In this run, Bayesian against deterministic attention: better calibrated and better at detecting "
                "out-of-distribution inputs, but less accurate"
            ),
        ),
        (
            {("imdb", "ece"): -0.2},
            "In this run, Bayesian against deterministic attention: 1 of 18 comparisons differ significantly",
        ),
    ],
)
def test_the_headline_tells_gains_and_losses(results, found, title) -> None:
    assert headline(with_differences(results, found)) == f"{title} (1 seed, 400 examples)"


@pytest.mark.parametrize(
    ("value", "corrected", "sizes", "verdict"),
    [
        (-0.005, 0.049, {}, "better"),
        (-0.0049, 0.049, {}, "unclear"),
        (-0.1, 0.0500001, {}, "unclear"),
        (-0.1, 0.0, {"test": 200}, "better"),
        (-0.1, 0.0, {"test": 199}, "unclear"),
    ],
    ids=["least", "small", "chance", "enough", "few"],
)
def test_what_may_be_spoken_of(results, value, corrected, sizes, verdict) -> None:
    data = tuple(item.model_copy(update={"size": sizes.get(item.key, item.size)}) for item in results.data)
    found = with_differences(results, {("test", "ece"): value}, corrected=corrected)
    found = found.model_copy(update={"data": data})
    assert found.verdict(found.difference("ece", "bayesian_mean", "test")) == verdict


def test_detection_takes_enough_examples_on_both_sides(results: Results) -> None:
    found = with_differences(results, {("news", "auroc"): 0.1})
    item = found.difference("auroc", "bayesian_mean", "news")
    assert found.verdict(item) == "better"
    few = tuple(
        each.model_copy(update={"size": 199}) if each.key == "test" else each for each in results.data
    )
    assert found.model_copy(update={"data": few}).verdict(item) == "unclear"


def test_what_the_title_rests_on_is_said(results: Results) -> None:
    words = evidence(with_differences(results, {}))
    assert words.startswith("One seed, 18 comparisons on 3 data sets.")
    assert "Holm" in words and "below 0.05" in words and "200 examples" in words
    assert "evidence about this run" in words and "too few" not in words
    few = evidence(with_differences(results, {}, resamples=719))
    result = "719 resamples are too few to tell any of 18 comparisons: set report.resamples to 720 or more"
    assert result in few
    assert evidence(results.model_copy(update={"differences": ()})) == ""


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0.0, "no significant difference (0.0 points, 95% interval −1.0 to 1.0)"),
        (0.02, "a gain beyond what the choice of test examples explains (+2.0 points"),
        (-0.02, "a loss beyond what the choice of test examples explains (−2.0 points"),
    ],
)
def test_the_opening_speaks_of_accuracy(results: Results, value: float, words: str) -> None:
    assert words in opening(with_differences(results, {("test", "accuracy"): value}))


def test_the_opening_without_baseline_or_labels(results: Results) -> None:
    ours = tuple(score for score in results.scores if score.model == "bayesian_mean")
    alone = results.model_copy(update={"scores": ours, "differences": ()})
    assert opening(alone).endswith("No deterministic baseline was measured.")
    none = results.model_copy(update={"scores": (), "differences": ()})
    assert "was measured on 400 examples" in opening(none)


def test_findings_quote_both_values_and_the_interval(results: Results) -> None:
    for finding in findings(results):
        text, item = CLASS_MEASURES[finding.difference.measure], finding.difference
        for model in ("bayesian_mean", "deterministic"):
            assert text.value(results.score(model, item.data).values.get(item.measure)) in finding.figures
        for value in (item.low, item.high):
            assert text.difference(value, sign=False) in finding.figures


def test_numbers_as_people_write_them() -> None:
    assert CLASS_MEASURES["nll"].difference(0.01234) == "+0.012"
    assert CLASS_MEASURES["nll"].difference(-0.0004, sign=False) == "0.000"
    assert CLASS_MEASURES["accuracy"].value(0.80349) == "80.3%"
    assert CLASS_MEASURES["accuracy"].difference(-0.0004) == "0.0"


def test_a_dead_posterior_is_called_dead(results: Results) -> None:
    def spread(*values: float) -> list[SiteHealth]:
        return [
            site.model_copy(update={"spread": value})
            for site, value in zip(results.health, values, strict=False)
        ]

    assert "not collapsed" in posterior_words(spread(0.2, 0.4))
    assert "20% to 40%" in posterior_words(spread(0.2, 0.4))
    assert "by 20% of their mean: the posterior has not collapsed" in posterior_words(spread(0.2))
    assert "1 of 2 sites have collapsed" in posterior_words(spread(0.001, 0.4))
    assert "The posterior has collapsed" in posterior_words(spread(0.001, 0.002))
    assert posterior_words(spread()) == ""


def test_enumeration_and_counting() -> None:
    found = [listed(list(words)) for words in ("", "a", "ab", "abc")]
    assert found == ["", "a", "a and b", "a, b and c"]
    assert (counted(1, "seed"), counted(1200, "seed")) == ("1 seed", "1,200 seeds")
