"""Alignment of converted networks: every family, alone and with latent attention."""

import pytest
import torch
from pyro import poutine

from probattn import AlignmentAttention, BayesianAttention
from probattn.divergences import mmd
from probattn.models import capture, convert, inspect
from probattn.models.hosts.convert import conversion

MMD = AlignmentAttention("mmd", weight=0.5, bandwidth=2.0)
SUFFIX = ".alignment"


def factors(families, net, inputs):
    return families.factors(net, inputs, SUFFIX)


def test_a_factor_is_the_divergence_of_what_its_call_was_handed(families, family):
    """The oracle sees queries, keys and masks from outside: what transformers hands to the attention function."""
    net, inputs = convert(family.network(), MMD), family.inputs()
    inputs = family.pad(inputs, "right") if family.padded else inputs
    found = factors(families, net, inputs)
    assert list(found) == [call.name for call in inspect(net)] and len(found) == family.layers
    seen = capture(net, inputs)
    for name, value in found.items():
        call = seen[name]
        query, key, masks = call.query, call.key, {}
        if family.name == "swin":
            query, key = (families.windows_together(tensor, 2) for tensor in (query, key))
        else:
            masks = {"query_mask": call.query_valid, "key_mask": call.key_valid}
        expected = -0.5 * mmd(query, key, bandwidth=2.0, **masks).sum(-1)
        assert expected.abs().min() > 1e-4, name
        torch.testing.assert_close(value, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.only("padded")
def test_padding_moves_no_factor(families, family):
    net, inputs = convert(family.network(), MMD), family.inputs()
    before, after = (factors(families, net, rows) for rows in (inputs, family.pad(inputs, "left")))
    assert len(before) == family.layers
    for name, value in before.items():
        torch.testing.assert_close(after[name], value, rtol=1e-4, atol=1e-5)


def test_at_weight_0_gradients_are_those_of_the_eager_network_bit_for_bit(families, family):
    inputs = family.inputs()

    def gradients(net):
        torch.manual_seed(1)
        trace = poutine.trace(families.program(net.train())).get_trace(inputs)
        loss = -trace.log_prob_sum()
        loss.backward()
        own = {name: p.grad for name, p in net.named_parameters() if "probattn" not in name}
        return loss, own, [p.grad for name, p in net.named_parameters() if "probattn" in name]

    torch.manual_seed(0)
    eager, expected, _ = gradients(family.network())
    aligned, found, adversaries = gradients(convert(family.network(), AlignmentAttention("gan", weight=0.0)))
    assert torch.equal(eager, aligned)
    for name, gradient in expected.items():
        same = found[name] is None if gradient is None else torch.equal(found[name], gradient)
        assert same, name
    assert adversaries and all(bool(gradient.abs().max() > 0) for gradient in adversaries[:2])


def test_both_methods_have_their_sites(families, family):
    torch.manual_seed(0)
    net, inputs = convert(family.network(), BayesianAttention(), MMD), family.inputs()
    trace = poutine.trace(families.program(net)).get_trace(inputs)
    calls = [call.name for call in inspect(net)]
    assert set(trace.nodes) >= {*calls, *(name + SUFFIX for name in calls)}
    alone = convert(family.network(), MMD)
    first = calls[0]
    torch.testing.assert_close(
        factors(families, net, inputs)[first], factors(families, alone, inputs)[first], rtol=1e-4, atol=1e-6
    )


def test_each_method_has_its_own_layers(families, bert):
    net = convert(bert.network(), BayesianAttention(), AlignmentAttention(layers="last"), layers=[0])
    trace = poutine.trace(families.program(net)).get_trace(bert.inputs())
    stack = "bert.encoder.layer"
    assert f"{stack}.0.attention.self" in trace.nodes and f"{stack}.1.attention.self" not in trace.nodes
    assert f"{stack}.1.attention.self{SUFFIX}" in trace.nodes
    assert f"{stack}.0.attention.self{SUFFIX}" not in trace.nodes
    assert [call.name for call in conversion(net).calls] == [f"{stack}.0.attention.self"]
    assert len(inspect(net)) == 2
    printed = [repr(net.get_submodule(f"{stack}.{layer}.attention.self.probattn")) for layer in (0, 1)]
    assert "(site)" in printed[0] and "(factor)" not in printed[0]
    assert "(factor)" in printed[1] and "(site)" not in printed[1]


def test_cross_attention_alone_can_be_aligned(families):
    bart = families.BY_NAME["bart"]
    net = convert(bart.network(), AlignmentAttention("mmd", bandwidth=2.0, attention="cross"))
    inputs = bart.inputs()
    found = factors(families, net, bart.pad(inputs, "left"))
    assert list(found) == [f"model.decoder.layers.{layer}.encoder_attn" for layer in (0, 1)]
    for name, value in factors(families, net, inputs).items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-5)


def test_layers_begin_differently_and_shared_ones_are_shared(families, bert):
    state = torch.get_rng_state()
    net = convert(bert.network(), AlignmentAttention("ct"))
    assert torch.equal(torch.get_rng_state(), state)
    first, second = (net.bert.encoder.layer[layer].attention.self.probattn.factor for layer in (0, 1))
    assert not torch.equal(first.critic.output.weight, second.critic.output.weight)
    albert = families.BY_NAME["albert"]
    shared = convert(albert.network(), AlignmentAttention("ct"))
    assert sum(name.endswith("critic.output.weight") for name in shared.state_dict()) == 1
    assert len(factors(families, shared, albert.inputs())) == 2


@pytest.mark.parametrize("method", ["ct", "gan"])
def test_it_adds_less_than_half_a_percent_of_parameters_to_bert(method):
    """BERT-base: 12 layers, heads of 64, 110 million parameters."""
    factor = AlignmentAttention(method).build(12, 64)
    assert 12 * sum(parameter.numel() for parameter in factor.parameters()) < 0.005 * 109_482_240


def test_reduction_mean_counts_aligned_calls(families, bert):
    inputs = bert.inputs()
    summed, averaged = (
        factors(
            families, convert(bert.network(), AlignmentAttention("mmd", bandwidth=2.0, reduction=way)), inputs
        )
        for way in ("sum", "mean")
    )
    for name, value in summed.items():
        torch.testing.assert_close(averaged[name], value / 4)  # two heads, two calls
