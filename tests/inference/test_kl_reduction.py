"""What of the KL Pyro's estimators count under AttentionGuide, against formulas."""

import logging
import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import SVI, Predictive, Trace_ELBO, TraceMeanField_ELBO
from pyro.nn import PyroModule
from torch import nn

import probattn
from probattn import BayesianAttention
from probattn.inference import AttentionELBO, AttentionGuide, posterior_predict

B, T, E, H = 3, 4, 8, 2
EULER = 0.5772156649015329


class Model(PyroModule):
    def __init__(self, reduction):
        super().__init__()
        torch.manual_seed(0)
        method = BayesianAttention(kl_reduction=reduction)
        self.attend = probattn.MultiheadAttention(E, H, batch_first=True, method=method)
        self.head = nn.Linear(E, 2)

    def forward(self, batch):
        x = batch["x"]
        with pyro.plate("data", len(x)):
            logits = self.head(self.attend(x, x, x)[0].mean(1))
            law = dist.Categorical(logits=logits)
            pyro.sample("label", law, obs=batch.get("labels"), infer={"prediction": True})
        return logits


def batch():
    generator = torch.Generator().manual_seed(1)
    return {"x": torch.randn(B, T, E, generator=generator), "labels": torch.tensor([0, 1, 1])}


def by_hand(model, data):
    """Log-likelihood at a draw, and the KL in nats (Zhang et al. 2021, Eq. 6), from q's parameters and the prior's."""
    pyro.set_rng_seed(3)
    guide = AttentionGuide(model)
    guide(data)
    site = guide.trace.nodes["attend"]
    q, p = site["infer"]["attention"].distribution, site["infer"]["attention"].prior
    k, scale, alpha, beta = q.concentration, q.log_scale.exp(), p.concentration, p.rate
    nats = (
        EULER * alpha / k - alpha * scale.log() + k.log() + beta * scale * torch.lgamma(1 + 1 / k).exp()
        - EULER - 1 - alpha * beta.log() + torch.lgamma(alpha)
    ).expand(B, H, T, T).sum()  # fmt: skip
    label = guide.trace.nodes["label"]
    return label["fn"].log_prob(label["value"]).sum(), nats


@pytest.mark.parametrize(
    ("reduction", "factor"), [("sum", 1.0), ("mean", 1 / (H * T * T)), ("keys", 1 / (H * T))]
)
@pytest.mark.parametrize("elbo", [TraceMeanField_ELBO, AttentionELBO])
def test_the_loss_is_what_the_page_says(reduction, factor, elbo):
    model, data = Model(reduction), batch()
    likelihood, nats = by_hand(model, data)
    pyro.set_rng_seed(3)
    loss = elbo().loss(model, AttentionGuide(model), data)
    assert math.isclose(loss, (factor * nats - likelihood).item(), rel_tol=1e-5)


@pytest.mark.parametrize("elbo", [Trace_ELBO, TraceMeanField_ELBO])
def test_the_first_step_of_pyros_estimators_says_what_is_counted(elbo, caplog):
    model, data = Model("mean"), batch()
    svi = SVI(model, AttentionGuide(model), pyro.optim.Adam({"lr": 1e-3}), elbo())
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            svi.step(data)
    (record,) = caplog.records
    assert "not the negative evidence lower bound: the KL of site 'attend'" in record.message
    assert f"multiplied by {1 / (H * T * T):.3g} (kl_reduction='mean')" in record.message
    assert "kl_reduction='sum' of BayesianAttention gives it" in record.message


def test_nothing_is_said_of_the_bound_itself_or_where_no_loss_is_made(caplog):
    exact, model, data = Model("sum"), Model("mean"), batch()
    with caplog.at_level(logging.DEBUG):
        SVI(exact, AttentionGuide(exact), pyro.optim.Adam({"lr": 1e-3}), TraceMeanField_ELBO()).step(data)
        AttentionELBO()(model, AttentionGuide(model))(data)
        Predictive(model, guide=AttentionGuide(model), num_samples=2)({"x": data["x"]})
        posterior_predict(model, {"x": data["x"]}, 2)
    assert not [record for record in caplog.records if record.name.startswith("probattn")]
