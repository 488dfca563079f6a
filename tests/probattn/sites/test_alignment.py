"""Alignment as a factor: its options, its value, and what each party learns from it."""

import copy
import pickle

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import SVI, Trace_ELBO, TraceMeanField_ELBO

from probattn import AlignmentAttention
from probattn.divergences import adversarial, conditional_transport, median_bandwidth, mmd, sinkhorn
from probattn.inference import AttentionELBO, AttentionGuide
from probattn.sites import AlignmentFactor
from probattn.sites.alignment import random_subset

METHODS = ["ct", "ot", "gan", "mmd"]


def tokens(batch=3, heads=2, queries=5, keys=6, size=4):
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(batch, heads, queries, size, generator=generator)
    return query.requires_grad_(), (
        torch.randn(batch, heads, keys, size, generator=generator) + 0.5
    ).requires_grad_()


def masks():
    return torch.arange(5) < torch.tensor([[5], [3], [4]]), torch.arange(6) < torch.tensor([[6], [6], [2]])


def log_factor(factor, *arguments):
    """The site's value, ``[B]``."""

    def model():
        with pyro.plate("data", len(arguments[0])):
            factor("attend", *arguments)

    trace = poutine.trace(model).get_trace()
    trace.compute_log_prob()
    return trace.nodes["attend.alignment"]["log_prob"]


def by_hand(factor, query, key, query_mask, key_mask):
    given = {"query_mask": query_mask, "key_mask": key_mask}
    if factor.method.method == "ct":
        return conditional_transport(query, key, navigator=factor.navigator, critic=factor.critic, **given)
    if factor.method.method == "gan":
        return adversarial(query, key, discriminator=factor.discriminator, **given)
    if factor.method.method == "ot":
        return sinkhorn(query, key, sweeps=20, **given)
    return mmd(query, key, bandwidth=median_bandwidth(query, key, **given), **given)


@pytest.mark.parametrize("method", METHODS)
def test_the_factor_is_minus_the_weighted_divergence_of_each_sample(method):
    factor = AlignmentAttention(method, weight=0.25).build(2, 4).eval()
    found = log_factor(factor, *tokens(), *masks())
    assert found.shape == (3,)
    torch.testing.assert_close(found, -0.25 * by_hand(factor, *tokens(), *masks()).sum(-1))
    averaged = AlignmentAttention(method, weight=0.25, reduction="mean").build(2, 4, num_sites=3).eval()
    torch.testing.assert_close(log_factor(averaged, *tokens(), *masks()), found / 6)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("weight", [0.0, 0.01, 3.0])
def test_queries_and_keys_learn_from_the_weighted_divergence_and_networks_from_the_plain_one(method, weight):
    factor = AlignmentAttention(method, weight=weight).build(2, 4)
    parties = [*tokens(), *factor.parameters()]
    plain = torch.autograd.grad(by_hand(factor, *parties[:2], *masks()).sum(), parties)
    value = log_factor(factor, *parties[:2], *masks())
    found = torch.autograd.grad(-value.sum(), parties)
    assert bool((value == 0).all()) == (weight == 0)
    for own, expected in zip(found[:2], plain[:2], strict=True):
        torch.testing.assert_close(own, weight * expected)
    assert len(found) > 2 or method in {"ot", "mmd"}
    for own, expected in zip(found[2:], plain[2:], strict=True):
        assert expected.abs().max() > 0
        torch.testing.assert_close(own, expected)


@pytest.mark.parametrize("num_data", [3, 12])
def test_the_objective_holds_its_mean_over_the_batch_whatever_the_size_of_the_data(num_data):
    factor = AlignmentAttention("ct", weight=0.5).build(2, 4)
    query, key = tokens()

    def model():
        with pyro.plate("data", num_data, subsample=torch.arange(3)):
            factor("attend", query, key)
            pyro.sample("y", dist.Normal(query.sum((1, 2, 3)), 1.0), obs=torch.zeros(3))

    terms = AttentionELBO()(model, AttentionGuide(model))()
    expected = -0.5 * factor.divergence(query, key).sum(-1).mean()
    torch.testing.assert_close(terms.factors, expected)
    torch.testing.assert_close(terms.loss, -terms.log_likelihood - expected)
    assert terms.kl == 0
    for elbo in (Trace_ELBO(), TraceMeanField_ELBO(), AttentionELBO()):
        loss = elbo.differentiable_loss(model, AttentionGuide(model))
        torch.testing.assert_close(torch.as_tensor(loss), num_data * terms.loss, rtol=1e-4, atol=0)


