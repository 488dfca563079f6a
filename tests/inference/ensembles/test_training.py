"""Ensembles under the driver: as networks apart, resumed, in sets, clipped, recorded, refused."""

from __future__ import annotations

import math
import shutil

import pytest
import torch
from torch import nn

from probattn import AlignmentAttention, BayesianAttention
from probattn.inference import (
    EarlyStopping,
    EnsembleOptions,
    OptimizerOptions,
    ParticleEnsemble,
    SVGDDriver,
    SVIDriver,
    read_records,
)
from probattn.inference.checkpoint import CheckpointError
from probattn.models import Classifier, convert
from probattn.particles import CollapseWarning

ADAM = OptimizerOptions("AdamW", 3e-2, site_learning_rate=1e-1, weight_decay=0.1)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(4, 6, bias=False), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3)
        )

    def forward(self, x):
        return self.layers(x)


def models(count=4):
    torch.manual_seed(0)
    return [Classifier(Net()) for _ in range(count)]


def data(rows=24):
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(rows, 4, generator=generator)
    return {"x": x, "labels": x[:, :3].argmax(dim=1)}


def driver(kind, model, **options):
    defaults = {"batch_size": 8, "optimizer": ADAM, "log_every": 1, "progress": False, "cpu": True}
    return kind(model, **(defaults | options))


def ensemble_of(nets, **options):
    return ParticleEnsemble(nets[0], len(nets), initial=nets.__getitem__, **options)


@pytest.mark.parametrize("execution", ["loop", "vectorized"])
@pytest.mark.parametrize("limit", [None, 0.3])
@pytest.mark.parametrize("accumulation", [1, 2])
def test_independent_particles_are_networks_trained_apart(execution, limit, accumulation):
    """The same order of data, clipping, groups and decay, for every particle; bit for bit but for reductions."""
    ensemble = ensemble_of(models(), execution=execution)
    options = {"max_grad_norm": limit, "accumulation": accumulation}
    method = EnsembleOptions.independent(4)
    driver(SVGDDriver, ensemble, method=method, **options).fit(data(), steps=7)
    for index, model in enumerate(models()):
        driver(SVIDriver, model, **options).fit(data(), steps=7)
        own = ensemble.particle(index).state_dict()
        for name, value in model.state_dict().items():
            torch.testing.assert_close(own[name], value, atol=2e-5, rtol=2e-5, msg=name)


def test_in_a_loop_without_clipping_they_are_those_networks_bit_for_bit():
    ensemble = ensemble_of(models(), execution="loop")
    options = {"max_grad_norm": None, "optimizer": OptimizerOptions("SGD", 0.5, weight_decay=0.01)}
    driver(SVGDDriver, ensemble, method=EnsembleOptions.independent(4), **options).fit(data(), steps=7)
    for index, model in enumerate(models()):
        driver(SVIDriver, model, **options).fit(data(), steps=7)
        own = ensemble.particle(index).state_dict()
        assert all(torch.equal(own[name], value) for name, value in model.state_dict().items())


def test_networks_with_sites_and_alignment_too_trained_apart(bert):
    """Learning rates of sites and of alignment's networks reach the stacks; noise is the same for one particle."""

    def network():
        torch.manual_seed(3)
        net = convert(bert.classification(), BayesianAttention(), AlignmentAttention("gan"))
        return Classifier(net)

    words = torch.randint(8, 60, (8, 5), generator=torch.Generator().manual_seed(0))
    texts = {"input_ids": words, "labels": torch.arange(8) % 2}
    options = {"batch_size": 4, "optimizer": OptimizerOptions(learning_rate=1e-3)}
    ensemble = ParticleEnsemble(network(), 1, spread=0.0)
    driver(SVGDDriver, ensemble, method=EnsembleOptions.independent(1), **options).fit(texts, steps=3)
    model = network()
    driver(SVIDriver, model, **options).fit(texts, steps=3)
    own = ensemble.particle(0).state_dict()
    before = network().state_dict()
    for name, value in model.state_dict().items():
        torch.testing.assert_close(own[name], value, atol=1e-5, rtol=1e-4, msg=name)
    assert sum(not torch.equal(before[name], value) for name, value in own.items()) > 20


