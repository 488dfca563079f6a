"""Driven passes of compiled networks: one graph, with the numbers of the network that is not compiled."""

import itertools
import shutil
from functools import partial

import pyro
import pyro.distributions as dist
import pytest
import torch
import transformers as hf
from torch import nn

from probattn import AlignmentAttention, BayesianAttention, sampling
from probattn.inference import AttentionELBO, AttentionGuide, SVIDriver, posterior_predict
from probattn.models import Classifier, convert

pytestmark = pytest.mark.filterwarnings(r"ignore:The \.grad attribute of a Tensor:UserWarning")  # torch's own

SIZES = {"num_labels": 2, "vocab_size": 40, "pad_token_id": 0}
BERT = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
ONE = {"num_hidden_layers": 1}
FAMILIES = {
    "bert": lambda **sizes: hf.BertForSequenceClassification(hf.BertConfig(**SIZES, **(BERT | sizes))),
    "albert": lambda: hf.AlbertForSequenceClassification(hf.AlbertConfig(embedding_size=8, **SIZES, **BERT)),
    "gpt2": lambda: hf.GPT2ForSequenceClassification(hf.GPT2Config(n_embd=16, n_layer=2, n_head=2, **SIZES)),
    "llama": lambda: hf.LlamaForSequenceClassification(
        hf.LlamaConfig(num_key_value_heads=1, **SIZES, **BERT)
    ),
    "bart": lambda: hf.BartForSequenceClassification(
        hf.BartConfig(
            d_model=16,
            encoder_layers=1,
            decoder_layers=1,
            encoder_attention_heads=2,
            decoder_attention_heads=2,
            encoder_ffn_dim=16,
            decoder_ffn_dim=16,
            eos_token_id=39,
            **SIZES,
        )
    ),
}
METHODS = {
    "babn": BayesianAttention(),
    "others": BayesianAttention(
        rho=3.0, floor=0.2, rate=2.0, prior="constant", prior_strength=3.0, noise="truncated"
    ),
    "strength": BayesianAttention(prior_strength="learned"),
    "scale": BayesianAttention(sigma=0.1, scores="raw", kl_reduction="sum"),
    "bam": BayesianAttention.bam(),
    "lognormal": BayesianAttention.bam(posterior="lognormal"),
}


@pytest.fixture(autouse=True)
def _nothing_compiled():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def network(family, method, dtype=torch.float64, **sizes):
    torch.manual_seed(0)
    net = convert(FAMILIES[family](**sizes).to(dtype), METHODS[method])
    for module in net.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return net


def rows(number=3, length=7, *, padded=True):
    ids = torch.randint(1, 39, (number, length), generator=torch.Generator().manual_seed(length))
    ids[:, -1] = 39
    mask = torch.ones_like(ids)
    if padded:
        ids[0, length - 3 :], mask[0, length - 2 :] = torch.tensor([39, 0, 0]), 0
    return {"input_ids": ids, "attention_mask": mask, "labels": torch.arange(number) % 2}


def step(net, batch, num_samples=3):
    """Terms of the objective, gradients, diagnostics, and draws, if any."""
    program = Classifier(net).train()
    objective = AttentionELBO()(program, AttentionGuide(program, kl_weight=0.3))
    torch.manual_seed(1)
    terms = objective(batch)
    terms.loss.backward()
    gradients = {
        name.replace("_orig_mod.", ""): value.grad.clone()
        for name, value in program.named_parameters()
        if value.grad is not None
    }
    program.zero_grad()
    draws = posterior_predict(program, batch, num_samples, chunk_size=2).logits if num_samples else None
    return [term.detach() for term in terms], gradients, objective.diagnostics(), draws


