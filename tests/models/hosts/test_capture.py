"""Captured queries, keys and weights against the networks' own outputs."""

from dataclasses import fields

import pytest
import torch
from transformers import BertConfig, BertModel

from probattn import BayesianAttention
from probattn.models import AttentionCalls, capture, convert, inspect

CONFIG = BertConfig(
    vocab_size=40, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16
)


def bert():
    torch.manual_seed(0)
    return BertModel(CONFIG).eval()


def batch():
    ids = torch.arange(1, 19).view(3, 6)
    mask = torch.ones_like(ids)
    mask[1, 4:], mask[2, 2:] = 0, 0
    return {"input_ids": ids, "attention_mask": mask}


def test_queries_and_keys_are_what_the_projections_give():
    net, inputs = bert(), batch()
    found = capture(net, inputs)
    states = net(**inputs, output_hidden_states=True).hidden_states
    for layer, call in enumerate(found.values()):
        module = net.encoder.layer[layer].attention.self
        for name, tensor in (("query", call.query), ("key", call.key)):
            expected = getattr(module, name)(states[layer]).view(3, 6, 2, 8).transpose(1, 2)
            torch.testing.assert_close(tensor, expected)
        assert torch.equal(call.query_valid, inputs["attention_mask"].bool())
        assert torch.equal(call.key_valid, inputs["attention_mask"].bool())


def test_weights_are_the_eager_ones():
    net, inputs = bert(), batch()
    found = capture(net, inputs)
    net.set_attn_implementation("eager")
    expected = net(**inputs, output_attentions=True).attentions
    for call, weights in zip(found.values(), expected, strict=True):
        real = call.query_valid[:, None, :, None]
        torch.testing.assert_close(call.weights * real, weights * real)


@pytest.mark.parametrize("method", [None, BayesianAttention(rho=1.5, sigma=0.5)])
def test_a_network_is_left_as_it_was(method):
    net, inputs = bert(), batch()
    if method is not None:
        convert(net, method)
    with torch.no_grad():
        before = net(**inputs).last_hidden_state
    net.train()
    state, generator = dict(net.state_dict()), torch.get_rng_state()
    first = capture(net, inputs)
    second = capture(net, inputs)
    assert net.training and torch.equal(generator, torch.get_rng_state())
    assert net.state_dict().keys() == state.keys()
    net.eval()
    with torch.no_grad():
        assert torch.equal(net(**inputs).last_hidden_state, before)
    for name, call in first.items():
        assert torch.equal(call.query, second[name].query)
        assert not call.query.requires_grad


def test_a_latent_call_gives_the_weights_of_its_expectation():
    net, inputs = bert(), batch()
    plain = capture(net, inputs)
    latent = capture(convert(net, BayesianAttention()), inputs)
    for name, call in latent.items():  # freshly converted with sigma 0: the same answers
        torch.testing.assert_close(call.key, plain[name].key)
        real = call.query_valid[:, None, :, None]
        torch.testing.assert_close(call.weights * real, plain[name].weights * real, atol=1e-6, rtol=1e-5)


def test_some_calls_only_and_calls_that_do_not_come():
    net, inputs = bert(), batch()
    last = inspect(net, layers="last")
    assert list(capture(net, inputs, last)) == ["encoder.layer.1.attention.self"]
    other = inspect(BertModel(BertConfig(**(CONFIG.to_diff_dict() | {"num_hidden_layers": 3}))))
    with pytest.raises(ValueError, match=r"encoder\.layer\.2\.attention\.self: expected this attention call"):
        capture(net, inputs, other)


@pytest.mark.parametrize("known", ["converted", "given"])
def test_known_calls_need_one_pass(known):
    """A network whose calls are on record, or given, runs once a batch; else the two passes of a dry run find them."""
    net, inputs, runs = bert(), batch(), []
    calls = inspect(net) if known == "given" else None
    if known == "converted":
        convert(net, BayesianAttention())
    net.embeddings.register_forward_hook(lambda *_: runs.append(1))
    capture(net, inputs, calls)
    assert len(runs) == 1
    bare = bert()
    bare.embeddings.register_forward_hook(lambda *_: runs.append(1))
    capture(bare, inputs)
    assert len(runs) == 4


@pytest.mark.only("padded")
def test_a_call_alone_is_captured_as_among_all(family):
    """Also a cross attention without the self attention before it, whose mask shows the real queries."""
    net = family.network()
    rows = family.pad(family.inputs(), "right")
    calls, whole = inspect(net), capture(net, rows)
    for call in calls:
        (alone,) = capture(net, rows, AttentionCalls([call])).values()
        for field in fields(alone):
            mine, other = getattr(alone, field.name), getattr(whole[call.name], field.name)
            assert (mine is None and other is None) or torch.equal(mine, other), (call.name, field.name)


def test_every_family_shows_all_its_calls(family):
    net, inputs = family.network(), family.inputs()
    calls = inspect(net)
    rows = family.pad(inputs, "right") if family.padded else inputs
    found = capture(net, rows)
    assert list(found) == [call.name for call in calls]
    for call in calls:
        seen = found[call.name]
        assert seen.query.shape[1] == seen.key.shape[1] == call.num_heads
        assert seen.query_valid.shape == (len(seen.query), seen.query.shape[2])
        assert seen.key_valid.shape == (len(seen.key), seen.key.shape[2])
        assert seen.query_valid.any(dim=-1).all() and seen.key_valid.any(dim=-1).all()


@pytest.mark.only("padded")
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_is_told_from_tokens_in_every_family(family, side):
    net, inputs = family.network(), family.inputs()
    plain, padded = capture(net, inputs), capture(net, family.pad(inputs, side))
    for name, call in plain.items():
        other = padded[name]
        for tensor, valid in (("query", "query_valid"), ("key", "key_valid")):
            before = getattr(call, tensor).transpose(1, 2)[getattr(call, valid)]
            after = getattr(other, tensor).transpose(1, 2)[getattr(other, valid)]
            torch.testing.assert_close(after, before, atol=1e-5, rtol=1e-4)
