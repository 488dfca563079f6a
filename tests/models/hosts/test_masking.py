"""Masking heads: against output projections without their columns, and what it leaves as it was."""

import pytest
import torch
from pyro import poutine

from probattn import BayesianAttention, DisagreementAttention, RepulsiveAttention
from probattn.models import Classifier, capture, convert, head_redundancy, inspect, masked_heads

PROJECTIONS = {
    "bert": "output.dense",
    "gpt2": "c_proj",
    "llama": "o_proj",
    "bart": "out_proj",
    "t5": "o",
}
"""The output projection beside, or inside, an attention module."""


def without_columns(net, call, head, path):
    """The same network whose output projection does not see a head."""
    holder = call.module.rpartition(".")[0] if "." in path else call.module
    layer = net.get_submodule(f"{holder}.{path}")
    features = slice(head * call.head_dim, (head + 1) * call.head_dim)
    with torch.no_grad():
        rows = layer.weight if not isinstance(layer, torch.nn.Linear) else layer.weight.T
        rows[features] = 0.0
    return net


@pytest.mark.parametrize("name", PROJECTIONS)
def test_a_masked_head_is_an_output_projection_without_its_columns(families, by_name, name):
    family = by_name[name]
    net, inputs = family.network(), family.inputs()
    whole = families.forward(net, inputs)
    for number, call in enumerate(inspect(net)):
        head = number % call.num_heads
        with masked_heads(net, {call.name: [head]}):
            found = families.forward(net, inputs)
        expected = families.forward(without_columns(family.network(), call, head, PROJECTIONS[name]), inputs)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
        assert not torch.allclose(found, whole, atol=1e-5)


def test_every_family_masks_and_comes_back(families, family):
    net, inputs = family.network(), family.inputs()
    inputs = family.pad(inputs, "right") if family.padded else inputs
    before = families.forward(net, inputs)
    implementation, attributes = (
        net.config._attn_implementation,
        [list(vars(module)) for module in net.modules()],
    )
    answers = []
    with masked_heads(net, {}):
        assert torch.equal(families.forward(net, inputs), before)
    for call in inspect(net):
        for head in range(call.num_heads):
            with masked_heads(net, {call.name: [head]}):
                answers.append(families.forward(net, inputs))
                # a second pass is masked as the first
                assert torch.equal(families.forward(net, inputs), answers[-1])
    assert all(not torch.equal(answer, before) for answer in answers)
    assert torch.equal(families.forward(net, inputs), before)
    assert net.config._attn_implementation == implementation
    assert [list(vars(module)) for module in net.modules()] == attributes


def test_a_module_that_is_called_twice_is_masked_in_one_call_alone(families, by_name):
    net, inputs = by_name["albert"].network(), by_name["albert"].inputs()
    calls = inspect(net)
    assert len({call.module for call in calls}) < len(calls)

    def states():
        with torch.no_grad():
            return net(**inputs, output_hidden_states=True).hidden_states

    whole = states()
    for number, call in enumerate(calls):
        with masked_heads(net, {call.name: [0]}):
            masked = states()
        same = [torch.equal(left, right) for left, right in zip(whole, masked, strict=True)]
        assert same == [layer <= number for layer in range(len(whole))]


def test_all_heads_of_a_call_leave_its_bias(families, bert):
    net, inputs = bert.network(), bert.inputs()
    name = "bert.encoder.layer.1.attention.self"
    seen = {}
    dense = net.bert.encoder.layer[1].attention.output.dense
    handle = dense.register_forward_hook(lambda _, args, output: seen.update(given=args[0], output=output))
    with masked_heads(net, {name: [0, 1]}):
        families.forward(net, inputs)
    handle.remove()
    assert not seen["given"].any()
    torch.testing.assert_close(seen["output"], dense.bias.expand_as(seen["output"]))


