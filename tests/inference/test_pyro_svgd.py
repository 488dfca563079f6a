"""Pyro's own engine with heads and layers for particles, and Pyro's examples with the kernels of this library."""

import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import SVGD, SVI, RBFSteinKernel, TraceMeanField_ELBO
from pyro.infer.svgd import IMQSteinKernel
from torch import nn

from probattn import BayesianAttention, MultiheadAttention, ParticleLayers, RepulsiveAttention
from probattn.inference import (
    AttentionELBO,
    AttentionGuide,
    HeadParticles,
    HeadSVGD,
    OptimizerOptions,
    SVGDDriver,
    posterior_predict,
)
from probattn.inference.particle_update import particle_sets
from probattn.models import Classifier, convert
from probattn.particles import (
    CosineKernel,
    IdentityKernel,
    InverseMultiquadric,
    LinearKernel,
    MarginalRBF,
    MedianRBF,
    ParticleKernel,
    PyroKernel,
    SlicedRBF,
    UnsmoothedKernel,
    svgd_direction,
)

SITE = "bert.encoder.layer.0.attention.self"
RATE = 1e-2
ROWS = 12


@pytest.fixture(autouse=True)
def _empty_store():
    pyro.clear_param_store()
    yield
    pyro.clear_param_store()


class Exact(Classifier):
    """A classifier whose likelihood is that of logits in their own type."""

    def observe(self, prediction, labels, inputs):
        label = None if labels is None else labels["labels"]
        pyro.sample(
            "label", dist.Categorical(logits=prediction), obs=label, infer={"prediction": label is None}
        )


def heads(**options):
    return RepulsiveAttention(
        projections="query", layers="first", **({"repulsion": 0.05, "step_size": 1.0} | options)
    )


def layers(**options):
    defaults = {"num_particles": 4, "layers": "last", "repulsion": 0.05, "step_size": 1.0, "spread": 0.1}
    return ParticleLayers("svgd", **(defaults | options))


def program(family, *methods, **options):
    """In float64, without dropout."""
    torch.manual_seed(0)
    net = family.classification().double()
    for module in net.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return Exact(convert(net, *methods) if methods else net, **options).train()


def data(rows=ROWS):
    generator = torch.Generator().manual_seed(3)
    words = torch.randint(8, 60, (rows, 6), generator=generator)
    return {"input_ids": words, "labels": (words[:, 0] > 30).long()}


def rivals(family, *methods, kernel, num_data=None):
    """Pyro's step on one network, the same by :class:`HeadParticles` and torch on a copy, and the two programs."""
    ours, theirs = (program(family, *methods, num_data=num_data) for _ in range(2))
    engine = HeadSVGD(ours, kernel, pyro.optim.SGD({"lr": RATE}))
    rows = ROWS if num_data is None else num_data
    same = kernel if isinstance(kernel, ParticleKernel) else PyroKernel(kernel, "univariate")
    particles = HeadParticles(theirs, rows, kernel=same)
    trained = [parameter for parameter in theirs.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=RATE * rows)  # of a mean over data
    objective = AttentionELBO()(theirs, AttentionGuide(theirs))

    def step(number):
        torch.manual_seed(number)
        squares = engine.step(data())
        torch.manual_seed(number)
        optimizer.zero_grad()
        objective(data()).loss.backward()
        particles.direct(number)
        expected = {name: rows**2 * size for name, size in particles.mean_squared_gradients().items()}
        optimizer.step()
        assert squares == pytest.approx(expected, rel=1e-12)

    return step, ours, theirs, engine


KERNELS = [
    MedianRBF(),
    InverseMultiquadric(),
    LinearKernel(offset=3.0),
    CosineKernel(),
    IdentityKernel(),
    MarginalRBF(),
    PyroKernel(RBFSteinKernel(), "multivariate"),
    RBFSteinKernel(),
    IMQSteinKernel(),
]


@pytest.mark.parametrize("method", [heads, layers], ids=["heads", "layers"])
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: type(kernel).__name__)
def test_a_step_of_pyros_engine_is_that_of_head_particles(bert, kernel, method):
    """All weights, those that are no particles included, relative to the length of a particle's move."""
    step, ours, theirs, engine = rivals(bert, method(prior=0.5), kernel=kernel)
    ((name, before),) = engine.get_named_particles().items()
    step(0)
    move = engine.get_named_particles()[name] - before
    size = move.abs().max()
    assert size > 1e-6
    for (weights, one), other in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        assert (one - other).abs().max() <= 1e-12 * max(1, size), weights


