"""Particles where weights are tied, kernels replaced, data without a plate, and batches padded."""

import shutil

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.nn import PyroModule, PyroParam
from torch import nn
from torch.distributions import constraints
from transformers import BertConfig, BertForSequenceClassification

from probattn import RepulsiveAttention, convert
from probattn.inference import (
    AttentionELBO,
    AttentionGuide,
    HeadParticles,
    OptimizerOptions,
    ParticleEnsemble,
    SchedulerOptions,
    SVGDDriver,
    SVIDriver,
)
from probattn.inference.checkpoint import CheckpointError
from probattn.inference.ensembles.particles import EnsembleOptions
from probattn.models import Classifier
from probattn.particles import LinearKernel, MedianRBF, SlicedRBF, UnsmoothedKernel, svgd_direction
from probattn.sites.particle_layers import ParticleLayers, bootstrap_weights

BATCH = {"input_ids": torch.arange(1, 33).reshape(8, 4) % 9, "labels": torch.arange(8) % 2}
PLAIN = {
    "optimizer": OptimizerOptions("SGD", 0.05, weight_decay=0.0),
    "scheduler": None,
    "cpu": True,
    "progress": False,
    "max_grad_norm": None,
}


def untied(layers):
    assert layers[0].attention.self.key.weight is not layers[0].attention.self.query.weight


def bert(tie=untied, **options):
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 8}
    net = BertForSequenceClassification(BertConfig(vocab_size=9, initializer_range=1.0, **sizes)).eval()
    tie(net.bert.encoder.layer)
    return convert(net, RepulsiveAttention(**options))


def moved(net, kernel=None):
    """The gradient of the first queries' weight as the loss has it, and as the optimiser receives it."""
    weight = net.bert.encoder.layer[0].attention.self.query.weight
    AttentionELBO()(model := Classifier(net), AttentionGuide(model))(BATCH).loss.backward()
    gradient = weight.grad.clone()
    HeadParticles(net, 8, kernel).direct(0)
    return weight.detach().view(2, -1), gradient.view(2, -1), weight.grad.view(2, -1)


def tied_keys(layers):
    for layer in layers:
        layer.attention.self.key.weight = layer.attention.self.query.weight


def tied_layers(layers):
    layers[1].attention.self.query.weight = layers[0].attention.self.query.weight


@pytest.mark.parametrize("tie", [untied, tied_keys, tied_layers])
def test_a_weight_of_several_projections_moves_once(tie):
    method = RepulsiveAttention()
    particles, gradient, received = moved(bert(tie))
    direction = svgd_direction(particles, gradient, MedianRBF(), method.repulsion)
    torch.testing.assert_close(received, -method.step_size * direction)


def test_without_smoothing_any_kernel_repels_alone():
    *expected, received = moved(bert(smoothing=False), MedianRBF())
    method = RepulsiveAttention()
    direction = svgd_direction(*expected, UnsmoothedKernel(MedianRBF()), method.repulsion)
    torch.testing.assert_close(received, -method.step_size * direction)


class Line(PyroModule):
    """A regression whose noise is a parameter in one of three ways."""

    def __init__(self, noise="module"):
        super().__init__()
        self.line, self.noise = nn.Linear(2, 1), noise
        if noise == "module":
            self.sigma = PyroParam(torch.tensor(1.0), constraint=constraints.positive)

    def forward(self, batch):
        sigma = self.sigma if self.noise == "module" else 1.0
        if self.noise == "statement":
            sigma = pyro.param("sigma", torch.tensor(1.0), constraint=constraints.positive)
        with pyro.plate("data", len(batch["x"])):
            pyro.sample("y", dist.Normal(self.line(batch["x"]).squeeze(-1), sigma), obs=batch["y"])


def rows(number=8):
    generator = torch.Generator().manual_seed(1)
    return {"x": torch.randn(number, 2, generator=generator), "y": torch.zeros(number)}


@pytest.mark.parametrize("whole", [False, True])
def test_a_parameter_that_no_optimiser_has_is_refused(whole):
    def train(noise):
        model = Line(noise)
        driver = SVGDDriver(ParticleEnsemble(model, 2), **PLAIN) if whole else SVIDriver(model, **PLAIN)
        driver.fit(rows(), steps=3)
        return driver.model.state_dict()

    with pytest.raises(
        ValueError, match=r"got pyro.param\('sigma'\), which no optimiser would train; make it a"
    ):
        train("statement")
    trained = [value for name, value in train("module").items() if "sigma" in name]
    assert trained and all((value != 0).all() for value in trained)  # log sigma


