"""Prediction from the posterior: names, seeds, what cannot be folded, conditioned calls."""

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import Trace_ELBO
from pyro.poutine.messenger import Messenger
from torch import nn
from torch.utils.data import DataLoader
from transformers import BertConfig, BertForSequenceClassification

import probattn
from probattn import BayesianAttention
from probattn.inference import (
    AttentionGuide,
    attention_effects,
    posterior_expectation,
    posterior_moments,
    posterior_predict,
    predictive,
)
from probattn.inference.predictive import prepared_batch
from probattn.models import Classifier, convert, inspect


class Twice(nn.Module):
    """Two layers whose sites have the names given."""

    def __init__(self, *names):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(
            probattn.MultiheadAttention(8, 2, batch_first=True, **({"site": name} if name else {}))
            for name in names
        )
        if all(names):
            probattn.link(self, together=False)

    def forward(self, batch):
        x = batch["x"]
        with pyro.plate("data", len(x)):
            for layer in self.layers:
                x = layer(x, x, x)[0]
        return x.mean(dim=1)


X = {"x": torch.randn(3, 5, 8, generator=torch.Generator().manual_seed(1))}


@pytest.mark.parametrize("predict", [posterior_expectation, posterior_predict, posterior_moments])
def test_a_batch_without_rows_is_refused(predict):
    config = BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
    net = convert(BertForSequenceClassification(config), BayesianAttention())
    with pytest.raises(
        ValueError, match=f"{predict.__name__}: expected at least one row, got an empty batch"
    ):
        predict(net, {"input_ids": torch.zeros(0, 4, dtype=torch.int64)})


@pytest.mark.parametrize("predict", [attention_effects, posterior_predict, posterior_moments])
def test_a_loader_without_batches_is_refused(predict):
    config = BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
    net = convert(BertForSequenceClassification(config), BayesianAttention())
    loader = DataLoader([{"input_ids": torch.ones(4, dtype=torch.int64)}], batch_size=2, drop_last=True)
    with pytest.raises(ValueError, match=f"{predict.__name__}: expected at least one batch, got none"):
        predict(net, loader)


def test_two_calls_of_one_name_are_refused():
    with pytest.raises(RuntimeError, match="two attention calls of one pass are named 'attention'"):
        posterior_predict(Twice(None, None), X, 4, attention="all")
    found = posterior_predict(Twice("a", "b"), X, 4, attention="all").attention
    assert {name: list(weights.shape) for name, weights in found.items()} == {
        "a": [4, 3, 2, 5, 5],
        "b": [4, 3, 2, 5, 5],
    }


def test_one_site_may_be_named_alone_and_a_plain_model_has_none():
    assert list(posterior_predict(Twice("a", "b"), X, 2, attention="b").attention) == ["b"]
    assert list(posterior_predict(Twice("a", "b"), X, 2, attention=["b", "a"]).attention) == ["b", "a"]
    streamed = posterior_predict(Twice("a", "b"), X, 2, attention=["b", "a"], streaming=True)
    assert list(streamed.attention_mean) == list(streamed.attention_std) == ["b", "a"]
    with pytest.raises(ValueError, match="no attention site 'c'; the model has a, b"):
        posterior_predict(Twice("a", "b"), X, 2, attention="c")
    with pytest.raises(ValueError, match="the model has no attention site; convert the network first"):
        posterior_predict(lambda batch: batch["x"], X, 2, attention="all")


@pytest.mark.parametrize("chunk_size", [1, 3, 7])
def test_streamed_moments_are_those_of_all_draws(chunk_size):
    """Over passes of one draw, of several with a smaller last one, and of all."""
    model = Twice("a", "b")
    draws = posterior_predict(model, X, 7, attention="all").attention
    found = posterior_predict(model, X, 7, attention="all", streaming=True, chunk_size=chunk_size)
    for name, weights in draws.items():
        torch.testing.assert_close(found.attention_mean[name], weights.mean(dim=0))
        torch.testing.assert_close(found.attention_std[name], weights.std(dim=0))


