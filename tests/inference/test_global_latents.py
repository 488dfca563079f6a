"""Global latent variables beside attention: one draw a pass, outside the plate of the data."""

import math

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import SVI, Trace_ELBO, TraceMeanField_ELBO
from pyro.infer.autoguide import AutoNormalMessenger
from pyro.nn import PyroModule, PyroSample
from pyro.nn.module import to_pyro_module_
from torch import nn
from transformers import BertConfig, BertForSequenceClassification

import probattn
from probattn.inference import (
    AttentionELBO,
    AttentionGuide,
    KLSchedule,
    SVIDriver,
    posterior_expectation,
    posterior_moments,
    posterior_predict,
)
from probattn.models import Classifier, convert, program_for

N, T, NOISE = 12, 3, 0.5
ANGLES = 2 * math.pi * torch.arange(N) / N
FEATURES = torch.stack(
    [ANGLES.cos(), ANGLES.sin()], dim=1
)  # [N, 2], orthogonal: mean-field normals are exact
ELBOS = [Trace_ELBO, TraceMeanField_ELBO, AttentionELBO]


@pytest.fixture(autouse=True)
def _store():
    pyro.clear_param_store()
    yield
    pyro.clear_param_store()


class Guide(AutoNormalMessenger, AttentionGuide):
    """Normal posteriors of all that is not attention."""


def reading():
    """Attention that reads the value of its keys as it is, whatever the weights where all keys are alike."""
    attend = probattn.MultiheadAttention(2, 1, batch_first=True)
    with torch.no_grad():
        attend.in_proj_weight.copy_(torch.eye(2).repeat(3, 1))
        attend.out_proj.weight.copy_(torch.eye(2))
    return attend


def bayesian(layer, scale=1.0):
    """The layer with a standard normal prior of its weight and no bias."""
    to_pyro_module_(layer)
    layer.weight = PyroSample(dist.Normal(0.0, scale).expand(layer.weight.shape).to_event(2))
    layer.bias = None
    return layer


class Regression(PyroModule):
    """y ~ N(w . x, NOISE), w ~ N(0, 1), x read by attention over T copies of it."""

    link = "identity"

    def __init__(self):
        super().__init__()
        self.attend = reading()
        self.head = bayesian(PyroModule[nn.Linear](2, 1))

    def forward(self, batch):
        x = batch["x"][:, None].expand(-1, T, -1)
        data = pyro.plate("data", len(x))
        with data:
            read = self.attend(x, x, x)[0][:, 0]
        prediction = self.head(read)  # outside the plate: its weight is one for all data
        with data:
            law = dist.Normal(prediction, NOISE).to_event(1)
            pyro.sample("y", law, obs=batch.get("labels"), infer={"prediction": True})
        return prediction


def closed_form():
    """Data, and mean and covariance of w given them."""
    labels = FEATURES @ torch.tensor([[1.0], [-0.5]]) + 0.3 * torch.sin(5 * ANGLES)[:, None]
    precision = torch.eye(2) + FEATURES.T @ FEATURES / NOISE**2
    covariance = torch.linalg.inv(precision)
    return {"x": FEATURES, "labels": labels}, (covariance @ FEATURES.T @ labels / NOISE**2)[:, 0], covariance


def exact_guide(model, data, mean, covariance, name="head.weight"):
    guide = Guide(model)
    guide(data)  # makes its parameters
    module, _, attribute = name.rpartition(".")
    with torch.no_grad():
        setattr(guide.locs.get_submodule(module), attribute, mean[None])
        setattr(guide.scales.get_submodule(module), attribute, covariance.diagonal().sqrt()[None])
    return guide


@pytest.mark.slow_but("AttentionELBO")
@pytest.mark.parametrize("elbo", ELBOS)
def test_a_bayesian_linear_head_is_trained_to_its_closed_form(elbo):
    pyro.set_rng_seed(0)
    data, mean, covariance = closed_form()
    model = Regression()
    guide = Guide(model)
    guide(data)
    optimizer = torch.optim.Adam(guide.parameters(), lr=0.05)  # Pyro's would train attention too
    for step in range(140):
        optimizer.param_groups[0]["lr"] = 0.05 if step < 90 else 0.005
        optimizer.zero_grad()
        elbo(num_particles=2).differentiable_loss(model, guide, data).backward()
        optimizer.step()
    torch.testing.assert_close(guide.locs.head.weight[0].detach(), mean, atol=0.06, rtol=0)
    torch.testing.assert_close(
        guide.scales.head.weight[0].detach(), covariance.diagonal().sqrt(), atol=0.06, rtol=0
    )


