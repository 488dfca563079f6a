"""A call that answers with its weights against the same arithmetic by autograd, and what it keeps."""

import math

import pyro
import pytest
import torch
import transformers as hf
from torch.nn import functional as F

import probattn
from probattn import BayesianAttention
from probattn.distributions import Gamma
from probattn.inference import AttentionELBO, AttentionGuide
from probattn.models import Classifier, convert
from probattn.sites import AttentionMask
from probattn.sites.answers import WeightsPosterior
from probattn.sites.layout import PAIRS
from probattn.sites.mixes import HeadMix, mixed_positive
from probattn.sites.noise import SeededNoise
from probattn.sites.posterior import PosteriorInputs, SitePosterior
from probattn.sites.upward import UpwardOutputs

B, H, T = 2, 3, 5
KEYS = torch.tensor([[True] * 3 + [False] * 2, [True] * 5])
MASKS = {
    "open": None,
    "padding": AttentionMask(KEYS[:, None, None].expand(-1, 1, T, -1), KEYS),
    "causal": AttentionMask(torch.ones(1, 1, T, T, dtype=torch.bool).tril().expand(B, -1, -1, -1)),
    "empty": AttentionMask(torch.ones(B, 1, T, T, dtype=torch.bool).tril(-1), KEYS),
}


def normal(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def by_autograd(method, scores, rise, log_alpha, layout, uniform):
    """W and the KL of section 3.2, entry by entry."""
    phi = layout.log_softmax(scores)
    k = phi.exp() + method.floor + (0 if rise is None else method.rho * rise)
    log_scale = phi - torch.lgamma(1 + 1 / k)
    weights = layout.weights(log_scale + uniform.log().neg().log() / k)
    alpha, g = log_alpha.exp(), 0.57721566490153286061
    terms = alpha * (g / k - log_scale) + k.log() + method.rate * phi.exp()
    terms = terms - alpha * math.log(method.rate) + torch.lgamma(alpha) - g - 1
    return weights, layout.total(terms)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("mask", list(MASKS))
@pytest.mark.parametrize("options", [{}, {"rho": 0.0}, {"rate": 0.3, "floor": 0.5}, {"noise": "truncated"}])
def test_weights_kl_and_gradients(options, mask, dtype):
    method, layout = BayesianAttention(**options), PAIRS if MASKS[mask] is None else MASKS[mask]
    scores = normal(B, H, T, T, dtype=dtype)
    scores = (scores if layout is PAIRS else scores + layout.additive.to(dtype)).requires_grad_()
    rise = normal(B, H, T, T, seed=1, dtype=dtype).exp().requires_grad_() if method.rho else None
    log_alpha = normal(B, H, 1, T, seed=2, dtype=dtype).requires_grad_()
    prior = Gamma(log_concentration=log_alpha, rate=method.rate).expand(torch.Size((B, H, T, T)))
    inputs = PosteriorInputs(method, scores, layout, computed=UpwardOutputs(rise))
    posterior = WeightsPosterior(inputs, lambda: prior)
    assert posterior.draw(SeededNoise([4], "cpu")).shape == (B, 0)
    uniform = SeededNoise([4], "cpu").uniform(scores)
    uniform = uniform * 0.8 + 0.1 if method.noise == "truncated" else uniform
    found = posterior.answer, posterior.kl()
    expected = by_autograd(method, scores, rise, log_alpha, layout, uniform)
    leaves = [scores, log_alpha] + ([] if rise is None else [rise])
    pulls = [normal(*each.shape, seed=3, dtype=dtype) for each in found]
    gradients = [
        torch.autograd.grad(each, leaves, [pull.clone() for pull in pulls]) for each in (found, expected)
    ]
    exact = {"rtol": 1e-9, "atol": 1e-10} if dtype == torch.float64 else {"rtol": 2e-4, "atol": 5e-6}
    for ours, plain in zip([*found, *gradients[0]], [*expected, *gradients[1]], strict=True):
        torch.testing.assert_close(ours, plain, **exact)
    density = posterior.event().log_prob(scores.new_empty(B, 0))
    torch.testing.assert_close(density, posterior.kl())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_weights_that_vanish_leave_finite_gradients(dtype):
    """k of 0.05 makes log S so spread that most weights are 0 in the type."""
    scores = (300 * normal(B, H, T, T, dtype=dtype)).requires_grad_()
    rise = torch.zeros_like(scores).requires_grad_()
    inputs = PosteriorInputs(BayesianAttention(), scores, computed=UpwardOutputs(rise))
    posterior = WeightsPosterior(inputs, lambda: Gamma(torch.ones(B, H, T, T, dtype=dtype), 1.0))
    posterior.draw(SeededNoise([4], "cpu"))
    assert (posterior.answer == 0).any()
    loss = (posterior.answer * normal(T, dtype=dtype)).sum() + posterior.kl().sum()
    assert all(each.isfinite().all() for each in torch.autograd.grad(loss, [scores, rise]))


def network():
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 32, "vocab_size": 40}
    config = hf.BertConfig(**sizes, num_hidden_layers=3, initializer_range=0.3, hidden_dropout_prob=0.0)
    return Classifier(convert(hf.BertForSequenceClassification(config), BayesianAttention())).train()