def test_one_call_of_a_shared_module(families, by_name):
    albert = by_name["albert"]
    net, inputs = albert.network(), albert.inputs()
    names = [call.name for call in inspect(net)]
    answers = []
    for heads in ({names[0]: [0]}, {names[1]: [0]}, {name: [0] for name in names}):
        with masked_heads(net, heads):
            answers.append(families.forward(net, inputs))
    assert not torch.equal(answers[0], answers[1]) and not torch.equal(answers[0], answers[2])
    with masked_heads(net, {names[0]: [0]}):
        assert torch.equal(families.forward(net, inputs), answers[0])


def test_converted_networks_keep_their_methods(families, bert):
    torch.manual_seed(0)
    methods = BayesianAttention(), RepulsiveAttention(), DisagreementAttention("outputs")
    net, inputs = convert(bert.network(), *methods), bert.inputs()
    whole = families.forward(net, inputs)
    with masked_heads(net, {"bert.encoder.layer.0.attention.self": [0]}):
        assert not torch.equal(families.forward(net, inputs), whole)
        trace = poutine.trace(families.program(net)).get_trace(inputs)
    assert sum(name.endswith(("attention.self", ".disagreement")) for name in trace.nodes) == 4
    assert torch.equal(families.forward(net, inputs), whole)
    kept = capture(net, inputs)
    with masked_heads(net, {"bert.encoder.layer.0.attention.self": [0, 1]}):
        assert all(
            torch.equal(call.weights, kept[name].weights) for name, call in capture(net, inputs).items()
        )


def test_gradients_pass_the_other_heads(families, bert):
    net, inputs = bert.network(), bert.inputs()
    with masked_heads(net, {"bert.encoder.layer.1.attention.self": [1]}):
        net(**inputs).logits.sum().backward()
    gradient = net.bert.encoder.layer[1].attention.self.value.weight.grad
    size = gradient.shape[0] // 2
    assert gradient[:size].any() and not gradient[size:].any()


def test_redundancy_is_the_metric_without_each_head(bert):
    net, inputs = bert.classification().eval(), bert.inputs(rows=16)
    labels = torch.arange(16) % 2
    passes = []

    def accuracy():
        passes.append(1)
        return (net(**inputs).logits.argmax(-1) == labels).float().mean().item()

    found = head_redundancy(net, accuracy)
    calls = inspect(net)
    assert list(found.drops) == [call.name for call in calls] and len(passes) == 1 + 4
    assert found.whole == accuracy()
    for name, drops in found.drops.items():
        for head, drop in enumerate(drops):
            with masked_heads(net, {name: [head]}):
                assert drop == pytest.approx(found.whole - accuracy())
                assert found.masked[name][head] == accuracy()
    some = head_redundancy(net, accuracy, calls[:1])
    assert list(some.masked) == [calls[0].name] and some.masked[calls[0].name] == found.masked[calls[0].name]
    model = Classifier(net).eval()
    again = head_redundancy(net, lambda: (model(inputs).argmax(-1) == labels).float().mean().item())
    assert again == found


def test_what_cannot_be_is_refused_and_leaves_no_trace(families, bert):
    net, inputs = bert.network(), bert.inputs()
    before, name = families.forward(net, inputs), "bert.encoder.layer.0.attention.self"
    for heads, message in (
        ({"layer.7": [0]}, rf"masked_heads: expected one of {name}, .*, got 'layer.7'"),
        ({name: [2]}, rf"masked_heads, {name}: expected heads in 0..1, got 2"),
        ({name: [-1]}, "expected heads in 0..1, got -1"),
        ({name: [True]}, "expected heads in 0..1, got True"),
    ):
        with pytest.raises(ValueError, match=message), masked_heads(net, heads):
            pass
    with pytest.raises(IndexError), masked_heads(net, {name: [0]}):
        net(input_ids=torch.tensor([[10**6]]))  # no such word
    nested = masked_heads(net, {name: [1]})
    with (
        masked_heads(net, {name: [0]}),
        pytest.raises(RuntimeError, match="has masked heads already"),
        nested,
    ):
        pass
    with pytest.raises(RuntimeError, match="expected BertForMaskedLM in evaluation mode"):
        head_redundancy(net.train(), lambda: 0.0)
    assert torch.equal(families.forward(net.eval(), inputs), before)
