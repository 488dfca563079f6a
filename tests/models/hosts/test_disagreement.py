"""Penalties on heads of converted networks: every family, alone and with the other methods."""

import copy
import pickle

import pytest
import torch
from pyro import poutine

from probattn import (
    AlignmentAttention,
    BayesianAttention,
    DisagreementAttention,
    RepulsiveAttention,
)
from probattn.models import capture, convert, inspect
from probattn.models.hosts.convert import conversion
from probattn.sites import cosine_agreement, frobenius_penalty, parameter_agreement, position_agreement
from probattn.sites.repulsive import repulsive_heads

SUFFIX = ".disagreement"
METHODS = ("frobenius", "positions", "outputs", "subspaces", "parameters")
WEIGHT = 0.5


def disagreement(family, method, **options):
    return DisagreementAttention(method, weight=WEIGHT, projections=family.projections, **options)


def methods_of(family):
    """Heads that share their values have none to tell apart."""
    return [method for method in METHODS if method != "subspaces" or "value" in family.projections]


def factors(families, net, inputs):
    return families.factors(net, inputs, SUFFIX)


def penalties(families, family, net, inputs, method):
    """From outside: what transformers hands to the attention function, and what that gives."""
    if method == "parameters":
        found = {}
        for name, (_, slices) in repulsive_heads(net).items():
            site = name.rpartition(".")[0]
            found[site] = found.get(site, 0) + parameter_agreement(slices.particles())
        return {name: value.expand(len(next(iter(inputs.values())))) for name, value in found.items()}
    expected = {}
    for name, call in capture(net, inputs).items():
        rows = len(next(iter(inputs.values())))
        part, function = {
            "frobenius": (call.weights, frobenius_penalty),
            "positions": (call.weights, position_agreement),
            "outputs": (call.output, cosine_agreement),
            "subspaces": (call.value, cosine_agreement),
        }[method]
        if family.name == "swin":
            expected[name] = function(families.windows_together(part, rows))
        else:
            expected[name] = function(part, call.key_valid if method == "subspaces" else call.query_valid)
    return expected


@pytest.mark.only("projections")
def test_a_factor_is_the_penalty_of_what_its_call_did(families, family):
    inputs = family.inputs()
    inputs = family.pad(inputs, "right") if family.padded else inputs
    for method in methods_of(family):
        # repulsive heads tell where the projections are, and change no forward pass
        marked = RepulsiveAttention(projections=family.projections)
        net = convert(family.network(), disagreement(family, method), marked)
        found, expected = factors(families, net, inputs), penalties(families, family, net, inputs, method)
        assert list(found) == list(expected), method
        assert set(found) <= {call.name for call in inspect(net)}
        if method != "parameters":
            assert len(found) == family.layers
        for name, value in expected.items():
            torch.testing.assert_close(found[name], -WEIGHT * value, rtol=1e-4, atol=1e-6)
            assert value.min() > 1e-4, (method, name)


@pytest.mark.only("padded", "projections")
@pytest.mark.parametrize(
    ("side", "methods"),
    [("left", ("frobenius", "outputs", "subspaces")), ("right", ("positions", "subspaces"))],
)
def test_padding_moves_no_factor(families, family, side, methods):
    for method in set(methods) & set(methods_of(family)):
        net, inputs = convert(family.network(), disagreement(family, method)), family.inputs()
        before, after = (factors(families, net, rows) for rows in (inputs, family.pad(inputs, side)))
        assert before
        for name, value in before.items():
            torch.testing.assert_close(after[name], value, rtol=1e-4, atol=1e-5)


def test_at_weight_0_gradients_are_those_of_the_eager_network_bit_for_bit(families, bert):
    inputs = bert.inputs()

    def gradients(net):
        torch.manual_seed(1)
        loss = -poutine.trace(families.program(net.train())).get_trace(inputs).log_prob_sum()
        loss.backward()
        return loss, {name: p.grad for name, p in net.named_parameters()}

    eager, expected = gradients(bert.network())
    for method in METHODS:
        loss, found = gradients(convert(bert.network(), DisagreementAttention(method, weight=0.0)))
        assert torch.equal(eager, loss), method
        for name, gradient in expected.items():
            other = found[name]
            # a weight that the loss does not reach has a gradient of 0 from its penalty
            same = not other.any() if gradient is None and other is not None else gradient is other is None
            assert same or torch.equal(other, gradient), (method, name)


def test_a_pickle_pays_by_weights_of_its_own(families, bert):
    net, inputs = convert(bert.network(), disagreement(bert, "parameters")), bert.inputs()
    other = pickle.loads(pickle.dumps(net))
    before = factors(families, net, inputs)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(torch.randn_like(parameter))
    after, unmoved = factors(families, other, inputs), factors(families, net, inputs)
    assert all(torch.equal(unmoved[name], value) for name, value in before.items())
    assert all(not torch.equal(after[name], value) for name, value in before.items())


