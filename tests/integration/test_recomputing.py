"""Activation checkpointing: losses and gradients are those without it."""

import copy
import gc
import pickle
import weakref
from contextlib import nullcontext
from functools import partial

import pyro
import pyro.distributions as dist
import pytest
import torch
import transformers as hf
from pyro.infer import SVI, Trace_ELBO
from torch import nn
from torch.utils.checkpoint import checkpoint

import probattn
from probattn import AlignmentAttention, BayesianAttention, DisagreementAttention
from probattn.inference import AttentionELBO, AttentionGuide, SVIDriver
from probattn.models import convert, program_for, revert
from probattn.sites import SeededNoise, checkpoint_contexts

SIZES = {
    "bert": lambda: hf.BertForSequenceClassification(
        hf.BertConfig(
            vocab_size=50,
            hidden_size=16,
            num_hidden_layers=3,
            num_attention_heads=2,
            intermediate_size=16,
        )
    ),
    "gpt2": lambda: hf.GPT2ForSequenceClassification(
        hf.GPT2Config(
            vocab_size=50,
            n_embd=16,
            n_layer=3,
            n_head=2,
            n_positions=16,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=1,
        )
    ),
    "t5": lambda: hf.T5ForConditionalGeneration(
        hf.T5Config(
            vocab_size=50,
            d_model=16,
            d_kv=8,
            d_ff=16,
            num_layers=2,
            num_heads=2,
            decoder_start_token_id=0,
        )
    ),
}
METHODS = {
    "babn": (BayesianAttention(),),
    "bam": (BayesianAttention.bam(),),
    "lognormal": (BayesianAttention(posterior="lognormal"),),
    "scale": (BayesianAttention(sigma=0.1),),
    "alignment": (BayesianAttention(), AlignmentAttention("ct")),
    "disagreement": (DisagreementAttention(),),
}


def enable(net, **options):
    getattr(net, "activation_checkpointing_enable", net.gradient_checkpointing_enable)(
        {"use_reentrant": False} | options
    )


def network(name, methods, dtype=torch.float64, *, checkpointed=True):
    torch.manual_seed(0)
    net = convert(SIZES[name](), *methods).to(dtype).train()
    net.config.use_cache = False
    if checkpointed:
        enable(net)
    return net


def batches(name):
    generator = torch.Generator().manual_seed(0)
    words = torch.randint(1, 50, (4, 9), generator=generator)
    mask = torch.ones_like(words)
    mask[1, 6:] = 0
    labels = torch.randint(1, 50, (4, 5), generator=generator) if name == "t5" else words[:, 0] % 2
    whole = {"input_ids": words, "attention_mask": mask, "labels": labels}
    return [{key: value[rows] for key, value in whole.items()} for rows in (slice(0, 3), slice(2, 4))]


def gradients(name, net, noise=None):
    """Two passes before one backward pass, dropout included."""
    program = program_for(net, num_data=10)
    objective = AttentionELBO()(program, AttentionGuide(program, kl_weight=0.3, noise=noise))
    torch.manual_seed(1)
    terms = [objective(batch) for batch in batches(name)]
    sum(term.loss for term in terms).backward()
    after = torch.rand(3)  # training goes on from the same place in the generator's stream
    return (
        torch.stack([value.detach() for term in terms for value in term]),
        after,
        {name: parameter.grad for name, parameter in net.named_parameters() if parameter.grad is not None},
    )


@pytest.mark.parametrize(
    ("name", "method", "dtype"),
    [
        ("bert", "babn", torch.float32),
        *(("bert", method, torch.float64) for method in METHODS),
        *((name, method, torch.float64) for name in ("gpt2", "t5") for method in ("babn", "alignment")),
    ],
)
def test_terms_and_gradients_are_those_without(families, name, method, dtype):
    if name == "t5":
        families.needs("5.15", "T5 whose attention goes through the attention interface")
    found, runs = [], []
    for on in (False, True):
        net, calls = network(name, METHODS[method], dtype, checkpointed=on), []
        for module in net.modules():
            if isinstance(module, nn.Dropout):
                module.register_forward_hook(lambda *_, calls=calls: calls.append(1))
        found.append(gradients(name, net))
        runs.append(len(calls))
    assert runs[1] > runs[0]  # layers did run a second time
    assert found[0][2].keys() == found[1][2].keys()
    torch.testing.assert_close(found[1], found[0], atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("method", ["babn", "bam", "lognormal"])
def test_no_maps_are_kept_for_the_backward_pass(method):
    """Neither as saved tensors outside of the layers, whose own are those of their checkpoints, nor by objects."""
    program, kept, posteriors = program_for(network("bert", METHODS[method])), [], []

    class Guide(AttentionGuide):
        def _draw(self, msg, posterior):
            super()._draw(msg, posterior)
            posteriors.extend((weakref.ref(posterior), weakref.ref(msg["value"])))

    objective = AttentionELBO()(program, Guide(program))
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x.shape) or x, lambda x: x):
        loss = objective(batches("bert")[0]).loss
    assert kept and not any(shape.numel() >= 3 * 2 * 9 * 9 for shape in kept if shape[-1:] != (16,))
    gc.collect()
    assert len(posteriors) == 6 and not any(reference() is not None for reference in posteriors)
    loss.backward()
    assert all({"kl_nats", "cv"} <= site.keys() for site in objective.diagnostics().values())


