"""Scores and intervals against numpy, scipy and scikit-learn; the inputs shown are those they are said to be."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.metrics import accuracy_score, log_loss, roc_auc_score, roc_curve

from probattn.report.evaluation import (
    PredictedData,
    Predictions,
    confident_mistakes,
    describe,
    evaluate,
    mistakes_by_bin,
    most_uncertain,
)
from probattn.report.record import DataSet, Difference, Scores

NAMES = {"in_domain": "test", "shifted": "shift", "out_of_domain": "out"}


def data_set(role: str, size: int, *, labelled: bool = True) -> DataSet:
    return DataSet(key=NAMES[role], title=role, role=role, size=size, labelled=labelled)


def made(
    role: str, size: int, classes: int, seed: int, *, labelled: bool = True, scale: float = 1.5
) -> PredictedData:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (size,), generator=generator)
    logits = scale * torch.randn(size, classes, generator=generator, dtype=torch.float64)
    logits[torch.arange(size), labels] += scale
    draws = logits + torch.randn(8, size, classes, generator=generator, dtype=torch.float64)
    dropout = 1.5 * logits + 0.3 * torch.randn(8, size, classes, generator=generator, dtype=torch.float64)
    models = {
        "deterministic": Predictions((1.5 * logits).softmax(-1), dropout.softmax(-1), "dropout"),
        "bayesian_mean": Predictions.from_draws(draws.softmax(-1)),
        "bayesian_expectation": Predictions(logits.softmax(-1)),
    }
    return PredictedData(data_set(role, size, labelled=labelled), labels if labelled else None, models)


@pytest.mark.cuda
def test_predictions_of_a_device_and_labels_of_the_cpu() -> None:
    item = made("in_domain", 60, 3, 0)
    models = {
        name: Predictions(
            each.probabilities.cuda(), None if each.draws is None else each.draws.cuda(), each.source
        )
        for name, each in item.models.items()
    }
    found, expected = evaluate([replace(item, models=models)]).scores, evaluate([item]).scores
    assert [each.pavpu_curve for each in found] == [each.pavpu_curve for each in expected]


def expected_scores(item: PredictedData, model: str) -> dict[str, float]:
    """The labelled measures, written out with numpy and scikit-learn."""
    p = item.models[model].probabilities.numpy()
    y = item.labels.numpy()
    size, classes = p.shape
    confidence, correct = p.max(1), p.argmax(1) == y
    ece = overconfidence = 0.0
    for low in np.arange(10) / 10:
        inside = (confidence >= low) & ((confidence < low + 0.1) | (low == 0.9))
        if inside.any():
            gap = confidence[inside].mean() - correct[inside].mean()
            ece += inside.mean() * abs(gap)
            overconfidence += inside.mean() * confidence[inside].mean() * max(gap, 0)
    errors = ~correct[np.argsort(-confidence, kind="stable")]
    return {
        "accuracy": accuracy_score(y, p.argmax(1)),
        "nll": log_loss(y, p, labels=np.arange(classes)),
        "brier": ((p - np.eye(classes)[y]) ** 2).sum(1).mean(),
        "ece": ece,
        "overconfidence": overconfidence,
        "aurc": (errors.cumsum() / np.arange(1, size + 1)).mean(),
    }


@pytest.mark.parametrize("classes", [2, 5])
def test_scores_equal_direct_computation(classes: int) -> None:
    item = made("in_domain", 300, classes, seed=classes)
    for score in evaluate([item], resamples=2).scores:
        for name, value in expected_scores(item, score.model).items():
            assert score.values[name] == pytest.approx(value, abs=1e-6), (score.model, name)


@pytest.mark.parametrize("model", ["deterministic", "bayesian_mean"])
def test_pavpu_equals_welch_tests_by_scipy(model: str) -> None:
    item = made("in_domain", 200, 3, seed=7)
    draws, labels = item.models[model].draws.numpy(), item.labels.numpy()
    order = np.argsort(-draws.mean(0), axis=1)[:, :2]
    pairs = np.take_along_axis(draws, order[None], axis=2)
    p = stats.ttest_ind(pairs[..., 0], pairs[..., 1], equal_var=False).pvalue
    right = draws.mean(0).argmax(1) == labels
    score = next(s for s in evaluate([item], resamples=1).scores if s.model == model)
    assert score.values["pavpu"] == pytest.approx((right == (p < 0.05)).mean(), abs=1e-6)
    for point in score.pavpu_curve:
        assert point.value == pytest.approx((right == (p < point.threshold)).mean(), abs=1e-6)
        assert point.certain == pytest.approx((p < point.threshold).mean(), abs=1e-6)


def test_only_draws_have_pavpu_and_mutual_information() -> None:
    scores = {
        score.model: score for score in evaluate([made("in_domain", 50, 2, seed=0)], resamples=1).scores
    }
    assert "pavpu" not in scores["bayesian_expectation"].values
    assert scores["bayesian_expectation"].values["mutual_information"] is None
    assert scores["bayesian_expectation"].draws is None
    assert scores["bayesian_mean"].draws == "posterior"
    assert scores["deterministic"].draws == "dropout"


def test_entropy_quantiles_and_mutual_information() -> None:
    item = made("in_domain", 250, 3, seed=3)
    score = next(s for s in evaluate([item], resamples=1).scores if s.model == "bayesian_mean")
    draws = item.models["bayesian_mean"].draws.numpy()
    entropy = stats.entropy(draws.mean(0), axis=1)
    assert score.entropy.mean == pytest.approx(entropy.mean())
    quantiles = np.quantile(entropy, np.linspace(0, 1, 101), method="lower")
    np.testing.assert_allclose(score.entropy.quantiles, quantiles)
    expected = pytest.approx(entropy.mean() - stats.entropy(draws, axis=2).mean())
    assert score.values["mutual_information"] == expected


@pytest.mark.parametrize("role", ["shifted", "out_of_domain"])
def test_detection_by_entropy(role: str) -> None:
    home, away = (
        made("in_domain", 300, 3, seed=1),
        made(role, 200, 3, seed=2, labelled=role == "shifted", scale=0.7),
    )
    scores = evaluate([home, away], resamples=1).scores
    for score in (score for score in scores if score.data == away.data.key):
        known, ood = (
            stats.entropy(item.models[score.model].probabilities.numpy(), axis=1) for item in (home, away)
        )
        truth = np.r_[np.zeros(len(known)), np.ones(len(ood))]
        values = np.r_[known, ood]
        assert score.values["auroc"] == pytest.approx(roc_auc_score(truth, values), abs=1e-6)
        false, found, _ = roc_curve(truth, values, drop_intermediate=False)
        assert score.values["fpr95"] == pytest.approx(false[found >= 0.95].min(), abs=1e-6)
    assert all("auroc" not in score.values for score in scores if score.data == "test")


def test_reliability_bins_with_wilson_intervals() -> None:
    item = made("in_domain", 400, 2, seed=4)
    score = next(s for s in evaluate([item], resamples=1).scores if s.model == "deterministic")
    p = item.models["deterministic"].probabilities.numpy()
    confidence, correct = p.max(1), p.argmax(1) == item.labels.numpy()
    assert sum(b.count for b in score.reliability) == 400
    for b in score.reliability:
        inside = (confidence >= b.low) & ((confidence < b.high) | (b.high == 1))
        assert b.count == inside.sum()
        assert b.confidence == pytest.approx(confidence[inside].mean(), abs=1e-6)
        assert b.accuracy == pytest.approx(correct[inside].mean(), abs=1e-6)
        n, z = inside.sum(), stats.norm.ppf(0.975)
        centre = (b.accuracy + z**2 / (2 * n)) / (1 + z**2 / n)
        half = z / (1 + z**2 / n) * np.sqrt(b.accuracy * (1 - b.accuracy) / n + z**2 / (4 * n**2))
        assert (b.accuracy_low, b.accuracy_high) == pytest.approx((centre - half, centre + half), abs=1e-6)


def test_risk_coverage_ends_at_the_error_rate() -> None:
    item = made("in_domain", 1000, 2, seed=5)
    for score in evaluate([item], resamples=1).scores:
        curve = score.risk_coverage
        assert curve.coverage[0] == pytest.approx(1 / 1000)
        assert curve.coverage[-1] == 1
        assert curve.risk[-1] == pytest.approx(1 - score.values["accuracy"], abs=1e-6)
        assert len(curve.coverage) <= 200


def by_name(differences: tuple[Difference, ...]) -> dict[tuple[str, str, str], Difference]:
    return {(item.model, item.data, item.measure): item for item in differences}


def score_of(scores: tuple[Scores, ...], model: str, data: str) -> Scores:
    return next(score for score in scores if (score.model, score.data) == (model, data))


def test_differences_are_those_of_the_scores_and_lie_in_their_intervals() -> None:
    items = [
        made("in_domain", 300, 2, seed=6),
        made("shifted", 200, 2, seed=7, scale=0.9),
        made("out_of_domain", 150, 2, seed=8, labelled=False, scale=0.4),
    ]
    scores, differences = evaluate(items, resamples=100)
    assert {item.data for item in differences} == {"test", "shift", "out"}
    for item in differences:
        ours = score_of(scores, item.model, item.data).values.get(item.measure)
        base = score_of(scores, "deterministic", item.data).values.get(item.measure)
        assert item.value == pytest.approx(ours - base, abs=1e-12)
        assert item.low <= item.high
        assert item.resamples == 100
    held = [item.low <= item.value <= item.high for item in differences]
    assert np.mean(held) > 0.85  # a percentile interval may miss a biased measure's own value


def test_intervals_of_means_equal_scipys_paired_bootstrap() -> None:
    item = made("in_domain", 200, 2, seed=9)
    y = item.labels.numpy()
    probabilities = [item.models[model].probabilities.numpy() for model in ("bayesian_mean", "deterministic")]
    losses = {
        "nll": [-np.log(p[np.arange(200), y]) for p in probabilities],
        "brier": [((p - np.eye(2)[y]) ** 2).sum(1) for p in probabilities],
    }
    models = {model: item.models[model] for model in ("bayesian_mean", "deterministic")}
    found = by_name(evaluate([PredictedData(item.data, item.labels, models)], resamples=800).differences)
    for measure, pair in losses.items():
        reference = stats.bootstrap(
            pair,
            lambda a, b, axis: (a - b).mean(axis=axis),
            paired=True,
            vectorized=True,
            method="percentile",
            n_resamples=4000,
            rng=np.random.default_rng(0),
        ).confidence_interval
        interval = found["bayesian_mean", "test", measure]
        width = reference.high - reference.low
        assert interval.low == pytest.approx(reference.low, abs=0.1 * width)
        assert interval.high == pytest.approx(reference.high, abs=0.1 * width)


def test_detection_resamples_both_sides() -> None:
    """Few in-domain examples make the interval wide, few OOD ones too."""
    sizes = {"in_domain": 25, "out_of_domain": 400}
    items = [made(role, size, 2, seed=13, labelled=False, scale=0.8) for role, size in sizes.items()]
    models = ("bayesian_mean", "deterministic")
    known, ood = (
        {model: stats.entropy(item.models[model].probabilities.numpy(), axis=1) for model in models}
        for item in items
    )
    rng = np.random.default_rng(0)
    inside, outside = (rng.integers(size, size=(600, size)) for size in sizes.values())
    areas = [
        stats.mannwhitneyu(ood[m][outside], known[m][inside], axis=1).statistic / (25 * 400) for m in models
    ]
    drawn = areas[0] - areas[1]
    low, high = np.quantile(drawn, [0.025, 0.975])
    found = by_name(evaluate(items, resamples=600).differences)["bayesian_mean", "out", "auroc"]
    assert (found.low, found.high) == pytest.approx((low, high), abs=0.2 * (high - low))


def test_models_that_err_on_the_same_examples_do_not_differ_in_accuracy() -> None:
    """Unpaired resampling would find an interval of some points here."""
    item = made("in_domain", 400, 2, seed=10)
    difference = by_name(evaluate([item], resamples=40).differences)[
        "bayesian_expectation", "test", "accuracy"
    ]
    assert (difference.low, difference.value, difference.high) == (0, 0, 0)  # tempering moves no winner


def test_a_model_against_itself_does_not_differ() -> None:
    item = made("in_domain", 100, 3, seed=11)
    same = item.models["bayesian_mean"]
    twice = PredictedData(item.data, item.labels, {"deterministic": same, "bayesian_mean": same})
    for difference in evaluate([twice], resamples=50).differences:
        assert (difference.low, difference.value, difference.high) == (0, 0, 0)


def test_the_seed_decides_the_resamples() -> None:
    item = made("in_domain", 80, 2, seed=12)
    first, again, other = (evaluate([item], resamples=30, seed=seed).differences for seed in (0, 0, 1))
    assert first == again
    assert first != other


def test_one_example_one_draw() -> None:
    data = DataSet(key="test", title="t", role="in_domain", size=1, labelled=True)
    models = {
        "deterministic": Predictions(torch.tensor([[0.3, 0.7]])),
        "bayesian_mean": Predictions.from_draws(torch.tensor([[[0.4, 0.6]]])),
    }
    scores, differences = evaluate([PredictedData(data, torch.tensor([1]), models)], resamples=5)
    assert [score.values["accuracy"] for score in scores] == [1, 1]
    assert scores[1].values["pavpu"] == 1  # draws that do not vary are certain
    assert scores[1].values["mutual_information"] == 0
    assert "pavpu" not in {difference.measure for difference in differences}


def test_an_impossible_label_has_no_likelihood() -> None:
    data = DataSet(key="test", title="t", role="in_domain", size=3, labelled=True)
    base = Predictions(torch.tensor([[1.0, 0.0], [0.5, 0.5], [0.5, 0.5]]))
    ours = Predictions.from_draws(torch.tensor([[[0.9, 0.1], [0.5, 0.5], [0.5, 0.5]]]))
    models = {"deterministic": base, "bayesian_mean": ours}
    scores, differences = evaluate([PredictedData(data, torch.tensor([1, 0, 1]), models)], resamples=20)
    assert scores[0].values["nll"] is None
    assert scores[1].values["nll"] == pytest.approx((np.log(10) + 2 * np.log(2)) / 3)
    assert "nll" not in {difference.measure for difference in differences}


def test_confidences_of_one_half_in_many_classes_are_binned_as_they_are() -> None:
    """A winner below 1/2 stays the winner."""
    data = DataSet(key="test", title="t", role="in_domain", size=2, labelled=True)
    p = torch.tensor([[0.4, 0.3, 0.3], [0.2, 0.35, 0.45]])
    score = evaluate([PredictedData(data, torch.tensor([0, 0]), {"deterministic": Predictions(p)})]).scores[0]
    assert [(b.count, b.accuracy) for b in score.reliability] == [(2, 0.5)]
    assert score.values["ece"] == pytest.approx(0.5 - 0.425)


def test_input_that_does_not_fit_is_refused() -> None:
    data = data_set("in_domain", 4)
    p = torch.full((4, 2), 0.5)
    with pytest.raises(ValueError, match=r"expected probabilities \[N, C\], got \[4\]"):
        Predictions(p[:, 0])
    with pytest.raises(ValueError, match="draws and their source together"):
        Predictions(p, p[None])
    with pytest.raises(ValueError, match=r"expected draws \[P, 4, 2\], got \[1, 3, 2\]"):
        Predictions(p, p[None, :3], "posterior")
    with pytest.raises(ValueError, match="expected 4 examples everywhere"):
        PredictedData(data, torch.zeros(4, dtype=torch.long), {"deterministic": Predictions(p[:3])})
    with pytest.raises(ValueError, match="3 labels"):
        PredictedData(data, torch.zeros(3, dtype=torch.long), {"deterministic": Predictions(p)})
    with pytest.raises(ValueError, match="contradicts"):
        PredictedData(data, None, {"deterministic": Predictions(p)})
    fine = PredictedData(data, torch.zeros(4, dtype=torch.long), {"deterministic": Predictions(p)})
    for options in ({"resamples": 0}, {"level": 1.0}):
        with pytest.raises(ValueError, match="resamples >= 1 and 0 < level < 1"):
            evaluate([fine], **options)
    away = PredictedData(
        data_set("shifted", 4), torch.zeros(4, dtype=torch.long), {"deterministic": Predictions(p)}
    )
    with pytest.raises(ValueError, match="in_domain"):
        evaluate([away])
    with pytest.raises(ValueError, match=r"labels in 0 \.\. 1"):
        evaluate([PredictedData(data, torch.full((4,), 2), {"deterministic": Predictions(p)})])


CLASSES = ("no", "yes")
TEXTS = ["zero", "one", "two", "three"]
YES = torch.tensor([[0.9, 0.45, 0.15, 0.6], [0.8, 0.57, 0.05, 0.7]])  # [P, N]
DRAWS = torch.stack([1 - YES, YES], dim=-1)


def drawn(labels: list[int] | None = None, **models: Predictions) -> PredictedData:
    data = DataSet(key="t", title="t", role="in_domain", size=4, labelled=labels is not None)
    known = {"bayesian_mean": Predictions.from_draws(DRAWS), **models}
    return PredictedData(data, None if labels is None else torch.tensor(labels), known)


def test_the_most_uncertain_come_first() -> None:
    assert most_uncertain(drawn(), 3) == [1, 3, 0]
    assert most_uncertain(drawn(), 10) == [1, 3, 0, 2]


def test_the_surest_mistakes_come_first() -> None:
    assert confident_mistakes(drawn([0, 0, 1, 1]), 5) == [2, 0, 1]
    assert confident_mistakes(drawn([0, 0, 1, 1]), 1) == [2]
    assert confident_mistakes(drawn(None), 5) == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_each_bin_has_its_surest_mistakes(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    probabilities = (3 * torch.randn(400, 3, generator=generator, dtype=dtype)).softmax(dim=-1)
    labels = torch.randint(3, (400,), generator=generator)
    data = DataSet(key="test", title="Test", role="in_domain", size=400, labelled=True)
    item = PredictedData(data, labels, {"deterministic": Predictions(probabilities)})
    bins = evaluate([item]).scores[0].reliability
    rows = mistakes_by_bin(item, 400)
    assert sorted(rows) == sorted(confident_mistakes(item, 400))
    confidence = probabilities.max(dim=-1).values
    for each in bins:
        inside = [row for row in rows if each.low <= confidence[row] < each.high]
        assert len(inside) == round(each.count * (1 - each.accuracy))
        shown = [row for row in mistakes_by_bin(item, 2) if each.low <= confidence[row] < each.high]
        assert shown == sorted(inside, key=lambda row: -confidence[row])[:2]
    assert mistakes_by_bin(drawn(None), 5) == []


def test_an_example_says_what_was_predicted() -> None:
    base = Predictions(torch.tensor([[0.3, 0.7], [0.5, 0.5], [0.4, 0.6], [0.1, 0.9]]))
    found = describe(drawn([1, 0, 1, 1], deterministic=base), [2], TEXTS, CLASSES)[0]
    assert (found.text, found.index, found.data, found.label, found.predicted) == ("two", 2, "t", "yes", "no")
    assert found.probability == pytest.approx(0.9)
    assert found.spread == pytest.approx(math.sqrt(2 * 0.05**2))
    assert found.draws == pytest.approx((0.85, 0.95))
    assert found.entropy == pytest.approx(-(0.9 * math.log(0.9) + 0.1 * math.log(0.1)), rel=1e-5)
    assert (found.baseline_predicted, found.baseline_probability) == ("yes", pytest.approx(0.6))
    assert found.baseline_same == pytest.approx(0.4)


def test_without_baseline_label_or_second_draw() -> None:
    data = DataSet(key="t", title="t", role="in_domain", size=4, labelled=False)
    single = PredictedData(data, None, {"bayesian_mean": Predictions.from_draws(DRAWS[:1])})
    found = describe(single, [0], TEXTS, CLASSES)[0]
    expected = (0.0, None, None, None)
    assert (found.spread, found.label, found.baseline_predicted, found.baseline_same) == expected


def test_examples_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="4 texts and 2 class names for 't', got 3 and 2"):
        describe(drawn(), [0], TEXTS[:3], CLASSES)
    without = drawn(bayesian_mean=Predictions(DRAWS.mean(0)))
    with pytest.raises(ValueError, match="Bayesian ones with their posterior draws, got none"):
        describe(without, [0], TEXTS, CLASSES)


def test_data_without_a_model_have_no_scores() -> None:
    data = data_set("in_domain", 3)
    assert evaluate([PredictedData(data, torch.zeros(3, dtype=torch.long), {})], resamples=1) == ((), ())
