"""Drivers whose networks are compiled: the numbers of those that are not, one graph for texts of any length."""

from functools import partial

import pyro
import pyro.distributions as dist
import pytest
import torch
import transformers as hf
from torch import nn

from probattn import AlignmentAttention, BayesianAttention, MultiheadAttention, RepulsiveAttention, attention
from probattn.inference import (
    AttentionELBO,
    AttentionGuide,
    ParticleEnsemble,
    SVGDDriver,
    SVIDriver,
    training,
)
from probattn.inference.checkpoint import ConfigurationMismatchError
from probattn.inference.compiled import CompiledNetworks
from probattn.models import Classifier, convert
from probattn.sites import fused

pytestmark = pytest.mark.filterwarnings(r"ignore:The \.grad attribute of a Tensor:UserWarning")  # torch's own
SIZES = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 16, "vocab_size": 40}


class Texts(list):
    """Rows of different lengths."""

    def lengths(self):
        return [len(row["input_ids"]) for row in self]


def texts(number, *lengths):
    generator = torch.Generator().manual_seed(0)
    sizes = [lengths[index % len(lengths)] for index in range(number)]
    return Texts(
        {"input_ids": torch.randint(1, 40, (size,), generator=generator), "labels": index % 2}
        for index, size in enumerate(sizes)
    )


def collate(rows):
    ids = nn.utils.rnn.pad_sequence([row["input_ids"] for row in rows], batch_first=True)
    labels = torch.tensor([row["labels"] for row in rows])
    return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": labels}


def network(*methods, dtype=torch.float64):
    torch.manual_seed(0)
    net = hf.BertForSequenceClassification(hf.BertConfig(num_hidden_layers=1, **SIZES))
    return convert(net.to(dtype), *methods) if methods else net


def driver(net, kind=SVIDriver, **options):
    options = {"batch_size": 4, "log_every": 1, "eval_every": 2} | options
    return kind(Classifier(net), collate=collate, cpu=True, progress=False, **options)


