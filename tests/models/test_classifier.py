"""A network as a Pyro program: what it refuses, what it announces."""

import pyro
import pytest
import torch
from pyro import poutine
from pyro.infer import SVI
from pyro.optim import SGD
from torch import nn

from probattn.inference import AttentionELBO, AttentionGuide
from probattn.models import Classifier
from probattn.models.program import seeded


class Linear(nn.Module):
    """A network with logits of its own width."""

    def __init__(self, classes):
        super().__init__()
        self.head = nn.Linear(4, classes)

    def forward(self, x):
        return self.head(x)


X = torch.ones(3, 4)


@pytest.mark.parametrize(
    ("labels", "got"),
    [
        (torch.tensor([0.0, 0.5, 1.0]), r"torch.float32 \[3\]"),
        (torch.tensor([[0], [1], [1]]), r"torch.int64 \[3, 1\]"),
        (torch.tensor([0, 1]), r"torch.int64 \[2\]"),
    ],
)
def test_labels_are_a_whole_number_a_row(labels, got):
    with pytest.raises(
        ValueError, match=rf"expected class numbers int64 \[3\] as labels, got {got}; give one"
    ):
        poutine.trace(Classifier(Linear(2))).get_trace({"x": X, "labels": labels})


def test_labels_are_classes_of_the_network():
    with pytest.raises(
        ValueError, match=r"expected labels in 0\.\.1, or -100 where there is none, got 0\.\.2"
    ):
        poutine.trace(Classifier(Linear(2))).get_trace({"x": X, "labels": torch.tensor([0, 1, 2])})
    trace = poutine.trace(Classifier(Linear(2))).get_trace({"x": X, "labels": torch.tensor([0, 1, 1]).int()})
    assert trace.log_prob_sum().isfinite()


@pytest.mark.parametrize("labels", [None, torch.tensor([0, 0, 0])])
def test_a_single_output_is_regression(labels):
    batch = {"x": X} if labels is None else {"x": X, "labels": labels}
    message = r"expected a network of two classes or more, got logits \[3, 1\].*num_labels=2"
    with pytest.raises(ValueError, match=message):
        Classifier(Linear(1))(batch)
    with pytest.raises(ValueError, match=message):
        poutine.trace(Classifier(Linear(1))).get_trace(batch)


@pytest.mark.parametrize(
    ("batch", "error", "message"),
    [
        (X, TypeError, "expected a batch, a mapping of tensors by name, got Tensor; tokenize"),
        ({"x": "a text"}, TypeError, "expected a tensor under 'x', got 'a text'; tokenize"),
        ({}, ValueError, "expected inputs in the batch, got nothing"),
        ({"labels": X}, ValueError, "expected inputs in the batch, got labels"),
    ],
)
def test_what_is_no_batch(batch, error, message):
    with pytest.raises(error, match=f"Classifier: {message}"):
        Classifier(Linear(2))(batch)


def test_labels_are_smoothed_while_training_alone() -> None:
    """As ``torch.nn.functional.cross_entropy(..., label_smoothing=0.1)``; a value to predict never is."""
    torch.manual_seed(0)
    net = Linear(4)
    model = Classifier(net, num_data=5, label_smoothing=0.1)
    batch = {"x": torch.randn(5, 4), "labels": torch.tensor([0, 1, 2, 3, 3])}
    for mode, smoothing in ((True, 0.1), (False, 0.0)):
        trace = poutine.trace(model.train(mode)).get_trace(batch)
        expected = -torch.nn.functional.cross_entropy(
            net(batch["x"]), batch["labels"], label_smoothing=smoothing, reduction="sum"
        )
        torch.testing.assert_close(trace.nodes["label"]["fn"].log_prob(batch["labels"]).sum(), expected)
    with pytest.raises(ValueError, match=r"label_smoothing: expected a number in \[0, 1\), got 1"):
        Classifier(net, label_smoothing=1.0)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def test_networks_are_built_from_a_seed_and_generators_stay(device):
    before = torch.get_device_module(device).get_rng_state() if device == "cuda" else torch.get_rng_state()
    with seeded(3):
        first = torch.nn.Linear(2, 2).weight
    with seeded(3):
        assert torch.equal(torch.nn.Linear(2, 2).weight, first)
    after = torch.get_device_module(device).get_rng_state() if device == "cuda" else torch.get_rng_state()
    assert torch.equal(before, after)


def test_parameters_are_announced_where_a_handler_may_want_them():
    """Every access announces a hundred of them with Pyro's own attribute; a trace and SVI do want them."""
    model = Classifier(Linear(3))
    batch = {"x": X, "labels": torch.tensor([0, 1, 2])}
    guide, before = AttentionGuide(model), model.net.head.weight.detach().clone()
    pyro.clear_param_store()
    AttentionELBO()(model, guide)(batch).loss.backward()
    assert model.net.head.weight.grad is not None and not list(pyro.get_param_store().keys())
    with pyro.get_param_store().scope() as seen:
        terms = AttentionELBO()(model, guide).terms(batch)
    assert terms.loss.requires_grad and not seen["params"]
    traced = poutine.trace(model).get_trace(batch)
    assert traced.param_nodes == ["net$$$head.weight", "net$$$head.bias"]
    model.zero_grad()
    SVI(model, guide, SGD({"lr": 1.0}), AttentionELBO()).step(batch)
    assert not torch.equal(model.net.head.weight, before)
    pyro.clear_param_store()