def test_pyros_own_loop_trains_it():
    """Two clouds a constant apart; the likelihood leaves their distance free."""
    torch.manual_seed(0)
    pyro.clear_param_store()
    cloud = torch.randn(4, 1, 20, 2)
    factor = AlignmentAttention("mmd", weight=1.0, bandwidth=2.0).build(1, 2)

    def model():
        shift = pyro.param("shift", torch.tensor([2.0, -1.0]))
        pyro.module("align", factor)
        with pyro.plate("data", 4):
            factor("attend", cloud, cloud + shift)

    svi = SVI(model, lambda: None, pyro.optim.Adam({"lr": 0.1}), Trace_ELBO())
    losses = [svi.step() for _ in range(60)]
    assert losses[-1] < 0.05 * losses[0]
    assert pyro.param("shift").norm() < 0.3
    pyro.clear_param_store()


def test_without_a_handler_it_does_nothing_and_refuses_to_train():
    factor = AlignmentAttention().build(2, 4)
    message = r"'attend.alignment': training without a driver would leave the alignment out"
    with pytest.raises(RuntimeError, match=message):
        factor("attend", *tokens())
    with torch.no_grad():
        assert factor("attend", *tokens()) is None
    assert factor.eval()("attend", *tokens()) is None


def test_it_is_computed_once_and_only_for_a_density(monkeypatch):
    calls = []
    plain = AlignmentFactor.divergence
    monkeypatch.setattr(
        AlignmentFactor, "divergence", lambda self, *given: calls.append(1) or plain(self, *given)
    )
    factor = AlignmentAttention().build(2, 4)

    def model():
        with pyro.plate("data", 3):
            factor("attend", *tokens())

    guide = AttentionGuide(model)
    guide()
    trace = poutine.trace(model).get_trace()
    assert not calls and trace.nodes["attend.alignment"]["is_observed"]
    trace.compute_log_prob()
    trace.log_prob_sum()
    assert len(calls) == 1


def test_grouped_keys_are_compared_with_each_of_their_query_heads():
    query, key = tokens(heads=4)
    factor = AlignmentAttention("ct").build(4, 4)
    shared = key[:, :2]
    torch.testing.assert_close(
        log_factor(factor, query, shared), log_factor(factor, query, shared.repeat_interleave(2, dim=1))
    )
    with pytest.raises(ValueError, match=r"'attend.alignment': expected 4 query heads, got 2"):
        log_factor(factor, *tokens())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("method", METHODS)
def test_half_precision_gives_a_float32_factor(method, dtype):
    factor = AlignmentAttention(method, weight=1.0).build(2, 4).eval()
    query, key = (tensor.detach().to(dtype).requires_grad_() for tensor in tokens())
    with torch.autocast("cpu", dtype):
        value = log_factor(factor, query, key)
    value.sum().backward()
    assert value.dtype == torch.float32
    assert query.grad.dtype == dtype and bool(query.grad.isfinite().all() and key.grad.isfinite().all())
    torch.testing.assert_close(value, log_factor(factor, query.float(), key.float()), rtol=1e-5, atol=1e-5)


def test_building_draws_from_a_generator_of_its_own():
    state = torch.get_rng_state()
    first, same, other = (AlignmentAttention("ct", seed=seed).build(2, 4) for seed in (1, 1, 2))
    source = torch.Generator().manual_seed(1)
    one, two = (AlignmentAttention("ct").build(2, 4, generator=source) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), state)
    weights = [net.critic.output.weight for net in (first, same, other, one, two)]
    assert torch.equal(weights[0], weights[1]) and torch.equal(weights[0], weights[3])
    assert not torch.equal(weights[0], weights[2]) and not torch.equal(weights[0], weights[4])


@pytest.mark.parametrize("method", METHODS)
def test_copies_and_pickles_carry_everything(method):
    factor = AlignmentAttention(method, max_tokens=4, weight=0.5).build(2, 4)
    expected = log_factor(factor, *tokens())
    for other in (copy.deepcopy(factor), pickle.loads(pickle.dumps(factor))):
        other.draws -= 1
        assert torch.equal(log_factor(other, *tokens()), expected)


@pytest.mark.parametrize("size", [1.0, 0.1])
def test_the_median_bandwidth_is_that_of_the_first_training_step(size):
    factor = AlignmentAttention("mmd").build(2, 4)
    query, key = (size * each for each in tokens())
    with torch.no_grad():
        log_factor(factor.train(), query, key)
    assert bool((factor.bandwidth == 0).all()), "evaluation freezes nothing"
    log_factor(factor.eval(), query, key)  # training without dropout
    first = median_bandwidth(query, key)
    torch.testing.assert_close(factor.bandwidth, first)
    log_factor(factor, 3 * query, 3 * key)
    torch.testing.assert_close(factor.bandwidth, first)
    torch.testing.assert_close(
        factor.divergence(3 * query, 3 * key), mmd(3 * query, 3 * key, bandwidth=first)
    )


