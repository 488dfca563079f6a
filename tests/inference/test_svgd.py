"""Heads as particles in training: what the optimiser sees, beside other methods, resumed, and refused."""

import math

import numpy as np
import pytest
import torch
from pyro.infer.svgd import RBFSteinKernel

from probattn import AlignmentAttention, BayesianAttention, RepulsiveAttention
from probattn.inference import HeadParticles, OptimizerOptions, SVGDDriver, SVIDriver
from probattn.inference.checkpoint import CheckpointError
from probattn.models import Classifier, convert
from probattn.particles import CollapseWarning, MedianRBF
from probattn.sites import ParticleLayers
from probattn.sites.repulsive import repulsive_heads

SITE = "bert.encoder.layer.0.attention.self"
SGD = OptimizerOptions("SGD", 0.5, weight_decay=0.0)


def network(bert, *methods):
    torch.manual_seed(0)
    net = bert.classification()
    return convert(net, *methods) if methods else net


def data(rows=12):
    generator = torch.Generator().manual_seed(3)
    words = torch.randint(8, 60, (rows, 6), generator=generator)
    return {"input_ids": words, "labels": (words[:, 0] > 30).long()}


def driver(kind, net, **options):
    defaults = {"batch_size": 4, "scheduler": None, "log_every": 1, "progress": False, "cpu": True}
    return kind(Classifier(net), **(defaults | options))


def host_weights(net):
    return {name: tensor.clone() for name, tensor in net.state_dict().items() if "probattn" not in name}


def gradients(bert):
    """The gradient of the plain network's mean loss over all data, by parameter."""
    net = network(bert).eval()
    torch.nn.functional.cross_entropy(net(data()["input_ids"]).logits, data()["labels"]).backward()
    return {name: parameter.grad for name, parameter in net.named_parameters()}


def no_dropout(net):
    for module in net.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    return net


@pytest.mark.parametrize("optimizer", [SGD, OptimizerOptions(learning_rate=1e-3)])
def test_without_repulsion_and_with_the_identity_it_is_the_plain_run_bit_for_bit(bert, optimizer):
    plain = network(bert)
    driver(SVIDriver, plain, optimizer=optimizer).fit(data(), steps=4)
    heads = plain.config.num_attention_heads
    method = RepulsiveAttention(kernel="identity", repulsion=0.0, step_size=float(heads))
    assert math.log2(heads).is_integer()
    repelled = network(bert, method)
    driver(SVGDDriver, repelled, optimizer=optimizer).fit(data(), steps=4)
    for name, tensor in host_weights(plain).items():
        assert torch.equal(tensor, host_weights(repelled)[name]), name


def test_one_step_is_algorithm_1_by_hand(bert):
    """Eq. 4 in NumPy, loop by loop, from the plain network's gradients; contiguous heads."""
    repulsion, step_size, rate = 0.3, 0.7, 0.5
    method = RepulsiveAttention(repulsion=repulsion, step_size=step_size, projections=("query", "value"))
    net = no_dropout(network(bert, method))
    before, grads = host_weights(net), gradients(bert)
    driver(SVGDDriver, net, optimizer=SGD, batch_size=12, max_grad_norm=None).fit(data(), steps=1)
    heads = net.config.num_attention_heads
    for name, old in before.items():
        expected = -rate * grads[name]
        if name.endswith(("self.query.weight", "self.value.weight")):
            theta = old.double().numpy().reshape(heads, -1)
            slope = grads[name].double().numpy().reshape(heads, -1)
            distances = [np.sum((theta[i] - theta[j]) ** 2) for i in range(heads) for j in range(i)]
            width = np.median(np.sqrt(distances)) ** 2 / np.log(heads)
            phi = np.zeros_like(theta)
            for i in range(heads):
                for j in range(heads):
                    kernel = np.exp(-np.sum((theta[j] - theta[i]) ** 2) / width)
                    phi[i] -= kernel * slope[j] / heads
                    phi[i] += repulsion * kernel * -2 / width * (theta[j] - theta[i]) / heads
            expected = torch.from_numpy(rate * step_size * phi).reshape(old.shape).float()
        torch.testing.assert_close(net.state_dict()[name] - old, expected, atol=2e-7, rtol=2e-4, msg=name)


