"""The latent attention site against formulas written out by hand."""

import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pyro import poutine
from pyro.infer import Predictive, Trace_ELBO, TraceMeanField_ELBO
from scipy import stats
from torch.distributions import kl_divergence

from probattn import AttentionMask, BayesianAttention
from probattn.inference.elbo import AttentionELBO
from probattn.inference.guide import AttentionGuide
from probattn.inference.predictive import PosteriorExpectation
from probattn.sites.answers import Attending
from probattn.sites.layout import PAIRS
from probattn.sites.site import AttentionSite, SiteSpec
from probattn.sites.upward import UpwardChain

FULL = {"sigma": 0.5}
VARIANTS = [
    BayesianAttention(),
    BayesianAttention(**FULL),
    BayesianAttention(upward="positions", max_positions=8, **FULL),
    BayesianAttention(rho=0.0),
    BayesianAttention(prior="constant", scores="raw", kl_reduction="sum"),
    BayesianAttention.bam(),
    BayesianAttention(posterior="lognormal"),
    BayesianAttention.paper(max_positions=8),
]
IDS = ["default", "sigma", "positions", "rho0", "constant", "bam", "lognormal", "paper"]


def inputs(batch=2, heads=3, queries=4, keys=4, size=5, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = [(batch, heads, queries, size), (batch, heads, keys, size), (batch, heads, keys, 6)]
    return [torch.randn(shape, generator=generator, dtype=dtype).requires_grad_() for shape in shapes]


def padding(batch=2, keys=4, real=3):
    mask = torch.ones(batch, keys, dtype=torch.bool)
    mask[0, real:] = False
    return AttentionMask(mask[:, None, None, :].expand(-1, 1, keys, -1), mask)


def causal(batch=2, keys=4):
    return AttentionMask(torch.ones(keys, keys, dtype=torch.bool).tril().expand(batch, 1, -1, -1))


def program(site, tensors, mask=None, **kwargs):
    """A model whose likelihood depends on the output."""

    def model():
        with pyro.plate("data", len(tensors[0])):
            output, weights = site("site", *tensors, mask, **kwargs)
            wide = output if output.dtype == torch.float64 else output.float()
            pyro.sample("y", dist.Normal(wide, 1.0).to_event(3), obs=torch.zeros_like(wide))
        return output, weights

    return model


@pytest.mark.parametrize("method", VARIANTS, ids=IDS)
def test_expectation_without_a_driver_is_softmax_of_expected_weights(method):
    site = method.build(3, 5, max_positions=8).eval()
    query, key, value = inputs()
    mask = padding()
    output, weights = site("site", query, key, value, mask)
    scores = query @ key.transpose(-1, -2) / math.sqrt(5)
    scores = scores.masked_fill(~mask.valid, -torch.inf)
    if method.sigma == 0:
        torch.testing.assert_close(weights, scores.softmax(-1))
    else:
        mean = site.posterior(scores.masked_fill(~mask.valid, -1e30), mask).mean
        mean = mean.masked_fill(~mask.valid, 0.0)
        torch.testing.assert_close(weights, mean / mean.sum(-1, keepdim=True))
    torch.testing.assert_close(output, weights @ value)


def test_posterior_is_the_papers_formula():
    method = BayesianAttention(rho=1.5, sigma=0.5, scores="raw", floor=0.0)
    site = method.build(3, 5)
    scores = torch.randn(2, 3, 4, 4)
    weibull = site.posterior(scores, None)
    up = site.upward
    softplus = torch.nn.functional.softplus

    def mix(maps, state):
        return torch.einsum("gh,bhts->bgts", maps.weight, state) + maps.bias[:, None, None]

    hidden = softplus(mix(up.hidden, scores.softmax(-1)))
    k = 1.5 * softplus(mix(up.concentration, hidden)) + scores.exp()
    scale = 0.5 * softplus(mix(up.scale, hidden)) + scores.exp() / torch.exp(torch.lgamma(1 + 1 / k))
    torch.testing.assert_close(weibull.concentration, k)
    torch.testing.assert_close(weibull.scale, scale)


def test_positions_mix_queries_and_ignore_padded_ones():
    site = BayesianAttention(upward="positions", max_positions=8, sigma=0.5).build(3, 5)
    mask = padding()
    scores = torch.randn(2, 3, 4, 4) + mask.additive
    changed = scores.clone()
    changed[0, :, 3] = torch.randn(3, 4) + mask.additive[0, 0, 3]
    first, second = site.posterior(scores, mask), site.posterior(changed, mask)
    torch.testing.assert_close(first.concentration[0, :, :3], second.concentration[0, :, :3])
    changed = scores.clone()
    changed[1, :, 3] += torch.randn(3, 4)
    assert not torch.allclose(
        first.concentration[1, :, 0], site.posterior(changed, mask).concentration[1, :, 0]
    )


def test_positions_refuse_long_and_causal_inputs():
    site = BayesianAttention(upward="positions", max_positions=2).build(3, 5).eval()
    with pytest.raises(ValueError, match="at most 2 queries, got 4"), poutine.trace(), PosteriorExpectation():
        site("s", *inputs())
    with pytest.raises(ValueError, match="upward='heads'"):
        BayesianAttention(upward="positions", max_positions=2).build(3, 5, causal=True)
    site = BayesianAttention(upward="positions", max_positions=8).build(3, 5).eval()
    with pytest.raises(ValueError, match="mask differs between queries"), PosteriorExpectation():
        site("s", *inputs(), causal())
    with pytest.raises(ValueError, match="max_positions"):
        BayesianAttention(upward="positions").build(3, 5)


def test_chain_serves_the_first_call_all_maps_and_the_last_call_one():
    chain = UpwardChain()
    sites = [AttentionSite(BayesianAttention(rho=1.5), SiteSpec(2, 4), chain) for _ in range(3)]
    scores = [torch.randn(1, 2, 3, 3) for _ in sites]
    softplus = torch.nn.functional.softplus
    state, expected = scores[0].softmax(-1), []
    for site in reversed(sites):
        state = softplus(site.upward.hidden(state))
        expected.append(state)
    for site, phi, hidden in zip(sites, scores, reversed(expected), strict=True):
        mixed = softplus(site.upward.concentration(hidden))
        want = 1.5 * mixed + phi.softmax(-1) + 0.05
        torch.testing.assert_close(site.posterior(phi, None).concentration, want)
    with pytest.raises(RuntimeError, match="before call 0"):
        sites[1].posterior(scores[1], None)
    sites[0].posterior(scores[0], None)
    with pytest.raises(RuntimeError, match="expected scores of shape"):
        sites[1].posterior(torch.randn(1, 2, 5, 5), None)


def test_a_site_that_is_called_twice_begins_with_its_first_call():
    chain = UpwardChain()
    site = AttentionSite(BayesianAttention(rho=1.5), SiteSpec(2, 5), chain)
    site.join(chain)
    losses = []
    for asked in ({}, {"call": 0}):
        torch.manual_seed(0)
        model = program(site, inputs(heads=2), **asked)
        losses.append(AttentionELBO()(model, AttentionGuide(model))())
    torch.testing.assert_close(*losses)


ELBO_METHODS = dict(zip(IDS, VARIANTS, strict=True)) | {
    "no floor": BayesianAttention(rho=0.0, floor=0.0),
    "raw, no floor": BayesianAttention.paper(rho=0.0, sigma=0.0),
    "lognormal, narrow": BayesianAttention(posterior="lognormal", scale=1e-4, prior_scale=1e-2),
    "lognormal, raw": BayesianAttention.bam(posterior="lognormal", scores="raw", kl_reduction="keys"),
}
ELBO_MASKS = {
    "open": None,
    "padding": padding(),
    "left": AttentionMask(torch.tensor([[False, True, True, True], [True] * 4])[:, None, None, :]),
    "causal": causal(),
    "causal and padding": AttentionMask(causal().valid & padding().valid, padding().query_valid),
    "by head": AttentionMask(torch.rand(2, 3, 4, 4, generator=torch.Generator().manual_seed(1)) > 0.3),
    "empty row": AttentionMask(padding(real=0).valid, padding(real=0).query_valid),
}
TOLERANCES = {torch.float64: 1e-9, torch.float32: 2e-4}
"""Of a loss relative to it, and of a parameter's gradient relative to its largest element."""


def refuses(method, mask):
    """Whether the site refuses the mask: positions mix queries."""
    return (
        mask is not None and not mask.rows_alike and method.upward == "positions" and method.has_upward_path
    )


ELBO_CASES = [
    pytest.param(method, mask, id=f"{name}-{kind}")
    for name, method in ELBO_METHODS.items()
    for kind, mask in ELBO_MASKS.items()
    if not refuses(method, mask)
]


def both_elbos(method, mask, dtype):
    """Loss and gradients of every parameter and input, by our estimator and by Pyro's, with the same noise."""
    tensors = inputs(dtype=dtype)
    torch.manual_seed(0)
    site = method.build(3, 5, max_positions=8).to(dtype)
    model = program(site, tensors, mask)
    guide = AttentionGuide(model, kl_weight=0.3)
    parameters = [*tensors, *site.parameters()]
    results = []
    for elbo in (AttentionELBO(), TraceMeanField_ELBO()):
        pyro.set_rng_seed(1)
        loss = elbo.differentiable_loss(model, guide)
        results.append((loss.detach(), *torch.autograd.grad(loss, parameters)))
    return results


@pytest.mark.parametrize(("method", "mask"), ELBO_CASES)
@pytest.mark.parametrize("dtype", list(TOLERANCES), ids=["float64", "float32"])
def test_own_elbo_equals_pyros(method, mask, dtype):
    results = both_elbos(method, mask, dtype)
    for ours, theirs in zip(*results, strict=True):
        assert ours.isfinite().all()
        atol = TOLERANCES[dtype] * theirs.abs().max().item()
        torch.testing.assert_close(ours, theirs, rtol=0, atol=max(atol, 1e-12))
    assert all(gradient.abs().sum() > 0 for gradient in results[0][1:])


@pytest.mark.parametrize("mask", ["causal", "padding"])
@pytest.mark.parametrize("method", list(ELBO_METHODS))
def test_own_elbo_equals_pyros_under_autocast(method, mask):
    """Scores come in bfloat16 and the site computes in float32, whatever pairs are forbidden."""
    method, mask = ELBO_METHODS[method], ELBO_MASKS[mask]
    if refuses(method, mask):
        return
    with torch.autocast("cpu", torch.bfloat16):
        results = both_elbos(method, mask, torch.float32)
    for ours, theirs in zip(*results, strict=True):
        assert ours.isfinite().all()
        # The likelihood's gradient passes through the same products in bfloat16 on both sides.
        torch.testing.assert_close(ours, theirs, rtol=0, atol=max(1e-2 * theirs.abs().max().item(), 1e-12))


@pytest.mark.parametrize("mask", ["padding", "causal"])
@pytest.mark.parametrize("method", list(ELBO_METHODS))
@pytest.mark.parametrize("dtype", list(TOLERANCES), ids=["float64", "float32"])
def test_forbidden_pairs_take_no_part_in_value_and_gradient(method, mask, dtype):
    """Whatever the scores there: queries and keys that only meet where they may not have no influence at all."""
    method, mask = ELBO_METHODS[method], ELBO_MASKS[mask]
    if refuses(method, mask):
        return
    torch.manual_seed(0)
    site = method.build(3, 5, max_positions=8).to(dtype)
    bias = torch.zeros(2, 3, 4, 4, dtype=dtype)
    results = []
    for disturbed in (bias, bias.masked_fill(~mask.valid, 30.0)):
        tensors = inputs(dtype=dtype)
        model = program(site, tensors, mask, bias=disturbed)
        pyro.set_rng_seed(1)
        loss = AttentionELBO().differentiable_loss(model, AttentionGuide(model))
        results.append((loss.detach(), *torch.autograd.grad(loss, [*tensors, *site.parameters()])))
    for plain, disturbed in zip(*results, strict=True):
        assert plain.isfinite().all()
        torch.testing.assert_close(plain, disturbed, rtol=0, atol=0)


@pytest.mark.parametrize("method", ["no floor", "raw, no floor", "lognormal", "lognormal, raw"])
def test_predictions_under_a_mask_are_finite(method):
    """In single precision, of a posterior without a floor too."""
    site = ELBO_METHODS[method].build(3, 5)
    mask = ELBO_MASKS["causal and padding"]
    guide = AttentionGuide(model := program(site, inputs(), mask))
    with torch.no_grad(), guide:
        output, weights = model()
    assert output.isfinite().all()
    assert (weights.masked_select(~mask.valid) == 0).all()
    torch.testing.assert_close(weights.sum(-1)[1], torch.ones(3, 4))


@pytest.mark.parametrize("largest", [1e2, 1e4])
def test_without_a_floor_extreme_scores_give_no_nan(largest):
    """k is exp(score) alone: below the range of 1/k the divergence saturates, it does not become undefined."""
    site = BayesianAttention(rho=0.0, floor=0.0).build(3, 5)
    tensors = inputs()
    with torch.no_grad():
        tensors[0].mul_(largest)
    model = program(site, tensors, padding())
    loss = AttentionELBO().differentiable_loss(model, AttentionGuide(model))
    gradients = torch.autograd.grad(loss, [*tensors, *site.parameters()])
    assert not any(value.isnan().any() for value in (loss, *gradients))


def test_sampled_elbo_agrees_with_the_analytic_one():
    """Of 16 passes, each over 500 rows that are all alike, whose draws are independent."""
    tensors = [tensor.expand(500, -1, -1, -1) for tensor in inputs(batch=1, heads=1, queries=1, keys=2)]
    method = BayesianAttention(kl_reduction="sum", prior="constant", prior_concentration=2.0)
    model = program(method.build(1, 5), tensors)
    guide = AttentionGuide(model)
    with torch.no_grad():
        analytic, sampled = (
            torch.stack([elbo.differentiable_loss(model, guide) for _ in range(16)])
            for elbo in (AttentionELBO(), Trace_ELBO())
        )
    error = ((analytic.var() + sampled.var()) / 16).sqrt()
    assert abs(analytic.mean() - sampled.mean()) < 4 * error


@pytest.mark.parametrize("name", ["default", "sigma", "bam", "lognormal"])
def test_gradcheck_of_the_whole_site_with_noise_held_fixed(name):
    tensors = inputs(batch=1, heads=2, queries=2, keys=3, size=2, dtype=torch.float64)
    tensors[2] = tensors[2].detach()[..., :2].requires_grad_()  # finite differences take their time
    site = VARIANTS[IDS.index(name)].build(2, 2).double()
    valid = torch.tensor([[True, True, False]])
    mask = AttentionMask(valid[:, None, None, :])
    names = list(dict(site.named_parameters()))

    def run(*values):
        tensors[:] = values[:3]
        pyro.set_rng_seed(0)
        bound = dict(zip(names, values[3:], strict=True))

        def rebound(*args, **kwargs):
            return torch.func.functional_call(site, bound, args, kwargs)

        model = program(rebound, tensors, mask)
        terms = AttentionELBO()(model, AttentionGuide(model))()
        return terms.loss

    assert torch.autograd.gradcheck(
        run, (*tensors, *site.parameters()), atol=1e-6, check_undefined_grad=False, fast_mode=True
    )


def kl_of(site, tensors, mask):
    model = program(site, tensors, mask)
    module = AttentionELBO()(model, AttentionGuide(model))
    terms = module()
    return terms, module.diagnostics()["site"]


def test_terms_are_apart_and_per_datum():
    tensors = inputs(batch=4)
    site = BayesianAttention(kl_reduction="mean").build(3, 5)

    def model():
        with pyro.plate("data", 40, subsample=torch.arange(4)):
            output, _ = site("site", *tensors)
            pyro.sample("y", dist.Normal(output, 1.0).to_event(3), obs=torch.zeros_like(output))
            pyro.factor("extra", torch.full((4,), 0.25))

    module = AttentionELBO()(model, AttentionGuide(model, kl_weight=0.5))
    terms = module()
    assert terms.factors.item() == pytest.approx(0.25)
    assert terms.kl.item() == pytest.approx(0.5 * terms.kl_nats.item() / (3 * 4 * 4), rel=1e-5)
    torch.testing.assert_close(terms.loss, terms.kl - terms.log_likelihood - terms.factors)
    health = module.diagnostics()["site"]
    assert health["kl_nats"] == pytest.approx(terms.kl_nats.item(), rel=1e-6)
    assert 0.5 * health["kl_reduced"] == pytest.approx(terms.kl.item(), rel=1e-6)  # before the KL weight


def test_zero_kl_weight_leaves_the_likelihood():
    site = BayesianAttention().build(3, 5)
    model = program(site, inputs())
    terms = AttentionELBO()(model, AttentionGuide(model, kl_weight=0.0))()
    assert terms.kl.item() == 0 and terms.kl_nats.item() > 0
    assert torch.isfinite(terms.loss)
    with pytest.raises(ValueError, match="kl_weight"):
        AttentionGuide(model, kl_weight=-1.0)


@settings(max_examples=20, deadline=None)
@given(extra=st.integers(1, 4), left=st.booleans(), sigma=st.sampled_from([0.0, 0.5]))
def test_padding_moves_nothing(extra, left, sigma):
    site = BayesianAttention(sigma=sigma).build(3, 5)
    tensors = inputs(queries=3, keys=3)
    side = (0, 0, extra, 0) if left else (0, 0, 0, extra)
    padded = [torch.nn.functional.pad(tensor, side, value=7.0) for tensor in tensors]
    real = torch.nn.functional.pad(torch.ones(2, 3, dtype=torch.bool), side[2:])
    mask = AttentionMask(real[:, None, None, :].expand(-1, 1, 3 + extra, -1), real)
    with torch.no_grad():
        plain, plain_health = kl_of(site, tensors, None)
        long, long_health = kl_of(site, padded, mask)
        bare, wide = site.eval()("s", *tensors), site("s", *padded, mask)
    assert plain.kl.item() == pytest.approx(long.kl.item(), rel=1e-5)
    for name, value in plain_health.items():
        assert long_health[name] == pytest.approx(value, rel=1e-4), name
    rows = slice(extra, None) if left else slice(0, 3)
    torch.testing.assert_close(wide[0][:, :, rows], bare[0], atol=1e-5, rtol=1e-5)


def test_causal_prior_and_posterior_do_not_see_the_future():
    site = BayesianAttention(sigma=0.5).build(3, 5)
    tensors = inputs()
    later = [tensor.detach().clone() for tensor in tensors]
    for tensor in later:
        tensor[:, :, 3] = torch.randn_like(tensor[:, :, 3])
    found = []
    for values in (tensors, later):
        with poutine.trace() as trace, AttentionGuide(None) as guide:
            site("s", *values, causal())
        del trace
        prior = guide.trace.nodes["s"]["infer"]["prior"].base_dist.base_dist
        posterior = guide.trace.nodes["s"]["fn"].base_dist.base_dist
        found.append((prior.log_concentration, posterior.concentration, posterior.log_scale))
    for one, other in zip(*found, strict=True):
        lower = torch.ones(4, 4, dtype=torch.bool).tril()[:3]
        torch.testing.assert_close(one[:, :, :3][..., lower], other[:, :, :3][..., lower])
        assert not torch.allclose(one[:, :, 3], other[:, :, 3])
    total = found[0][0].exp().masked_fill(~causal().valid, 0).sum(-1)
    torch.testing.assert_close(total, torch.ones_like(total))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("method", [*VARIANTS[:4], VARIANTS[5], VARIANTS[6]], ids=[*IDS[:4], IDS[5], IDS[6]])
@pytest.mark.parametrize("shape", [(3, 4), (1, 1), (1, 4), (3, 1)], ids=str)
def test_extreme_scores_stay_finite(dtype, method, shape):
    heads, keys = shape
    query, key, value = (tensor.detach() for tensor in inputs(heads=heads, keys=keys, queries=keys))
    query, key = 100 * query.sign(), 100 * key.sign()  # scores of about +-1e4 at scale 1
    query[..., 1:], key[..., 1:] = 0, 0
    tensors = [tensor.to(dtype).requires_grad_() for tensor in (query, key, value)]
    valid = torch.ones(2, 1, keys, keys, dtype=torch.bool)
    valid[0] = False  # a datum without any pair
    site = method.build(heads, 5, max_positions=8)
    model = program(site, tensors, AttentionMask(valid), scale=1.0)
    # The log-normal KL is quadratic in the scores: its true gradient, 1e6 here, is past float16 without loss scaling.
    weight = 1e-3 if method.posterior == "lognormal" and dtype == torch.float16 else 1.0
    terms = AttentionELBO()(model, AttentionGuide(model, kl_weight=weight))()
    terms.loss.backward()
    assert torch.isfinite(terms.loss) and torch.isfinite(terms.kl_nats)
    for tensor in [*tensors, *site.parameters()]:
        assert tensor.grad is not None and torch.isfinite(tensor.grad).all()
    with torch.no_grad():
        output, weights = site.eval()("s", *tensors, AttentionMask(valid), scale=1.0)
    assert torch.isfinite(output).all() and (output[0] == 0).all() and (weights[0] == 0).all()


def draws_of(noise, concentration, count=200_000):
    method = BayesianAttention.bam(concentration, prior="constant", noise=noise)
    site = method.build(1, 1)
    zeros = torch.zeros(1, 1, 1, 1), torch.zeros(1, 1, count, 1), torch.zeros(1, 1, count, 1)
    pyro.set_rng_seed(0)
    with AttentionGuide(None) as guide:
        site("s", *zeros)
    posterior = guide.trace.nodes["s"]["fn"].base_dist
    value = guide.trace.nodes["s"]["value"].flatten()
    return value / posterior.mean.flatten()[0], posterior


@pytest.mark.parametrize(
    ("concentration", "mean", "spread", "exact_spread"),
    [(1.04, 0.84, 0.66, 0.96), (10.0, 1.01, 0.077, 0.120)],
)
def test_truncated_noise_is_not_the_weibull(concentration, mean, spread, exact_spread):
    exact, posterior = draws_of("exact", concentration)
    truncated, _ = draws_of("truncated", concentration)
    scale = (posterior.scale / posterior.mean).flatten()[0].item()
    law = stats.weibull_min(concentration, scale=scale).cdf
    assert stats.kstest(exact[:20_000].numpy(), law).pvalue > 1e-3
    assert stats.kstest(truncated[:20_000].numpy(), law).pvalue < 1e-6
    assert exact.mean().item() == pytest.approx(1.0, abs=0.01)
    assert (exact.std() / exact.mean()).item() == pytest.approx(exact_spread, abs=0.01)
    assert truncated.mean().item() == pytest.approx(mean, abs=0.01)
    assert (truncated.std() / truncated.mean()).item() == pytest.approx(spread, abs=0.01)


class TestHandlers:
    def setup_method(self):
        self.tensors = inputs()
        self.site = BayesianAttention().build(3, 5)
        self.model = program(self.site, self.tensors)

    def test_condition_reproduces_the_output_by_hand(self):
        weights = torch.rand(2, 3, 4, 4)
        weights[0, 0, 0] = torch.tensor([0.0, 1.0, 0.0, 3.0])
        output, returned = poutine.condition(self.model, {"site": weights})()
        want = weights / weights.sum(-1, keepdim=True)
        torch.testing.assert_close(returned, want)
        torch.testing.assert_close(output, want @ self.tensors[2])
        torch.testing.assert_close(poutine.do(self.model, {"site": weights})()[0], output)

    def test_conditioned_site_is_observed_under_the_guide(self):
        weights = torch.rand(2, 3, 4, 4) + 0.1
        model = poutine.condition(self.model, {"site": weights})
        terms = AttentionELBO()(model, AttentionGuide(model))()
        trace = poutine.trace(model).get_trace()
        assert terms.kl.item() == 0
        assert terms.log_likelihood.item() == pytest.approx(trace.log_prob_sum().item() / 2, rel=1e-5)

    def test_bad_values_are_named(self):
        weights = torch.ones(2, 3, 4, 4)
        for wrong in (-1.0, torch.inf, torch.nan):
            weights[1, 2, 3, 0] = wrong
            with pytest.raises(ValueError, match=f"site 'site': expected finite .* >= 0, got {wrong}"):
                poutine.condition(self.model, {"site": weights})()
        with pytest.raises(ValueError, match=r"of shape \[2, 3, 4, 4\], got \[2, 3, 4, 1\]"):
            poutine.do(self.model, {"site": torch.ones(2, 3, 4, 1)})()

    def test_whole_numbers_are_weights_and_forbidden_ones_are_ignored(self):
        weights = torch.randint(1, 9, (2, 3, 4, 4))
        _, whole = poutine.condition(self.model, {"site": weights})()
        torch.testing.assert_close(whole, weights / weights.sum(-1, keepdim=True))
        valid = torch.tensor([True, True, False, True])
        masked = program(self.site, self.tensors, AttentionMask(valid.expand(2, 1, 1, 4)))
        for anything in (torch.inf, torch.nan, -1.0):
            value = torch.where(valid, weights, anything).requires_grad_()
            _, drawn = poutine.condition(masked, {"site": value})()
            torch.testing.assert_close(drawn, weights * valid / (weights * valid).sum(-1, keepdim=True))
            (slope,) = torch.autograd.grad(drawn.square().sum(), value)
            assert slope.isfinite().all() and not slope[..., 2].any()

    def test_trace_without_guide_is_the_prior(self):
        trace = poutine.trace(self.model).get_trace()
        site = trace.nodes["site"]
        assert isinstance(site["fn"].base_dist, dist.Gamma) and (site["value"] > 0).all()
        assert site["fn"].batch_shape == (2,) and site["fn"].event_shape == (3, 4, 4)

    def test_replay_block_scale_and_mask(self):
        trace = poutine.trace(self.model).get_trace()
        output, _ = poutine.replay(self.model, trace)()
        torch.testing.assert_close(output, trace.nodes["_RETURN"]["value"][0])
        hidden = poutine.trace(poutine.block(self.model, hide=["site"])).get_trace()
        assert "site" not in hidden.nodes and "y" in hidden.nodes
        scaled = poutine.scale(self.model, 3.0)
        pyro.set_rng_seed(0)
        plain = AttentionELBO()(self.model, AttentionGuide(self.model))()
        pyro.set_rng_seed(0)
        tripled = AttentionELBO()(scaled, AttentionGuide(scaled))()
        assert tripled.loss.item() == pytest.approx(3 * plain.loss.item(), rel=1e-5)
        masked = poutine.mask(self.model, torch.tensor([True, False]))
        terms = AttentionELBO()(masked, AttentionGuide(masked))()
        assert 0 < terms.kl.item() < plain.kl.item()

    def test_predictive_draws_from_posterior_and_prior(self):
        guide = AttentionGuide(self.model)
        posterior = Predictive(self.model, guide=guide, num_samples=3)()
        prior = Predictive(self.model, num_samples=3)()
        for samples in (posterior, prior):
            assert samples["site"].shape == (3, 2, 3, 4, 4)
            assert not torch.equal(samples["site"][0], samples["site"][1])

    @pytest.mark.parametrize("elbo", [AttentionELBO, TraceMeanField_ELBO, Trace_ELBO])
    def test_particles_in_one_pass_are_refused(self, elbo):
        """They would share one draw, and a KL would stand beside the likelihoods of all of them."""
        vectorized = elbo(num_particles=4, vectorize_particles=True, max_plate_nesting=1)
        with pytest.raises(ValueError, match="site 'site': the plate 'num_particles_vectorized' would share"):
            vectorized.differentiable_loss(self.model, AttentionGuide(self.model))
        with pytest.raises(ValueError, match="parallel of Predictive"):
            Predictive(self.model, guide=AttentionGuide(self.model), num_samples=3, parallel=True)()

    @pytest.mark.parametrize("elbo", [AttentionELBO, TraceMeanField_ELBO, Trace_ELBO])
    def test_a_call_outside_the_subsampled_plate_is_refused(self, elbo):
        """The likelihood would be scaled to the data, and the KL would not."""

        def model():
            output, _ = self.site("site", *self.tensors)
            with pyro.plate("data", 20, subsample=torch.arange(2)):
                pyro.sample("y", dist.Normal(output, 1.0).to_event(3), obs=torch.zeros_like(output))

        with pytest.raises(ValueError, match="site"):
            elbo().differentiable_loss(model, AttentionGuide(model))

    def test_training_without_driver_raises_and_names_the_fix(self):
        with pytest.raises(RuntimeError, match="SVIDriver"):
            self.site("site", *self.tensors)
        with torch.no_grad():
            self.site("site", *self.tensors)

    def test_latent_that_is_no_attention_site_is_refused(self):
        def model():
            pyro.sample("theta", dist.Normal(0.0, 1.0))

        with pytest.raises(ValueError, match="'theta' is not an attention site"):
            AttentionGuide(model)()

    def test_model_without_data_is_refused(self):
        with pytest.raises(ValueError, match="expected an observed site"):
            AttentionELBO()(self.bare, AttentionGuide(self.bare))()

    def bare(self):
        with pyro.plate("data", 2):
            self.site("site", *self.tensors)


STRENGTHS = [
    BayesianAttention(rate=0.6, prior_strength=7.0),
    BayesianAttention(rate=0.6, prior_strength="learned"),
    BayesianAttention(rate=0.6, prior_strength="learned", scores="raw"),
    BayesianAttention(rate=0.6, prior_strength="learned", sigma=0.5),
    BayesianAttention(prior="constant", rho=0.0, rate=0.6, prior_strength=7.0),
    BayesianAttention.bam(3.0, rate=0.6, prior_strength=7.0),
    BayesianAttention.bam(3.0, rate=0.6, prior_strength="learned"),
]


@pytest.mark.parametrize("alone", [False, True], ids=["weights", "alone"])
@pytest.mark.parametrize("mask", [None, padding(), causal()], ids=["open", "padding", "causal"])
@pytest.mark.parametrize("method", STRENGTHS, ids=range(len(STRENGTHS)))
def test_a_strength_multiplies_both_parameters_of_the_prior(method, mask, alone):
    """Against torch's gamma distribution, by pairs; the gradient too, against differences where it is learned."""
    tensors = inputs(dtype=torch.float64)
    site = method.build(3, 5).double()
    learned = None if site.prior is None else site.prior.log_strength
    assert (learned is not None) == (method.prior_strength == "learned")
    if learned is not None:
        torch.nn.init.constant_(learned, math.log(7.0))

    def model():
        with pyro.plate("data", 2):
            if alone:
                site.attend_alone("site", Attending(*tensors, PAIRS if mask is None else mask))
            else:
                site("site", *tensors, mask)
            pyro.factor("none", torch.zeros(2))

    def total():
        return AttentionELBO()(model, AttentionGuide(model))().kl

    layout = PAIRS if mask is None else mask
    scores = tensors[0] @ tensors[1].mT / math.sqrt(5) + (0 if mask is None else mask.additive.double())
    log_alpha = torch.zeros(1) if site.prior is None else site.prior(tensors[1], 3, layout)
    prior = torch.distributions.Gamma(7.0 * log_alpha.exp(), torch.tensor(7.0 * 0.6).double())
    q = site.posterior(scores, layout)
    pairs = kl_divergence(torch.distributions.Weibull(q.scale, q.concentration), prior)
    valid = torch.ones_like(scores) if mask is None else mask.pair_weight.expand_as(scores).double()
    expected = (pairs.where(valid > 0, 0.0).sum(dim=(1, 2, 3)) / valid.sum(dim=(1, 2, 3))).mean()
    found = total()
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)
    if learned is not None:
        (slope,) = torch.autograd.grad(found, [learned])
        sides = []
        for step in (1e-4, -1e-4):
            torch.nn.init.constant_(learned, math.log(7.0) + step)
            sides.append(total().item())
        assert slope.item() == pytest.approx((sides[0] - sides[1]) / 2e-4, rel=1e-5)
