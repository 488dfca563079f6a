"""Posteriors in ArviZ, bertviz and datasets, by their own functions."""

import math
import warnings

import arviz as az
import bertviz
import numpy as np
import pytest
import torch
from datasets import Dataset
from scipy.special import logsumexp
from transformers import BertConfig, BertForSequenceClassification

import probattn
from probattn.adapters import add_predictions, attention_layers, to_inference_data
from probattn.inference import Posterior, SVIDriver, posterior_moments, posterior_predict
from probattn.models import Classifier, convert

ROWS, LENGTH = 6, 5


@pytest.fixture(scope="module")
def program():
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    net = BertForSequenceClassification(BertConfig(**sizes, vocab_size=30, num_labels=3))
    return Classifier(convert(net, probattn.BayesianAttention()))


@pytest.fixture(scope="module")
def columns():
    ids = torch.randint(3, 30, (ROWS, LENGTH), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[0, -2:] = 0
    return {"input_ids": ids, "attention_mask": mask, "labels": torch.arange(ROWS) % 3}


@pytest.fixture(scope="module")
def draws(program, columns):
    return posterior_predict(program, columns, 40, attention="all")


def test_arviz_has_the_same_numbers(draws, columns):
    labels = columns["labels"]
    data = to_inference_data(draws, labels, chains=4, class_names=["a", "b", "c"])
    sites = list(draws.attention)
    assert set(data.posterior.data_vars) == {"probability", *sites}
    summary = az.summary(data, var_names=["probability"], kind="stats", round_to="none")
    mean = draws.mean_probabilities.double().flatten().numpy()
    assert np.allclose(summary["mean"], mean, atol=1e-6)
    assert summary.index[1] == "probability[0, b]"
    weights = data.posterior[sites[0]]
    assert np.array_equal(
        weights.to_numpy().reshape(draws.attention[sites[0]].shape), draws.attention[sites[0]]
    )
    pointwise = draws.logits.double().log_softmax(-1)[:, range(ROWS), labels].numpy()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of few draws
        waic, loo = az.waic(data), az.loo(data)
    lppd = logsumexp(pointwise, axis=0) - math.log(40)
    assert math.isclose(waic.elpd_waic, (lppd - pointwise.var(axis=0)).sum(), rel_tol=1e-6)
    assert abs(loo.elpd_loo - waic.elpd_waic) < 0.1
    assert data.posterior_predictive["y"].shape == (4, 10, ROWS)
    axes = az.plot_forest(data, var_names=["probability"])
    assert len(axes) == 1


def test_labels_are_drawn_with_their_probabilities():
    draws = Posterior(torch.tensor([1.0, 0.0, -1.0]).expand(20000, 1, 3))
    found = to_inference_data(draws, seed=3).posterior_predictive["y"].to_numpy().ravel()
    share = np.bincount(found, minlength=3) / 20000
    assert np.allclose(share, draws.probabilities[0, 0], atol=5 * math.sqrt(0.25 / 20000))


def test_several_labels_and_numbers(columns):
    logits = torch.randn(8, 3, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    labels = torch.tensor([[0, 1], [1, 1], [0, 0]])
    data = to_inference_data(Posterior(logits, link="sigmoid"), labels)
    expected = torch.distributions.Bernoulli(logits=logits).log_prob(labels.double()).sum(-1)
    assert np.allclose(data.log_likelihood["y"][0], expected)
    numbers = to_inference_data(Posterior(logits, link="identity"), torch.randn(3, 2))
    assert sorted(numbers.groups()) == ["observed_data", "posterior"]
    for given, options, message in (
        (labels, {}, r"expected labels \[3\], got \[3, 2\]"),
        (torch.tensor([0, 2, 1]), {}, r"labels in 0\.\.1, got 0\.\.2"),
        (None, {"chains": 3}, "that 3 divides, got 8"),
        (None, {"rows": ["a"]}, "expected 3 rows, got 1"),
    ):
        with pytest.raises(ValueError, match=message):
            to_inference_data(Posterior(logits), given, **options)


@pytest.mark.parametrize("statistic", ["mean", "std"])
def test_bertviz_draws_the_layers(program, columns, draws, statistic):
    mask = columns["attention_mask"][0]
    layers = attention_layers(draws, row=0, statistic=statistic, queries=mask)
    assert [list(layer.shape) for layer in layers] == [[1, 2, 3, 3]] * 2
    for layer, weights in zip(layers, draws.attention.values(), strict=True):
        assert torch.allclose(layer[0], getattr(weights[:, 0, :, :3, :3], statistic)(dim=0))
    for view in (bertviz.head_view, bertviz.model_view):
        assert "div id" in view(layers, ["one", "two", "three"], html_action="return").data
    streamed = posterior_predict(program, columns, 40, attention="all", streaming=True)
    for one, other in zip(layers, attention_layers(streamed, statistic=statistic, queries=mask), strict=True):
        assert torch.allclose(one, other, atol=1e-6)


def test_bertviz_draws_shares_of_uncertainty(program, columns):
    moments = posterior_moments(program, columns, attribution=True)
    mask = columns["attention_mask"][0]
    layers = attention_layers(moments, row=0, queries=mask)
    assert float(torch.stack(layers).sum()) == pytest.approx(1)
    assert "div id" in bertviz.head_view(layers, ["one", "two", "three"], html_action="return").data
    with pytest.raises(ValueError, match="expected statistic 'noise_share' of Moments, got 'std'"):
        attention_layers(moments, statistic="std")
    with pytest.raises(ValueError, match=r"use posterior_moments\(..., attribution=True\)"):
        attention_layers(posterior_moments(program, columns))


def test_layers_that_are_not_there(draws):
    for options, error, message in (
        ({"sites": ["none"]}, ValueError, "expected sites of this posterior, got 'none'"),
        ({"row": ROWS}, IndexError, rf"row in 0\.\.{ROWS - 1}"),
        ({"queries": torch.ones(2)}, ValueError, rf"a mask \[{LENGTH}\], got \[2\]"),
        ({"statistic": "mode"}, ValueError, "'mean' or 'std'"),
    ):
        with pytest.raises(error, match=message):
            attention_layers(draws, **options)
    with pytest.raises(ValueError, match="predict with attention='all'"):
        attention_layers(Posterior(torch.zeros(1, 1, 2)))


@pytest.mark.parametrize("form", ["plain", "torch"])
def test_a_data_set_trains_and_predicts_as_its_tensors_do(program, columns, form):
    rows = Dataset.from_dict({name: column.tolist() for name, column in columns.items()})
    rows = rows.with_format("torch") if form == "torch" else rows
    state = {name: value.clone() for name, value in program.state_dict().items()}
    trained = []
    for data in (columns, rows):
        program.load_state_dict(state)
        result = SVIDriver(program, batch_size=3, cpu=True, progress=False).fit(data, data, steps=2)
        trained.append(
            (result.validation, {name: value.clone() for name, value in program.state_dict().items()})
        )
    assert all(torch.equal(trained[0][1][name], value) for name, value in trained[1][1].items())
    program.load_state_dict(state)
    drawn = posterior_predict(program, rows, 5)
    assert torch.allclose(drawn.logits, posterior_predict(program, columns, 5, seed=(0, 0)).logits, atol=1e-6)
    told = add_predictions(rows, drawn, class_names=["a", "b", "c"])
    assert told["predicted_label"][:] == ["abc"[n] for n in drawn.mean.argmax(-1).tolist()]
    assert np.allclose(told.with_format(None)["predicted_probabilities"][:], drawn.mean, atol=1e-7)
    with pytest.raises(ValueError, match="a column 'predicted_label' already"):
        add_predictions(told, drawn)
    with pytest.raises(ValueError, match="predictions of 2 rows, got 6"):
        add_predictions(rows.select(range(2)), drawn)
