"""Networks in the wrappers of torch: compiled graphs, sharded parameters, data-parallel processes."""

import copy
import os
import socket
from functools import partial

import pyro
import pytest
import torch
import torch.distributed as dist
import transformers as hf
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader

from probattn import AlignmentAttention, BayesianAttention, ParticleLayers
from probattn.inference import AttentionELBO, AttentionGuide, SVIDriver, shard
from probattn.models import Classifier, convert

IDENTITY = nn.Identity()
BATCH = {"input_ids": torch.arange(1, 33).view(4, 8), "labels": torch.tensor([0, 1, 0, 1])}


def bert(layers=2):
    torch.manual_seed(0)
    sizes = {
        "hidden_size": 16,
        "num_hidden_layers": layers,
        "num_attention_heads": 2,
        "intermediate_size": 16,
    }
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


TORCHS_OWN = pytest.mark.filterwarnings(r"ignore:The \.grad attribute of a Tensor:UserWarning")


@pytest.mark.slow_but("before", "objective")
@TORCHS_OWN
@pytest.mark.parametrize("place", ["after", "before", "objective"])
def test_a_compiled_network_trains_to_the_same_losses(graphs, place):
    """Compiling the objective compiles nothing."""
    plain = train(convert(bert(1), BayesianAttention()))
    net = bert(1)
    if place == "before":
        net.compile(backend=graphs)
    net = convert(net, BayesianAttention())
    if place == "after":
        net.compile(backend=graphs)
    objective = partial(torch.compile, backend=graphs) if place == "objective" else IDENTITY
    assert train(net, objective) == pytest.approx(plain, rel=1e-6)
    assert (graphs.compiled > 0) == (place != "objective")