def deep(layers, checkpointed):
    """A BERT of ``layers`` layers, of which those in ``checkpointed`` run again."""
    torch.manual_seed(0)
    config = hf.BertConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=layers,
        num_attention_heads=2,
        intermediate_size=16,
        initializer_range=0.3,
    )
    net = convert(hf.BertForSequenceClassification(config), BayesianAttention()).double().train()
    enable(net)
    for number, layer in enumerate(net.bert.encoder.layer):
        layer.gradient_checkpointing = number in checkpointed
    return net


@pytest.mark.parametrize("checkpointed", [range(9), [0], range(1, 9), [2, 5, 6]])
def test_states_of_the_upward_path_that_stay(checkpointed):
    plain, again = (gradients("bert", deep(9, some)) for some in ((), checkpointed))
    torch.testing.assert_close(again, plain, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("number", [0, 2])
def test_a_layer_without_gradients_leaves_those_of_the_others(number):
    found = []
    for checkpointed in ((), range(9)):
        net = deep(9, checkpointed)
        layer = net.bert.encoder.layer[number]
        layer.forward = torch.no_grad()(layer.forward)
        terms, _, slopes = gradients("bert", net)
        found.append((terms, {name: slope for name, slope in slopes.items() if slope.any()}))
    assert found[0][1]
    torch.testing.assert_close(found[1], found[0], atol=1e-9, rtol=1e-9)


def test_maps_of_the_upward_path_stay_for_the_square_root_of_the_layers():
    program = program_for(deep(9, range(9)))
    objective = AttentionELBO()(program, AttentionGuide(program))
    batch = batches("bert")[0]
    maps = (3, 2, 9, 9)

    def count():
        gc.collect()
        return sum(type(item) is torch.Tensor and item.shape == maps for item in gc.get_objects())

    before = count()
    loss = objective(batch).loss
    assert 0 < count() - before <= 3  # scores and two states; each layer had kept two or more
    loss.backward()


@pytest.mark.parametrize("empty", [False, True])
def test_statistics_of_a_recomputed_layer_are_those_of_the_first_datum(empty):
    batch, statistics = batches("bert")[0], []
    for checkpointed, rows in ((range(3), [0, 1, 2]), ((), [0]), ((), [0, 1, 2])):
        net = deep(3, checkpointed)
        net.bert.embeddings.dropout.p = 0.0  # the scores of the first layer then follow from the words
        program = program_for(net)
        objective = AttentionELBO()(program, AttentionGuide(program))
        rows_of = {key: value[rows] for key, value in batch.items()}
        if empty and len(rows) == 3:  # the first datum is then the second of the batch
            order = [1, 0, 2]
            rows_of = {key: value[order] for key, value in rows_of.items()}
            rows_of["attention_mask"][0] = 0
        objective(rows_of)
        first, *_ = objective.diagnostics().values()
        statistics.append([first["cv"], first["concentration"], first["kl_nats"]])
    recomputed, one, whole = statistics
    assert recomputed[:2] == pytest.approx(one[:2], rel=1e-9)
    assert recomputed[:2] != pytest.approx(whole[:2], rel=1e-7)
    assert recomputed[2] == pytest.approx(whole[2], rel=1e-9)


def test_a_divergence_after_a_draw_without_it_is_that_of_all_rows():
    batch, sums = batches("bert")[0], []

    class Guide(AttentionGuide):
        def _draw(self, msg, posterior):
            msg["value"] = posterior.draw(self.noise, with_kl=False)
            sums.append(posterior.kl().detach())
            super()._draw(msg, posterior)

    for checkpointed in ((), range(3)):
        program = program_for(deep(3, checkpointed))
        torch.manual_seed(1)
        AttentionELBO()(program, Guide(program))(batch)
    torch.testing.assert_close(sums[3:], sums[:3], atol=1e-9, rtol=1e-9)


def test_a_guide_may_read_a_posterior_without_gradients():
    batch, slopes = batches("bert")[0], []

    class Guide(AttentionGuide):
        def _draw(self, msg, posterior):
            if ".3." in msg["name"]:
                with torch.no_grad():
                    assert posterior.inputs.concentration.min() > 0
            super()._draw(msg, posterior)

    for checkpointed in ((), range(9)):
        program = program_for(deep(9, checkpointed))
        torch.manual_seed(1)
        AttentionELBO()(program, Guide(program))(batch).loss.backward()
        slopes.append({name: item.grad for name, item in program.named_parameters() if item.grad is not None})
    torch.testing.assert_close(slopes[1], slopes[0], atol=1e-9, rtol=1e-9)


def test_noise_of_the_guide_counts_on_from_the_layer():
    plain, again = (
        gradients("bert", network("bert", METHODS["babn"], checkpointed=on), SeededNoise([3], "cpu"))
        for on in (False, True)
    )
    torch.testing.assert_close(again, plain, atol=1e-9, rtol=1e-9)


def test_a_graph_that_is_kept_runs_again_and_again():
    program = program_for(network("bert", METHODS["babn"]))
    loss = AttentionELBO()(program, AttentionGuide(program))(batches("bert")[0]).loss
    weights = list(program.parameters())
    first = torch.autograd.grad(loss, weights, retain_graph=True, allow_unused=True)
    torch.testing.assert_close(torch.autograd.grad(loss, weights, allow_unused=True), first)


def test_pyros_own_loop():
    losses = []
    for on in (False, True):
        pyro.clear_param_store()
        program = program_for(network("bert", METHODS["bam"], checkpointed=on))
        svi = SVI(program, AttentionGuide(program), pyro.optim.Adam({"lr": 0.01}), Trace_ELBO())
        torch.manual_seed(1)
        losses.append([svi.step(batches("bert")[0]) for _ in range(3)])
    assert losses[1] == pytest.approx(losses[0], rel=1e-6)


def test_the_driver_trains_to_the_same_weights():
    weights = []
    for on in (False, True):
        program = program_for(network("bert", METHODS["babn"], torch.float32, checkpointed=on))
        SVIDriver(program, batch_size=2, seed=0, cpu=True, progress=False).fit(batches("bert")[0], steps=4)
        weights.append(program.state_dict())
    torch.testing.assert_close(weights[1], weights[0], atol=1e-6, rtol=1e-6)


class Block(nn.Module):
    def __init__(self, contexts):
        super().__init__()
        torch.manual_seed(0)
        self.attention = nn.ModuleList(
            probattn.MultiheadAttention(4, 2, batch_first=True, site=f"attention{number}")
            for number in range(2)
        )
        probattn.link(self, together=False)
        self.run = [
            partial(checkpoint, one, use_reentrant=False, context_fn=contexts) if contexts else one
            for one in self.attention
        ]

    def forward(self, x):
        with pyro.plate("data", len(x)):
            output = x
            for number, block in enumerate(self.run):
                with pyro.poutine.scale(scale=1.0 + number):
                    output = output + block(output, output, output)[0]
            pyro.sample("y", dist.Normal(output, 1.0).to_event(2), obs=x)


def test_blocks_of_a_network_of_your_own():
    x = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(0))
    found = []
    for contexts in (None, checkpoint_contexts):
        model = Block(contexts)
        torch.manual_seed(1)
        loss = AttentionELBO()(model, AttentionGuide(model))(x).loss
        loss.backward()
        found.append((loss.detach(), [parameter.grad for parameter in model.parameters()]))
    torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"use_reentrant": True}, r"reentrant activation checkpointing .*use_reentrant.: False"),
        ({"preserve_rng_state": False}, r"preserve_rng_state=False draws other"),
        ({"context_fn": lambda: (nullcontext(), nullcontext())}, r"context_fn of its own"),
    ],
)
def test_what_cannot_be_right_is_refused(options, words):
    net = network("bert", METHODS["babn"], checkpointed=False)
    enable(net, **options)
    program = program_for(net)
    with pytest.raises(RuntimeError, match=words):
        AttentionELBO()(program, AttentionGuide(program))(batches("bert")[0])


def test_a_compiled_network_is_refused():
    program = program_for(network("bert", METHODS["bam"], torch.float32))
    driver = SVIDriver(program, batch_size=2, cpu=True, progress=False, compile=True)
    with pytest.raises(ValueError, match=r"compile: torch\.compile takes no activation checkpointing"):
        driver.fit(batches("bert")[0], steps=1)


def test_without_a_driver_it_is_refused():
    net = network("bert", METHODS["babn"])
    batch = batches("bert")[0]
    with pytest.raises(RuntimeError, match="training without a driver"):
        net(**batch)
    with probattn.sampling(net), pytest.raises(RuntimeError, match="training without a driver"):
        net(**batch)
    assert net.eval()(**batch).logits.requires_grad


def test_copies_and_reverted_networks():
    net = network("bert", METHODS["babn"])
    plain = gradients("bert", net)
    net.disable_input_require_grads()  # a hook that cannot be pickled
    for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        other.zero_grad()
        torch.testing.assert_close(gradients("bert", other), plain)
    functions = [
        module._gradient_checkpointing_func
        for module in revert(net).modules()
        if getattr(module, "gradient_checkpointing", False)
    ]
    assert functions
    assert all(function.keywords == {"use_reentrant": False} for function in functions)