@pytest.mark.parametrize("sampler", ["svgd", "spos", "sgld"])
def test_both_ways_of_running_train_alike(sampler):
    found = {}
    for execution, chunk in (("loop", None), ("vectorized", None), ("vectorized", 3)):
        ensemble = ensemble_of([model.double() for model in models()], execution=execution, chunk_size=chunk)
        double = {**data(), "x": data()["x"].double()}
        method = EnsembleOptions(sampler, prior=1.0, step_size=0.1, seed=4)
        driver(SVGDDriver, ensemble, method=method).fit(double, steps=5)
        found[execution, chunk] = ensemble.state_dict()
    first, *others = found.values()
    for other in others:
        for name, value in first.items():
            torch.testing.assert_close(other[name], value, atol=1e-9, rtol=1e-9, msg=name)


@pytest.mark.parametrize(("sampler", "kernel"), [("svgd", "sliced_rbf"), ("spos", "median_rbf")])
def test_a_run_that_is_resumed_is_the_uninterrupted_one(tmp_path, sampler, kernel):
    method = EnsembleOptions(sampler, kernel=kernel, temperature=1e-4)
    whole, first, resumed = (ensemble_of(models()) for _ in range(3))
    driver(SVGDDriver, whole, method=method).fit(data(), steps=6)
    options = {"method": method, "folder": tmp_path / "run", "checkpoint_every": 2, "keep_last": 9}
    driver(SVGDDriver, first, **options).fit(data(), steps=6)
    for step in (4, 6):
        shutil.rmtree(tmp_path / "run" / "checkpoints" / f"step-{step:06d}")
    driver(SVGDDriver, resumed, **options).fit(data(), steps=6, resume=True)
    for name, value in whole.state_dict().items():
        assert torch.equal(value, first.state_dict()[name]), name
        assert torch.equal(value, resumed.state_dict()[name]), name
    other = options | {"method": EnsembleOptions(sampler, kernel=kernel, repulsion=0.5)}
    with pytest.raises(CheckpointError, match=r"ensemble\.repulsion: checkpoint 1\.0, this run 0\.5"):
        driver(SVGDDriver, ensemble_of(models()), **other).fit(data(), steps=6, resume=True)
    with pytest.raises(CheckpointError, match=r"model\.parameters"):
        driver(SVGDDriver, ensemble_of(models(3)), **options).fit(data(), steps=6, resume=True)


def test_records_validation_metrics_and_early_stopping(tmp_path):
    def accuracy(model, batch):
        return {"accuracy": (model({"x": batch["x"]}).argmax(-1) == batch["labels"]).float()}

    ensemble = ensemble_of(models())
    run = driver(
        SVGDDriver,
        ensemble,
        folder=tmp_path,
        precision="bf16",
        validation_metrics=accuracy,
        early_stopping=EarlyStopping("accuracy", mode="max", patience=30),
    )
    result = run.fit(data(), data(), epochs=20)
    assert result.validation["accuracy"] > 0.8 and result.best_step is not None
    records = [record for record in read_records(tmp_path / "metrics.jsonl") if record["kind"] == "train"]
    assert [set(record["particles"]) for record in records] == [{"model"}] * len(records)
    assert all(math.isfinite(record["gradient_norm"]) for record in records)
    assert set(run.get_named_particles()) == set(ensemble.parameter_names)
    assert "objective" in ensemble.executions and "outputs" in ensemble.executions


def test_the_loss_and_the_gradients_norm_are_means_over_particles():
    ensemble = ensemble_of(models())
    options = {"batch_size": 24, "max_grad_norm": 1e9}
    result = driver(SVGDDriver, ensemble, **options).fit(data(), steps=1)
    alone = [driver(SVIDriver, model, **options).fit(data(), steps=1).train for model in models()]
    assert result.train["loss"] == pytest.approx(sum(record["loss"] for record in alone) / 4, rel=1e-5)
    squares = sum(record["gradient_norm"] ** 2 for record in alone) / 4
    assert result.train["gradient_norm"] == pytest.approx(math.sqrt(squares), rel=1e-4)