PAIRS = sorted({*((each, "babn") for each in FAMILIES), *(("bert", each) for each in METHODS)})
ALWAYS = [("bart", "bam", {})]
"""Compiled in every run of the tests, in some seconds. BERT with BABN is compiled after an error below."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "method", "sizes"),
    [*ALWAYS, *(pytest.param(*pair, {}, marks=pytest.mark.minutes) for pair in PAIRS)],
)
def test_one_graph_has_the_numbers_of_no_graph(name, method, sizes):
    backend = "eager" if (name, method, sizes) in ALWAYS else "aot_eager"
    compiled = torch.compile(network(name, method, **sizes), fullgraph=True, backend=backend)
    compare(compiled, name, method, sizes)


def compare(compiled, name, method, sizes):
    batch = rows()
    plain, ours = (step(net, batch, num_samples=2) for net in (network(name, method, **sizes), compiled))
    assert ours[1].keys() == plain[1].keys() and ours[2].keys() == plain[2].keys()
    torch.testing.assert_close(ours, plain, rtol=1e-9, atol=1e-11)
    assert plain[3].std(dim=0).min() > 0


@pytest.mark.minutes
def test_batches_of_other_sizes_do_not_compile_anew_each():
    net = torch.compile(network("bert", "babn"), fullgraph=True, backend="aot_eager", dynamic=True)
    plain = network("bert", "babn")
    torch._dynamo.utils.counters.clear()
    for number, length in ((3, 7), (4, 9), (2, 12)):
        batch = rows(number, length)
        torch.testing.assert_close(step(net, batch), step(plain, batch), rtol=1e-9, atol=1e-11)
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    assert (
        graphs <= 4 and not torch._dynamo.utils.counters["graph_break"]
    )  # training, prediction; fewer rows once


@pytest.mark.slow
def test_what_one_graph_cannot_hold_is_right_in_several():
    """Aligned queries and keys, and weights that are asked for; undriven passes answer as before."""
    nets = []
    for _ in range(2):
        torch.manual_seed(0)
        net = FAMILIES["bert"](**ONE).double()
        nets.append(convert(net, METHODS["bam"], AlignmentAttention("gan")).eval())
    plain, compiled = nets[0], torch.compile(nets[1], backend="eager")
    batch = rows()
    found, expected = (step(net, batch, num_samples=0)[:2] for net in (compiled, plain))
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)
    net = network("bert", "babn", **ONE).eval()
    shown = posterior_predict(Classifier(net), batch, 2, attention="all")
    again = posterior_predict(Classifier(torch.compile(net, backend="eager")), batch, 2, attention="all")
    torch.testing.assert_close(again.attention, shown.attention)
    inputs = {name: value for name, value in batch.items() if name != "labels"}
    with torch.no_grad():
        expected = net(**inputs).logits
        torch.testing.assert_close(torch.compile(net, backend="eager")(**inputs).logits, expected)


@pytest.mark.slow
def test_an_error_in_a_pass_leaves_nothing_behind():
    compiled = torch.compile(network("bert", "babn", **ONE), fullgraph=True, backend="aot_eager")
    wrong = rows() | {"labels": torch.zeros(5, dtype=torch.long)}
    with pytest.raises(ValueError, match="expected class numbers"):
        step(compiled, wrong)
    compare(compiled, "bert", "babn", ONE)


def around(hidden, *_, **__):
    return hidden, None


def bypass_one(net):
    net.bert.encoder.layer[1].attention.self.forward = around


def bypass_all(net):
    for layer in net.bert.encoder.layer:
        layer.attention.forward = around


def bypass_outer(net):
    net.bert.encoder.layer[1].attention.forward = around


class Idle(nn.Module):
    """Without attention; may keep the module that it replaces."""

    def __init__(self, inner=None):
        super().__init__()
        self.inner = inner

    def forward(self, hidden, *_, **__):
        return hidden, None


def swap_outer(net):
    net.bert.encoder.layer[1].attention = Idle()


def wrap_outer(net):
    net.bert.encoder.layer[1].attention = Idle(net.bert.encoder.layer[1].attention)


def remove_one(net):
    del net.bert.encoder.layer[1].attention.self.probattn


def predict(net, *, attention):
    posterior_predict(Classifier(net).eval(), rows(), 3, attention=attention)


def sample(net):
    with torch.no_grad(), sampling(net, seed=0):
        net(**{name: value for name, value in rows().items() if name != "labels"})


def train(net):
    data = {name: value[:2] for name, value in rows().items()}
    SVIDriver(Classifier(net), batch_size=2, progress=False, cpu=True).fit(data, steps=1)


@pytest.mark.parametrize(
    ("change", "use", "fullgraph"),
    [
        (bypass_one, partial(predict, attention=None), True),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                (remove_one, partial(predict, attention=None), True),
                (bypass_all, partial(predict, attention="all"), False),
                (bypass_outer, sample, False),
                (swap_outer, partial(predict, attention=None), True),
                (wrap_outer, train, True),
            )
        ),
    ],
)
def test_a_pass_that_goes_round_the_sites_is_refused(change, use, fullgraph):
    net = network("bert", "babn", torch.float32).eval()
    change(net)
    compiled = torch.compile(net, backend="eager", fullgraph=fullgraph)
    with pytest.raises(RuntimeError, match=r"site of bert.encoder.layer.[01].attention.self was not reached"):
        use(compiled)


class Two(nn.Module):
    """Two networks whose modules have the same names."""

    def __init__(self):
        super().__init__()
        networks = [hf.BertModel(hf.BertConfig(vocab_size=40, **(BERT | ONE))).eval() for _ in range(2)]
        self.first, self.second = (convert(net, METHODS["babn"]) for net in networks)

    def forward(self, batch):
        outputs = [net(batch["input_ids"]).pooler_output for net in (self.first, self.second)]
        with pyro.plate("data", len(batch["labels"])):
            logits = torch.stack(outputs).sum(dim=0)[:, :2]
            pyro.sample("class", dist.Categorical(logits=logits), obs=batch["labels"])


def skip_attention(net):
    for layer in net.encoder.layer:
        layer.attention.forward = around


def skip_encoder(net):
    net.encoder.forward = lambda hidden, **_: hf.modeling_outputs.BaseModelOutputWithPastAndCrossAttentions(
        hidden
    )


@pytest.mark.parametrize(
    ("change", "which", "compiled"),
    [
        *itertools.product((skip_attention, skip_encoder), ("first", "second"), [False]),
        pytest.param(skip_attention, "first", True, marks=pytest.mark.slow),
        pytest.param(skip_encoder, "second", True, marks=pytest.mark.slow),
    ],
)
def test_a_network_that_goes_round_its_sites_beside_one_of_the_same_names_is_refused(change, which, compiled):
    program = Two()
    change(getattr(program, which))
    if compiled:
        program.first.compile(backend="eager", fullgraph=True)
        program.second.compile(backend="eager", fullgraph=True)
    words = r"site of encoder\.layer\.0\.attention\.self was not reached"
    with pytest.raises(RuntimeError, match=words):
        AttentionELBO()(program, AttentionGuide(program))(rows())


def test_equal_draws_name_the_network_that_was_compiled():
    torch.manual_seed(0)
    net = torch.compile(FAMILIES["bert"]().eval(), backend="eager")
    with pytest.raises(ValueError, match="nothing is random in BertForSequenceClassification"):
        predict(net, attention=None)
    with pytest.raises(ValueError, match="sampling: BertForSequenceClassification has no attention sites"):
        sample(net)


@pytest.mark.skipif(
    not any(map(shutil.which, ("g++", "clang++"))),
    reason="compares kernels that torch.compile makes with a C++ compiler, and none is on the path",
)
@pytest.mark.minutes
def test_kernels_of_the_compiler_have_the_numbers_too():
    batch = rows(padded=False)
    plain = step(network("bert", "babn", torch.float32), batch)
    ours = step(torch.compile(network("bert", "babn", torch.float32), fullgraph=True), batch)
    torch.testing.assert_close(ours[0], plain[0], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(ours[3], plain[3], rtol=0, atol=1e-3 * float(plain[3].std(dim=0).max()))
    for name, gradient in plain[1].items():
        torch.testing.assert_close(
            ours[1][name], gradient, rtol=1e-3, atol=1e-3 * float(gradient.abs().max())
        )
