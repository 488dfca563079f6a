"""Presets of the authors' codes, against their formulas written out."""

import math

import numpy as np
import pytest
import torch
import transformers as hf
from torch.nn import functional as F

import probattn
from probattn import AlignmentAttention, BayesianAttention, RepulsiveAttention
from probattn.inference import OptimizerOptions, SVGDDriver, SVIDriver, posterior_moments, posterior_predict
from probattn.models import Classifier, convert, revert
from probattn.particles import ReleaseRBF
from probattn.sites import AttentionMask, AttentionSite, SiteSpec, alignment
from probattn.sites.layout import PAIRS
from probattn.sites.noise import GlobalNoise
from probattn.sites.posterior import SitePosterior
from probattn.sites.prior import site_prior
from probattn.tasks.sections.methods import AlignmentRecipe, AttentionRecipe, RepulsionRecipe

HEADS, SIZE, LENGTH = 3, 4, 5
REAL = torch.tensor([[True] * LENGTH, [True] * 3 + [False] * 2])
EVERYWHERE = {"layers": "all", "attention": "all"}
EULER = 0.5772156649015329


def normal(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def bert(**options):
    torch.manual_seed(0)
    sizes = {"vocab_size": 40, "hidden_size": 12, "num_attention_heads": HEADS, "intermediate_size": 16}
    config = hf.BertConfig(**sizes, num_hidden_layers=2, max_position_embeddings=16, **options)
    return hf.BertForSequenceClassification(config).eval()


def batch(rows=6):
    ids = torch.randint(1, 40, (rows, LENGTH), generator=torch.Generator().manual_seed(1))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": torch.arange(rows) % 2}


def site(**options):
    torch.manual_seed(3)
    method = BayesianAttention.release(**options)
    return AttentionSite(method, SiteSpec(HEADS, SIZE, max_positions=LENGTH)).double().eval()


def softplus(values):
    return torch.log(1 + torch.exp(values))


def by_hand(made, query, key, mask=None):
    """k, lambda and log-softmax scores as the code of MCAN computes them, in one layer."""
    forbidden = 0.0 if mask is None else torch.where(mask[:, None, None], 0.0, -1e9)

    def scores(query, key):
        return (query @ key.mT / math.sqrt(SIZE) + forbidden).log_softmax(-1)

    def projected(linear, tensor):
        across = tensor.transpose(1, 2).flatten(2)
        return linear(across).unflatten(-1, (HEADS, SIZE)).transpose(1, 2)

    first = scores(query, key)
    second = scores(projected(made.separate.query, query), projected(made.separate.key, key))
    maps, length = made.upward, query.shape[2]

    def mapped(mix, state):
        return softplus(mix.weight[:length, :length] @ state + mix.bias[:length, None])

    hidden = mapped(maps.hidden, first.exp()) * 1e-6
    k = 1.7 * mapped(maps.concentration, hidden) + second.exp() + 0.05
    scale = 1e-6 * mapped(maps.scale, hidden) + first.exp() / torch.exp(torch.lgamma(1 + 1 / k))
    return k, scale, first


def test_the_posterior_is_that_of_the_code():
    made, query, key = site(), normal(2, HEADS, LENGTH, SIZE), normal(2, HEADS, LENGTH, SIZE, seed=1)
    k, scale, _ = by_hand(made, query, key)
    law = made.posterior(query @ key.mT / math.sqrt(SIZE), separate=made.separate(query, key, None))
    torch.testing.assert_close(law.concentration, k)
    torch.testing.assert_close(law.log_scale.exp(), scale)


def test_the_expectation_is_that_of_the_code_with_padding():
    made, query, key = site(), normal(2, HEADS, LENGTH, SIZE), normal(2, HEADS, LENGTH, SIZE, seed=1)
    k, scale, _ = by_hand(made, query, key, REAL)
    mean = scale * torch.exp(torch.lgamma(1 + 1 / k)) * REAL[:, None, None]
    mask = AttentionMask(REAL[:, None, None].expand(-1, 1, LENGTH, -1))
    value = normal(2, HEADS, LENGTH, SIZE, seed=2)
    output, weights = made("site", query, key, value, mask)
    torch.testing.assert_close(weights, mean / mean.sum(-1, keepdim=True))
    torch.testing.assert_close(output, weights @ value)


def test_the_divergence_is_that_of_the_code():
    """Which has the scores in place of log lambda: with alpha of 1e-6 no difference shows."""
    made, query, key = site(), normal(2, HEADS, LENGTH, SIZE), normal(2, HEADS, LENGTH, SIZE, seed=1)
    k, scale, phi = by_hand(made, query, key)
    prior = made.prior
    logits = prior.output(torch.relu(prior.hidden(key))).transpose(2, 3)
    alpha, beta = logits.softmax(-1) * 1e-6, 1e-6
    code = -(
        alpha * phi
        - EULER * alpha / k
        - torch.log(k)
        - beta * scale * torch.exp(torch.lgamma(1 + 1 / k))
        + EULER
        + 1.0
        + alpha * math.log(beta)
        - torch.lgamma(alpha)
    )
    scores = query @ key.mT / math.sqrt(SIZE)
    inputs = made._inputs(scores, PAIRS, 0, separate=made.separate(query, key, None))
    posterior = SitePosterior(inputs, site_prior(made.method, prior, key, scores.shape, scores.dtype, PAIRS))
    mean = posterior.kl() * posterior.reduction_factor()
    torch.testing.assert_close(mean, code.mean(dim=(1, 2, 3)), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("mask", [None, AttentionMask(REAL[:, None, None].expand(-1, 1, LENGTH, -1), REAL)])
def test_separate_scores_in_one_sweep_are_those_of_the_distribution(mask):
    made = site(sigma=0.0, prior_strength=1.0)
    query, key = normal(2, HEADS, LENGTH, SIZE), normal(2, HEADS, LENGTH, SIZE, seed=1)
    layout = PAIRS if mask is None else mask
    scores = query @ key.mT / math.sqrt(SIZE)
    scores = scores if mask is None else scores + mask.additive.double()
    inputs = made._inputs(scores, layout, 0, separate=made.separate(query, key, mask))
    prior = site_prior(made.method, made.prior, key, scores.shape, scores.dtype, layout)
    posterior, parameters = SitePosterior(inputs, prior), list(made.separate.parameters())
    posterior.draw(GlobalNoise())
    whole = SitePosterior(inputs, prior).kl()
    torch.testing.assert_close(posterior.kl(), whole)
    gradients = torch.autograd.grad(posterior.kl().sum(), parameters, retain_graph=True)
    for gradient, expected in zip(gradients, torch.autograd.grad(whole.sum(), parameters), strict=True):
        assert expected.abs().max() > 0
        torch.testing.assert_close(gradient, expected)


def test_a_network_trains_predicts_and_is_saved(tmp_path):
    net, data = bert(), batch()
    before = net(**data).logits
    convert(net, BayesianAttention.release())
    torch.testing.assert_close(net(**data).logits, before, rtol=1e-4, atol=1e-5)  # but for sigma
    made = net.bert.encoder.layer[0].attention.self
    names = [name for name, _ in net.named_parameters() if "separate" in name]
    assert len(names) == 2 * 4, made
    start = {name: net.get_parameter(name).detach().clone() for name in names}
    SVIDriver(Classifier(net), batch_size=3, cpu=True, progress=False).fit(data, epochs=2)
    moved = [name for name in names if not net.get_parameter(name).equal(start[name])]
    assert moved == names
    net.eval()
    inputs = {name: data[name] for name in ("input_ids", "attention_mask")}
    assert float(posterior_predict(net, inputs, num_samples=5).logits.std(dim=0).min()) > 0
    assert bool(posterior_moments(net, inputs).std.isfinite().all())
    net.save_pretrained(tmp_path)
    loaded = probattn.from_pretrained(hf.AutoModelForSequenceClassification, tmp_path).eval()
    torch.testing.assert_close(loaded(**data).logits, net(**data).logits)


def test_the_discriminator_and_what_keys_learn_are_those_of_the_code():
    factor = AlignmentAttention.release("gan").build(HEADS, SIZE, num_sites=2).double()
    query, key = (normal(2, HEADS, LENGTH, SIZE, seed=seed).requires_grad_() for seed in (0, 1))
    network = factor.discriminator

    def logits(tokens):
        """Of being a key: here of being a query."""
        gate = network.highway.map(tokens)
        mixed = torch.sigmoid(gate) * torch.relu(gate) + (1 - torch.sigmoid(gate)) * tokens
        return -network.output(torch.relu(network.hidden(mixed)))

    def criterion(values, label):
        return F.binary_cross_entropy_with_logits(values, torch.full_like(values, label))

    loss = criterion(logits(key), 1.0) + criterion(logits(query.detach()), 0.0)
    expected = -0.01 * torch.autograd.grad(loss, key)[0]  # through a gradient reversal
    divergence = factor.divergence(query, key)
    torch.testing.assert_close(divergence.mean(), -loss)
    weight = factor.weight * 2 / 2  # of two sites, in a mean over the batch of 2
    assert factor.weight == pytest.approx(0.01 / (HEADS * 2))
    log_factor = alignment._Aligned(factor, query, key)()
    by_query, by_key = torch.autograd.grad(-log_factor.sum(), (query, key))
    torch.testing.assert_close(by_key / weight, expected / 0.01 * HEADS * 2)
    assert not by_query.any()


@pytest.mark.parametrize("padded", [False, True])
def test_conditional_transport_is_between_the_heads_of_a_token(padded):
    factor = AlignmentAttention.release("ct_heads").build(HEADS, SIZE).double()
    query, key = (normal(2, HEADS, LENGTH, SIZE, seed=seed).requires_grad_() for seed in (0, 1))

    def unit(values):
        return values / values.norm(dim=-1, keepdim=True)

    def critic(tokens):
        network = factor.critic
        gate = network.highway.map(tokens)
        mixed = torch.sigmoid(gate) * torch.relu(gate) + (1 - torch.sigmoid(gate)) * tokens
        return unit(network.output(torch.relu(network.hidden(mixed))))

    def navigator(tokens):
        network = factor.navigator
        return unit(network.output(torch.relu(network.hidden(tokens))))

    across = [tokens.permute(0, 2, 1, 3) for tokens in (key, query)]  # [B, T, H, D]
    cost = torch.cdist(*map(critic, across))
    product = navigator(across[0]) @ navigator(across[1]).mT
    by_token = 0.5 * (cost * product.softmax(-2)).sum(-2) + 0.5 * (cost * product.softmax(-1)).sum(-1)
    real = REAL if padded else torch.ones_like(REAL)
    loss = (by_token.mean(-1) * real).sum(-1) / real.sum(-1)  # of each row
    masks = (REAL, REAL) if padded else ()
    divergence = factor.divergence(query, key, *masks)
    torch.testing.assert_close(divergence.mean(-1), loss)
    parties = [query, key, *factor.parameters()]
    gradients = torch.autograd.grad(divergence.mean(-1).sum(), parties)
    for index, (gradient, plain) in enumerate(
        zip(gradients, torch.autograd.grad(loss.sum(), parties), strict=True)
    ):
        torch.testing.assert_close(gradient, plain if index < 2 else -plain, rtol=1e-5, atol=1e-8)


def test_transport_is_that_of_geomloss():
    geomloss = pytest.importorskip("geomloss")
    query, key = (normal(2, HEADS, LENGTH, SIZE, seed=seed) for seed in (0, 1))
    for scaling, options, tolerance in (
        (0.5, {}, 0.05),
        (0.98, {"sweeps": 50}, 1e-3),
    ):  # as released, and solved
        blur = geomloss.SamplesLoss(loss="sinkhorn", p=2, blur=0.05, scaling=scaling)
        expected = blur(query.flatten(0, 1), key.flatten(0, 1)).view(2, HEADS)
        divergence = AlignmentAttention.release("ot", **options).build(HEADS, SIZE).divergence(query, key)
        torch.testing.assert_close(divergence, expected, rtol=tolerance, atol=tolerance)


def particles_of_the_code(weight):
    """Of a kernel of TensorFlow, ``[in, out]``."""
    kernel = weight.T.numpy()
    return kernel.reshape(-1, HEADS).T


def test_particles_are_features_of_all_heads_moved_as_by_the_code():
    undropped = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    net, plain, data = bert(**undropped), bert(**undropped), batch()
    convert(net, RepulsiveAttention.release(projections=("query",), repulsion=0.7, step_size=0.5))
    plain_steps = OptimizerOptions("SGD", learning_rate=1.0, weight_decay=0.0)
    driver = SVGDDriver(Classifier(net), optimizer=plain_steps, max_grad_norm=None, cpu=True)
    before = plain.bert.encoder.layer[0].attention.self.query.weight.detach().clone()
    plain(**data).loss.backward()
    particles = particles_of_the_code(before)
    gradients = particles_of_the_code(plain.bert.encoder.layer[0].attention.self.query.weight.grad)
    squares = ((particles[:, None] - particles[None]) ** 2).sum(-1)
    width = np.sqrt(0.5 * np.median(squares) / np.log(HEADS + 1.0))
    kernel = np.exp(-squares / width**2 / 2)
    push = (-kernel @ particles + particles * kernel.sum(1, keepdims=True)) / width**2
    update = 0.5 * (kernel @ gradients - 0.7 * push) / HEADS
    driver.step(data)
    revert(net)
    after = net.bert.encoder.layer[0].attention.self.query.weight.detach()
    moved = particles_of_the_code(before - after)
    np.testing.assert_allclose(moved, update, rtol=2e-3, atol=2e-5)


def test_the_bandwidth_counts_the_distances_of_particles_from_themselves():
    particles = normal(4, 6)
    squares = torch.cdist(particles, particles).square().numpy()
    expected = np.median(squares) / np.log(5)
    torch.testing.assert_close(ReleaseRBF().interact(particles, particles).bandwidth.item(), expected)


def test_recipes_have_the_presets():
    assert AttentionRecipe(preset="release").build() == BayesianAttention.release()
    assert AttentionRecipe(preset="paper").build() == BayesianAttention.paper()
    for method in ("gan", "ct_heads", "ot"):
        section = AlignmentRecipe(method=method, preset="release")
        assert section.build() == AlignmentAttention.release(method, **EVERYWHERE)
    assert AlignmentRecipe(preset="release").build() == AlignmentAttention.release(**EVERYWHERE)
    assert RepulsionRecipe(preset="release").build() == RepulsiveAttention.release(attention="all")
    assert RepulsionRecipe(preset="release", weight=0.2).build().repulsion == 0.2


def test_what_does_not_fit_is_refused():
    for options in ({"scores": "raw"}, {"floor": 0.0}):
        with pytest.raises(ValueError, match="expects scores='normalised' and a floor > 0"):
            BayesianAttention.release(**options)
    with pytest.raises(ValueError, match="hidden_scale belongs to the upward path"):
        BayesianAttention.bam(hidden_scale=0.5)
    with pytest.raises(ValueError, match="max_tokens: expected None with 'ct_heads'"):
        AlignmentAttention.release("ct_heads", max_tokens=8)
    scores = normal(1, HEADS, LENGTH, LENGTH)
    with pytest.raises(ValueError, match="expected separate scores where width_scores='separate'"):
        site().posterior(scores)
    with pytest.raises(ValueError, match="width_scores='separate' belongs to a learned concentration"):
        BayesianAttention.bam(width_scores="separate")
    with pytest.raises(ValueError, match="expected 'gan', 'ot' or 'ct_heads'"):
        AlignmentAttention.release("ct")
    with pytest.raises(ValueError, match="expected as many keys as queries"):
        AlignmentAttention.release("ct_heads").build(2, 4).divergence(normal(1, 2, 3, 4), normal(1, 2, 5, 4))
    with pytest.raises(ValueError, match="preset"):
        AlignmentRecipe(method="mmd", preset="release")