@pytest.mark.parametrize("method", ["gan", "ct", "ot", "mmd"])
def test_a_wrong_size_of_heads_is_named(method):
    factor = AlignmentAttention(method).build(2, 4)
    query, key = tokens()
    wide = torch.cat([query, query], dim=-1)
    with pytest.raises(ValueError, match=r"site 'attend.alignment': expected queries of size 4, got 8"):
        log_factor(factor, wide, key)
    with pytest.raises(ValueError, match=r"AlignmentFactor.divergence: expected keys of size 4, got 3"):
        factor.divergence(query, key[..., :3])


def test_coincident_points_have_no_median_and_a_divergence_of_0():
    factor = AlignmentAttention("mmd").build(2, 4)
    query = torch.zeros(3, 2, 5, 4, requires_grad=True)
    value = log_factor(factor, query, query)
    value.sum().backward()
    assert bool((value == 0).all()) and bool((query.grad == 0).all())
    assert bool((factor.bandwidth == 0).all())


def test_a_head_without_a_median_takes_the_next_and_leaves_the_others_theirs():
    factor = AlignmentAttention("mmd").build(2, 4)
    query, key = (0.1 * each.detach() for each in tokens())
    apart = median_bandwidth(query, key)
    query[:, 1], key[:, 1] = 0.0, 0.0
    log_factor(factor, query, key)
    assert factor.bandwidth[1] == 0
    log_factor(factor, *(0.3 * each.detach() for each in tokens()))
    torch.testing.assert_close(factor.bandwidth, apart * torch.tensor([1.0, 3.0]))


@pytest.mark.parametrize(("queries", "keys"), [(9, 3), (3, 9)])
def test_either_set_alone_is_thinned(queries, keys):
    factor = AlignmentAttention("mmd", max_tokens=4, bandwidth=2.0).build(2, 2)
    log_factor(factor, *tokens(queries=queries, keys=keys, size=2))
    assert factor.draws == 1


def test_a_large_set_is_thinned_by_numbers_of_its_own():
    factor = AlignmentAttention("mmd", max_tokens=4, bandwidth=2.0).build(2, 4)
    query, key = tokens()
    state = torch.get_rng_state()
    values = [log_factor(factor, query, key) for _ in range(3)]
    assert torch.equal(torch.get_rng_state(), state)
    assert factor.draws == 3 and not torch.equal(values[0], values[1])
    factor.draws.fill_(1)
    assert torch.equal(log_factor(factor, query, key), values[1])
    with torch.no_grad():
        again = [log_factor(factor, query, key) for _ in range(2)]
    assert torch.equal(*again) and factor.draws == 2
    small = AlignmentAttention("mmd", max_tokens=6, bandwidth=2.0).build(2, 4)
    everything = AlignmentAttention("mmd", bandwidth=2.0).build(2, 4)
    assert torch.equal(log_factor(small, query, key), log_factor(everything, query, key))
    assert small.draws == 0


def test_a_subset_takes_tokens_that_count_and_each_of_them_sometimes():
    source = torch.Generator().manual_seed(0)
    everything = torch.arange(10.0).view(1, 1, 10, 1).repeat(2, 3, 1, 1)
    mask = torch.stack([torch.arange(10) % 2 == 0, torch.arange(10) < 2])  # five tokens, two tokens
    seen = torch.zeros(2, 10)
    for _ in range(100):
        kept, valid = random_subset(everything, mask, 3, source)
        assert kept.shape == (2, 3, 3, 1) and valid.shape == (2, 1, 3)
        assert torch.equal(kept[:, 0], kept[:, 2])
        assert valid.sum(-1).squeeze(1).tolist() == [3, 2]
        for sample in range(2):
            chosen = kept[sample, 0, valid[sample, 0], 0].long()
            assert len(set(chosen.tolist())) == len(chosen)
            seen[sample, chosen] += 1
    assert bool((seen[~mask] == 0).all())
    expected = torch.tensor([60.0, 100.0])
    for sample in range(2):
        assert (seen[sample][mask[sample]] - expected[sample]).abs().max() < 20


def test_the_papers_settings():
    paper = AlignmentAttention.paper("ot", weight=0.1)
    assert (paper.debias, paper.weight, paper.reduction, paper.epsilon) == (False, 0.1, "sum", 0.01)
    assert AlignmentAttention.paper() == AlignmentAttention(sweeps=50, debias=False)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("method", METHODS)
def test_a_cast_network_keeps_its_factor_in_float32(method, dtype):
    factor = AlignmentAttention(method).build(2, 4).to(dtype)
    assert all(tensor.dtype != dtype for tensor in (*factor.parameters(), *factor.buffers()))
    query, key = (tensor.detach().to(dtype).requires_grad_() for tensor in tokens())
    log_factor(factor, query, key).sum().backward()
    assert query.grad.isfinite().all() and key.grad.isfinite().all()
    assert all(tensor.dtype == torch.float64 for tensor in factor.double().parameters())