@pytest.fixture
def traced(monkeypatch):
    """Graphs are traced and run as they are, since to make kernels takes a compiler minutes; their counts."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    monkeypatch.setattr(training, "CompiledNetworks", partial(CompiledNetworks, backend="eager"))
    yield torch._dynamo.utils.counters
    torch._dynamo.reset()


@pytest.mark.slow
@pytest.mark.interpreter
@pytest.mark.parametrize("method", [BayesianAttention(), BayesianAttention.bam()], ids=["babn", "bam"])
def test_kernels_of_a_gpu_are_operators_of_the_graph(method, by_kernel, traced, tmp_path):
    compare_compiled(method, traced)
    learned = {"draw_kernel", "draw_backward_kernel", "mix_kernel", "mix_backward_kernel"}
    constant = {"attend_kernel", "attend_query_kernel", "attend_key_kernel"}
    assert set(by_kernel) == (learned if method.learns_concentration else constant)


@pytest.mark.slow
def test_a_run_is_the_same_and_has_one_graph_for_all_lengths(traced, tmp_path):
    compare_compiled(BayesianAttention(), traced)


def compare_compiled(method, traced):
    """A compiled run against one that is not, with texts of five lengths and a smaller last batch."""
    rows = texts(27, 3, 5, 6, 9, 11)
    nets, results = [network(method, dtype=torch.float32) for _ in range(2)], []
    for net, compiled in zip(nets, (False, True), strict=True):
        results.append(driver(net, compile=compiled).fit(rows, rows[:8], steps=8))
        assert net._compiled_call_impl is None
    plain, ours = results
    names = ("loss", "log_likelihood", "kl", "kl_nats")
    for record in ("train", "validation"):
        expected = {name: getattr(plain, record)[name] for name in names}
        assert {name: getattr(ours, record)[name] for name in names} == pytest.approx(expected, rel=1e-5)
    for parameter, other in zip(nets[1].parameters(), nets[0].parameters(), strict=True):
        torch.testing.assert_close(
            parameter, other, rtol=0, atol=1e-3
        )  # Adam's steps have the size of a rate
    assert not traced["graph_break"]
    assert 1 <= traced["stats"]["unique_graphs"] <= 3  # of training and of evaluation


@pytest.mark.minutes
def test_a_resumed_run_is_the_whole_one_bit_for_bit(traced, tmp_path):
    rows, net = texts(16, 4, 7), network(BayesianAttention.bam())
    options = {"compile": True, "checkpoint_every": 2}
    driver(net, folder=tmp_path / "whole", **options).fit(rows, steps=4)
    weights = {name: value.clone() for name, value in net.state_dict().items()}

    def stop(record, _):
        if record["step"] == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        driver(network(BayesianAttention.bam()), folder=tmp_path / "cut", callbacks=[stop], **options).fit(
            rows, steps=4
        )
    again = network(BayesianAttention.bam())
    with pytest.raises(ConfigurationMismatchError, match="compile"):
        driver(again, checkpoint_every=2).resume(tmp_path / "cut").fit(rows, steps=4)
    driver(again, **options).resume(tmp_path / "cut").fit(rows, steps=4)
    for name, value in again.state_dict().items():
        assert value.equal(weights[name]), name


@pytest.mark.slow_but("aligned")
@pytest.mark.parametrize(
    ("methods", "kind"),
    [
        pytest.param((AlignmentAttention("ct"),), SVIDriver, marks=pytest.mark.minutes),
        ((RepulsiveAttention(),), SVGDDriver),
    ],
    ids=["aligned", "repulsive"],
)
def test_factors_and_particles_train_in_graphs_too(traced, methods, kind):
    rows, losses = texts(8, 4, 7), []
    for compiled in (False, True):
        result = driver(network(*methods), kind, compile=compiled).fit(rows, steps=2)
        losses.append(result.train["loss"])
    assert traced["stats"]["unique_graphs"] >= 1
    assert losses[1] == pytest.approx(losses[0], rel=1e-9)


def test_networks_that_cannot_be_compiled_are_refused(monkeypatch):
    rows = texts(4, 4)
    ensemble = ParticleEnsemble(Classifier(network()), 2)
    for model in (ensemble, nn.Linear(2, 2)):
        with pytest.raises(ValueError, match="compile: expected a model around a network of transformers"):
            CompiledNetworks("compile", model)
    with pytest.raises(ValueError, match="compile: expected a model around"):
        SVGDDriver(ensemble, collate=collate, cpu=True, progress=False, compile=True).fit(rows, steps=1)

    def none(*_, **__):
        raise OSError("no compiler")

    fused.check_compiler.cache_clear()
    monkeypatch.setattr(torch, "compile", none)
    with pytest.raises(RuntimeError, match=r"compile: expected a compiler that torch\.compile can use"):
        driver(network(BayesianAttention()), compile=True).fit(rows, steps=1)
    fused.check_compiler.cache_clear()


def test_a_network_that_is_compiled_already_stays_so(traced):
    net = network(BayesianAttention())
    net.compile(backend="aot_eager")
    call = net._compiled_call_impl
    with CompiledNetworks("compile", Classifier(net), "aot_eager"):
        assert net._compiled_call_impl is call
    assert net._compiled_call_impl is call
    CompiledNetworks("compile", Classifier(torch.compile(network(), backend="eager")), "aot_eager")


class Pooling(nn.Module):
    """A network that calls latent attention itself, as a layer or as a function."""

    def __init__(self, layer):
        super().__init__()
        self.layer = MultiheadAttention(8, 2, batch_first=True) if layer else None
        self.latent = None if layer else BayesianAttention().build(num_heads=2, head_dim=4)
        self.words, self.head = nn.Embedding(20, 8), nn.Linear(8, 3)

    def forward(self, ids):
        states = self.words(ids)
        if self.layer is not None:
            states = self.layer(states, states, states)[0]
        else:
            heads = states.unflatten(-1, (2, 4)).transpose(1, 2)
            states = (
                attention("attention", heads, heads, heads, method=self.latent)[0].transpose(1, 2).flatten(2)
            )
        return self.head(states.mean(1))


@pytest.mark.parametrize("layer", [True, False], ids=["layer", "function"])
def test_a_compiled_network_may_call_latent_attention_itself(layer):
    torch._dynamo.reset()
    torch.manual_seed(0)
    net, ids = Pooling(layer), torch.randint(20, (4, 5))

    def passed(network):
        def model(labels):
            with pyro.plate("data", len(labels)):
                pyro.sample("label", dist.Categorical(logits=network(ids)), obs=labels)

        torch.manual_seed(1)
        net.zero_grad()
        loss = AttentionELBO()(model, AttentionGuide(model))(torch.tensor([0, 1, 2, 0])).loss
        loss.backward()
        return [loss.detach(), *(weight.grad for weight in net.parameters() if weight.grad is not None)]

    plain, compiled = passed(net), passed(torch.compile(net, backend="eager"))
    assert len(plain) == len(compiled) > 6
    assert all(torch.equal(one, other) for one, other in zip(plain, compiled, strict=True))
