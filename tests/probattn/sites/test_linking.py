"""Several layers of one model: one belief network, or an error that says how to make one."""

import copy

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import SVI, Predictive, Trace_ELBO, TraceMeanField_ELBO
from pyro.nn import PyroModule
from torch import nn

import probattn
from probattn import (
    AlignmentAttention,
    BayesianAttention,
    DisagreementAttention,
    MultiheadAttention,
    RepulsiveAttention,
    inference,
)

B, T, E, H = 3, 4, 8, 2
SEVERAL = r"site 'second': its upward path is not joined with that of 'first'.*probattn\.link\(self\)"


def layer(**options):
    return MultiheadAttention(E, H, batch_first=True, **options)


class Two(PyroModule):
    def __init__(self, method=None):
        super().__init__()
        self.first, self.second = layer(method=method), layer(method=method)
        self.head = nn.Linear(E, 2)

    def layers(self):
        return self.first, self.second

    def forward(self, batch):
        x = batch["x"]
        with pyro.plate("data", len(x)):
            for attend in self.layers():
                x = x + attend(x, x, x)[0]
            logits = self.head(x[:, 0])
            law = dist.Categorical(logits=logits)
            pyro.sample("label", law, obs=batch.get("labels"), infer={"prediction": True})
        return logits


class Listed(Two):
    def __init__(self, method=None):
        super().__init__(method)
        self.rest = nn.ModuleList([layer(method=method) for _ in range(2)])

    def layers(self):
        return self.rest


def batch():
    return {"x": torch.randn(B, T, E), "labels": torch.arange(B) % 2}


USES = {
    "Trace_ELBO": lambda m, b: Trace_ELBO().loss(m, inference.AttentionGuide(m), b),
    "TraceMeanField_ELBO": lambda m, b: SVI(
        m, inference.AttentionGuide(m), pyro.optim.Adam({}), TraceMeanField_ELBO()
    ).step(b),
    "AttentionELBO": lambda m, b: inference.AttentionELBO()(m, inference.AttentionGuide(m))(b),
    "Predictive": lambda m, b: Predictive(m, guide=inference.AttentionGuide(m), num_samples=2)(b),
    "posterior_predict": lambda m, b: inference.posterior_predict(m, {"x": b["x"]}, 2),
    "maps": lambda m, b: inference.posterior_predict(m, {"x": b["x"]}, 2, attention="all"),
    "posterior_moments": lambda m, b: inference.posterior_moments(m, {"x": b["x"]}),
}


@pytest.mark.parametrize("use", USES)
def test_unlinked_layers_are_refused_by_name(use):
    model, data = Two(), batch()
    with pytest.raises(ValueError, match=SEVERAL):
        USES[use](model, data)
    for together in (True, False):
        USES[use](probattn.link(model, together=together), data)


def test_an_expectation_that_depends_on_the_path_is_refused_too():
    data = {"x": batch()["x"]}
    with pytest.raises(ValueError, match=SEVERAL):
        inference.posterior_expectation(Two(BayesianAttention(sigma=0.5)), data)
    for model in (Two(), probattn.link(Two(BayesianAttention(sigma=0.5)))):
        assert inference.posterior_expectation(model, data).shape == (B, 2)


def test_a_posterior_without_an_upward_path_needs_no_link():
    model = Two(BayesianAttention.bam())
    for use in USES.values():
        use(model, batch())


def test_functions_of_built_sites_are_refused_too_until_linked():
    sites = nn.ModuleDict({name: BayesianAttention().build(H, 4) for name in ("first", "second")})

    def model(x):
        with pyro.plate("data", len(x)):
            for name, site in sites.items():
                probattn.attention(name, x, x, x, method=site)

    x = torch.randn(B, H, T, 4)
    with pytest.raises(ValueError, match=SEVERAL):
        inference.AttentionGuide(model)(x)
    probattn.link(sites)
    assert set(inference.AttentionGuide(model)(x)) == {"first", "second"}
    assert sites["first"].chain is sites["second"].chain


def concentrations(model, data):
    pyro.set_rng_seed(0)
    nodes = poutine.trace(inference.AttentionGuide(model)).get_trace(data).nodes
    return {
        name: nodes[name]["infer"]["attention"].distribution.concentration for name in ("first", "second")
    }


def test_the_upward_map_of_the_second_layer_reaches_the_first_only_where_linked():
    data = batch()
    for together in (True, False):
        model = probattn.link(Two().eval(), together=together)
        changed = copy.deepcopy(model)
        with torch.no_grad():
            changed.second.latent.upward.hidden.weight.add_(1.0)
        before, after = concentrations(model, data), concentrations(changed, data)
        assert torch.equal(before["first"], after["first"]) is not together
        assert not torch.equal(before["second"], after["second"])


def test_layers_without_names_are_named_by_their_places():
    data = batch()
    for method in (None, BayesianAttention.bam()):
        model = Listed(method)
        for call in (lambda m: m(data), lambda m: inference.AttentionGuide(m)(data)):
            with pytest.raises(ValueError, match=r"site 'attention': .*probattn\.link\(self\)"):
                poutine.trace(call).get_trace(model)
        nodes = poutine.trace(probattn.link(model)).get_trace(data).nodes
        assert {"rest.0", "rest.1"} <= set(nodes)


def test_layers_with_other_numbers_of_heads_are_not_joined():
    model = Two()
    model.second = MultiheadAttention(E, 4, batch_first=True)
    with pytest.raises(ValueError, match=r"as many heads, got 2 in 'first.*4 in 'second"):
        probattn.link(model)
    with pytest.raises(ValueError, match=SEVERAL):  # nothing was linked
        inference.AttentionGuide(model)(batch())
    probattn.link(model, together=False)


@pytest.mark.parametrize(
    ("method", "advice"),
    [
        (RepulsiveAttention(), "head_slices"),
        (AlignmentAttention("mmd"), r"AlignmentAttention\(\.\.\.\)\.build"),
        (DisagreementAttention(), "convert a network of transformers"),
    ],
)
def test_other_methods_are_refused_with_what_to_use(method, advice):
    name = type(method).__name__
    with pytest.raises(TypeError, match=rf"expected method=BayesianAttention\(...\), got {name}; .*{advice}"):
        layer(method=method)


def test_head_particles_say_how_heads_of_ones_own_module_are_moved():
    with pytest.raises(
        ValueError, match=r"Two has no repulsive heads, nor .*probattn\.particles\.head_slices"
    ):
        inference.HeadParticles(Two(), num_data=10)


class Block(nn.Module):
    """A part that links itself."""

    def __init__(self):
        super().__init__()
        self.attend = layer()
        probattn.link(self)

    def forward(self, x):
        return self.attend(x, x, x)[0]


def test_layers_of_linked_parts_are_named_by_their_places_in_the_whole():
    whole = probattn.link(nn.Sequential(Block(), Block(), layer(site="named")))
    names = [module.site_name for module in whole.modules() if isinstance(module, MultiheadAttention)]
    assert names == ["0.attend", "1.attend", "named"]
    x = torch.randn(B, T, E)

    def model():
        with pyro.plate("data", B):
            output = whole[1](whole[0](x))
            pyro.sample("y", dist.Normal(output.mean((1, 2)), 1.0), obs=torch.zeros(B))

    assert {"0.attend", "1.attend"} <= inference.AttentionGuide(model)().keys()