def step(model, length):
    ids = torch.randint(3, 40, (4, length), generator=torch.Generator().manual_seed(1))
    batch = {"input_ids": ids, "attention_mask": (ids > 6).long(), "labels": torch.tensor([0, 1, 1, 0])}
    pyro.set_rng_seed(2)
    return AttentionELBO()(model, AttentionGuide(model)), batch


def test_a_step_of_a_network_is_that_with_whole_maps(monkeypatch):
    found = []
    for whole in (False, True):
        if whole:
            monkeypatch.setattr("probattn.sites.site.can_answer_with_weights", lambda *_: False)
        model = network()
        module, batch = step(model, 7)
        terms = module(batch)
        terms.loss.backward()
        found.append(
            (terms, [p.grad for p in model.parameters() if p.grad is not None], module.diagnostics())
        )
    (ours, gradients, health), (plain, expected, theirs) = found
    torch.testing.assert_close(ours, plain)
    assert len(gradients) == len(expected) > 50
    for one, other in zip(gradients, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
    assert health == {name: pytest.approx(values, rel=1e-5) for name, values in theirs.items()}


def test_what_a_gradient_keeps():
    """log E[S], the state, its softplus and W of a call; and the softmax of the scores that a chain begins with."""
    module, batch = step(network(), 48)
    size = 4 * 2 * 48**2 * 4
    kept = set()

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.nbytes() == size and tensor.is_floating_point():
            kept.add(storage.data_ptr())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        terms = module(batch)
    assert len(kept) == 3 * 4 + 1
    terms.loss.backward()


def test_another_handler_meets_a_value():
    site = probattn.link(BayesianAttention().build(H, 4).eval(), together=False)
    guide, seen = AttentionGuide(lambda: None), []

    class Look(pyro.poutine.messenger.Messenger):
        def _pyro_post_sample(self, msg):
            seen.append((msg["value"].shape, type(msg["infer"]["attention"])))

    tensors = torch.ones(3, B, H, T, 4).unbind()
    with guide.outputs_alone(), guide, pyro.plate("data", B):
        weights = site("site", *tensors)[1]
        with Look():
            assert site("other", *tensors)[1].shape == weights.shape == (B, H, T, T)
    assert seen == [(torch.Size((B, H, T, T)), SitePosterior)]


@pytest.mark.parametrize("piece", [1, 2**18])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_positive_mixes_and_their_gradients(monkeypatch, dtype, piece):
    """Of two windows of a datum next to its heads, from values whose softplus is 0 or the value itself."""
    monkeypatch.setattr("probattn.sites.fused.CPU_PIECE", piece)
    torch.manual_seed(1)
    mixes = [HeadMix(H).to(dtype) for _ in range(2)]
    state = (40 * normal(B, 2 * H, T, T, dtype=dtype)).requires_grad_()
    leaves = [state, *(each for mix in mixes for each in mix.parameters())]
    found = mixed_positive(mixes, state, None)
    expected = [F.softplus(mix(state)) for mix in mixes]
    pulls = [normal(*state.shape, seed=seed, dtype=dtype) for seed in (5, 6)]
    gradients = [torch.autograd.grad(each, leaves, pulls) for each in (found, expected)]
    # Above 20 torch takes the slope for 1, which leaves out 2e-9.
    exact = {"rtol": 1e-8, "atol": 1e-7} if dtype == torch.float64 else {"rtol": 1e-4, "atol": 2e-4}
    for ours, plain in zip([*found, *gradients[0]], [*expected, *gradients[1]], strict=True):
        torch.testing.assert_close(ours, plain, **exact)