@pytest.mark.parametrize(
    "methods",
    [
        (heads(),),
        (layers(),),
        (layers(bootstrap=True),),
        (heads(), BayesianAttention()),
        (layers(), BayesianAttention()),
    ],
    ids=["heads", "layers", "bootstrap", "latent-heads", "latent-layers"],
)
@pytest.mark.parametrize("num_data", [None, 100, 4 * ROWS])
def test_several_steps_on_samples_of_the_data_and_with_latent_attention(bert, methods, num_data):
    """4 * ROWS data are as many as a batch of the particles of layers has rows."""
    step, ours, theirs, _ = rivals(bert, *methods, kernel=MedianRBF(), num_data=num_data)
    before = [parameter.clone() for parameter in ours.parameters()]
    for number in range(4):
        step(number)
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
    assert sum(not torch.equal(old, one) for old, one in zip(before, ours.parameters(), strict=True)) > 10


def test_a_fused_and_transposed_weight(by_name):
    """The keys and values of GPT-2's weight follow their plain gradients."""
    step, ours, theirs, _ = rivals(by_name["gpt2"], heads(), kernel=MedianRBF())
    for number in range(2):
        step(number)
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_the_network_holds_the_heads_and_runs_once_a_step(bert):
    assert "step" not in vars(HeadSVGD) and HeadSVGD.step is SVGD.step
    model, calls = program(bert, heads()), []
    adam = pyro.optim.Adam({"lr": 1e-3})
    engine = HeadSVGD(model, MedianRBF(), adam)
    model.net.register_forward_pre_hook(lambda *_: calls.append("forward"))
    model.net.classifier.weight.register_hook(lambda *_: calls.append("backward"))
    ((name, before),) = engine.get_named_particles().items()
    assert list(engine.step(data())) == [name] == [f"{SITE}.query"]
    assert calls == ["forward", "backward"]
    after = engine.get_named_particles()[name]
    assert torch.equal(pyro.param("svgd_particles").detach().view_as(after), after)
    assert torch.equal(after.view(-1), model.net.get_parameter(f"{SITE}.query.weight").view(-1))
    assert not torch.equal(before, after)
    weights = model.net.get_parameter(f"{SITE}.query.weight"), model.net.classifier.weight
    assert [bool(adam.optim_objs[weight].state) for weight in weights] == [False, True]


def test_layers_run_their_trunk_once_a_step(bert):
    """The first layer reads the rows of the batch, the last one those of all particles."""
    model = program(bert, layers())
    engine = HeadSVGD(model, MedianRBF(), pyro.optim.Adam({"lr": 1e-3}))
    rows = {0: [], 1: []}
    for number, layer in enumerate(model.net.bert.encoder.layer):
        dense = layer.intermediate.dense
        forward = dense.forward

        def noted(hidden, number=number, forward=forward):
            rows[number].append(len(hidden))
            return forward(hidden)

        vars(dense)["forward"] = noted
    engine.step(data())
    assert sum(rows[0]) <= 2 * ROWS and rows[1] == [4 * ROWS]
    inputs = {"input_ids": data()["input_ids"]}
    assert len(posterior_predict(model.eval(), inputs).logits) == 4


def test_it_can_be_the_whole_training(bert):
    """The loss falls, with a number of data that is the batch's, and Adam."""
    model = program(bert, heads())
    objective = AttentionELBO()(model, AttentionGuide(model))
    engine = HeadSVGD(model, MedianRBF(), pyro.optim.Adam({"lr": 1e-2}))
    with torch.no_grad():
        before = objective(data()).loss
        for _ in range(30):
            engine.step(data())
        assert objective(data()).loss < 0.5 * before


def test_a_frozen_network_leaves_the_heads_alone_to_move(bert):
    model = program(bert, heads())
    name = f"net.{SITE}.query.weight"
    for other, parameter in model.named_parameters():
        parameter.requires_grad_(other == name)
    before = {other: parameter.clone() for other, parameter in model.named_parameters()}
    HeadSVGD(model, MedianRBF(), pyro.optim.SGD({"lr": RATE})).step(data())
    moved = [
        other for other, parameter in model.named_parameters() if not torch.equal(parameter, before[other])
    ]
    assert moved == [name]