@pytest.mark.parametrize("kernel", [MedianRBF, lambda: SlicedRBF(generator=torch.Generator().manual_seed(3))])
def test_a_resumed_run_has_the_kernel_of_the_run(tmp_path, kernel):
    def fit(kernel, resume=False):
        torch.manual_seed(0)
        ensemble = ParticleEnsemble(Line(), 3)
        options = {"batch_size": 4, "checkpoint_every": 5, "keep_last": 2, "folder": tmp_path, **PLAIN}
        SVGDDriver(ensemble, kernel=kernel, **options).fit(rows(), steps=10, resume=resume)
        return torch.cat([value.flatten() for value in ensemble.named_particles().values()])

    whole = fit(kernel())
    shutil.rmtree(tmp_path / "checkpoints" / "step-000010")
    with pytest.raises(CheckpointError, match="kernel"):
        fit(LinearKernel(), resume=True)
    assert torch.equal(fit(kernel(), resume=True), whole)


@pytest.mark.parametrize(
    ("sampler", "changes", "warned"),
    [
        ("sgld", {"scheduler": SchedulerOptions("linear")}, True),
        ("sgld", {}, False),
        ("svgd", {"scheduler": SchedulerOptions("linear")}, False),
        ("spos", {"scheduler": SchedulerOptions("linear"), "optimizer": OptimizerOptions()}, False),
    ],
)
def test_noise_under_a_schedule_is_warned_of(recwarn, sampler, changes, warned):
    driver = SVGDDriver(ParticleEnsemble(Line(), 2), method=EnsembleOptions(sampler), **(PLAIN | changes))
    driver.fit(rows(), steps=2)
    told = [item for item in recwarn if "set scheduler=None to sample" in str(item.message)]
    assert len(told) == warned and all(item.filename == __file__ for item in told)


class Branches(Line):
    """A line that takes its second half only where its outputs are positive."""

    def __init__(self, offset):
        super().__init__()
        self.further = nn.Linear(1, 1)
        nn.init.constant_(self.line.bias, offset)

    def forward(self, batch):
        values = self.line(batch["x"])
        if values.mean() > 0:
            values = self.further(values)
        with pyro.plate("data", len(values)):
            pyro.sample("y", dist.Normal(values.squeeze(-1), self.sigma), obs=batch["y"])


def test_particles_may_take_different_branches():
    offsets = (-5.0, 5.0, -5.0)
    torch.manual_seed(0)
    models = [Branches(offset) for offset in offsets]
    ensemble = ParticleEnsemble(models[0], 3, initial=lambda number: models[number], execution="loop")
    before = ensemble.named_particles()["further.weight"].clone()
    SVGDDriver(ensemble, method=EnsembleOptions.independent(3), **PLAIN).fit(rows(), steps=1)
    changed = (ensemble.named_particles()["further.weight"] != before).flatten(1).any(dim=1)
    assert changed.tolist() == [False, True, False]


def test_the_size_of_the_data_is_that_of_its_tensors():
    def step(batch, **options):
        torch.manual_seed(0)
        ensemble = ParticleEnsemble(Line(), 3)
        SVGDDriver(ensemble, method=EnsembleOptions(prior=0.1), **PLAIN).step(batch, **options)
        return ensemble.named_particles()["line.weight"]

    expected = step(rows())
    assert torch.equal(step({"temperature": 2.0, **rows()}), expected)
    shared = {"shared": torch.ones(2), **rows()}
    assert torch.equal(step(shared, num_data=8), expected)
    with pytest.raises(ValueError, match=r"step: expected num_data, .* got dict with rows 2, 8"):
        step(shared)


@pytest.mark.parametrize(
    ("options", "what"), [({"prior": 0.1}, "prior"), ({"sampler": "spos"}, "noise"), ({}, None)]
)
def test_a_sum_over_data_is_no_mean(options, what):
    class Summed(PyroModule):
        def __init__(self, net):
            super().__init__()
            self.net = net

        def forward(self, batch):
            logits = self.net(input_ids=batch["input_ids"]).logits
            pyro.sample("y", dist.Categorical(logits=logits).to_event(1), obs=batch["labels"])

    driver = SVGDDriver(Summed(bert(**options)), **PLAIN)
    if what is None:
        assert driver.step(BATCH)
        return
    with pytest.raises(
        ValueError, match=f"its {what} is that of 8 data beside their mean loss: expected a program"
    ):
        driver.step(BATCH)


@pytest.mark.parametrize("embedded", [False, True])
def test_weights_of_the_bootstrap_do_not_depend_on_the_padding(embedded):
    method = ParticleLayers(num_particles=4, bootstrap=True)
    texts = torch.randint(1, 9, (5, 3), generator=torch.Generator().manual_seed(0))
    if embedded:
        texts = torch.randn(5, 3, 4, generator=torch.Generator().manual_seed(0))

    def weights(width, left):
        columns = slice(width - 3, None) if left else slice(0, 3)
        padded, mask = (
            torch.full((5, width, *texts.shape[2:]), 7).to(texts),
            torch.zeros(5, width, dtype=torch.long),
        )
        padded[:, columns], mask[:, columns] = texts, 1
        return bootstrap_weights(method, {"inputs": padded, "attention_mask": mask}, 5)

    expected = weights(3, left=False)
    assert len(expected.unique()) > 1
    for width in (3, 5, 8):
        for left in (False, True):
            assert torch.equal(weights(width, left), expected), (width, left)