@TORCHS_OWN
def test_a_compiled_wrapper_is_not_converted():
    with pytest.raises(TypeError, match=r"got OptimizedModule; convert a network before wrapping it"):
        convert(torch.compile(bert()), BayesianAttention())


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@pytest.fixture
def process(monkeypatch):
    """A group of this process alone."""
    for name, value in {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
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
    net = convert(bert(), BayesianAttention.bam(prior="constant"))  # whose sites have no parameters
    fully_shard(net.bert.encoder.layer[0], mesh=mesh)
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


class Even:
    """Noise that is the same for every row."""

    draws = 1

    def uniform(self, like):
        return torch.full_like(like, 0.5)

    normal = uniform


def accelerated(rank, processes, port, results):
    """Weights after accelerate's own loop over eight rows a step, two micro-batches of each."""
    os.environ.update(
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        RANK=str(rank),
        WORLD_SIZE=str(processes),
        LOCAL_RANK=str(rank),
    )
    AcceleratorState._reset_state(reset_partial_state=True)  # what the forked process had before
    GradientState._reset_state()
    net = bert().apply(lambda module: setattr(module, "p", 0.0) if isinstance(module, nn.Dropout) else None)
    program = Classifier(convert(net, BayesianAttention()), num_data=16)
    guide = AttentionGuide(program, kl_weight=0.1, noise=Even())
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    rows = [{"input_ids": row, "labels": row[0] % 2} for row in torch.arange(1, 129).view(16, 8) % 50]
    elbo, optimizer, loader = accelerator.prepare(
        AttentionELBO()(program, guide),
        torch.optim.SGD(program.parameters(), lr=0.01),
        DataLoader(rows, batch_size=4 // processes),
    )
    elbo.train()
    for batch in loader:
        with accelerator.accumulate(elbo):
            accelerator.backward(elbo(batch).loss)
            optimizer.step()
            optimizer.zero_grad()
    results.put((rank, [value.tolist() for value in program.state_dict().values()]))
    if processes > 1:
        dist.destroy_process_group()


def same_in_two_processes(run):
    """Asserts that two processes end with the weights of one; ``run`` takes rank, processes, a port and a queue."""
    context = torch.multiprocessing.get_context("fork")
    found = []
    for processes in (1, 2):
        results, port = context.Queue(), free_port()
        started = [
            context.Process(target=run, args=(rank, processes, port, results)) for rank in range(processes)
        ]
        for one in started:
            one.start()
        found += [results.get(timeout=100)[1] for _ in started]  # a process that failed says so on its own
        for one in started:
            one.join()
    alone, *both = found
    assert len(both) == 2
    for weights in both:
        for mine, theirs in zip(weights, alone, strict=True):
            torch.testing.assert_close(torch.tensor(mine), torch.tensor(theirs), atol=1e-6, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.fork
@pytest.mark.gloo
def test_accelerates_loop_in_two_processes_is_that_of_one():
    same_in_two_processes(accelerated)


def small(kind):
    """A classifier of two layers without dropout."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    if kind == "gpt2":
        ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
        net = hf.GPT2ForSequenceClassification(hf.GPT2Config(n_positions=16, **ids, **sizes))
    elif kind == "albert":
        sizes |= {"embedding_size": 8, "intermediate_size": 16}
        net = hf.AlbertForSequenceClassification(hf.AlbertConfig(**sizes))
    else:
        net = bert()
    return net.apply(lambda module: setattr(module, "p", 0.0) if isinstance(module, nn.Dropout) else None)


def sharded(rank, processes, port, results, kind, methods):
    """Weights after four steps by SGD of an objective whose parameters are sharded where there are two processes."""
    if processes > 1:
        dist.init_process_group(
            "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=processes
        )
    net = small(kind)
    torch.manual_seed(1)
    program = Classifier(convert(net, *methods), num_data=16).train()
    elbo = AttentionELBO()(program, AttentionGuide(program, kl_weight=0.1, noise=Even()))
    if processes > 1:
        shard(elbo, mesh=init_device_mesh("cpu", (processes,)))
        assert all(isinstance(parameter, DTensor) for parameter in elbo.parameters())
    optimizer = torch.optim.SGD(elbo.parameters(), lr=0.05)
    for rows in (torch.arange(1, 129).view(16, 8) % 50).split(4):
        part = rows.chunk(processes)[rank]
        optimizer.zero_grad()
        elbo({"input_ids": part, "labels": part[:, 0] % 2}).loss.backward()
        optimizer.step()
    weights = [getattr(value, "full_tensor", lambda value=value: value)() for value in elbo.parameters()]
    results.put((rank, [value.tolist() for value in weights]))
    if processes > 1:
        dist.destroy_process_group()


@pytest.mark.slow
@pytest.mark.fork
@pytest.mark.gloo
@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module:UserWarning")  # of GPT-2, whose layers return views
@pytest.mark.parametrize(
    ("kind", "methods"),
    [
        ("bert", [BayesianAttention()]),
        ("albert", [BayesianAttention()]),
        ("gpt2", [BayesianAttention()]),
        ("bert", [BayesianAttention.bam(), AlignmentAttention(method="gan", weight=0.1)]),
    ],
    ids=["bert", "albert", "gpt2", "aligned"],
)
def test_a_sharded_objective_trains_as_one_process(kind, methods):
    same_in_two_processes(partial(sharded, kind=kind, methods=methods))


@pytest.mark.gloo
def test_layers_of_a_sharded_objective_are_whole_only_while_they_run(process):
    net = convert(bert(), BayesianAttention())
    plain = train(convert(bert(), BayesianAttention()))
    query, site = (
        net.bert.encoder.layer[0].attention.self.get_submodule(name) for name in ("query", "probattn")
    )
    whole = {}

    def look(name, *modules):
        whole[name] = [not isinstance(next(module.parameters()), DTensor) for module in modules]

    query.register_forward_hook(lambda *_: look("layer", query, site))
    net.classifier.register_forward_hook(lambda *_: look("head", query, site))
    assert train(net, shard) == pytest.approx(plain)
    assert whole == {"layer": [True, True], "head": [False, True]}


class Deep(nn.Module):
    """Layers that share a module, a weight with another layer, and one with the head."""

    def __init__(self):
        super().__init__()
        repeated, self.head = nn.Linear(4, 4), nn.Linear(4, 4)
        self.layers = nn.ModuleList([repeated, repeated, *(nn.Linear(4, 4) for _ in range(4))])
        self.layers[3].weight = self.layers[2].weight
        self.layers[4].weight = self.head.weight

    def forward(self, batch):
        hidden = batch["x"]
        for layer in (*self.layers, self.head):
            hidden = layer(hidden).tanh()
        with pyro.plate("data", len(hidden)):
            pyro.sample("y", pyro.distributions.Normal(hidden.sum(-1), 1.0), obs=batch["y"])


@pytest.mark.gloo
def test_what_layers_share_stays_with_the_rest(process):
    torch.manual_seed(0)
    model, batch = Deep(), {"x": torch.randn(3, 4), "y": torch.randn(3)}
    other = copy.deepcopy(model)
    objectives = [AttentionELBO()(one, AttentionGuide(one)) for one in (model, other)]
    shard(objectives[1])
    sharded = [isinstance(layer, FSDPModule) for layer in other.layers]
    assert sharded == [False, False, False, False, False, True]
    for objective in objectives:
        optimizer = torch.optim.SGD(objective.parameters(), lr=0.1)
        for _ in range(2):
            objective(batch).loss.backward()
            optimizer.step()
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(one, two.full_tensor())


def test_what_cannot_be_sharded_is_refused(request):
    def objective(net):
        return AttentionELBO()(Classifier(net), AttentionGuide(Classifier(net)))

    with pytest.raises(ValueError, match="initialised process group"):
        shard(objective(convert(bert(), BayesianAttention())))
    request.getfixturevalue("process")
    with pytest.raises(ValueError, match="particle layers cannot be sharded"):
        shard(objective(convert(bert(), ParticleLayers(num_particles=2, layers=[-1]))))
    with pytest.raises(ValueError, match=r"log_strength has no dimension .* set prior_strength to a number"):
        shard(objective(convert(bert(), BayesianAttention(prior_strength="learned"))))
    half = convert(bert().bfloat16(), BayesianAttention())
    with pytest.raises(
        ValueError, match=r"one type, got .* \(bfloat16\).* \(float32\); load the network in float32"
    ):
        shard(objective(half))
