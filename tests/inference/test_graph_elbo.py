"""Against sums over all values of the latent sites, and Pyro's own estimator."""

import itertools
import math
from contextlib import contextmanager

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import Trace_ELBO, TraceEnum_ELBO, TraceGraph_ELBO
from torch import nn

from probattn.inference import AttentionELBO, TraceGraphMeanFieldELBO
from probattn.inference.elbo import site_divergence
from probattn.inference.program_elbo import ProgramELBOModule

ROWS, COLUMNS = 3, 2


@contextmanager
def plates():
    mask = torch.tensor([[True, True], [True, False], [True, True]])
    data = pyro.plate("data", 12, subsample=torch.arange(ROWS), dim=-2)
    with data, pyro.plate("columns", COLUMNS, dim=-1), poutine.mask(mask=mask), poutine.scale(scale=0.5):
        yield


class Chain(nn.Module):
    """Two latent sites, of which the second's prior depends on the first's value, and an observed one."""

    def __init__(self, enumerated=False):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Parameter(torch.randn(ROWS, COLUMNS, 3, dtype=torch.float64))
        self.second = nn.Parameter(torch.randn(3, 2, dtype=torch.float64))
        self.means = nn.Parameter(torch.randn(3, 2, dtype=torch.float64))
        self.infer = {"enumerate": "parallel"} if enumerated else {}

    def forward(self, y):
        with plates():
            a = pyro.sample("a", dist.Categorical(logits=self.first), infer=self.infer)
            b = pyro.sample("b", dist.Categorical(logits=self.second[a]), infer=self.infer)
            pyro.sample("y", dist.Normal(self.means[a, b], 1.0), obs=y)


class Posterior(nn.Module):
    """Independent sites."""

    def __init__(self, enumerated=False):
        super().__init__()
        torch.manual_seed(1)
        self.a = nn.Parameter(torch.randn(ROWS, COLUMNS, 3, dtype=torch.float64))
        self.b = nn.Parameter(torch.randn(ROWS, COLUMNS, 2, dtype=torch.float64))
        self.infer = {"enumerate": "parallel"} if enumerated else {}

    def forward(self, y):
        with plates():
            pyro.sample("a", dist.Categorical(logits=self.a), infer=self.infer)
            pyro.sample("b", dist.Categorical(logits=self.b), infer=self.infer)


Y = torch.tensor([[0.3, -1.0], [2.0, 0.1], [0.0, 0.7]], dtype=torch.float64)


def gradients(elbo, draws, enumerated=False):
    """Loss and gradients by draw, all parameters in one row."""
    model, guide = Chain(enumerated), Posterior(enumerated)
    objective = ProgramELBOModule(model, guide, elbo)
    parameters = [*model.parameters(), *guide.parameters()]
    rows, losses = [], []
    for _ in range(draws):
        loss = objective(Y).loss
        rows.append(torch.cat([grad.flatten() for grad in torch.autograd.grad(loss, parameters)]))
        losses.append(loss.detach())
    return torch.stack(losses), torch.stack(rows)


@pytest.fixture(scope="module")
def analytic():
    torch.manual_seed(0)
    return gradients(TraceGraphMeanFieldELBO(), 300)


@pytest.mark.slow
def test_loss_and_gradient_have_the_expectation_of_the_exact_ones(analytic):
    loss, exact = gradients(TraceEnum_ELBO(max_plate_nesting=2), 1, enumerated=True)
    losses, drawn = analytic
    for found, truth in ((losses, loss), (drawn, exact[0])):
        error = found.std(0) / len(found) ** 0.5
        z = ((found.mean(0) - truth) / error.clamp_min(1e-12))[error > 1e-9]
        assert z.abs().max() < 4.5, z


@pytest.mark.slow
def test_draws_scatter_less_than_those_of_pyro(analytic):
    torch.manual_seed(0)
    (ours, losses), (drawn, rows) = zip(analytic, gradients(TraceGraph_ELBO(), 150), strict=True)
    assert ours.var() < 0.8 * losses.var() and drawn.var(0).sum() < 0.8 * rows.var(0).sum()


def categorical(logits):
    return dist.Categorical(logits=logits)