@pytest.mark.only("plain")
def test_beside_the_other_methods(families, family):
    torch.manual_seed(0)
    methods = BayesianAttention(), AlignmentAttention("mmd", bandwidth=2.0), disagreement(family, "outputs")
    net, inputs = convert(family.network(), *methods), family.inputs()
    trace = poutine.trace(families.program(net)).get_trace(inputs)
    calls = [call.name for call in inspect(net)]
    assert set(trace.nodes) >= {
        *calls,
        *(name + SUFFIX for name in calls),
        *(name + ".alignment" for name in calls),
    }
    assert all(value.lt(0).all() for value in factors(families, net, inputs).values())


def test_dropout_of_attention_is_left_out_of_what_is_penalised(families, bert):
    """In training the factor is that of the weights before dropout; the answer still is that of dropout."""
    for method in ("frobenius", "positions", "outputs"):
        net = bert.network()
        for name, module in net.named_modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.5 if name.endswith("attention.self.dropout") else 0.0
        inputs = bert.inputs()
        eager = copy.deepcopy(net).train()
        torch.manual_seed(3)
        expected = families.forward(eager, inputs)
        convert(net, disagreement(bert, method, layers="first"))
        calm = factors(families, net.eval(), inputs)
        torch.manual_seed(3)
        with torch.no_grad():
            answer = families.forward(net.train(), inputs)
        assert torch.equal(answer, expected) and not torch.equal(answer, families.forward(net.eval(), inputs))
        stirred = factors(families, net.train(), inputs)
        assert len(calm) == 1
        for name, value in calm.items():
            torch.testing.assert_close(stirred[name], value)


def test_gradients_draw_heads_apart(families, bert):
    """A step down the penalty's gradient alone lowers it; each method reaches the weights that it should."""
    reached = {
        "frobenius": {"query", "key"},
        "positions": {"query", "key"},
        "outputs": {"query", "key", "value"},
        "subspaces": {"value"},
        "parameters": {"query", "key", "value"},
    }
    for method, parts in reached.items():
        net, inputs = convert(bert.network(), disagreement(bert, method, layers="first")), bert.inputs()

        def penalty(net=net, inputs=inputs):
            trace = poutine.trace(families.program(net)).get_trace(inputs)
            trace.compute_log_prob()
            (site,) = (site for name, site in trace.nodes.items() if name.endswith(SUFFIX))
            return -site["log_prob"].sum()

        before = penalty()
        before.backward()
        attention = net.bert.encoder.layer[0].attention.self
        weights = {part: getattr(attention, part).weight for part in ("query", "key", "value")}
        assert {part for part, w in weights.items() if w.grad is not None and bool(w.grad.any())} == parts, (
            method
        )
        with torch.no_grad():
            for parameter in net.parameters():
                if parameter.grad is not None:
                    parameter.sub_(0.01 * parameter.grad)
        assert penalty() < before, method


def test_a_shared_module_pays_for_its_weights_once(families, by_name):
    albert = by_name["albert"]
    inputs = albert.inputs()
    found = factors(families, convert(albert.network(), disagreement(albert, "parameters")), inputs)
    assert len(found) == 1
    assert len(factors(families, convert(albert.network(), disagreement(albert, "outputs")), inputs)) == 2


def test_parts_of_an_encoder_decoder(families, by_name):
    bart = by_name["bart"]
    net = convert(bart.network(), disagreement(bart, "positions", layers="cross"))
    assert all("encoder_attn" in name for name in factors(families, net, bart.inputs()))


def test_one_head_has_nobody_to_differ_from(bert, by_name):
    net = bert.network()
    net.config.num_attention_heads = 1
    single = type(net)(net.config)
    with pytest.raises(
        ValueError, match="expected two heads or more to tell apart, got one; choose other layers"
    ):
        convert(single, DisagreementAttention("frobenius"))
    with pytest.raises(
        ValueError, match=r"self\.query: expected two heads .* leave 'query' out of Disagreement"
    ):
        convert(single, DisagreementAttention("parameters"))
    assert conversion(single) is None
    attentive = by_name["self_attentive"]
    with pytest.raises(ValueError, match="expected two value heads or more to tell apart, got one"):
        convert(attentive.network(), DisagreementAttention("subspaces"))
    with pytest.raises(ValueError, match=r"leave 'value' out of DisagreementAttention\(projections=\.\.\.\)"):
        convert(attentive.network(), DisagreementAttention("parameters"))
    net = bert.network()
    holder = next(module for name, module in net.named_modules() if name.endswith("attention.self"))
    holder.query = torch.nn.Sequential(holder.query)
    with pytest.raises(ValueError, match=r"leave 'query' out of DisagreementAttention\(projections=\.\.\.\)"):
        convert(net, DisagreementAttention("parameters"))
