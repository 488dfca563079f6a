"""Several runs as one: means, paired tests by scipy, runs that do not fit, and the page."""

import statistics

import numpy as np
import pytest
from scipy import stats

from probattn.metrics.functional import holm
from probattn.report import Results, combine, evidence, findings, headline, render_report
from probattn.report.measures import CLASS_MEASURES
from probattn.report.summary import opening

SHIFTS = {0: 0.03, 3: 0.041, 1: 0.035, 8: 0.029, 5: 0.038}
"""By how much the calibration of a seed's Bayesian network is worse, the seeds in no order."""


def of_seed(results: Results, seed: int, shift: float) -> Results:
    """A run of another seed: every network is the deterministic one but for noise and one shift of calibration."""
    rng = np.random.default_rng(seed)
    scores = []
    for score in results.scores:
        base = results.score("deterministic", score.data)
        changed = {}
        for measure in CLASS_MEASURES:
            value = base.values.get(measure) if score.values.get(measure) is not None else None
            if value is not None:
                shifted = shift if measure == "ece" and score.model == "bayesian_mean" else 0.0
                changed[measure] = abs(value + 0.004 * rng.standard_normal() + shifted)
        scores.append(score.model_copy(update={"values": {**score.values, **changed}}))
    moved = results.model_copy(
        update={
            "scores": tuple(scores),
            "run": results.run.model_copy(update={"seed": seed, "seconds": 10.0}),
        }
    )
    differences = tuple(
        item.model_copy(
            update={"value": value_of(moved, item.model, item) - value_of(moved, "deterministic", item)}
        )
        for item in results.differences
    )
    return moved.model_copy(update={"differences": differences})


def value_of(results: Results, model: str, item: object) -> float:
    return results.score(model, item.data).values.get(item.measure)


@pytest.fixture(scope="module")
def runs(results: Results) -> dict[str, Results]:
    return {f"run-{seed}": of_seed(results, seed, shift) for seed, shift in SHIFTS.items()}


@pytest.fixture(scope="module")
def combined(runs: dict[str, Results]) -> Results:
    return combine(runs)


def test_scores_are_means_over_seeds(runs: dict[str, Results], combined: Results) -> None:
    truth = [(score.model, score.data) for score in runs["run-0"].scores]
    assert [(score.model, score.data) for score in combined.scores] == truth
    for score in combined.scores:
        for measure in CLASS_MEASURES:
            values = [found.score(score.model, score.data).values.get(measure) for found in runs.values()]
            expected = None if None in values else pytest.approx(statistics.fmean(values))
            assert score.values.get(measure) == expected
        assert score.entropy is None and not score.reliability


def test_intervals_and_p_values_are_the_paired_tests(runs: dict[str, Results], combined: Results) -> None:
    assert len(combined.differences) == len(runs["run-0"].differences)
    for item in combined.differences:
        own, base = (
            [value_of(found, model, item) for found in runs.values()]
            for model in (item.model, "deterministic")
        )
        test = stats.ttest_rel(own, base)
        interval = test.confidence_interval(0.95)
        assert item.value == pytest.approx(np.mean(own) - np.mean(base))
        assert (item.low, item.high) == pytest.approx((interval.low, interval.high))
        assert item.p == pytest.approx(test.pvalue)
        assert item.resamples is None
        assert item.seeds == pytest.approx(np.subtract(own, base))


def test_the_family_is_all_comparisons_of_a_model(combined: Results) -> None:
    for model in ("bayesian_mean", "bayesian_expectation"):
        family = [item for item in combined.differences if item.model == model]
        assert [item.corrected for item in family] == pytest.approx(holm([item.p for item in family]))


def test_the_words_speak_of_seeds(combined: Results) -> None:
    assert combined.seeds == (0, 3, 1, 8, 5)
    assert combined.run.seconds == 50 and combined.run.commands == ()
    expected = "Bayesian against deterministic attention: worse calibrated (5 seeds, 400 examples)"
    assert headline(combined) == expected
    assert ", on average over seeds: no significant difference" in opening(combined)
    words = evidence(combined)
    assert words.startswith("5 seeds, 18 comparisons on 3 data sets.")
    assert "200 examples and 3 seeds" in words and "Student's t" in words
    values = {"test", "imdb"}
    assert {item.difference.data for item in findings(combined) if item.verdict == "worse"} <= values


