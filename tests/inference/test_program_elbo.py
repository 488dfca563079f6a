"""Pyro's own estimators under the driver: their values, their gradients, and what is refused."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import (
    JitTrace_ELBO,
    JitTraceMeanField_ELBO,
    RenyiELBO,
    Trace_ELBO,
    TraceEnum_ELBO,
    TraceGraph_ELBO,
    TraceMeanField_ELBO,
)
from pyro.infer.autoguide import AutoNormal
from pyro.nn import PyroModule, PyroParam
from torch import nn
from torch.distributions import constraints

from probattn import BayesianAttention, MultiheadAttention, attention
from probattn.inference import AttentionELBO, AttentionGuide, KLSchedule, OptimizerOptions, SVIDriver
from probattn.inference.program_elbo import ProgramELBOModule, bind

DATA = {"y": torch.tensor([1.3, -0.4, 0.9, 2.2, 0.1])}
SIZE = 20
"""Rows of which DATA is a part."""


class Normals(PyroModule):
    """y_i ~ N(m, 1), m ~ N(0, 1), with a factor."""

    def __init__(self):
        super().__init__()
        self.shift = nn.Parameter(torch.tensor(0.2))

    def forward(self, batch):
        m = pyro.sample("m", dist.Normal(self.shift, 1.0))
        pyro.factor("penalty", -0.5 * self.shift**2)
        with pyro.plate("data", SIZE, subsample=torch.arange(len(batch["y"]))):
            pyro.sample("y", dist.Normal(m, 1.0), obs=batch["y"])


class NormalGuide(PyroModule):
    def __init__(self):
        super().__init__()
        self.loc = nn.Parameter(torch.tensor(0.5))
        self.scale = PyroParam(torch.tensor(0.7), constraints.positive)

    def forward(self, batch):
        pyro.sample("m", dist.Normal(self.loc, self.scale))


class Clusters(PyroModule):
    """Each y_i from one of two normals."""

    def __init__(self):
        super().__init__()
        self.loc = nn.Parameter(torch.tensor([-1.0, 1.0]))

    def forward(self, batch):
        with pyro.plate("data", SIZE, subsample=torch.arange(len(batch["y"]))):
            z = pyro.sample("z", dist.Categorical(torch.tensor([0.3, 0.7])))
            pyro.sample("y", dist.Normal(self.loc[z], 1.0), obs=batch["y"])


class ClusterGuide(PyroModule):
    def __init__(self, enumerated):
        super().__init__()
        self.slope = nn.Parameter(torch.tensor(0.8))
        self.infer = {"enumerate": "parallel"} if enumerated else {}

    def forward(self, batch):
        logits = torch.stack([torch.zeros_like(batch["y"]), self.slope * batch["y"]], -1)
        with pyro.plate("data", SIZE, subsample=torch.arange(len(batch["y"]))):
            pyro.sample("z", dist.Categorical(logits=logits), infer=dict(self.infer))


def gradients(module):
    return {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}


@pytest.mark.parametrize(
    ("build", "elbo"),
    [
        (lambda: (Normals(), NormalGuide()), Trace_ELBO(num_particles=3)),
        (lambda: (Normals(), NormalGuide()), TraceMeanField_ELBO()),
        (lambda: (Clusters(), ClusterGuide(enumerated=False)), TraceGraph_ELBO(num_particles=2)),
        (lambda: (Clusters(), ClusterGuide(enumerated=True)), TraceEnum_ELBO(max_plate_nesting=1)),
    ],
)
def test_value_and_gradient_are_those_of_pyro_per_datum(build, elbo):
    model, guide = build()
    pyro.clear_param_store()
    pyro.set_rng_seed(0)
    value = elbo.loss_and_grads(model, guide, DATA)
    expected = gradients(model) | {f"guide.{name}": grad for name, grad in gradients(guide).items()}
    model.zero_grad()
    guide.zero_grad()
    module = ProgramELBOModule(model, guide, elbo)
    pyro.set_rng_seed(0)
    found = module(DATA)
    assert found.loss.item() == pytest.approx(value / SIZE, rel=1e-5)
    torch.testing.assert_close(found.loss.detach(), found.kl - found.log_likelihood - found.factors)
    found.loss.backward()
    own = gradients(model) | {f"guide.{name}": grad for name, grad in gradients(guide).items()}
    assert own.keys() == expected.keys() and len(own) >= 2
    for name, grad in own.items():
        torch.testing.assert_close(grad, expected[name] / SIZE, rtol=1e-5, atol=1e-7)
    pyro.clear_param_store()


def test_enumerated_parts_are_the_sums():
    model, guide = Clusters(), ClusterGuide(enumerated=True)
    found = ProgramELBOModule(model, guide, TraceEnum_ELBO(max_plate_nesting=1))(DATA)
    y = DATA["y"]
    q = torch.stack([torch.zeros_like(y), 0.8 * y], -1).softmax(-1)
    log_p = dist.Normal(torch.tensor([-1.0, 1.0]), 1.0).log_prob(y[:, None])
    prior = torch.tensor([0.3, 0.7])
    torch.testing.assert_close(found.log_likelihood, (q * log_p).sum(-1).mean())
    torch.testing.assert_close(found.kl, (q * (q.log() - prior.log())).sum(-1).mean())


def driver(model, guide, **options):
    given = {"optimizer": OptimizerOptions("Adam", 0.05), "scheduler": None, "batch_size": SIZE}
    given |= {"cpu": True, "progress": False, "kl_schedule": KLSchedule("constant"), "max_grad_norm": None}
    return SVIDriver(model, guide=guide, **given | options)


def test_the_driver_finds_the_posterior_with_a_guide_of_ones_own(tmp_path):
    """Conjugate: of 20 data with mean x, N(20 x / 21, 1 / 21), the prior's mean left where it is."""
    torch.manual_seed(0)
    data = {"y": torch.randn(SIZE) + 1.0}
    model, guide = Normals(), NormalGuide()
    model.shift.requires_grad_(False)
    found = driver(model, guide, elbo=TraceMeanField_ELBO(), folder=tmp_path).fit(data, steps=150)
    precision = SIZE + 1
    mean = (data["y"].sum() + 0.2) / precision
    assert guide.loc.item() == pytest.approx(mean.item(), abs=0.05)
    assert guide.scale.item() == pytest.approx(precision**-0.5, rel=0.2)
    assert found.train["kl_weight"] == 1