def normal(parameters):
    return dist.Normal(parameters[0], parameters[1].exp())


@pytest.mark.parametrize("distribution", [categorical, normal])
def test_without_an_influence_of_the_latent_site_there_is_no_noise(distribution):
    own = torch.tensor([0.3, -1.0, 2.0], requires_grad=True)
    other = torch.tensor([1.0, 0.0, 0.5], requires_grad=True)

    def model():
        pyro.sample("z", distribution(own))
        pyro.sample("y", dist.Normal(0.0, 1.0), obs=torch.tensor(1.0))

    def guide():
        pyro.sample("z", distribution(other))

    exact = torch.distributions.kl_divergence(distribution(other), distribution(own))
    truth = torch.autograd.grad(exact, (other, own))
    for seed in range(3):
        pyro.set_rng_seed(seed)
        loss = ProgramELBOModule(model, guide, TraceGraphMeanFieldELBO())().loss
        score, prior = torch.autograd.grad(loss, (other, own))
        torch.testing.assert_close(prior, truth[1])
        likelihood = dist.Normal(0.0, 1.0).log_prob(torch.tensor(1.0))
        torch.testing.assert_close(loss.detach(), (exact - likelihood).detach())
        # what depends on no draw is no cost of a draw, so that the posterior's gradient is exact too
        torch.testing.assert_close(score, truth[0])


def test_a_subsample_of_the_data_is_drawn_by_the_guide_alone():
    rows = torch.arange(12.0)

    def model():
        with pyro.plate("data", 12, subsample_size=4) as chosen:
            z = pyro.sample("z", dist.Normal(torch.zeros(4), 1.0))
            pyro.sample("y", dist.Normal(0.0 * z, 1.0), obs=rows[chosen])

    def guide():
        with pyro.plate("data", 12, subsample_size=4) as chosen:
            seen.append(chosen)
            pyro.sample("z", dist.Normal(torch.ones(4), 1.0))

    seen = []
    loss = TraceGraphMeanFieldELBO().loss(model, guide)
    likelihood = dist.Normal(0.0, 1.0).log_prob(rows[seen[0]]).sum().item()
    # the divergence of N(1, 1) from N(0, 1) is 1/2
    assert loss == pytest.approx(12 / 4 * (4 * 0.5 - likelihood))


def test_a_probability_that_rounds_to_zero_leaves_the_loss_finite():
    def model():
        pyro.sample("z", dist.Categorical(logits=torch.tensor([0.0, -200.0])))
        pyro.sample("y", dist.Normal(0.0, 1.0), obs=torch.tensor(1.0))

    def guide():
        pyro.sample("z", dist.Categorical(logits=torch.tensor([0.0, -2.0])))

    loss = TraceGraphMeanFieldELBO().loss(model, guide)
    share = torch.tensor([0.0, -2.0]).softmax(-1)[1].item()
    expected = 0.5 + 0.9189385 + 200 * share - 0.3653335  # minus the entropy of the posterior
    assert loss == pytest.approx(expected, rel=1e-5)


IMPOSSIBLE = -torch.inf
CATEGORICALS = {
    "posterior without a category": (
        {"logits": torch.tensor([IMPOSSIBLE, 0.0, 1.0])},
        {"logits": torch.tensor([0.5, 0.0, 0.0])},
    ),
    "both without it": (
        {"logits": torch.tensor([IMPOSSIBLE, 0.0, 1.0])},
        {"logits": torch.tensor([IMPOSSIBLE, 1.0, 0.0])},
    ),
    "prior without it": (
        {"logits": torch.tensor([0.0, 0.0, 1.0])},
        {"logits": torch.tensor([IMPOSSIBLE, 1.0, 0.0])},
    ),
    "probabilities, prior without it": (
        {"probs": torch.tensor([0.5, 0.5])},
        {"probs": torch.tensor([0.0, 1.0])},
    ),
    "probabilities, posterior without it": (
        {"probs": torch.tensor([0.0, 1.0])},
        {"probs": torch.tensor([0.5, 0.5])},
    ),
}