def test_what_was_there_before_a_step_counts_for_nothing_but_weights(bert):
    """Neither gradients of the network, nor particles that another engine left in the store, nor an empty store."""
    models = [Unplated(program(bert, method()).net) for method in (heads, layers, heads)]
    engines = [HeadSVGD(model, MedianRBF(), pyro.optim.SGD({"lr": RATE})) for model in models]
    engines[0].step(data())
    engines[1].step(data())
    pyro.clear_param_store()
    engines[2].step(data())
    moved = [engines[number].get_named_particles()[f"{SITE}.query"] for number in (0, 2)]
    assert torch.equal(*moved)
    for number in (0, 2):
        weight = models[number].net.get_parameter(f"{SITE}.query.weight")
        weight.data.mul_(0.5)
        if number:
            weight.grad = torch.full_like(weight, 1e3)
        engines[number].step(data())
    again = [engines[number].get_named_particles()[f"{SITE}.query"] for number in (0, 2)]
    assert torch.equal(*again) and (again[0] - 0.5 * moved[0]).abs().max() < 0.1 * moved[0].abs().max()


def test_a_store_with_another_networks_weights_is_refused(bert):
    HeadSVGD(program(bert, heads()), MedianRBF(), pyro.optim.SGD({"lr": RATE})).step(data())
    other = HeadSVGD(program(bert, heads()), MedianRBF(), pyro.optim.SGD({"lr": RATE}))
    with pytest.raises(RuntimeError, match=r"of an earlier network.*call pyro\.clear_param_store\(\)"):
        other.step(data())


def test_half_precision_moves_in_float32(bert):
    model = program(bert, heads(), num_data=50).bfloat16()
    engine = HeadSVGD(model, MedianRBF(), pyro.optim.SGD({"lr": RATE}))
    before = engine.get_named_particles()[f"{SITE}.query"]
    engine.step(data())
    after = engine.get_named_particles()[f"{SITE}.query"]
    assert after.dtype == torch.bfloat16 and not torch.equal(before, after)


def test_the_method_of_one_set_is_that_of_the_driver(bert):
    """``SVGDDriver.step`` on the same network, with the options of its run turned off."""
    ours, theirs = program(bert, heads()), program(bert, heads())
    engine = HeadSVGD(ours, MedianRBF(), pyro.optim.SGD({"lr": RATE / ROWS}))
    options = {"optimizer": OptimizerOptions("SGD", RATE, weight_decay=0.0), "max_grad_norm": None}
    driver = SVGDDriver(theirs, scheduler=None, progress=False, cpu=True, **options)
    found, expected = engine.step(data()), driver.step(data())
    assert found == pytest.approx({name: ROWS**2 * size for name, size in expected.items()}, rel=1e-12)
    torch.testing.assert_close(
        engine.get_named_particles(), driver.get_named_particles(), rtol=1e-12, atol=1e-14
    )


