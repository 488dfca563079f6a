"""Attention in Pyro models: plates in any order, discrete latents, Pyro's store and handlers, autocast and types."""

import math
from contextlib import nullcontext

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.contrib.autoname import scope
from pyro.infer import SVI, TraceMeanField_ELBO
from torch import nn

import probattn
from probattn import BayesianAttention, MultiheadAttention, attention_effects, posterior_moments
from probattn.inference import AttentionELBO, AttentionGuide, posterior_expectation
from probattn.inference.elbo import data_size
from probattn.sites import SeededNoise

BAM = BayesianAttention.bam(concentration=2.0)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)
    pyro.clear_param_store()


@pytest.fixture
def layer():
    return MultiheadAttention(4, 2, batch_first=True, site="a")


def batch_in_plates(layer, order, size):
    """A model of 8 of ``size`` texts of 3 tokens, whose plates are entered in an order."""

    def model(x):
        data = pyro.plate("data", size, subsample=torch.arange(8), dim=-1)
        tokens = pyro.plate("tokens", 3, dim=-2)
        if order == "another first":
            with pyro.plate("other", 2):
                pyro.deterministic("unrelated", torch.ones(2))
        with data:
            output, _ = layer(x, x, x)
        mean = output.mean(dim=2).T
        if order == "sequential":
            for token in pyro.plate("time", 3):
                with data:
                    pyro.sample(f"y{token}", dist.Normal(mean[token], 1.0), obs=torch.zeros(8))
            return
        outer, inner = (tokens, data) if order == "tokens first" else (data, tokens)
        with outer, inner:
            pyro.sample("y", dist.Normal(mean, 1.0), obs=torch.zeros(3, 8))

    return model


@pytest.mark.parametrize("order", ["data first", "tokens first", "sequential", "another first"])
@pytest.mark.parametrize("size", [40, 8])
def test_the_size_of_the_data_does_not_depend_on_the_order_of_plates(layer, order, size):
    model, x = batch_in_plates(layer, order, size), torch.randn(8, 3, 4)
    guide = AttentionGuide(model, noise=SeededNoise([1], "cpu"))
    whole = TraceMeanField_ELBO().loss(model, guide, x)
    guide = AttentionGuide(model, noise=SeededNoise([1], "cpu"))
    terms = AttentionELBO()(model, guide)(x)
    # The KL is that of the mean of query-key pairs in both.
    assert terms.loss.item() == pytest.approx(whole / size, rel=1e-5)


def test_without_attention_it_is_the_plate_of_the_subsample_or_the_outermost():
    def model(size, outer):
        outside = pyro.plate("outer", 2, dim=-2) if outer else nullcontext()
        with outside, pyro.plate("data", size, subsample=torch.arange(4), dim=-1):
            pyro.sample("y", dist.Normal(0.0, 1.0), obs=torch.zeros(2, 4) if outer else torch.zeros(4))

    for size, outer, expected in ((40, True, 40), (40, False, 40), (4, True, 2), (4, False, 4)):
        assert data_size(pyro.poutine.trace(model).get_trace(size, outer)) == expected
    assert data_size(pyro.poutine.trace(lambda: pyro.sample("y", dist.Normal(0.0, 1.0))).get_trace()) == 1


def test_draws_without_a_gradient_are_refused_in_training_alone():
    def model():
        with pyro.plate("data", 3):
            state = pyro.sample("state", dist.Bernoulli(torch.full((3,), 0.5)))
            pyro.sample("y", dist.Normal(state, 0.5), obs=torch.tensor([1.0, 0.8, 1.2]))

    logit = nn.Parameter(torch.tensor(0.2))

    def guide():
        with pyro.plate("data", 3):
            pyro.sample("state", dist.Bernoulli(logits=logit.expand(3)))

    with pytest.raises(ValueError, match=r"site 'state' has draws without a gradient, of .*TraceGraph_ELBO"):
        AttentionELBO().loss_and_grads(model, guide)
    torch.manual_seed(1)
    with torch.no_grad():
        loss = AttentionELBO().loss(model, guide)
        torch.manual_seed(1)
        assert loss == pytest.approx(pyro.infer.TraceGraph_ELBO().loss(model, guide), abs=2.0)
    logit.requires_grad_(False)
    AttentionELBO().loss_and_grads(model, guide)  # nothing has a gradient to lose