def test_a_normal_prior_pulls_towards_zero(bert):
    """The identity kernel leaves the gradient of U, to which the prior adds theta over its variance and N."""
    found = {}
    for prior in ("uniform", 0.1):
        method = RepulsiveAttention(
            kernel="identity", repulsion=0.0, step_size=1.0, prior=prior, projections="key"
        )
        net = no_dropout(network(bert, method))
        before = host_weights(net)
        driver(SVGDDriver, net, optimizer=SGD, batch_size=12, max_grad_norm=None).fit(data(), steps=1)
        name = f"{SITE}.key.weight"
        found[prior] = net.state_dict()[name] - before[name]
    pull = -0.5 * before[name] / (0.1**2 * 12) / net.config.num_attention_heads  # 1/M of Eq. 4
    torch.testing.assert_close(found[0.1] - found["uniform"], pull, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("sampler", ["spos", "sgld"])
def test_noise_has_the_variance_of_the_equations(bert, sampler):
    method = RepulsiveAttention(sampler, temperature=3.0, step_size=0.02, projections="query")
    net = no_dropout(network(bert, method))
    other = no_dropout(network(bert, RepulsiveAttention(sampler, temperature=1e-16, step_size=0.02)))
    for one in (net, other):
        driver(SVGDDriver, one, optimizer=SGD, batch_size=12, max_grad_norm=None).fit(data(), steps=1)
    noise = (net.state_dict()[f"{SITE}.query.weight"] - other.state_dict()[f"{SITE}.query.weight"]) / 0.5
    # epsilon times the noise of the direction: variance 2 epsilon T / N, with 12 data
    size = noise.numel()
    assert abs(noise.var() / (2 * 0.02 * 3.0 / 12) - 1) < 5 * math.sqrt(2 / size)


def test_it_repels_with_all_methods_at_once(bert):
    methods = [BayesianAttention(), AlignmentAttention("ct"), RepulsiveAttention(repulsion=1.0)]
    net, records = network(bert, *methods), []
    run = driver(SVGDDriver, net, callbacks=[lambda record, _: records.append(record)])
    result = run.fit(data(), steps=3)
    assert result.train["kl"] > 0 and result.train["factors"] != 0
    assert [set(record["particles"]) for record in records] == [set(repulsive_heads(net))] * 3
    for values in result.train["particles"].values():
        assert all(math.isfinite(value) and value > 0 for value in values.values())
    named = run.get_named_particles()
    assert set(named) == set(repulsive_heads(net)) and all(len(heads.shape) == 2 for heads in named.values())


@pytest.mark.parametrize(("sampler", "kernel"), [("svgd", "sliced_rbf"), ("spos", "median_rbf")])
def test_a_run_that_is_resumed_is_the_uninterrupted_one(bert, tmp_path, sampler, kernel):
    method = RepulsiveAttention(sampler, kernel=kernel, temperature=1e-5)
    whole = network(bert, method)
    driver(SVGDDriver, whole).fit(data(), steps=4)
    options = {"folder": tmp_path / "run", "checkpoint_every": 1, "keep_last": 9}
    with_folder = network(bert, method)
    driver(SVGDDriver, with_folder, **options).fit(data(), steps=4)
    for number in (3, 4):
        for found in (tmp_path / "run" / "checkpoints").glob(f"*{number}"):
            for file in sorted(found.rglob("*"), reverse=True):
                file.unlink() if file.is_file() else file.rmdir()
            found.rmdir()
    resumed = network(bert, method)
    driver(SVGDDriver, resumed, **options).fit(data(), steps=4, resume=True)
    for name, tensor in host_weights(whole).items():
        assert torch.equal(tensor, host_weights(with_folder)[name]), name
        assert torch.equal(tensor, host_weights(resumed)[name]), name
    other = network(bert, RepulsiveAttention(sampler, repulsion=0.5))
    with pytest.raises(CheckpointError, match="repulsive"):
        driver(SVGDDriver, other, **options).fit(data(), steps=4, resume=True)


def test_any_kernel_of_pyro_serves(bert):
    net = network(bert, RepulsiveAttention(projections="query", layers="first"))
    run = driver(SVGDDriver, net, kernel=RBFSteinKernel())
    assert run.fit(data(), steps=2).step == 2
    run = driver(SVGDDriver, net, kernel=MedianRBF(bandwidth=2.0))
    assert run.fit(data(), steps=1).train["particles"][f"{SITE}.query"]["bandwidth"] == 2.0


def test_coincident_heads_warn_once_and_stay_finite(bert):
    net = network(bert, RepulsiveAttention(projections="query", layers="first"))
    ((_, heads),) = repulsive_heads(net).values()
    with torch.no_grad():
        heads.parameter.zero_()
    with pytest.warns(CollapseWarning, match=r"self\.query: two particles coincide") as caught:
        driver(SVGDDriver, net, optimizer=OptimizerOptions("SGD", 1e-30)).fit(data(), steps=3)
    assert len([one for one in caught if issubclass(one.category, CollapseWarning)]) == 1
    assert heads.parameter.isfinite().all()


def test_the_wrong_driver_is_refused(bert):
    with pytest.raises(
        ValueError, match=r"has repulsive heads, .* train with probattn\.inference\.SVGDDriver"
    ):
        driver(SVIDriver, network(bert, RepulsiveAttention())).fit(data(), steps=1)
    with pytest.raises(
        ValueError, match=r"Classifier has no repulsive heads, nor layers .*convert\(net, Repulsive"
    ):
        driver(SVGDDriver, network(bert, BayesianAttention())).fit(data(), steps=1)
    with pytest.raises(ValueError, match=r"trained by their losses alone .*probattn\.inference\.SVIDriver"):
        driver(SVGDDriver, network(bert, ParticleLayers(num_particles=2))).fit(data(), steps=1)


def test_a_loop_of_ones_own(bert):
    net = network(bert, RepulsiveAttention(repulsion=5.0)).eval()
    particles = HeadParticles(net, num_data=12)
    before = {name: heads.clone() for name, heads in particles.named_particles().items()}
    with pytest.raises(ValueError, match="its weight has no gradient; call backward first"):
        particles.direct(0)
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    net(data()["input_ids"]).logits.sum().backward()
    particles.direct(0, measure=True)
    optimizer.step()
    after = particles.named_particles()
    moved = [torch.pdist(after[name]).mean() > torch.pdist(heads).mean() for name, heads in before.items()]
    assert all(moved) and set(particles.diagnostics) == set(before)
    with pytest.raises(ValueError, match=r"num_data: expected an integer >= 1, got 0"):
        HeadParticles(net, 0)