class Unplated(nn.Module):
    """A program without a plate that announces no parameter."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, batch):
        logits = self.net(input_ids=batch["input_ids"]).logits
        pyro.sample("label", dist.Categorical(logits=logits).to_event(1), obs=batch["labels"])


@pytest.mark.parametrize("method", [heads, layers], ids=["heads", "layers"])
def test_a_program_without_plates_is_one_datum_and_what_it_does_not_announce_stays(bert, method):
    model, reference = Unplated(program(bert, method()).net), program(bert, method())
    engine = HeadSVGD(model, MedianRBF(), pyro.optim.SGD({"lr": RATE}))
    ((name, before),) = engine.get_named_particles().items()
    ((_, particles),) = particle_sets(reference).values()
    weights = {other: parameter.clone() for other, parameter in model.named_parameters()}
    engine.step(data())
    (ROWS * AttentionELBO()(reference, AttentionGuide(reference))(data()).loss).backward()
    direction = svgd_direction(before, particles.gradients(), MedianRBF(), 0.05)
    after = engine.get_named_particles()[name]
    torch.testing.assert_close(after, before + RATE * direction, rtol=1e-12, atol=1e-13)
    moved = {other for other, old in weights.items() if not torch.equal(old, model.get_parameter(other))}
    assert all("probattn" in other or other.endswith("query.weight") for other in moved)


def test_what_the_engine_cannot_move_is_refused(bert):
    adam = pyro.optim.Adam({"lr": 1e-3})

    def build(*methods):
        return HeadSVGD(program(bert, *methods), MedianRBF(), adam)

    for methods in (
        (),
        (BayesianAttention(),),
        (ParticleLayers(num_particles=2),),
        (layers(space="predictions"),),
    ):
        with pytest.raises(ValueError, match=r"HeadSVGD: Exact has no particles; convert its network first"):
            build(*methods)
    with pytest.raises(
        ValueError, match=r"expected one set of particles.*got 6: .*SVGDDriver, which moves all"
    ):
        build(RepulsiveAttention())
    for sampler in ("spos", "sgld"):
        with pytest.raises(
            ValueError, match=rf"got sampler='{sampler}'; train with probattn.inference.SVGDDriver"
        ):
            build(heads(sampler=sampler))
    with pytest.raises(ValueError, match="got smoothing=False"):
        build(heads(smoothing=False, kernel="cosine"))
    with pytest.raises(ValueError, match="expected two particles or more, got one, layers"):
        build(layers(num_particles=1))
    with pytest.raises(TypeError, match=r"HeadSVGD\.model: expected a program that is a torch\.nn\.Module"):
        HeadSVGD(regression, MedianRBF(), adam)
    with pytest.raises(TypeError, match=r"HeadSVGD\.optim: expected an optimiser of pyro\.optim"):
        HeadSVGD(program(bert, heads()), MedianRBF(), torch.optim.Adam([nn.Parameter(torch.ones(1))]))


def test_kernels_without_pyros_form_and_modes_that_change_a_kernel_are_refused(bert):
    model, adam = program(bert, heads()), pyro.optim.Adam({"lr": 1e-3})
    for kernel in (SlicedRBF(), UnsmoothedKernel(CosineKernel())):
        with pytest.raises(
            TypeError, match=r"HeadSVGD\.kernel: expected a kernel of Pyro's form.*SVGDDriver"
        ):
            HeadSVGD(model, kernel, adam)
    wrong = {
        MedianRBF(): "univariate",
        MarginalRBF(): "multivariate",
        PyroKernel(RBFSteinKernel(), "univariate"): "multivariate",
        RBFSteinKernel(): "both",
    }
    for kernel, mode in wrong.items():
        with pytest.raises(ValueError, match=rf"HeadSVGD\.mode: expected .* got '{mode}'"):
            HeadSVGD(model, kernel, adam, mode)
    assert HeadSVGD(model, RBFSteinKernel(), adam, "multivariate").mode == "multivariate"
    assert HeadSVGD(model, IdentityKernel(), adam).mode in ("univariate", "multivariate")


def test_coordinates_in_which_particles_coincide_are_an_error_with_pyros_kernels_alone(bert):
    """Layers begin as copies of the pretrained ones."""
    model = program(bert, layers(spread=0.0))
    before = [parameter.clone() for parameter in model.parameters()]
    with pytest.raises(ValueError, match=r"gradient of RBFSteinKernel is not finite.*set spread > 0"):
        HeadSVGD(model, RBFSteinKernel(), pyro.optim.SGD({"lr": RATE})).step(data())
    assert all(map(torch.equal, before, model.parameters()))
    engine = HeadSVGD(model, MarginalRBF(), pyro.optim.SGD({"lr": RATE}))
    engine.step(data())
    assert engine.get_named_particles()["layers"].isfinite().all()


def regression(x, y):
    with pyro.plate("data", len(x), dim=-1):
        output, _ = ATTENTION(x, x, x)
        pyro.sample("y", dist.Normal(output, 1.0).to_event(2), obs=y)


ATTENTION = MultiheadAttention(4, 2, batch_first=True)


@pytest.mark.parametrize("nesting", [1, 2])
def test_latent_attention_under_pyros_engine_is_refused_with_the_reason(bert, nesting):
    """Its particles are values of every latent site: attention weights of each datum, in one pass for all particles."""
    x = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(0))
    runs = {
        "network": (Classifier(convert(bert.classification(), BayesianAttention())), (data(),)),
        "function": (regression, (x, x)),
    }
    for model, args in runs.values():
        engine = SVGD(model, MedianRBF(), pyro.optim.SGD({"lr": RATE}), 3, nesting, "multivariate")
        with pytest.raises(ValueError, match=r"plate 'num_particles_vectorized' asks for several.*HeadSVGD"):
            engine.step(*args)


def test_other_values_of_a_wrong_shape_have_no_such_reason():
    x = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(0))
    conditioned = pyro.condition(regression, {"attention": torch.ones(3, 2, 5, 4)})
    with pytest.raises(ValueError, match="expected unnormalised weights of shape") as error:
        pyro.poutine.trace(conditioned).get_trace(x, x)
    assert "pyro.infer.SVGD" not in str(error.value)


def test_the_other_way_that_the_reason_names_works(bert):
    model = program(bert, BayesianAttention(kl_reduction="sum"))
    svi = SVI(model, AttentionGuide(model), pyro.optim.Adam({"lr": 1e-3}), TraceMeanField_ELBO())
    assert math.isfinite(svi.step(data()))


# Programs of Pyro's own tests of its engine (tests/infer/test_svgd.py), with their posteriors.

SHAPE, RATE_OF_PRIOR = torch.tensor([1.0, 1.8, 2.3]).double(), torch.tensor([2.3, 1.5, 1.2]).double()
COUNTS = torch.tensor([1.0, 2.0, 3.0, 3.0, 5.0]).double().unsqueeze(-1).expand(5, 3)


def gamma_poisson():
    with pyro.plate("rates", 3):
        rate = pyro.sample("z", dist.Gamma(SHAPE, RATE_OF_PRIOR))
        with pyro.plate("data", 5):
            pyro.sample("counts", dist.Poisson(rate), obs=COUNTS)


def one_of(law):
    def program():
        pyro.sample("z", law)

    return program


LOG_NORMAL = dist.LogNormal(torch.tensor(-1.0).double(), torch.tensor(0.7).double())
NORMAL = dist.Normal(torch.zeros(2).double(), torch.ones(2).double())
BETA = dist.Beta(torch.tensor([0.5]).double(), torch.tensor([1.8]).double())
EXAMPLES = {
    "normal": (one_of(NORMAL.to_event(1)), 0, NORMAL),
    "log-normal": (one_of(LOG_NORMAL), 0, LOG_NORMAL),
    "beta": (one_of(BETA.to_event(1)), 0, BETA),
    "gamma-poisson": (gamma_poisson, 2, dist.Gamma(SHAPE + COUNTS.sum(dim=0), RATE_OF_PRIOR + 5)),
}


def run(name, kernel, mode, particles, steps, widen=None):
    """The particles after steps of Pyro's engine with Adam, while bandwidths grow from 1 to 5 times the medians'."""
    model, nesting, _ = EXAMPLES[name]
    pyro.clear_param_store()
    pyro.set_rng_seed(1)
    engine = SVGD(model, kernel, pyro.optim.Adam({"lr": 0.05}), particles, nesting, mode)
    for step in range(steps):
        if widen is not None:
            widen(kernel, 1 + 4 * step / steps)
        engine.step()
    return engine.get_named_particles()["z"].detach()


@pytest.mark.slow_but("normal")
@pytest.mark.parametrize("name", EXAMPLES)
def test_pyros_examples_take_the_same_way_with_this_librarys_form_of_pyros_kernel(name):
    """An odd number of pairs has one median, and Pyro divides it by log (M + 1)."""
    particles = 7
    expected = run(name, RBFSteinKernel(), "univariate", particles, 60)
    scale = math.log(particles) / math.log(particles + 1)
    for kernel in (MarginalRBF(scale=scale), PyroKernel(RBFSteinKernel(), "univariate")):
        torch.testing.assert_close(
            run(name, kernel, "univariate", particles, 60), expected, rtol=1e-9, atol=1e-9
        )


@pytest.mark.slow_but("normal")
@pytest.mark.parametrize("name", EXAMPLES)
def test_pyros_examples_end_at_their_posteriors_with_the_marginal_kernel(name):
    def widen(kernel, factor):
        kernel.scale = factor

    found = run(name, MarginalRBF(), "univariate", 100, 400, widen)
    law = EXAMPLES[name][2]
    found = found.reshape(100, -1)
    torch.testing.assert_close(found.mean(dim=0), law.mean.expand(found.shape[1]), rtol=0.0, atol=0.03)
    torch.testing.assert_close(found.var(dim=0), law.variance.expand(found.shape[1]), rtol=0.1, atol=0.03)


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize(
    "kernel",
    [MedianRBF(), InverseMultiquadric(), LinearKernel(offset=40.0), CosineKernel(), IdentityKernel()],
    ids=lambda kernel: type(kernel).__name__,
)
def test_pyros_examples_run_with_every_other_kernel_of_pyros_form(name, kernel):
    particles = run(name, kernel, "multivariate", 7, 20)
    assert particles.isfinite().all() and len(particles) == 7