def test_each_draw_of_a_prediction_has_one_global_draw_from_the_posterior():
    data, mean, covariance = closed_form()
    guide = exact_guide(Regression(), data, mean, covariance)
    before = torch.get_rng_state()
    draws = posterior_predict(guide, {"x": FEATURES}, 400, seed=1).logits[..., 0]  # [P, N]
    assert torch.equal(torch.get_rng_state(), before)
    weights = torch.linalg.lstsq(FEATURES, draws.T).solution  # [2, P]
    torch.testing.assert_close(
        FEATURES @ weights, draws.T, atol=1e-5, rtol=1e-5
    )  # one w for all rows of a draw
    error = (covariance.diagonal() / 400).sqrt()
    assert ((weights.mean(1) - mean).abs() < 4 * error).all()
    ratio = weights.var(1) / covariance.diagonal()
    assert ((ratio - 1).abs() < 4 * math.sqrt(2 / 399)).all()
    chunked = posterior_predict(guide, {"x": FEATURES}, 5, seed=1, chunk_size=5).logits[..., 0]
    torch.testing.assert_close(chunked, draws[:5])
    alone = posterior_predict(guide, {"x": FEATURES[:1]}, 5, seed=1).logits[..., 0]
    torch.testing.assert_close(alone, draws[:5, :1])


class Net(nn.Module):
    """Logits (0, w . x) of tokens that are all alike."""

    def __init__(self):
        super().__init__()
        self.attend = reading()
        self.classifier = nn.Linear(2, 2)

    def forward(self, x):
        x = x[:, None].expand(-1, T, -1)
        return self.classifier(self.attend(x, x, x)[0][:, 0])


def classifier(num_data=None):
    program = Classifier(Net(), num_data=num_data)
    bayesian(program.net.classifier)  # after the program was made, as one that program_for chose
    return program, {"x": FEATURES, "labels": torch.arange(N) % 2}


def test_a_global_weight_of_a_programs_network_is_drawn_once_outside_its_plate():
    program, data = classifier()
    nodes = poutine.trace(program).get_trace(data).nodes
    weight = nodes["net.classifier.weight"]
    assert weight["value"].shape == (2, 2) and weight["cond_indep_stack"] == ()
    guide = Guide(program)
    values = [guide(data)["net.classifier.weight"] for _ in range(2)]
    assert not torch.equal(*values)  # anew in every pass


@pytest.mark.slow_but("AttentionELBO")
@pytest.mark.parametrize("elbo", ELBOS)
def test_the_bound_of_a_classifier_with_a_global_weight_is_that_of_quadrature(elbo):
    """Of a normal w with mean m and deviations s: E[log p(y | w)] by Gauss-Hermite nodes, the KL in closed form."""
    program, data = classifier(num_data=2 * N)  # a batch stands for twice as many data
    mean, deviation = torch.tensor([[0.3, -0.4], [1.0, 0.2]]), torch.tensor([[0.2, 0.3], [0.1, 0.4]])
    guide = Guide(program)
    guide(data)
    with torch.no_grad():
        guide.locs.net.classifier.weight = mean
        guide.scales.net.classifier.weight = deviation
    # The two logits are independent normals given x: their difference is one.
    location = FEATURES @ (mean[1] - mean[0])
    spread = (FEATURES.square() @ deviation.square().sum(0)).sqrt()
    nodes, weights = (torch.from_numpy(part).float() for part in np.polynomial.hermite_e.hermegauss(40))
    signed = torch.where(data["labels"] == 1, 1.0, -1.0)[:, None] * (
        location[:, None] + spread[:, None] * nodes
    )
    likelihood = (nn.functional.logsigmoid(signed) * weights).sum(1) / math.sqrt(2 * math.pi)
    divergence = torch.distributions.kl_divergence(
        torch.distributions.Normal(mean, deviation), torch.distributions.Normal(0.0, 1.0)
    )
    pyro.set_rng_seed(0)
    guide.kl_weight = 0.0  # of attention, whose weights change nothing here
    losses = torch.tensor([elbo().loss(program, guide, data) for _ in range(150)])
    want = divergence.sum() - 2 * likelihood.sum()  # the divergence is of one variable, not of twice as many
    assert abs(losses.mean() - want) < 4 * losses.std() / math.sqrt(len(losses))