@pytest.mark.parametrize("names", [("a",), ("a", "b")])
def test_antithetic_pairs_lie_about_the_mean(names):
    model = Twice(*names)
    plain = posterior_predict(model, X, 400, chunk_size=100).logits
    pairs = posterior_predict(model, X, 400, antithetic=True, chunk_size=100).logits
    alone = posterior_predict(model, X, 6, antithetic=True, chunk_size=3).logits
    torch.testing.assert_close(alone, pairs[:6], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(
        pairs[::2], posterior_predict(model, X, 200, chunk_size=100).logits, rtol=1e-4, atol=1e-5
    )
    torch.testing.assert_close(pairs[1::2].std(dim=0), plain.std(dim=0), rtol=0.3, atol=0)
    means = pairs.unflatten(0, (200, 2)).mean(dim=1)
    assert means.var(dim=0).sum() < plain.var(dim=0).sum() / 4  # of independent ones half
    assert ((means.mean(dim=0) - plain.mean(dim=0)).abs() < 5 * plain.std(dim=0) / 20).all()


def test_seeds_of_different_form_are_different_seeds():
    model = Twice("a")

    def draw(seed, number=1):
        return posterior_predict(model, X, number, seed=seed).logits[number - 1]

    torch.testing.assert_close(draw(np.int64(3)), draw(3))
    assert torch.equal(draw((1, 2)), draw([1, 2]))
    found = [draw(1), draw((1,)), draw((1, 0)), draw((1, 2)), draw(1, 3), draw(0, 2)]
    assert torch.equal(found[0], found[1])  # the same by meaning
    others = found[1:]
    assert not any(torch.equal(one, other) for i, one in enumerate(others) for other in others[:i])


@pytest.mark.parametrize("layer", [0, 1])
def test_a_conditioned_call_leaves_the_others_their_path(bert, layer):
    torch.manual_seed(0)
    net = convert(bert.classification(), BayesianAttention()).eval()
    model, inputs = Classifier(net), bert.inputs(3)
    name = [call.name for call in inspect(net)][layer]
    with torch.no_grad():
        given = poutine.trace(AttentionGuide(model)).get_trace(inputs).nodes[name]["value"]
        fixed = poutine.condition(model, data={name: given})
        trace = poutine.trace(AttentionGuide(fixed)).get_trace(inputs)
    assert trace.nodes[name]["value"] is given
    assert posterior_expectation(fixed, inputs).isfinite().all()
    drawn = posterior_predict(fixed, inputs, 3, chunk_size=1, attention="all")
    other = posterior_predict(fixed, bert.inputs(3, seed=5), 2, chunk_size=1)  # another batch, another path
    again = posterior_predict(fixed, bert.inputs(3, seed=5), 2, chunk_size=1)
    assert torch.equal(other.logits, again.logits) and drawn.logits.isfinite().all()
    for site, weights in drawn.attention.items():
        assert (weights.std(dim=0).max() > 0) == (site != name)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_pyros_sampled_elbo_has_finite_gradients_beside_padding(bert, reduction):
    torch.manual_seed(0)
    net = convert(bert.classification(), BayesianAttention(kl_reduction=reduction)).eval()
    inputs = bert.pad(bert.inputs(3), "right") | {"labels": torch.tensor([0, 1, 1])}
    model = Classifier(net)
    loss = Trace_ELBO().differentiable_loss(model, AttentionGuide(model), inputs)
    loss.backward()
    assert loss.isfinite()
    for name, parameter in net.named_parameters():
        assert parameter.grad is None or parameter.grad.isfinite().all(), name


def test_rows_that_are_not_those_of_the_attention_are_told_apart():
    class Pairs(nn.Module):
        """Its attention is over one datum, whatever the batch."""

        link = "identity"

        def __init__(self):
            super().__init__()
            self.attend = probattn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, batch):
            x = torch.ones(1, 4, 8)
            with pyro.plate("data", 1):
                out = self.attend(x, x, x)[0]
            return out.mean() + batch["x"].sum(dim=(1, 2), keepdim=False)[:, None]

    torch.manual_seed(0)
    with pytest.raises(
        ValueError, match=r"expected a batch of 5 draws folded .*, got 1 rows; set batch_first=True"
    ):
        posterior_predict(Pairs(), X, 5)
    assert posterior_predict(Pairs(), X, 5, chunk_size=1).logits.shape == (5, 3, 1)
    model = Pairs()
    model.draws_per_pass = 1
    assert posterior_predict(model, X, 5).logits.shape == (5, 3, 1)