@pytest.mark.parametrize(
    ("sets", "names"),
    [
        ("model", ["model"]),
        ("module", ["net.layers.0", "net.layers.1", "net.layers.3"]),
        ("parameter", [f"net.layers.{p}" for p in ("0.weight", "1.weight", "1.bias", "3.weight", "3.bias")]),
    ],
)
def test_sets_have_kernels_of_their_own(sets, names):
    """One step against Eq. 4 of each set, with the gradients of the networks apart."""
    nets = [model.double() for model in models()]
    double = {**data(), "x": data()["x"].double()}
    for number, net in enumerate(nets):
        with torch.no_grad():
            net.net.layers[1].weight.add_(torch.linspace(0, number, 6))
            net.net.layers[1].bias.sub_(number)
    ensemble = ensemble_of(nets)
    before = {name: stack.clone() for name, stack in ensemble.named_particles().items()}
    plain = {"batch_size": 24, "optimizer": OptimizerOptions("SGD", 0.1, weight_decay=0.0), "scheduler": None}
    method = EnsembleOptions(sets=sets, prior=0.5, repulsion=2.0, step_size=0.7)
    run = driver(SVGDDriver, ensemble, method=method, max_grad_norm=None, **plain)
    result = run.fit(double, steps=1)
    assert list(result.train["particles"]) == names
    for net in nets:
        net.train()
        nn.functional.cross_entropy(net({"x": double["x"]}), double["labels"]).backward()
    slopes = {name: torch.stack([net.get_parameter(name).grad for net in nets]) for name in before}
    for owner in names:
        inside = [name for name in before if owner in ("model", name) or name.startswith(f"{owner}.")]
        theta = torch.cat([before[name].flatten(1) for name in inside], dim=1)
        potential = 24 * torch.cat([slopes[name].flatten(1) for name in inside], dim=1) + theta / 0.25
        distances = torch.cdist(theta, theta)
        width = torch.pdist(theta).median() ** 2 / math.log(4)
        kernel = torch.exp(-(distances**2) / width)
        phi = torch.zeros_like(theta)
        for i in range(4):
            for j in range(4):
                phi[i] -= kernel[i, j] * potential[j] / 4
                phi[i] += 2.0 * kernel[i, j] * -2 / width * (theta[j] - theta[i]) / 4
        moved = torch.cat(
            [(ensemble.named_particles()[name] - before[name]).flatten(1) for name in inside], dim=1
        )
        torch.testing.assert_close(moved, 0.1 * 0.7 / 24 * phi, atol=1e-8, rtol=1e-6)


def test_equal_particles_warn_and_stay_finite():
    ensemble = ParticleEnsemble(models(1)[0], 3, spread=0.0)
    with pytest.warns(CollapseWarning, match="model: two particles coincide"):
        driver(SVGDDriver, ensemble).fit(data(), steps=2)
    assert all(parameter.isfinite().all() for parameter in ensemble.parameters())


def test_what_does_not_fit_is_refused():
    ensemble = ensemble_of(models())
    with pytest.raises(
        ValueError, match=r"is an ensemble of particles; train it with probattn\.inference\.SVGDDriver"
    ):
        driver(SVIDriver, ensemble).fit(data(), steps=1)
    with pytest.raises(ValueError, match="it moves whole models, and the model is a Classifier"):
        driver(SVGDDriver, models(1)[0], method=EnsembleOptions())
    with pytest.raises(ValueError, match="an ensemble's gradients are made before the scaling"):
        driver(SVGDDriver, ensemble, precision="fp16")
    with pytest.raises(
        ValueError, match=r"sets: expected one of 'model', 'module', 'parameter', got 'layer'"
    ):
        EnsembleOptions(sets="layer")
    with pytest.raises(ValueError, match=r"EnsembleOptions\.repulsion: expected a number >= 0, got -1"):
        EnsembleOptions(repulsion=-1)
    with pytest.raises(
        ValueError, match=r"EnsembleOptions\.num_data: expected an integer >= 1 or None, got 0"
    ):
        EnsembleOptions(num_data=0)
    unused = models(2)
    for model in unused:
        model.net.spare = nn.Linear(2, 2)
    with pytest.raises(
        ValueError, match=r"net\.spare\.weight, net\.spare\.bias have no gradient.*parameters="
    ):
        driver(SVGDDriver, ensemble_of(unused)).fit(data(), steps=1)