def test_a_driver_trains_and_keeps_the_posterior_of_a_global_weight(tmp_path):
    program, data = classifier(num_data=N)
    guide = Guide(program)
    options = {"batch_size": 4, "cpu": True, "progress": False, "kl_schedule": KLSchedule("constant")}
    with pytest.raises(ValueError, match="this Guide has no parameters yet; call it once on a batch"):
        SVIDriver(program, guide=guide, **options)
    guide(data)
    before = guide.locs.net.classifier.weight.detach().clone()
    SVIDriver(program, guide=guide, folder=tmp_path, **options).fit(data, epochs=1)
    after = guide.locs.net.classifier.weight.detach().clone()
    assert not torch.equal(before, after)
    with torch.no_grad():
        guide.locs.net.classifier.weight_unconstrained.zero_()
    SVIDriver(program, guide=guide, **options).resume(tmp_path).fit(data, epochs=1)
    assert torch.equal(after, guide.locs.net.classifier.weight)


def test_a_prior_on_a_scale_is_trained_by_draws_of_its_divergence():
    class Scaled(Regression):
        def __init__(self):
            super().__init__()
            self.noise_scale = PyroSample(dist.LogNormal(0.0, 1.0))

        def forward(self, batch):
            scale = self.noise_scale
            prediction = super().forward(batch)
            with pyro.plate("observed", len(prediction)):
                pyro.sample("t", dist.Normal(prediction, scale).to_event(1), obs=batch["labels"])
            return prediction

    data, losses = closed_form()[0], []
    model = Scaled()
    guide = Guide(model)
    guide(data)
    for elbo in (TraceMeanField_ELBO(), AttentionELBO()):
        pyro.set_rng_seed(2)
        losses.append(elbo.differentiable_loss(model, guide, data))
        losses[-1].backward()
        losses.append(guide.scales.noise_scale_unconstrained.grad.clone())
        guide.zero_grad()
    torch.testing.assert_close(losses[:2], losses[2:])


def converted():
    config = BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
    program = program_for(convert(BertForSequenceClassification(config), probattn.BayesianAttention()))
    bayesian(program.net.classifier)
    return program, {"input_ids": torch.randint(9, (3, 4)), "labels": torch.tensor([0, 1, 1])}


def test_a_converted_network_with_a_bayesian_head():
    program, data = converted()
    for elbo in ELBOS:
        guide = Guide(program)
        svi = SVI(program, guide, pyro.optim.Adam({"lr": 0.01}), elbo())
        assert all(math.isfinite(svi.step(data)) for _ in range(2))
    inputs = {"input_ids": data["input_ids"]}
    drawn = posterior_predict(guide, inputs, 4, attention="all")
    assert drawn.logits.shape == (4, 3, 2) and len({row[0, 0].item() for row in drawn.logits}) == 4
    assert drawn.attention["bert.encoder.layer.0.attention.self"].shape == (4, 3, 2, 4, 4)
    assert torch.equal(posterior_predict(guide, inputs, 4).logits, drawn.logits)


def test_without_its_guide_a_global_latent_variable_is_refused_by_name():
    program, data = converted()
    inputs = {"input_ids": data["input_ids"]}
    for call in (posterior_predict, posterior_moments, posterior_expectation):
        with pytest.raises(
            ValueError, match=r"the latent site 'net.classifier.weight' is not an attention site.*guide"
        ):
            call(program, inputs)
    with pytest.raises(ValueError, match=r"the latent site 'net\.classifier\.weight'"):
        posterior_moments(program, inputs, method="draws")
    with pytest.raises(ValueError, match="this Guide has no parameters yet"):
        posterior_predict(Guide(program), inputs)
