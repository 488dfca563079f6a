"""The latent site over edges beside the site over pairs, on graphs where both say the same."""

import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import SVI, Predictive, TraceMeanField_ELBO
from scipy import stats

from probattn import BayesianAttention
from probattn.inference.elbo import AttentionELBO
from probattn.inference.guide import AttentionGuide
from probattn.sites import EdgeAttentionSite, Edges, SiteSpec, UpwardChain

HEADS, SIZE = 3, 5
METHODS = {
    "default": BayesianAttention(),
    "sigma": BayesianAttention(sigma=0.5),
    "rho0": BayesianAttention(rho=0.0),
    "raw, summed": BayesianAttention(prior="constant", scores="raw", kl_reduction="sum"),
    "keys": BayesianAttention(kl_reduction="keys", noise="truncated"),
    "bam": BayesianAttention.bam(),
    "lognormal": BayesianAttention(posterior="lognormal"),
}


@pytest.fixture(params=METHODS.values(), ids=METHODS.keys())
def method(request):
    return request.param


def complete(nodes):
    """Every node to every node; edges in the order of a flattened map of targets by sources."""
    target, source = torch.meshgrid(torch.arange(nodes), torch.arange(nodes), indexing="ij")
    return Edges(torch.stack([source.flatten(), target.flatten()]), nodes)


