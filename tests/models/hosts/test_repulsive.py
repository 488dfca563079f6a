"""Repulsive heads of converted networks: every family, where its heads are, and what is refused."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from pyro.infer import Predictive

from probattn import AlignmentAttention, BayesianAttention, RepulsiveAttention
from probattn.models import capture, convert, inspect, load, revert, save
from probattn.sites.repulsive import repulsive_heads


def heads(net):
    return {name: slices for name, (_, slices) in repulsive_heads(net).items()}


@pytest.mark.only("projections")
def test_a_particle_is_its_head(families, family):
    """Moving one particle moves what attention is handed for that head, and for no other, at the first call."""
    method = RepulsiveAttention(projections=family.projections)
    net, inputs = convert(family.network(), method), family.inputs()
    before = capture(net, inputs)
    first = next(iter(before))
    for part in family.projections[:2]:
        name = f"{first}.{part}"
        found = heads(net)[name]
        groups = before[first].query.shape[1] // found.heads  # query heads that share a key head
        groups = 1 if part == "query" or family.name == "swin" else groups
        moved = found.heads - 1
        weight = found.parameter.detach().clone()
        delta = torch.zeros_like(found.particles())
        delta[moved] = 1.0
        found.parameter.grad = torch.zeros_like(found.parameter)
        found.write(delta, 1.0)  # gradients are views as parameters are
        with torch.no_grad():
            found.parameter.sub_(found.parameter.grad)
        after = capture(net, inputs)[first]
        change = (getattr(after, part) - getattr(before[first], part)).abs().amax(dim=(0, 2, 3))
        here = set((change > 1e-6).nonzero().flatten().tolist())
        assert here == set(range(moved * groups, (moved + 1) * groups)), (name, change)
        with torch.no_grad():
            found.parameter.copy_(weight)
        found.parameter.grad = None


@pytest.mark.only("projections")
def test_every_call_has_its_projections_once(families, family):
    net = convert(family.network(), RepulsiveAttention(projections=family.projections))
    found = heads(net)
    modules = {call.module: call.name for call in reversed(inspect(net))}
    assert list(found) == [
        f"{call.name}.{part}"
        for call in inspect(net)
        if modules[call.module] == call.name
        for part in family.projections
    ]
    for name, slices in found.items():
        assert slices.particles().shape[0] == slices.heads >= 2, name
        assert slices.particles().numel() <= slices.parameter.numel()
    covered: dict[int, int] = {}
    for slices in found.values():  # fused projections fall into three parts without a rest
        covered[id(slices.parameter)] = covered.get(id(slices.parameter), 0) + slices.particles().numel()
    sizes = {id(slices.parameter): slices.parameter.numel() for slices in found.values()}
    assert covered == sizes


@pytest.mark.parametrize("name", ["bert", "gpt2", "modernbert"])
def test_copies_and_pickles_have_heads_of_their_own(by_name, name):
    net = convert(by_name[name].network(), RepulsiveAttention(projections="query", layers="last"))
    for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        (mine,), (theirs,) = heads(net).values(), heads(other).values()
        assert mine.parameter is not theirs.parameter
        assert any(theirs.parameter is parameter for parameter in other.parameters())
        assert torch.equal(mine.particles(), theirs.particles())


def test_it_comes_back_from_disk_with_the_other_methods(by_name, tmp_path):
    methods = [
        BayesianAttention(),
        AlignmentAttention("gan", layers="last"),
        RepulsiveAttention("spos", projections=("key", "value"), prior=0.5, layers=[0, -1], kernel="cosine"),
    ]
    net = convert(by_name["bert"].network(), *methods)
    again = load(save(net, tmp_path / "net"))
    assert {name: method for name, (method, _) in repulsive_heads(again).items()} == dict.fromkeys(
        heads(net), methods[-1]
    )
    assert len(inspect(again)) == 2
    alone = convert(by_name["bert"].network(), RepulsiveAttention(layers="first"))
    again = load(save(alone, tmp_path / "alone"))
    assert list(heads(again)) == list(heads(alone)) and len(heads(again)) == 3


def test_parts_of_an_encoder_decoder(by_name):
    net = by_name["bart"].network()
    found = {}
    for part in ("encoder", "decoder", "cross"):
        convert(net, RepulsiveAttention(layers=part, projections="query"))
        found[part] = {call.name for call in inspect(net)}
        revert(net)
    assert all("encoder.layers" in name and "self_attn" in name for name in found["encoder"])
    assert all("decoder.layers" in name and "self_attn" in name for name in found["decoder"])
    assert all("encoder_attn" in name for name in found["cross"])
    convert(net, RepulsiveAttention())
    assert {call.name for call in inspect(net)} == set.union(*found.values())


def test_predictive_and_handlers_run_it_as_the_plain_network(by_name, families):
    family = by_name["bert"]
    net, inputs = convert(family.network(), RepulsiveAttention()), family.inputs()
    out = Predictive(lambda: families.forward(net, inputs), num_samples=2)()
    assert out == {}


def test_one_head_has_nobody_to_repel(by_name):
    net = by_name["bert"].network()
    net.config.num_attention_heads = 1
    single = type(net)(net.config)
    with pytest.raises(ValueError, match=r"query: expected two heads or more to repel each other, got one"):
        convert(single, RepulsiveAttention())
    assert not heads(single) and not hasattr(single, "_probattn_conversion")
    convert(single, RepulsiveAttention(repulsion=0))
    revert(single)
    convert(single, RepulsiveAttention("sgld"))


def test_what_cannot_be_is_refused_and_leaves_no_trace(by_name):
    net = by_name["bert"].network()
    query = next(module for name, module in net.named_modules() if name.endswith("self.query"))
    query.weight.requires_grad_(False)
    with pytest.raises(ValueError, match=r"self\.query: its weight is frozen; set requires_grad"):
        convert(net, RepulsiveAttention())
    query.weight.requires_grad_(True)
    holder = next(module for name, module in net.named_modules() if name.endswith("attention.self"))
    holder.q_made = holder.query
    holder.query = torch.nn.Sequential(holder.query)
    message = r"has no projection of its own for the query; it has .*key.*; leave 'query' out"
    with pytest.raises(ValueError, match=message):
        convert(net, RepulsiveAttention(layers="first"))
    assert not heads(net)
    convert(net, RepulsiveAttention(layers="first", projections=("key", "value")))
