"""The fitted ELBO against the evidence and posterior of small problems that quadrature solves.

With gamma weights of one rate, the normalised weights are Dirichlet(alpha, ..., alpha); one observation of
W v + noise then has a one- or two-dimensional evidence integral.
"""

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from scipy import stats

import probattn
from probattn import BayesianAttention
from probattn.inference.elbo import AttentionELBO
from probattn.inference.guide import AttentionGuide

DEVIATION = 0.5


def quadrature(alpha, values, observed):
    """Log evidence and posterior mean of W by Gauss-Jacobi rules in stick-breaking coordinates."""
    keys = len(values)
    weights, probabilities = np.zeros((1, 0)), np.ones(1)
    rest = np.ones(1)
    for stick in range(keys - 1):
        nodes, mass = jacobi(alpha, alpha * (keys - 1 - stick))
        weights = np.concatenate(
            [np.repeat(weights, len(nodes), axis=0), np.outer(rest, nodes).reshape(-1, 1)], axis=1
        )
        probabilities = np.outer(probabilities, mass).ravel()
        rest = np.outer(rest, 1 - nodes).ravel()
    weights = np.concatenate([weights, rest[:, None]], axis=1)
    joint = probabilities * stats.norm.pdf(observed, weights @ np.array(values), DEVIATION)
    return np.log(joint.sum()), (joint[:, None] * weights).sum(0) / joint.sum()


def jacobi(first, second, order=200):
    """Nodes and masses of the Beta(first, second) law."""
    from scipy.special import roots_jacobi

    nodes, masses = roots_jacobi(order, second - 1, first - 1)
    return (nodes + 1) / 2, masses / masses.sum()


def fit(alpha, values, observed, steps=500):
    pyro.set_rng_seed(0)
    keys = len(values)
    method = BayesianAttention(
        prior="constant", prior_concentration=alpha, rate=max(alpha, 1.0), scores="raw", kl_reduction="sum"
    )
    site = method.build(1, keys)
    query = torch.nn.Parameter(torch.zeros(1, 1, 1, keys))
    key = torch.eye(keys)[None, None] * keys**0.5
    value = torch.tensor(values).view(1, 1, keys, 1)

    def model(rows):
        with pyro.plate("data", rows):
            tensors = [tensor.expand(rows, -1, -1, -1) for tensor in (query, key, value)]
            output, weights = probattn.attention("weights", *tensors, method=site)
            pyro.sample("y", dist.Normal(output.view(rows), DEVIATION), obs=torch.full((rows,), observed))
        return weights

    guide = AttentionGuide(model)
    elbo = AttentionELBO()(model, guide)
    optimizer = torch.optim.Adam([query, *site.parameters()], lr=0.03)
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        optimizer.zero_grad()
        elbo(32).loss.backward()
        optimizer.step()
        decay.step()
    with torch.no_grad():
        bound = -torch.stack([elbo(20_000).loss for _ in range(5)])
        with guide:
            mean = model(20_000).mean(dim=0).flatten().numpy()
    return bound.mean().item(), bound.std().item() / 5**0.5, mean


TWO, THREE = ([1.0, -1.0], 0.6), ([1.0, -1.0, 0.2], -0.5)


@pytest.mark.slow_but("0.5-values0-0.6")
@pytest.mark.parametrize(
    ("alpha", "values", "observed"),
    [(0.5, *TWO), (2.0, *TWO), (5.0, *THREE)],
)
def test_elbo_reaches_the_evidence_and_the_posterior_mean(alpha, values, observed):
    evidence, mean = quadrature(alpha, values, observed)
    bound, error, fitted = fit(alpha, values, observed)
    assert bound < evidence + 3 * error
    assert bound > evidence - 0.25
    np.testing.assert_allclose(fitted, mean, atol=0.03)


def test_quadrature_agrees_with_sampling():
    evidence, mean = quadrature(0.7, [1.0, -1.0, 0.2], -0.5)
    draws = stats.dirichlet([0.7] * 3).rvs(400_000, random_state=0)
    likelihood = stats.norm.pdf(-0.5, draws @ np.array([1.0, -1.0, 0.2]), DEVIATION)
    assert evidence == pytest.approx(np.log(likelihood.mean()), abs=5e-3)
    np.testing.assert_allclose(mean, (likelihood[:, None] * draws).sum(0) / likelihood.sum(), atol=3e-3)