def tensors(nodes, edges, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(edges, HEADS, generator=generator, dtype=dtype)
    return scores.requires_grad_(), torch.randn(
        nodes, HEADS, SIZE, generator=generator, dtype=dtype
    ).requires_grad_()


def build(method, seed=1):
    torch.manual_seed(seed)
    return EdgeAttentionSite(method, SiteSpec(HEADS, SIZE))


def observed(site, scores, key, *edges, **options):
    """A program whose likelihood depends on the weights."""

    def model():
        weights = site("site", scores, key, *edges, **options)
        pyro.sample("y", dist.Normal(weights, 1.0).to_event(2), obs=torch.full_like(weights, 0.1))
        return weights

    return model


def terms_of(model, noise_seed=3):
    torch.manual_seed(noise_seed)
    return AttentionELBO()(model, AttentionGuide(model))()


def dense_twin(site, nodes, scores, key):
    """The same site over pairs, and its weights: its keys are the nodes', its scores those of the edges."""
    dense = site.method.build(HEADS, SIZE).to(key.dtype)
    dense.load_state_dict(site.state_dict())
    query = torch.zeros(1, HEADS, nodes, SIZE, dtype=key.dtype)

    def weights(name, scores, key):
        keys = key.transpose(0, 1)[None]
        _, weights = dense(name, query, keys, keys, bias=scores.t().view(1, HEADS, nodes, nodes))
        return weights.view(HEADS, nodes * nodes).t()

    return dense, weights


def test_a_complete_graph_is_the_site_over_pairs(method):
    nodes = 4
    edges = complete(nodes)
    scores, key = tensors(nodes, len(edges), torch.float64)
    site = build(method).double()
    dense, pairs = dense_twin(site, nodes, scores, key)
    found, expected = terms_of(observed(site, scores, key, edges)), terms_of(observed(pairs, scores, key))
    torch.testing.assert_close(torch.stack(list(found)), torch.stack(list(expected)))
    places = [scores, key]
    gradients = torch.autograd.grad(found.loss, [*places, *site.parameters()], materialize_grads=True)
    twins = torch.autograd.grad(expected.loss, [*places, *dense.parameters()], materialize_grads=True)
    for ours, theirs in zip(gradients, twins, strict=True):
        torch.testing.assert_close(ours, theirs)
    site.eval()
    dense.eval()
    torch.testing.assert_close(site("site", scores, key, edges), pairs("site", scores, key))


def test_weights_are_expectations_when_nobody_watches(method):
    edges = Edges(torch.tensor([[0, 1, 2, 2, 1], [0, 0, 0, 2, 2]]), 3)
    scores, key = tensors(3, 5)
    site = build(method).eval()
    weights = site("site", scores, key, edges)
    mean = site.posterior(scores.t()[None, :, None], edges).mean[0, :, 0].t()
    for target in (0, 2):
        mine = edges.target == target
        torch.testing.assert_close(weights[mine], mean[mine] / mean[mine].sum(dim=0))


def test_training_undriven_is_refused():
    scores, key = tensors(2, 1)
    with pytest.raises(RuntimeError, match="site 'mine': training without a driver"):
        build(BayesianAttention())("mine", scores, key, Edges(torch.tensor([[0], [1]]), 2))


def test_a_node_with_only_itself_attends_to_itself_and_its_kl_is_finite(method):
    edges = Edges(torch.tensor([[0, 1, 0], [0, 1, 1]]), 2)
    scores, key = tensors(2, 3)
    site = build(method)
    model = observed(site, scores, key, edges)
    terms = terms_of(model)
    assert all(bool(term.isfinite()) for term in terms)
    terms.loss.backward()
    assert bool(scores.grad.isfinite().all())
    with torch.no_grad(), AttentionGuide(model):
        assert model()[0].tolist() == pytest.approx([1.0] * HEADS)


def test_the_prior_is_a_gamma_of_a_softmax_over_incoming_edges():
    edges = Edges(torch.tensor([[0, 1, 2, 1], [0, 0, 0, 2]]), 3)
    scores, key = tensors(3, 4)
    site = build(BayesianAttention(rate=2.0))
    trace = pyro.poutine.trace(observed(site, scores, key, edges)).get_trace()
    prior = trace.nodes["site"]["fn"].base_dist
    logits = site.prior.output(torch.relu(site.prior.hidden(key)))[..., 0]  # [N, H]
    alpha = prior.concentration[0, :, 0].t()
    torch.testing.assert_close(alpha[:3], logits[[0, 1, 2]].softmax(dim=0))
    torch.testing.assert_close(alpha[3], torch.ones(HEADS))
    assert prior.rate.unique().tolist() == [2.0]


def test_draws_follow_the_weibull_that_the_scores_say():
    edges = Edges(torch.zeros(2, 4000, dtype=torch.int64), 1)
    scores = torch.full((4000, HEADS), 0.3)
    site = build(BayesianAttention.bam(2.0, prior="constant", scores="raw"))
    guide = AttentionGuide(observed(site, scores, torch.zeros(1, HEADS, SIZE), edges))
    torch.manual_seed(0)
    drawn = guide()["site"].flatten()
    scale = math.exp(0.3) / math.gamma(1.5)
    assert stats.kstest(drawn.numpy(), stats.weibull_min(2.0, scale=scale).cdf).pvalue > 1e-3


@pytest.mark.parametrize(("reduction", "factor"), [("sum", 1.0), ("mean", 7 / 12), ("keys", 7 / 6)])
def test_averages_of_the_kl_count_once_an_observation(reduction, factor):
    edges = Edges(torch.tensor([[0, 1, 2, 1], [0, 0, 0, 2]]), 3)  # 4 edges into 2 nodes
    scores, key = tensors(3, 4)
    site = build(BayesianAttention(kl_reduction=reduction))
    terms = terms_of(observed(site, scores, key, edges, observations=7))
    torch.testing.assert_close(terms.kl, factor * terms.kl_nats)


def test_pyro_s_own_svi_trains_it():
    edges = complete(3)
    scores, key = tensors(3, 9)
    model = observed(build(BayesianAttention()), scores, key, edges)
    pyro.clear_param_store()
    svi = SVI(model, AttentionGuide(model), pyro.optim.Adam({"lr": 1e-3}), TraceMeanField_ELBO())
    assert math.isfinite(svi.step())


def test_prior_predictive_draws_are_weights():
    edges = complete(3)
    scores, key = tensors(3, 9)
    draws = Predictive(observed(build(BayesianAttention()), scores, key, edges), num_samples=3)()["site"]
    assert draws.shape == (3, 1, HEADS, 1, 9)
    assert bool((draws > 0).all())


def test_gradients_match_finite_differences(method):
    edges = Edges(torch.tensor([[0, 1, 2, 1, 2], [0, 0, 0, 2, 2]]), 3)
    scores, key = tensors(3, 5, torch.float64)
    site = build(method).double()

    def parts(scores, key):
        torch.manual_seed(0)
        model = observed(site, scores, key, edges)
        terms = AttentionELBO()(model, AttentionGuide(model))()
        return terms.log_likelihood, terms.kl

    with pyro.validation_enabled(
        False
    ):  # its hooks on gradients do not expect those that gradcheck leaves out
        assert torch.autograd.gradcheck(parts, (scores, key), fast_mode=True)


def test_two_calls_of_a_chain_rise_from_the_first():
    edges = Edges(torch.tensor([[0, 1, 2, 1], [0, 0, 0, 2]]), 3)
    method, chain = BayesianAttention(rho=1.5), UpwardChain()
    first, second = (EdgeAttentionSite(method, SiteSpec(HEADS, SIZE), chain) for _ in range(2))
    (one, key), (two, _) = tensors(3, 4), tensors(3, 4, seed=1)

    def model():
        first("first", one, key, edges)
        weights = second("second", two, key, edges)
        pyro.sample("y", dist.Normal(weights, 1.0).to_event(2), obs=torch.zeros_like(weights))

    guide = AttentionGuide(model)
    guide()
    state = edges.softmax(one.t())  # [H, E]

    def mix(maps, state):
        return maps.weight @ state + maps.bias[:, None]

    upper = torch.nn.functional.softplus(mix(second.upward.hidden, state))
    lower = torch.nn.functional.softplus(mix(first.upward.hidden, upper))
    for site, name, scores, hidden in ((first, "first", one, lower), (second, "second", two, upper)):
        found = guide.trace.nodes[name]["infer"]["attention"].distribution.concentration[0, :, 0]
        rise = torch.nn.functional.softplus(mix(site.upward.concentration, hidden))
        torch.testing.assert_close(found, method.rho * rise + edges.softmax(scores.t()) + method.floor)


@pytest.mark.parametrize(
    ("scores", "key", "message"),
    [
        ((3, HEADS), (2, HEADS, SIZE), r"expected scores \[1, 3\] of edges and heads, got \[3, 3\]"),
        ((1, HEADS), (2, HEADS, 4), r"expected keys \[2, 3, 5\], got \[2, 3, 4\]"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(scores, key, message):
    edges = Edges(torch.tensor([[0], [1]]), 2)
    with pytest.raises(ValueError, match=f"site 's': {message}"):
        build(BayesianAttention()).eval()("s", torch.zeros(scores), torch.zeros(key), edges)


def test_positions_are_refused():
    with pytest.raises(ValueError, match="the nodes of a graph have none; use upward='heads'"):
        build(BayesianAttention(upward="positions", max_positions=4))


def test_low_precision_scores_stay_finite():
    edges = complete(3)
    scores, key = tensors(3, 9, torch.bfloat16)
    site = build(BayesianAttention())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        weights = AttentionGuide(lambda: site("s", 1000 * scores, key, edges))
        found = weights()["s"]
    assert found.dtype == torch.float32 and bool(found.isfinite().all())
