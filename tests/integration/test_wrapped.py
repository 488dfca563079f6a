"""Networks in the wrappers of torch: compiled graphs, sharded parameters, data-parallel processes."""

import os
import socket
from functools import partial

import pytest
import torch
import torch.distributed as dist
import transformers as hf
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from probattn import BayesianAttention
from probattn.inference import AttentionELBO, AttentionGuide, SVIDriver
from probattn.models import Classifier, convert

IDENTITY = nn.Identity()
BATCH = {"input_ids": torch.arange(1, 33).view(4, 8), "labels": torch.tensor([0, 1, 0, 1])}


def bert():
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    return hf.BertForSequenceClassification(hf.BertConfig(vocab_size=50, **sizes))


def train(net, wrap=IDENTITY):
    """Losses of three steps, each with noise and dropout of its own."""
    program = Classifier(net)
    elbo = wrap(AttentionELBO()(program, AttentionGuide(program)))
    optimizer = torch.optim.SGD(program.parameters(), lr=0.01)
    program.train()
    torch.manual_seed(1)
    losses = []
    for _ in range(3):
        loss = elbo(BATCH).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


class Graphs:
    """A backend that runs graphs as they are and counts them."""

    def __init__(self):
        self.compiled = 0

    def __call__(self, module, inputs):
        self.compiled += 1
        return module.forward


@pytest.fixture
def graphs():
    torch._dynamo.reset()
    yield Graphs()
    torch._dynamo.reset()


@pytest.mark.parametrize("place", ["wrapper", "after", "before", "objective"])
def test_a_compiled_network_trains_to_the_same_losses(graphs, place):
    """Attention stays outside the graphs; compiling the objective compiles nothing."""
    plain = train(convert(bert(), BayesianAttention()))
    net = bert()
    if place == "before":
        net.compile(backend=graphs)
    net = convert(net, BayesianAttention())
    if place == "after":
        net.compile(backend=graphs)
    if place == "wrapper":
        net = torch.compile(net, backend=graphs)
    objective = partial(torch.compile, backend=graphs) if place == "objective" else IDENTITY
    assert train(net, objective) == pytest.approx(plain, rel=1e-6)
    assert (graphs.compiled > 0) == (place != "objective")


def test_a_compiled_network_predicts_what_it_did(graphs):
    net = convert(bert(), BayesianAttention()).eval()
    with torch.no_grad():
        plain = net(BATCH["input_ids"]).logits
        torch.testing.assert_close(torch.compile(net, backend=graphs)(BATCH["input_ids"]).logits, plain)
    assert graphs.compiled


def test_a_compiled_wrapper_is_not_converted():
    with pytest.raises(TypeError, match=r"got OptimizedModule; convert a network before wrapping it"):
        convert(torch.compile(bert()), BayesianAttention())


@pytest.fixture
def process(monkeypatch):
    """A group of this process alone."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for name, value in {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_RANK": "0",
    }.items():
        monkeypatch.setitem(os.environ, name, value)
    dist.init_process_group("gloo")
    yield
    dist.destroy_process_group()


@pytest.mark.gloo
def test_sharded_parameters_are_refused_by_name(process):
    net = convert(bert(), BayesianAttention())
    mesh = init_device_mesh("cpu", (1,))
    for layer in net.bert.encoder.layer:
        fully_shard(layer, mesh=mesh)
    with pytest.raises(ValueError, match=r"sharded by FSDP.*whole parameters"):
        train(net)
    with pytest.raises(ValueError, match=r"sharded by FSDP"):
        SVIDriver(Classifier(net), cpu=True, progress=False).fit(BATCH, steps=1)


@pytest.mark.gloo
def test_parameters_of_deepspeed_are_refused_by_name(process):
    net = convert(bert(), BayesianAttention())
    for parameter in net.parameters():
        parameter.ds_id = 0  # as its third stage marks what it has partitioned
    with pytest.raises(ValueError, match=r"sharded by DeepSpeed"):
        train(net)


@pytest.mark.gloo
def test_whole_parameters_in_data_parallel_processes(process):
    plain = train(convert(bert(), BayesianAttention()))
    assert train(convert(bert(), BayesianAttention()), nn.parallel.DistributedDataParallel) == pytest.approx(
        plain
    )