def test_an_automatic_guide_is_trained_once_it_has_run():
    data = {"y": torch.randn(SIZE, generator=torch.Generator().manual_seed(0)) + 1.0}
    model = Normals()
    guide = AutoNormal(pyro.poutine.block(model, hide=["penalty", "y"]))
    with pytest.raises(ValueError, match="this AutoNormal has no parameters yet; call it once"):
        driver(model, guide, elbo=Trace_ELBO())
    guide(data)
    before = guide.locs.m.detach().clone()
    driver(model, guide, elbo=Trace_ELBO()).fit(data, steps=5)
    assert not torch.equal(before, guide.locs.m)


class Fitted(PyroModule):
    """A parameter that an observation or a factor draws to the data, and attention where it is asked for."""

    def __init__(self, *, observed=False, attention=False):
        super().__init__()
        self.observed = observed
        self.shift = nn.Parameter(torch.tensor(0.2))
        self.site = BayesianAttention().build(1, 2) if attention else None

    def forward(self, batch):
        with pyro.plate("data", SIZE, subsample=torch.arange(len(batch["y"]), device=self.shift.device)):
            if self.site is not None:
                tokens = batch["y"][:, None, None, None].expand(-1, 1, 3, 2)
                self.site("attention", tokens, tokens, tokens)
            if self.observed:
                pyro.sample("y", dist.Normal(self.shift, 1.0), obs=batch["y"])
            else:
                pyro.factor("fit", -((self.shift - batch["y"]) ** 2))


@pytest.mark.parametrize("part", [{"observed": True}, {}], ids=["no factor", "nothing observed"])
@pytest.mark.cuda
def test_terms_that_are_not_there_are_on_the_device_of_the_others(part):
    model, guide = Fitted(**part), nn.Module()
    guide.forward = lambda _: None
    driver(model, guide, elbo=Trace_ELBO(), cpu=False).fit(DATA, steps=2)
    assert model.shift.is_cuda


