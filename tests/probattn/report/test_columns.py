"""Measures of the classes against scikit-learn, and that they are taken only where asked for."""

import numpy as np
import pytest
import torch
from sklearn import metrics

from probattn.report.columns import class_measure
from probattn.report.evaluation import PredictedData, Predictions, evaluate
from probattn.report.page import render_report
from probattn.report.record import DataSet, RunDescription
from probattn.report.results import Results
from probattn.report.summary import headline

SIZE = 400


def predicted(classes: int, wrong: float, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (SIZE,), generator=generator)
    other = torch.randint(classes, (SIZE,), generator=generator)
    shown = torch.where(torch.rand(SIZE, generator=generator) < wrong, other, labels)
    probabilities = 0.1 / (classes - 1) * torch.ones(SIZE, classes) + (0.9 - 0.1 / (classes - 1)) * (
        torch.nn.functional.one_hot(shown, classes)
    )
    return labels, probabilities


@pytest.mark.parametrize("classes", [2, 4])
def test_values_are_those_of_scikit_learn(classes: int) -> None:
    labels, probabilities = predicted(classes, 0.5, seed=classes)
    winner = probabilities.argmax(-1)
    average = "binary" if classes == 2 else "macro"
    f1 = metrics.f1_score(labels, winner, average=average)
    assert class_measure("f1", winner, labels, classes) == pytest.approx(f1, abs=1e-6)
    matthews = metrics.matthews_corrcoef(labels, winner)
    assert class_measure("matthews", winner, labels, classes) == pytest.approx(matthews, abs=1e-12)


def measured_by(asked: tuple[str, ...], run: RunDescription) -> Results:
    data = DataSet(key="test", title="Test", role="in_domain", size=SIZE, labelled=True)
    labels, base = predicted(2, 0.6, seed=0)
    own = torch.where((torch.arange(SIZE) % 2 == 0)[:, None], torch.eye(2)[labels] * 0.8 + 0.1, base)
    models = {"deterministic": Predictions(base), "bayesian_mean": Predictions.from_draws(own[None])}
    measured = evaluate([PredictedData(data, labels, models)], resamples=400, asked=asked)
    return Results(
        run=run, classes=("no", "yes"), data=(data,), scores=measured.scores, differences=measured.differences
    )


def test_they_are_measured_compared_and_shown_where_asked_for(results: Results) -> None:
    found = measured_by(("matthews", "f1"), results.run)
    for measure in ("matthews", "f1"):
        difference = found.difference(measure, "bayesian_mean", "test")
        ours, base = (found.score(model, "test") for model in ("bayesian_mean", "deterministic"))
        assert difference.value == pytest.approx(ours.values[measure] - base.values[measure], abs=1e-12)
        assert 0 < difference.low < difference.value < difference.high
    page = render_report(found)
    assert "Matthews correlation" in page and ">F1<" in page
    assert "better correlated with the labels" in headline(found)


def test_intervals_of_matthews_are_the_bootstraps(results: Results) -> None:
    found = measured_by(("matthews",), results.run).difference("matthews", "bayesian_mean", "test")
    labels, base = predicted(2, 0.6, seed=0)
    own = torch.where((torch.arange(SIZE) % 2 == 0), labels, base.argmax(-1))
    rows = np.random.default_rng(1).integers(SIZE, size=(1000, SIZE))

    def correlations(said: torch.Tensor) -> np.ndarray:  # Pearson's, which Matthews' is of two classes
        pairs = np.stack([labels.numpy()[rows], said.numpy()[rows]])
        pairs = (pairs - pairs.mean(-1, keepdims=True)) / pairs.std(-1, keepdims=True)
        return pairs.prod(axis=0).mean(axis=-1)

    gaps = correlations(own) - correlations(base.argmax(-1))
    assert found.low == pytest.approx(np.quantile(gaps, 0.025), abs=0.03)
    assert found.high == pytest.approx(np.quantile(gaps, 0.975), abs=0.03)


def test_nothing_of_them_where_not_asked_for(results: Results) -> None:
    found = measured_by((), results.run)
    assert not any({"matthews", "f1"} & score.values.keys() for score in found.scores)
    assert not {item.measure for item in found.differences} & {"matthews", "f1"}
    assert "Matthews" not in render_report(found)
