"""What every supported family promises: padding, causality and conversion change nothing they should not."""

import copy
import re
from pathlib import Path

import pytest
import torch
import transformers as hf
from packaging.version import Version

from probattn import BayesianAttention
from probattn.models import convert, inspect, revert

ROOT = Path(__file__).resolve().parents[3]
SIDES = ["left", "right"]


def real_pairs(posterior):
    """Valid pairs of real queries, ``[B, H, T, S]``."""
    mask = posterior.mask
    shape = posterior.prior.batch_shape
    return torch.ones(shape, dtype=torch.bool) if mask is None else mask.pair_valid.expand(shape)


def assert_unmoved(families, before, after):
    """The entries at valid pairs, in order, and the KL of each row with its reduction factor."""
    assert list(before) == list(after)
    for name, old in before.items():
        new = after[name]
        pairs = real_pairs(old), real_pairs(new)
        assert pairs[0].sum() == pairs[1].sum() > 0, name
        new_maps = families.maps(new)
        for quantity, values in families.maps(old).items():
            moved = new_maps[quantity][pairs[1]] - values[pairs[0]]
            assert moved.abs().max() < 1e-5, (name, quantity)
        torch.testing.assert_close(new.kl(), old.kl(), atol=1e-5, rtol=1e-5)
        factors = [torch.as_tensor(each.reduction_factor()).expand(len(old.kl())) for each in (old, new)]
        torch.testing.assert_close(*factors)


def test_expectation_equals_the_eager_logits(families, family):
    net, inputs = family.network(), family.inputs()
    rows = family.pad(inputs, "right") if family.padded else inputs
    real = rows.get("decoder_attention_mask", rows.get("attention_mask"))
    eager, eager_padded = families.forward(net, inputs), families.forward(net, rows)
    convert(net, BayesianAttention())
    assert (families.forward(net, inputs) - eager).abs().max() < 1e-5
    moved = families.forward(net, rows) - eager_padded
    if moved.dim() == 3:
        moved = moved[real.bool()]
    assert moved.abs().max() < 1e-5


def test_revert_restores_the_logits_bit_for_bit(families, family):
    net, inputs = family.network(), family.inputs()
    before = families.forward(net, inputs), dict(net.state_dict()), net.config._attn_implementation
    hooks = [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in net.modules()]
    convert(net, families.FULL)
    assert not torch.equal(families.forward(net, inputs), before[0])
    assert revert(net) is net
    assert torch.equal(families.forward(net, inputs), before[0])
    assert net.state_dict().keys() == before[1].keys()
    assert net.config._attn_implementation == before[2]
    assert hooks == [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in net.modules()]
    assert not any("probattn" in name for module in net.modules() for name in vars(module))
    assert all(torch.equal(value, before[1][name]) for name, value in net.state_dict().items())


@pytest.mark.only("padded")
@pytest.mark.parametrize("side", SIDES)
def test_padding_moves_nothing_with_the_upward_path_over_heads(families, family, side):
    check_padding(families, family, side, families.FULL)


@pytest.mark.only("padded", "plain")
@pytest.mark.parametrize("side", SIDES)
def test_padding_moves_nothing_with_the_upward_path_over_positions(families, family, side):
    check_padding(families, family, side, families.POSITIONS)


def check_padding(families, family, side, method):
    torch.manual_seed(0)
    net, inputs = convert(family.network(), method), family.inputs()
    padded = family.pad(inputs, side)
    old_logits, old = families.observe(net, inputs)
    new_logits, new = families.observe(net, padded)
    assert len(old) == family.layers
    if new_logits.shape != old_logits.shape:
        real = padded.get("decoder_attention_mask", padded["attention_mask"]).bool()
        new_logits = new_logits[real].view_as(old_logits)
    assert (new_logits - old_logits).abs().max() < 1e-5
    assert_unmoved(families, old, new)


@pytest.mark.only("padded")
def test_no_mask_is_a_mask_of_ones(families, family):
    torch.manual_seed(0)
    net, inputs = convert(family.network(), families.FULL), family.inputs()
    old_logits, old = families.observe(net, inputs)
    without = {name: value for name, value in inputs.items() if "mask" not in name}
    new_logits, new = families.observe(net, without)
    assert (new_logits - old_logits).abs().max() < 1e-6
    assert_unmoved(families, old, new)


@pytest.mark.only("pair")
@pytest.mark.parametrize("side", SIDES)
def test_padding_of_targets_alone_moves_nothing(families, family, side):
    """Without padding the source has no mask; who the queries are is known from the self attention before."""
    torch.manual_seed(0)
    net, inputs = convert(family.network(), families.FULL), family.inputs()
    padded = family.pad(inputs, side)
    padded |= {name: inputs[name] for name in ("input_ids", "attention_mask")}
    _, old = families.observe(net, inputs)
    _, new = families.observe(net, padded)
    assert_unmoved(families, old, new)