@pytest.mark.cuda
def test_attention_before_a_factor_alone_trains_on_a_device():
    model = Fitted(attention=True)
    driver(model, AttentionGuide(model), cpu=False).fit(DATA, steps=2)
    assert model.shift.is_cuda


def test_attention_elbo_stays_the_default():
    model = Normals()
    guide = AttentionGuide(model)
    assert type(bind(model, guide, None)) is type(AttentionELBO()(model, guide))


def test_what_would_be_left_out_unnoticed_is_refused():
    model, guide = Clusters(), ClusterGuide(enumerated=True)
    with pytest.raises(TypeError, match="expected an AttentionGuide or a torch"):
        driver(model, print, elbo=Trace_ELBO())
    with pytest.raises(ValueError, match=r'the guide has no attribute kl_weight.*KLSchedule\("constant"\)'):
        driver(model, guide, elbo=Trace_ELBO(), kl_schedule=KLSchedule())
    with pytest.raises(TypeError, match=r"TraceEnum_ELBO of pyro\.infer, got RenyiELBO"):
        driver(model, guide, elbo=RenyiELBO()).fit(DATA, steps=1)


def test_another_guide_or_estimator_does_not_resume(tmp_path):
    def start(guide, **options):
        return driver(Normals(), guide, elbo=Trace_ELBO(), folder=tmp_path, batch_size=5, **options)

    start(NormalGuide()).fit(DATA, steps=2)

    class Other(NormalGuide):
        def __init__(self):
            super().__init__()
            self.unused = nn.Parameter(torch.zeros(3))

    with pytest.raises(Exception, match="guide"):
        start(Other()).fit(DATA, steps=2, resume=True)


@pytest.mark.parametrize("mask", [True, False, torch.tensor(False)])
def test_a_latent_law_that_is_masked_out_has_no_divergence(mask):
    """By value and gradient, TraceMeanField_ELBO's."""

    def model():
        x = pyro.sample("x", dist.Normal(0.0, 1.0).mask(mask))
        pyro.sample("y", dist.Normal(x, 1.0), obs=torch.tensor(1.0))

    def guide():
        loc = pyro.param("loc", torch.tensor(0.5))
        pyro.sample("x", dist.Normal(loc, 1.0).mask(mask))

    found = []
    for elbo in (AttentionELBO, TraceMeanField_ELBO):
        pyro.clear_param_store()
        pyro.set_rng_seed(0)
        loss = elbo().differentiable_loss(model, guide)
        loss.backward()
        found.append((loss.detach(), pyro.param("loc").grad))
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("elbo", [JitTrace_ELBO, JitTraceMeanField_ELBO])
@pytest.mark.parametrize("form", ["layer", "function"])
@pytest.mark.filterwarnings("ignore:.*torch.jit.trace.* is (deprecated|not supported)")
def test_a_traced_objective_is_refused_with_one_that_works(elbo, form):
    layer = MultiheadAttention(4, 2, batch_first=True)
    site = BayesianAttention.bam().build(num_heads=2, head_dim=2)
    x = torch.randn(3, 5, 4)

    def model(x):
        heads = x.view(3, 5, 2, 2).transpose(1, 2)
        with pyro.plate("data", 3):
            output = (
                layer(x, x, x)[0] if form == "layer" else attention("a", heads, heads, heads, method=site)[0]
            )
            pyro.sample("y", dist.Normal(output.flatten(1), 1.0).to_event(1), obs=x.flatten(1))

    with pytest.raises(
        RuntimeError, match=r"latent attention cannot be traced, .* use probattn.inference.Att"
    ):
        elbo(ignore_jit_warnings=True).loss_and_grads(model, AttentionGuide(model), x)


def test_the_loss_of_a_likelihood_in_half_precision_is_float32():
    logits = torch.randn(64, 3, dtype=torch.bfloat16)

    def model(labels):
        with pyro.plate("data", len(labels)):
            pyro.sample("labels", dist.Categorical(logits=logits), obs=labels)

    terms = AttentionELBO()(model, AttentionGuide(model))(torch.zeros(64).long())
    assert terms.loss.dtype == torch.float32
    assert terms.kl == terms.kl_nats == 0