@pytest.mark.parametrize("predict", [posterior_predict, posterior_expectation])
def test_what_is_no_model_or_no_batch_is_refused_with_what_to_do(bert, predict):
    net, inputs = convert(bert.classification(), BayesianAttention()), bert.inputs(3)
    name = predict.__name__
    for model in ("net", Classifier):
        with pytest.raises(
            TypeError, match=rf"{name}: expected a model, such as probattn.models.Classifier\(net\)"
        ):
            predict(model, inputs)
    for batch in (["a text"], inputs["input_ids"]):
        with pytest.raises(
            TypeError, match=r"expected a batch, a mapping of tensors by name, got (list|Tensor); token"
        ):
            predict(Classifier(net), batch)
    for batch in ({"text": ["a text"]}, {"input_ids": inputs["input_ids"].tolist()}):
        with pytest.raises(
            TypeError, match=r"expected a tensor under '(text|input_ids)', got \[.*; tokenize texts"
        ):
            predict(Classifier(net), batch)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"num_samples": 0}, ValueError, "expected num_samples >= 1, an integer, got 0"),
        ({"num_samples": 2.5}, ValueError, "expected num_samples >= 1, an integer, got 2.5"),
        ({"chunk_size": "4"}, ValueError, "expected chunk_size >= 1, an integer, got '4'"),
        ({"seed": -1}, ValueError, "expected a seed >= 0, or a sequence of them, got -1"),
        ({"seed": (1, -1)}, ValueError, r"expected a seed >= 0, or a sequence of them, got \(1, -1\)"),
        ({"seed": 0.5}, TypeError, "expected a seed >= 0, or a sequence of them, got 0.5"),
        ({"seed": (1, None)}, TypeError, "expected a seed >= 0, or a sequence of them, got"),
        ({"attention": True}, TypeError, "expected attention='all', names of sites or None, got True"),
    ],
)
def test_options_out_of_range(options, error, message):
    with pytest.raises(error, match=f"posterior_predict: {message}"):
        posterior_predict(Twice("a"), X, **options)


def test_weibull_density_is_0_with_a_gradient_where_its_tail_overflows():
    log_scale = torch.tensor([-1e30, 0.0], requires_grad=True)
    posterior = probattn.distributions.Weibull(log_scale=log_scale, concentration=torch.tensor(2.0))
    density = posterior.log_prob(torch.tensor([1.0, 1.0]))
    assert density[0] == -torch.inf and density[1].item() == pytest.approx(
        dist.Weibull(1.0, 2.0).log_prob(torch.tensor(1.0)).item()
    )
    torch.where(torch.tensor([False, True]), density, 0.0).sum().backward()
    assert log_scale.grad.isfinite().all()


class Watching(Messenger):
    """Keeps the values of all attention sites."""

    def __init__(self):
        super().__init__()
        self.values = []

    def _pyro_post_sample(self, msg):
        if msg["value"].dim() == 4:
            self.values.append(msg["value"])


