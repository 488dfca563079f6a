"""When a difference may be spoken of: p values against scipy, families, and reports with no difference there."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from probattn import report
from probattn.report.bootstrap import least_resamples
from probattn.report.results import Results
from probattn.report.summary import headline

DIFFERENCES = st.lists(st.floats(-1, 1, allow_nan=False), min_size=1, max_size=60)


def comparison(p: float, model: str = "bayesian_mean", measure: str = "ece") -> report.Difference:
    return report.Difference(
        measure=measure,
        model=model,
        data="test",
        value=0.1,
        low=0.0,
        high=0.2,
        p=p,
        corrected=p,
        resamples=99,
    )


@given(DIFFERENCES)
def test_the_bootstraps_p_is_symmetric_and_never_0(values: list[float]) -> None:
    p = report.bootstrap_p(values)
    assert 2 / (len(values) + 1) <= p <= 1
    assert p == report.bootstrap_p([-value for value in values])


@pytest.mark.parametrize("shift", [0.5, 1.5, 2.5])
def test_the_interval_at_the_level_of_p_touches_0(shift: float) -> None:
    values = np.random.default_rng(1).normal(shift, 1, 4999)
    p = report.bootstrap_p(values.tolist())
    for level, beside in ((1 - 1.05 * p, True), (1 - 0.95 * p, False)):
        low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
        assert (low > 0 or high < 0) == beside
    assert p == pytest.approx(2 * stats.norm.sf(shift), rel=0.25)


def test_the_bootstraps_p_is_near_the_paired_tests() -> None:
    """For a mean of paired losses, against Student's t for pairs."""
    rng = np.random.default_rng(2)
    gaps = rng.normal(0.1, 1, 400)
    resampled = gaps[rng.integers(0, 400, (8000, 400))].mean(axis=1)
    expected = pytest.approx(stats.ttest_1samp(gaps, 0).pvalue, rel=0.15)
    assert report.bootstrap_p(resampled.tolist()) == expected


@pytest.mark.parametrize("seeds", [2, 3, 5, 10])
def test_p_over_seeds_is_the_paired_tests(seeds: int) -> None:
    values, base = np.random.default_rng(seeds).normal([[0.3], [0.0]], 1, (2, seeds))
    assert report.seeds_p((values - base).tolist()) == pytest.approx(stats.ttest_rel(values, base).pvalue)


def test_seeds_that_agree_to_the_digit_show_nothing() -> None:
    assert report.seeds_p([0.02, 0.02]) == report.seeds_p([0.0, 0.0, 0.0]) == 1


def test_each_model_is_a_family() -> None:
    items = [
        comparison(0.01),
        comparison(0.04, "bayesian_expectation"),
        comparison(0.02, measure="nll"),
        comparison(0.03, measure="brier"),
    ]
    found = report.corrected(items)
    assert [item.corrected for item in found] == pytest.approx([0.03, 0.04, 0.04, 0.04])
    assert [item.p for item in found] == [item.p for item in items]
    assert report.corrected([]) == ()


@pytest.mark.parametrize(("comparisons", "level"), [(1, 0.95), (18, 0.95), (22, 0.9), (7, 0.99)])
def test_the_least_resamples_are_just_enough(comparisons: int, level: float) -> None:
    least = least_resamples(comparisons, level)
    smallest = [comparisons * report.bootstrap_p([1.0] * resamples) for resamples in (least - 1, least)]
    assert smallest[0] >= 1 - level - 1e-9 and smallest[1] < 1 - level


def without_difference(size: int, seed: int) -> list[report.PredictedData]:
    """Two networks that err alike: one evidence, noise of their own; a test set and another to be told from it."""
    generator = torch.Generator().manual_seed(seed)

    def network(signal: torch.Tensor) -> torch.Tensor:
        share = torch.sigmoid(2.5 * (signal + 0.55 * torch.randn(size, generator=generator)))
        return torch.stack([1 - share, share], dim=-1)

    items = []
    for role, scale in (("in_domain", 1.25), ("out_of_domain", 0.4)):
        signal = scale * torch.randn(size, generator=generator)
        labels = (torch.rand(size, generator=generator) < torch.sigmoid(1.6 * signal)).long()
        labelled = role == "in_domain"
        data = report.DataSet(key=role, title=role, role=role, size=size, labelled=labelled)
        models = {model: report.Predictions(network(signal)) for model in ("deterministic", "aligned")}
        items.append(report.PredictedData(data, labels if labelled else None, models))
    return items


@pytest.mark.parametrize("shared", [0.0, 0.8])
def test_of_many_titles_without_a_difference_few_claim_one(results: Results, shared: float) -> None:
    """18 comparisons, however they depend; uncorrected, more than half of independent ones would claim something."""
    reports, rng = 400, np.random.default_rng(3)
    z = np.sqrt(shared) * rng.standard_normal((reports, 1)) + np.sqrt(1 - shared) * rng.standard_normal(
        (reports, 18)
    )
    family = [item for item in results.differences if item.model == "bayesian_mean"]
    assert len(family) == 18
    claims = uncorrected = 0
    for row in z:
        p_values = (2 * stats.norm.sf(np.abs(row))).tolist()
        made = [
            item.model_copy(update={"value": 0.02 * float(value), "p": p})
            for item, value, p in zip(family, row, p_values, strict=True)
        ]
        found = results.model_copy(update={"differences": report.corrected(made)})
        claims += not headline(found).startswith("No significant difference")
        uncorrected += min(p_values) < 0.05
    assert claims <= 0.05 * reports + 3 * np.sqrt(0.05 * 0.95 * reports)
    assert uncorrected > 2.5 * claims and uncorrected > 0.15 * reports


@pytest.mark.slow
def test_without_a_difference_few_reports_claim_one(results: Results) -> None:
    """The whole way from predictions to the title; among the intervals by themselves, several exclude 0."""
    reports, claims, beside = 15, 0, 0
    for seed in range(reports):
        items = without_difference(220, seed)
        scores, differences = report.evaluate(items, resamples=330)
        assert len(differences) == 8
        found = Results(
            run=results.run,
            classes=results.classes,
            data=tuple(item.data for item in items),
            scores=scores,
            differences=differences,
        )
        claims += not headline(found).startswith("No significant difference")
        beside += any(not item.low <= 0 <= item.high for item in differences)
    assert stats.binomtest(claims, reports, 0.05, alternative="greater").pvalue > 0.01
    assert beside >= 2


def test_a_great_difference_is_claimed(results: Results) -> None:
    """Confidence far above what is right, in one of the networks."""
    generator = torch.Generator().manual_seed(0)
    signal = torch.randn(400, generator=generator)
    labels = (torch.rand(400, generator=generator) < torch.sigmoid(signal)).long()
    models = {}
    for model, sharpness in (("deterministic", 6.0), ("aligned", 1.0)):
        share = torch.sigmoid(sharpness * signal)
        models[model] = report.Predictions(torch.stack([1 - share, share], dim=-1))
    data = report.DataSet(key="test", title="t", role="in_domain", size=400, labelled=True, unit="texts")
    scores, differences = report.evaluate([report.PredictedData(data, labels, models)], resamples=300)
    found = Results(
        run=results.run, classes=results.classes, data=(data,), scores=scores, differences=differences
    )
    assert headline(found).startswith(
        "In this run, aligned against deterministic attention: better calibrated"
    )
    assert headline(found).endswith("(1 seed, 400 texts)")