def test_a_second_network_under_the_names_of_the_first_is_refused():
    def step():
        layer = MultiheadAttention(4, 2, batch_first=True)

        def model(x):
            pyro.module("layer", layer)
            with pyro.plate("data", len(x)):
                pyro.sample("y", dist.Normal(layer(x, x, x)[0].mean((1, 2)), 1.0), obs=torch.zeros(len(x)))

        before = layer.in_proj_weight.detach().clone()
        svi = SVI(model, AttentionGuide(model), pyro.optim.Adam({"lr": 0.1}), AttentionELBO())
        for _ in range(2):
            svi.step(torch.randn(8, 3, 4))
        return float((layer.in_proj_weight.detach() - before).abs().max())

    assert step() > 0.1
    with pytest.raises(RuntimeError, match=r"store has another 'layer.*' than the model.*clear_param_store"):
        step()
    pyro.clear_param_store()
    assert step() > 0.1


@pytest.mark.parametrize("handler", ["markov", "scope", "infer_config"])
def test_handlers_that_name_or_configure_do_not_draw(handler):
    site, x = BAM.build(2, 4).eval(), torch.randn(3, 4, 8)

    def called(x, name):
        heads = [x.unflatten(-1, (2, 4)).transpose(1, 2)] * 3
        return probattn.attention(name, *heads, method=site)[0]

    def program(x):
        if handler == "markov":
            return sum(called(x, f"step {step}") for step in pyro.markov(range(2)))
        if handler == "scope":
            with scope(prefix="part"):
                return called(x, "site")
        return pyro.poutine.infer_config(called, lambda _: {"told": True})(x, "site")

    assert torch.equal(program(x), program(x))
    torch.testing.assert_close(program(x), posterior_expectation(program, {"x": x}))
    site.train()
    with pytest.raises(RuntimeError, match="training without a driver"):
        program(x.requires_grad_())


class Pooled(nn.Module):
    """One layer of attention, and a mean over tokens."""

    def __init__(self):
        super().__init__()
        self.attend = MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.attend(x, x, x)[0].mean(dim=1))


def test_moments_are_read_under_autocast():
    net, x = Pooled().eval(), {"x": torch.randn(3, 5, 8)}
    expected = posterior_moments(net, x)
    with torch.autocast("cpu", torch.bfloat16):
        moments = posterior_moments(net, x)
        torch.testing.assert_close(moments.std, expected.std, atol=1e-3, rtol=0.1)
        assert str(moments.mutual_information.shape) in str(moments.entropy.shape)


@pytest.mark.parametrize("way", ["weights", "autocast"])
def test_slopes_of_sixteen_bits_are_those_of_single_precision(way):
    net, x = Pooled().eval(), torch.randn(3, 5, 8)
    expected = attention_effects(net, {"x": x}, method="slope").slopes[0]
    if way == "weights":
        net, x = net.bfloat16(), x.bfloat16()
    with torch.autocast("cpu", torch.bfloat16, enabled=way == "autocast"):
        slopes = attention_effects(net, {"x": x}, method="slope").slopes[0]
    torch.testing.assert_close(slopes.float(), expected, atol=0.05 * expected.abs().max().item(), rtol=0)


class Shuffled(Pooled):
    """Moves its rows before attention."""

    def forward(self, x):
        return super().forward(x.roll(1, dims=0)).roll(-1, dims=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_that_move_are_refused_in_any_precision(dtype):
    net, x = Shuffled().eval().to(dtype), torch.randn(3, 5, 8).to(dtype)
    with pytest.raises(ValueError, match="Shuffled moves rows before attention"):
        attention_effects(net, {"x": x}, method="slope")


@pytest.mark.parametrize("method", [BayesianAttention(), BAM])
@pytest.mark.parametrize(("queries", "keys"), [(0, 3), (3, 0)])
def test_a_call_without_queries_or_keys_has_no_divergence(method, queries, keys):
    layer = MultiheadAttention(4, 2, batch_first=True, site="a", method=method).eval()
    query, key = torch.randn(8, queries, 4), torch.randn(8, keys, 4)

    def model():
        with pyro.plate("data", 8):
            output, _ = layer(query, key, key)
            pyro.sample("y", dist.Normal(output.sum((1, 2)), 1.0), obs=torch.zeros(8))

    plain = layer(query, key, key)[0]
    terms = AttentionELBO()(model, AttentionGuide(model))()
    assert terms.kl.item() == terms.kl_nats.item() == 0.0
    likelihood = dist.Normal(plain.sum((1, 2)), 1.0).log_prob(torch.zeros(8)).mean()
    assert math.isclose(terms.log_likelihood.item(), likelihood.item(), rel_tol=1e-5)
