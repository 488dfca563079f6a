"""Sets of classes against MAPIE, which knows the scores and quantiles, and the coverage that is promised."""

import math

import numpy as np
import pytest
import torch

from probattn.metrics import functional


def _data(seed, size=400, classes=5):
    """Probabilities, and classes that are drawn from sharper ones: the network is wrong about its confidence."""
    generator = np.random.default_rng(seed)
    logits = generator.normal(size=(size, classes)) * 2
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    noise = generator.gumbel(size=(size, classes))
    return probabilities, (0.7 * logits + noise).argmax(axis=1)


class _Known:
    """A classifier whose probabilities are its inputs, as MAPIE wants one."""

    classes_ = np.arange(5)

    def fit(self, *_):
        return self

    def predict(self, given):
        return given.argmax(axis=1)

    def predict_proba(self, given):
        return given

    def __sklearn_is_fitted__(self):
        return True


@pytest.mark.parametrize("error", [0.05, 0.1, 0.3])
def test_least_ambiguous_sets_are_those_of_mapie(error):
    mapie = pytest.importorskip("mapie.classification")
    probabilities, target = _data(0)
    new, _ = _data(1)
    reference = mapie.SplitConformalClassifier(
        _Known(), confidence_level=1 - error, conformity_score="lac", prefit=True
    ).conformalize(probabilities, target)
    expected = reference.predict_set(new)[1][..., 0]
    threshold = functional.conformal_threshold(
        torch.from_numpy(probabilities), torch.from_numpy(target), error=error
    )
    found = functional.prediction_sets(torch.from_numpy(new), threshold).numpy()
    empty = ~expected.any(axis=1)  # MAPIE leaves them empty; here the most probable class is always there
    assert (found[~empty] == expected[~empty]).all()
    assert (found[empty].sum(axis=1) == 1).all() and empty.mean() < 0.2


def test_adaptive_scores_are_those_of_mapie():
    aps = pytest.importorskip("mapie.conformity_scores.sets.aps")
    probabilities, target = _data(2)
    expected, _ = aps.APSConformityScore.get_true_label_cumsum_proba(target, probabilities, np.arange(5))
    found = functional.conformal_scores(torch.from_numpy(probabilities), score="aps").gather(
        1, torch.from_numpy(target)[:, None]
    )
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12)


@pytest.mark.parametrize("score", ["lac", "aps"])
def test_coverage_is_as_promised(score):
    """In the mean over 300 draws of 199 calibration inputs: at least 0.9, and little more."""
    covered = []
    for seed in range(300):
        probabilities, target = map(torch.from_numpy, _data(seed + 10, size=399))
        threshold = functional.conformal_threshold(probabilities[:199], target[:199], error=0.1, score=score)
        sets = functional.prediction_sets(probabilities[199:], threshold, score=score)
        covered.append(sets.gather(1, target[199:, None]).double().mean())
    mean, spread = torch.stack(covered).mean(), torch.stack(covered).std() / math.sqrt(300)
    assert 0.9 - 3 * spread < mean < 0.93


def test_too_few_inputs_give_whole_sets():
    probabilities = torch.tensor([[0.9, 0.1]])
    threshold = functional.conformal_threshold(probabilities, torch.tensor([0]), error=0.1)
    assert threshold == math.inf and functional.prediction_sets(probabilities, threshold).all()


def test_bad_input():
    probabilities, target = torch.tensor([[0.9, 0.1]]), torch.tensor([0])
    with pytest.raises(ValueError, match="score: expected one of"):
        functional.conformal_scores(probabilities, score="raps")
    with pytest.raises(ValueError, match=r"probabilities: expected \[N, C\]"):
        functional.conformal_scores(probabilities[0])
    with pytest.raises(ValueError, match="error: expected a number between 0 and 1"):
        functional.conformal_threshold(probabilities, target, error=1.0)
    with pytest.raises(TypeError, match="target: expected integers"):
        functional.conformal_threshold(probabilities, target.float(), error=0.1)
    with pytest.raises(ValueError, match="target: expected 1 numbers of classes below 2"):
        functional.conformal_threshold(probabilities, target + 2, error=0.1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("size", "error"), [(99, 0.01), (99, 0.05), (250, 0.05), (59, 0.1), (19, 0.05)])
def test_the_quantile_is_that_of_numpy_and_new_scores_reach_it_as_rarely_as_promised(size, error, dtype):
    scores = torch.randn(20_000, size + 1, generator=torch.Generator().manual_seed(0), dtype=dtype)
    known, new = scores[:, :-1], scores[:, -1]
    found = [functional.conformal_quantile(row, error=error) for row in known[:2000]]
    level = min(1.0, np.ceil(round((size + 1) * (1 - error), 9)) / size)
    expected = np.quantile(known[:2000].numpy(), level, axis=1, method="inverted_cdf")
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    rank = math.ceil(round((size + 1) * (1 - error), 9))
    reached = (new >= known.kthvalue(rank, dim=1).values).double().mean().item()
    exact = 1 - rank / (size + 1)
    assert exact <= error + 1e-12 and abs(reached - exact) < 4 * math.sqrt(error / 20_000)


def test_too_few_scores_have_no_quantile():
    assert functional.conformal_quantile(torch.arange(98.0), error=0.01) == math.inf
    assert functional.conformal_quantile(torch.arange(99.0), error=0.01) == 98.0
    assert functional.conformal_quantile(torch.empty(0), error=0.5) == math.inf
    for error in (0, 1, float("nan")):
        with pytest.raises(ValueError, match="error: expected a number between 0 and 1"):
            functional.conformal_quantile(torch.arange(9.0), error=error)
    with pytest.raises(ValueError, match="scores: expected numbers, got NaN"):
        functional.conformal_quantile(torch.tensor([1.0, float("nan")]), error=0.5)
    with pytest.raises(TypeError, match="scores: expected floating-point"):
        functional.conformal_quantile(torch.arange(9), error=0.5)