@pytest.mark.parametrize("name", CATEGORICALS)
def test_a_categorical_with_impossible_values_has_the_divergence_of_torch(name):
    own, other = (
        {key: value.clone().requires_grad_() for key, value in each.items()} for each in CATEGORICALS[name]
    )
    posterior, prior = dist.Categorical(**own), dist.Categorical(**other)
    truth = torch.distributions.kl_divergence(posterior, prior)
    sites = ({"fn": each, "scale": 1.0, "mask": None} for each in (prior, posterior))
    found = site_divergence(*sites)
    torch.testing.assert_close(found, truth)
    if found.isfinite():
        for gradient in torch.autograd.grad(found, [*own.values(), *other.values()]):
            assert gradient.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("given", ["logits", "probs"])
def test_the_divergence_of_categoricals_is_the_sum_over_what_the_posterior_has(given, dtype):
    """By hand, of all pairs with likely, unlikely, nearly impossible and impossible categories."""
    logits = [0.0, -3.0, -200.0, -math.inf]
    laws = [[0.0, *rest] for rest in itertools.product(logits, repeat=2)]
    for own, other in itertools.product(laws, repeat=2):
        if given == "probs" and -200.0 in other:
            continue  # a probability of 1e-87 is 0, which float32 cannot tell from an impossible one
        p, q = ([value - math.log(sum(map(math.exp, law))) for value in law] for law in (own, other))
        has = [torch.tensor(math.exp(each), dtype=dtype) > 0 for each in p]
        expected = sum(math.exp(a) * (a - b) for a, b, there in zip(p, q, has, strict=True) if there)
        numbers = [torch.tensor(each, dtype=dtype) for each in (q, p)]
        if given == "probs":
            numbers = [each.exp() for each in numbers]
        prior, posterior = (dist.Categorical(**{given: each}) for each in numbers)
        found = site_divergence(
            {"fn": prior, "scale": 1.0, "mask": None}, {"fn": posterior, "scale": 1.0, "mask": None}
        )
        assert found.item() == pytest.approx(expected, rel=1e-5, abs=1e-6), (own, other)


def test_a_site_without_a_closed_form_is_drawn_as_pyro_draws_it():
    def model():
        z = pyro.sample("z", dist.LogNormal(0.0, 1.0))
        pyro.sample("y", dist.Normal(z, 1.0), obs=torch.tensor(1.0))

    def guide():
        pyro.sample("z", dist.Gamma(2.0, 1.0))

    losses = []
    for kind in (TraceGraphMeanFieldELBO, TraceGraph_ELBO):
        pyro.set_rng_seed(0)
        losses.append(kind().loss(model, guide))
    assert losses[0] == losses[1]


def test_sites_in_another_order_than_the_models_are_drawn_as_pyro_draws_them():
    def model():
        first = pyro.sample("first", dist.Bernoulli(0.6))
        pyro.sample("second", dist.Bernoulli(0.2 + 0.5 * first))
        pyro.sample("y", dist.Normal(0.0, 1.0), obs=torch.tensor(0.0))

    def guide():
        second = pyro.sample("second", dist.Bernoulli(0.3))
        pyro.sample("first", dist.Bernoulli(0.1 + 0.8 * second))

    losses = []
    for kind in (TraceGraphMeanFieldELBO, TraceGraph_ELBO):
        pyro.set_rng_seed(0)
        losses.append(kind().loss(model, guide))
    assert losses[0] == losses[1]


def test_a_site_whose_draws_have_no_gradient_is_named_and_its_value_estimated():
    rate = torch.tensor(2.0, requires_grad=True)

    def model():
        z = pyro.sample("z", dist.Geometric(0.5))
        pyro.sample("y", dist.Normal(z, 1.0), obs=torch.tensor(1.0))

    def guide():
        pyro.sample("z", dist.Poisson(rate))

    with pytest.raises(ValueError, match=r"the site 'z' has draws without a gradient, of Poisson"):
        AttentionELBO().differentiable_loss(model, guide)
    losses = []
    for kind in (AttentionELBO, Trace_ELBO):
        pyro.set_rng_seed(0)
        with torch.no_grad():
            losses.append(kind().loss(model, guide))
    assert losses[0] == pytest.approx(losses[1])
