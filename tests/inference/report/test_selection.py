"""The inputs that are shown are the ones they are said to be."""

import math

import pytest
import torch

from probattn.inference.report.evaluation import (
    PredictedData,
    Predictions,
    confident_mistakes,
    describe,
    most_uncertain,
)
from probattn.inference.report.record import DataSet

CLASSES = ("no", "yes")
TEXTS = ["zero", "one", "two", "three"]
YES = torch.tensor([[0.9, 0.45, 0.15, 0.6], [0.8, 0.57, 0.05, 0.7]])  # [P, N]
DRAWS = torch.stack([1 - YES, YES], dim=-1)


def item(labels: list[int] | None = None, **models: Predictions) -> PredictedData:
    data = DataSet(key="t", title="t", role="in_domain", size=4, labelled=labels is not None)
    known = {"bayesian_mean": Predictions.from_draws(DRAWS), **models}
    return PredictedData(data, None if labels is None else torch.tensor(labels), known)


def test_the_most_uncertain_come_first() -> None:
    assert most_uncertain(item(), 3) == [1, 3, 0]
    assert most_uncertain(item(), 10) == [1, 3, 0, 2]


def test_the_surest_mistakes_come_first() -> None:
    assert confident_mistakes(item([0, 0, 1, 1]), 5) == [2, 0, 1]
    assert confident_mistakes(item([0, 0, 1, 1]), 1) == [2]
    assert confident_mistakes(item(None), 5) == []


def test_an_example_says_what_was_predicted() -> None:
    base = Predictions(torch.tensor([[0.3, 0.7], [0.5, 0.5], [0.4, 0.6], [0.1, 0.9]]))
    found = describe(item([1, 0, 1, 1], deterministic=base), [2], TEXTS, CLASSES)[0]
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
    assert (found.spread, found.label, found.baseline_predicted, found.baseline_same) == (
        0.0,
        None,
        None,
        None,
    )


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="4 texts and 2 class names for 't', got 3 and 2"):
        describe(item(), [0], TEXTS[:3], CLASSES)
    without = item(bayesian_mean=Predictions(DRAWS.mean(0)))
    with pytest.raises(ValueError, match="Bayesian ones with their posterior draws, got none"):
        describe(without, [0], TEXTS, CLASSES)