def test_two_seeds_show_nothing_however_alike(runs: dict[str, Results]) -> None:
    first, second = (runs[name] for name in ("run-0", "run-3"))
    again = second.model_copy(
        update={
            "differences": tuple(
                item.model_copy(update={"value": item.value + 1e-9}) for item in first.differences
            )
        }
    )
    found = combine({"a": first, "b": again})
    assert min(item.corrected for item in found.differences) < 1e-3
    expected = (
        "No significant difference between Bayesian and deterministic attention (2 seeds, 400 examples)"
    )
    assert headline(found) == expected


def test_the_order_of_runs_changes_nothing_but_the_order(runs: dict[str, Results], combined: Results) -> None:
    turned = combine(dict(reversed(runs.items())))
    assert turned.seeds == combined.seeds[::-1]
    for one, other in zip(combined.differences, turned.differences, strict=True):
        expected = pytest.approx((other.value, other.low, other.high, other.p))
        assert (one.value, one.low, one.high, one.p) == expected
        assert one.seeds == other.seeds[::-1]


def test_a_measure_that_one_run_lacks_is_left_out(runs: dict[str, Results]) -> None:
    first, second, third = list(runs.values())[:3]
    scores = tuple(
        score.model_copy(update={"values": {**score.values, "nll": None}}) for score in second.scores
    )
    kept = tuple(item for item in second.differences if item.measure != "nll")
    found = combine(
        {"a": first, "b": second.model_copy(update={"scores": scores, "differences": kept}), "c": third}
    )
    assert "nll" not in {item.measure for item in found.differences}
    assert all(score.values.get("nll") is None for score in found.scores)


def test_runs_that_do_not_fit_are_named(runs: dict[str, Results], combined: Results) -> None:
    first, second = (runs[name] for name in ("run-0", "run-3"))
    bigger = tuple(item.model_copy(update={"size": item.size + 1}) for item in second.data)
    alone = tuple(score for score in second.scores if score.model != "deterministic")
    for other, message in (
        (first, r"b: expected another seed than 0, which a has"),
        (
            second.model_copy(update={"data": bigger}),
            r"b: expected the data sets of a .*401.*evaluate both again",
        ),
        (
            second.model_copy(update={"classes": ("x", "y")}),
            r"b: expected the classes of a \(negative, positive\)",
        ),
        (second.model_copy(update={"scores": alone}), "b: expected the models of a"),
        (combined, "b: expected a single run, got the comparison of 5"),
    ):
        with pytest.raises(ValueError, match=message):
            combine({"a": first, "b": other})
    with pytest.raises(ValueError, match="at least two runs, got 1"):
        combine({"a": first})


def test_deterministic_runs_have_means_and_no_comparison(runs: dict[str, Results]) -> None:
    plain = {
        name: found.model_copy(
            update={
                "scores": tuple(score for score in found.scores if score.model == "deterministic"),
                "differences": (),
            }
        )
        for name, found in runs.items()
    }
    found = combine(plain)
    assert found.differences == () and len(found.scores) == 3
    assert headline(found).startswith("Deterministic attention: accuracy 7")
    assert opening(found).endswith("% with deterministic attention, on average over seeds.")
    assert "run-8/report.html" in render_report(found)


def test_the_page_lists_the_runs_and_shows_their_seeds(combined: Results) -> None:
    page = render_report(combined)
    result = "<h1>Bayesian against deterministic attention: worse calibrated (5 seeds, 400 examples)</h1>"
    assert result in page
    for run in combined.runs:
        assert f'<a href="{run.folder}/report.html">' in page
    shown = [item for item in combined.differences if item.model == "bayesian_mean"]
    assert page.count('class="seed"') == len(shown) * len(combined.runs)
    ece = combined.difference("ece", "bayesian_mean", "test")
    assert all(f'<data value="{value!r}">' in page for value in ece.seeds)
    assert 'id="attention"' not in page and 'id="training"' not in page and 'id="entropy"' not in page
    assert "seeds.json" in page and "0, 3, 1, 8, 5" in page
