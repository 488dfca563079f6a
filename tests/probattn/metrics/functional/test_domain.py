"""AUROC, FPR95 and the entropy's distribution in and out of domain."""

import math
from statistics import mean
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score, roc_curve

from probattn.metrics import OODAUROC, OODFPR
from probattn.metrics.functional import entropy_cdf, entropy_grid, ood_auroc, ood_fpr

SCORES = st.lists(
    st.sampled_from([0.0, 0.1, 0.25, 0.3, 0.5, 0.69]) | st.floats(0, 5, width=32), min_size=1, max_size=40
).map(
    lambda values: np.float32(values).tolist()
)  # as the tensors hold them, or ties differ from the oracle's


def sklearn_fpr(inside: list[float], outside: list[float], tpr: float, positive: str) -> float:
    labels = [0] * len(inside) + [1] * len(outside)
    scores = np.array(inside + outside)
    if positive == "in_domain":
        labels, scores = [1 - label for label in labels], -scores
    rates = roc_curve(labels, scores, drop_intermediate=False)
    return float(rates[0][np.argmax(rates[1] >= tpr)])


@settings(deadline=None, max_examples=100)
@given(SCORES, SCORES, st.sampled_from([0.05, 0.5, 0.8, 0.95, 1.0]))
def test_against_sklearn(inside: list[float], outside: list[float], tpr: float) -> None:
    labels = [0] * len(inside) + [1] * len(outside)
    in_domain, out = torch.tensor(inside), torch.tensor(outside)
    values = pytest.approx(roc_auc_score(labels, inside + outside), abs=1e-6)
    assert ood_auroc(in_domain, out).item() == values
    for positive in ("out_of_domain", "in_domain"):
        expected = sklearn_fpr(inside, outside, tpr, positive)
        got = ood_fpr(in_domain, out, tpr=tpr, positive=positive).item()
        assert got == pytest.approx(expected, abs=1e-6)


def test_large_sample_against_sklearn() -> None:
    rng = np.random.default_rng(0)
    inside, outside = rng.beta(2, 5, 3000), rng.beta(4, 3, 2000)
    labels = np.repeat([0, 1], [3000, 2000])
    expected = roc_auc_score(labels, np.concatenate([inside, outside]))
    assert ood_auroc(torch.tensor(inside), torch.tensor(outside)).item() == pytest.approx(expected, abs=1e-7)
    expected = sklearn_fpr(list(inside), list(outside), 0.95, "out_of_domain")
    assert ood_fpr(torch.tensor(inside), torch.tensor(outside)).item() == pytest.approx(expected, abs=1e-7)


def test_large_scores_do_not_collapse() -> None:
    """torchmetrics' binary AUROC puts scores above 1 through a sigmoid, which makes these ties."""
    inside, outside = torch.tensor([40.0, 41.0]), torch.tensor([42.0, 43.0])
    assert ood_auroc(inside, outside).item() == 1


def test_extremes_and_ties() -> None:
    low, high = torch.tensor([0.1, 0.2]), torch.tensor([0.5, 0.6])
    assert (ood_auroc(low, high).item(), ood_auroc(high, low).item()) == (1, 0)
    assert (ood_fpr(low, high).item(), ood_fpr(high, low).item()) == (0, 1)
    same = torch.full((5,), 0.3)
    assert ood_auroc(same, same).item() == 0.5
    assert ood_fpr(same, same).item() == 1
    assert ood_auroc(torch.tensor([-math.inf]), torch.tensor([math.inf])).item() == 1


def test_two_positive_domains_differ() -> None:
    inside, outside = torch.tensor([0.1, 0.2, 0.3, 0.9]), torch.tensor([0.25, 0.95])
    assert ood_fpr(inside, outside, tpr=1.0).item() == 0.5
    assert ood_fpr(inside, outside, tpr=1.0, positive="in_domain").item() == 0.5
    assert ood_fpr(inside, outside, tpr=0.75, positive="in_domain").item() == 0.5
    assert ood_fpr(inside, outside, tpr=0.5, positive="in_domain").item() == 0
    assert ood_fpr(inside, outside, tpr=0.5).item() == 0


def test_empty_sets_are_nan() -> None:
    none, some = torch.zeros(0), torch.tensor([0.3])
    for first, second in ((none, some), (some, none), (none, none)):
        assert ood_auroc(first, second).isnan()
        assert ood_fpr(first, second).isnan()
    assert entropy_cdf(none, entropy_grid(2)).isnan().all()


def test_cdf_against_plain_count() -> None:
    entropies = np.random.default_rng(1).choice([0.0, 0.1, 0.25, 0.4, 0.6931], size=200).astype(np.float32)
    grid = entropy_grid(2, 12)
    expected = [mean(bool(e <= g) for e in entropies) for g in grid.tolist()]
    got = entropy_cdf(torch.tensor(entropies), grid)
    np.testing.assert_allclose(got, expected, rtol=1e-6)
    assert got[-1] == 1


@pytest.mark.cuda
def test_a_grid_of_the_cpu_serves_entropies_of_a_device() -> None:
    entropies, grid = torch.rand(50), entropy_grid(3)
    assert torch.equal(entropy_cdf(entropies.cuda(), grid).cpu(), entropy_cdf(entropies, grid))


def test_uniform_predictions_lie_at_the_end_of_the_grid() -> None:
    from probattn.metrics.functional import predictive_entropy

    for classes in (2, 3, 7, 10):
        entropies = predictive_entropy(torch.full((3, classes), 1 / classes))
        assert entropy_cdf(entropies, entropy_grid(classes))[-1] == 1


def test_low_precision_scores() -> None:
    inside, outside = torch.tensor([0.125, 0.25]), torch.tensor([0.25, 0.5])
    assert ood_auroc(inside.half(), outside.bfloat16().half()).equal(ood_auroc(inside, outside))


@pytest.mark.parametrize("function", [ood_auroc, ood_fpr])
def test_wrong_scores_are_refused(function: Any) -> None:
    good = torch.tensor([0.1])
    with pytest.raises(ValueError, match=r"in_domain: expected scores \[N\], got shape \[1, 1\]"):
        function(good[None], good)
    with pytest.raises(TypeError, match="out_of_domain: expected floating-point scores"):
        function(good, good.long())
    with pytest.raises(ValueError, match="got NaN"):
        function(good, good * math.nan)


def test_wrong_options_are_refused() -> None:
    good = torch.tensor([0.1])
    with pytest.raises(ValueError, match=r"tpr: expected a rate in \(0, 1\], got 95"):
        ood_fpr(good, good, tpr=95)
    with pytest.raises(ValueError, match="positive: expected one of"):
        ood_fpr(good, good, positive="out")
    with pytest.raises(ValueError, match="at least 2 classes"):
        entropy_grid(1)


@pytest.mark.parametrize("metric", [OODAUROC, OODFPR])
def test_an_unknown_score_is_refused_where_the_metric_is_made(metric) -> None:
    with pytest.raises(ValueError, match="'entropy'"):
        metric(score="entropy")