@pytest.mark.parametrize(
    "options", [{}, {"floor": 0.0, "rho": 0.1}, {"concentration": 4.0}, {"sigma": 0.1}, {"scores": "raw"}]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_draws_do_not_depend_on_who_looks_at_the_weights(options, dtype):
    """Whether weights are returned, or a handler of the caller's sees S, decides how a site draws, not what."""
    torch.manual_seed(2)
    config = BertConfig(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        vocab_size=20,
        initializer_range=0.4,
    )
    net = convert(
        BertForSequenceClassification(config).to(dtype), probattn.BayesianAttention(**options)
    ).eval()
    batch = {"input_ids": torch.randint(1, 20, (3, 6)), "attention_mask": torch.ones(3, 6, dtype=torch.long)}
    batch["attention_mask"][0, 3:] = 0
    plain = posterior_predict(net, batch, 5, chunk_size=2)
    shown = posterior_predict(net, batch, 5, chunk_size=2, attention="all")
    seen = Watching()
    with seen:
        watched = posterior_predict(net, batch, 5, chunk_size=2)
    assert plain.logits.std(dim=0).min() > 0
    for other in (shown, watched):
        torch.testing.assert_close(other.logits, plain.logits, rtol=1e-4, atol=1e-5)
    kept = [value.clone() for value in seen.values]
    with seen:
        posterior_predict(net, batch, 5, seed=1, chunk_size=2)
    assert len(kept) >= 6 and all(map(torch.equal, seen.values, kept))  # later draws leave S alone


@pytest.mark.parametrize("antithetic", [False, True])
@pytest.mark.parametrize("method", [BayesianAttention(), BayesianAttention.bam()], ids=["babn", "bam"])
def test_a_program_may_differentiate_its_draws(method, antithetic):
    """A draw's noise lasts as long as its gradient needs it."""
    torch.manual_seed(0)
    first, second = (
        probattn.MultiheadAttention(8, 2, batch_first=True, method=method, site=site).eval() for site in "ab"
    )
    probattn.link(nn.ModuleList([first, second]))

    def program(batch):
        with torch.enable_grad():
            x = batch["x"].detach().requires_grad_()
            hidden = first(3 * x, 3 * x, x, need_weights=False)[0]
            output = second(9 * hidden, 9 * hidden, hidden, need_weights=False)[0]
            return torch.autograd.grad(output[..., 0].sum(), x)[0].flatten(1)

    plain = posterior_predict(program, X, 4, antithetic=antithetic).logits
    shown = posterior_predict(program, X, 4, antithetic=antithetic, attention="all").logits
    torch.testing.assert_close(plain, shown, rtol=1e-4, atol=1e-5)


def test_a_part_of_a_model_may_run_in_inference_mode():
    def program(batch):
        with torch.inference_mode():
            hidden = model.layers[0](batch["x"], batch["x"], batch["x"])[0]
        hidden = hidden.clone()
        return model.layers[1](hidden, hidden, hidden)[0].mean(dim=1)

    model = Twice("a", "b").eval()
    assert posterior_predict(program, X, 4).logits.shape == (4, 3, 8)


def test_a_batch_goes_to_where_the_network_is(monkeypatch):
    """The caller's batch stays; hooks of accelerate's move what an offloaded network, on "meta", is given."""
    moved = []
    monkeypatch.setattr(predictive, "send_to_device", lambda value, device: moved.append(device) or value + 1)
    net, batch = nn.Linear(8, 2), dict(X)
    assert torch.equal(prepared_batch(net, batch)["x"], X["x"] + 1) and batch["x"] is X["x"]
    assert moved == [net.weight.device]
    assert prepared_batch(net.to("meta"), batch)["x"] is X["x"]
    assert prepared_batch(lambda batch: batch["x"], batch)["x"] is X["x"]


@pytest.mark.cuda
def test_a_batch_of_the_cpu_is_predicted_on_a_device():
    model = Twice("first", "second").eval().cuda()
    assert posterior_predict(model, X, 2).logits.is_cuda and not X["x"].is_cuda
    assert posterior_moments(model, X, classes=2).logits.is_cuda and posterior_expectation(model, X).is_cuda