@pytest.mark.only("causal")
def test_the_future_is_unseen(families, family):
    torch.manual_seed(0)
    net, inputs = convert(family.network(), families.FULL), family.inputs()
    key = "decoder_input_ids" if family.pair else "input_ids"
    changed = inputs | {key: inputs[key].clone()}
    past = inputs[key].shape[1] - 2
    changed[key][:, past] = 5
    old_logits, old = families.observe(net, inputs)
    new_logits, new = families.observe(net, changed)
    if old_logits.dim() == 3:
        assert torch.equal(old_logits[:, :past], new_logits[:, :past])
        assert not torch.equal(old_logits[:, past:], new_logits[:, past:])
    causal = {call.name: call.causal for call in inspect(net)}
    encoder = {call.name for call in inspect(net) if family.pair and not call.causal and call.kind == "self"}
    assert any(causal.values())
    for name, posterior in old.items():
        if name in encoder or (family.pixels and not causal[name]):
            continue
        assert_past_unmoved(families, name, posterior, new[name], past)


def assert_past_unmoved(families, name, old, new, past):
    pairs = real_pairs(old)[:, :, :past]
    others = families.maps(new)
    for quantity, values in families.maps(old).items():
        moved = (others[quantity][:, :, :past] - values[:, :, :past])[pairs]
        assert moved.abs().max() < 1e-6, (name, quantity)


def test_inspect_leaves_the_network_alone(families, family):
    net, inputs = family.network(), family.inputs()
    before, mode = families.forward(net, inputs), [module.training for module in net.train().modules()]
    state, vision = torch.get_rng_state(), copy.deepcopy(net.config.to_dict())
    calls = inspect(net)
    assert len(calls) == family.layers
    assert torch.equal(torch.get_rng_state(), state)
    assert mode == [module.training for module in net.modules()]
    assert net.config.to_dict() == vision
    assert torch.equal(families.forward(net.eval(), inputs), before)
    assert any(call.causal for call in calls) == family.causal
    assert any(call.kind == "cross" for call in calls) == (family.pair or family.pools or family.regions)
    assert all(call.pools == family.pools for call in calls)
    assert len({call.name for call in calls}) == len(calls)
    assert [call.name for call in inspect(convert(net, BayesianAttention()))] == [call.name for call in calls]


@pytest.mark.parametrize("name", ["modernbert", "swin", "t5"])
def test_before_its_first_release_a_family_is_refused_with_the_release_to_install(
    families, monkeypatch, name
):
    """Newer releases stand in for older ones by what older ones say of the family's class."""
    family = families.BY_NAME[name]
    if Version(hf.__version__) >= Version(family.since):
        monkeypatch.setattr(
            hf.PreTrainedModel, "_can_set_attn_implementation", classmethod(lambda _cls: False)
        )
    net = family.build()
    installed, needed = re.escape(hf.__version__), re.escape(family.since)
    message = (
        rf"{type(net).__name__}: in transformers {installed} .*; install transformers {needed} or newer$"
    )
    for act in (inspect, lambda network: convert(network, BayesianAttention())):
        with pytest.raises(TypeError, match=message):
            act(net)


def test_the_page_of_hosts_gives_the_release_of_each_family(families):
    lines = (ROOT / "docs" / "concepts" / "bayesian_attention.md").read_text(encoding="utf-8").splitlines()
    rows = [line.strip("| ").lower().split(" | ") for line in lines if re.match(r"\| 5\.\d+ \|", line)]
    for family in families.FAMILIES:
        for release in {family.since, family.shows_since} - {"5.0"}:
            assert any(row[0] == release and family.name in row[1] for row in rows), (family.name, release)


def test_the_tested_versions_support_every_family_whole(families):
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines()[1:])
    newest = max(Version(release) for each in families.FAMILIES for release in (each.since, each.shows_since))
    assert Version(pins["transformers"]) >= newest


@pytest.mark.parametrize("name", ["XLNet", "Longformer", "GPTJ"])
def test_unsupported_families_are_refused_by_name_and_untouched(families, name):
    if name == "GPTJ" and Version(hf.__version__) >= Version("5.24"):
        pytest.skip("attends by the interface of transformers from 5.24 on, so that it can be converted")
    net = families.REFUSED[name]().eval()
    before = {key: value.clone() for key, value in net.state_dict().items()}
    configuration, modules = copy.deepcopy(net.config.to_dict()), [id(module) for module in net.modules()]
    for act in (inspect, lambda network: convert(network, BayesianAttention())):
        with pytest.raises(TypeError, match=rf"{name}Model: .*computes attention by itself"):
            act(net)
    assert configuration == net.config.to_dict()
    assert net.config._attn_implementation == "eager"
    assert modules == [id(module) for module in net.modules()]
    assert all(torch.equal(value, before[key]) for key, value in net.state_dict().items())
