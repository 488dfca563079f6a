"""What a site does under which of Pyro's handlers: those that look at no value are none."""

import copy

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.nn import PyroModule
from torch import nn
from transformers import BertConfig, BertForSequenceClassification

import probattn
from probattn import AlignmentAttention, BayesianAttention, MultiheadAttention
from probattn.inference import AttentionGuide, PosteriorExpectation
from probattn.models import convert
from probattn.sites.handlers import is_handled, takes_answers, takes_expectations

B, T, E, H = 6, 4, 8, 2
HARMLESS = {
    "plate": lambda: pyro.plate("data", B),
    "scale": lambda: poutine.scale(scale=0.1),
    "mask": lambda: poutine.mask(mask=torch.arange(B) > 2),
}
METHODS = [
    BayesianAttention(),
    BayesianAttention(sigma=0.5),
    BayesianAttention.bam(),
    BayesianAttention(posterior="lognormal"),
]


class Reader(PyroModule):
    def __init__(self, method=None):
        super().__init__()
        self.attend = MultiheadAttention(E, H, batch_first=True, method=method)
        self.head = nn.Linear(E, 3)

    def forward(self, x, y=None):
        with pyro.plate("data", len(x)):
            read, weights = self.attend(x, x, x)
            logits = self.head(read[:, 0])
            pyro.sample("label", dist.Categorical(logits=logits), obs=y, infer={"prediction": True})
        return logits, weights


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_a_program_that_is_called_plainly_answers_with_the_expectation(method):
    model, x = Reader(method).eval(), torch.randn(B, T, E)
    with torch.no_grad():
        outside = model.attend(x, x, x)[1]  # no plate, no handler
        logits, weights = model(x)
        again = model(x)
    torch.testing.assert_close(weights, outside, rtol=0, atol=0)
    assert torch.equal(logits, again[0]) and torch.equal(weights, again[1])
    if not method.learns_scale:  # E[S] is exp(scores) up to a factor of a query
        torch.testing.assert_close(weights, softmax(model.attend, x))


def softmax(layer, x):
    query, key, _ = (part.unflatten(-1, (H, -1)) for part in nn.functional.linear(
        x, layer.in_proj_weight, layer.in_proj_bias
    ).chunk(3, -1))  # fmt: skip
    scores = torch.einsum("bthd,bshd->bhts", query, key) * (E / H) ** -0.5
    return scores.softmax(-1).mean(1)


def test_a_plain_call_depends_on_the_queries_and_not_on_the_prior():
    model, x = Reader().eval(), torch.randn(B, T, E)
    changed, other = copy.deepcopy(model), copy.deepcopy(model)
    with torch.no_grad():
        changed.attend.in_proj_weight[:E].zero_()
        other.attend.latent.prior.output.weight.mul_(3.0)
        want = model(x)[1]
        assert not torch.allclose(changed(x)[1], want)
        assert torch.equal(other(x)[1], want)


@pytest.mark.parametrize("names", [("plate",), ("scale",), ("mask",), ("plate", "scale", "mask")])
def test_handlers_that_look_at_no_value_are_none(names):
    method = BayesianAttention.bam(prior="constant")
    query, key, value = torch.randn(3, B, H, T, 4)
    pyro.clear_param_store()
    built = BayesianAttention().build(H, 4).eval()
    with torch.no_grad(), contexts(names):
        assert not is_handled() and takes_expectations() and not takes_answers()
        got = probattn.attention("attend", query, key, value, method=method)
        probattn.attention("built", query, key, value, method=built)
    weights = (torch.einsum("bhtd,bhsd->bhts", query, key) / 2).softmax(-1)
    torch.testing.assert_close(got[1], weights)
    assert not list(pyro.get_param_store())


def contexts(names):
    from contextlib import ExitStack

    stack = ExitStack()
    for name in names:
        stack.enter_context(HARMLESS[name]())
    return stack


def test_other_handlers_keep_their_meaning():
    model, x = Reader().eval(), torch.randn(B, T, E)
    pyro.set_rng_seed(0)
    with torch.no_grad():
        first, second = (poutine.trace(model).get_trace(x).nodes["_RETURN"]["value"][1] for _ in range(2))
        assert not torch.allclose(first, second)  # of the prior
        value = torch.rand(B, H, T, T) + 0.1
        fixed = pyro.condition(model, data={"attend": value})(x)[1]
        torch.testing.assert_close(fixed, (value / value.sum(-1, keepdim=True)).mean(1))
        with PosteriorExpectation():
            assert is_handled() and takes_expectations()
            torch.testing.assert_close(model(x)[1], model.attend(x, x, x)[1])
        with AttentionGuide(model) as guide, guide.outputs_alone():
            assert takes_answers() and not takes_expectations()


def test_the_label_of_a_plain_call_is_drawn_as_ever():
    model, x = Reader().eval(), torch.randn(B, T, E)
    with torch.no_grad():
        model.head.weight.zero_(), model.head.bias.zero_()
    labels = []
    original = pyro.sample

    def sample(name, *args, **kwargs):
        value = original(name, *args, **kwargs)
        labels.extend([value] if name == "label" else [])
        return value

    pyro.set_rng_seed(1)
    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        patch.setattr(pyro, "sample", sample)
        model(x), model(x)
    assert labels[0].shape == (B,) and not torch.equal(labels[0], labels[1])


@pytest.mark.parametrize("name", HARMLESS)
def test_training_in_a_plate_without_a_guide_is_refused(name):
    layer, x = MultiheadAttention(E, H, batch_first=True), torch.randn(B, T, E)
    align = AlignmentAttention("mmd").build(H, 4)
    with contexts([name]):
        with pytest.raises(RuntimeError, match="'attention': training without a driver would fit determ"):
            layer(x, x, x)
        with pytest.raises(RuntimeError, match="would leave the alignment out"):
            align("attend", *torch.randn(2, B, H, T, 4))


def test_a_converted_network_in_a_plate_is_the_network_it_was():
    torch.manual_seed(0)
    config = BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
    net, ids = BertForSequenceClassification(config).eval(), torch.arange(B * T).view(B, T)
    with torch.no_grad():
        want = net(ids).logits
        convert(net, BayesianAttention())
        with contexts(["plate", "scale"]):
            assert torch.equal(net(ids).logits, want)
