"""DeBERTa, whose attention modules do not call the attention interface: bridged, it is the family's own."""

import copy
import itertools
import pickle

import pytest
import torch
import transformers as hf

from probattn import AlignmentAttention, BayesianAttention, RepulsiveAttention
from probattn.models import capture, convert, inspect, load, revert, save

TERMS = [["c2p", "p2c"], ["c2p"], ["p2c"], []]
VARIANTS = [
    (True, terms, reach, buckets, shared, conv)
    for (terms, reach), (buckets, shared, conv) in zip(
        itertools.product(TERMS, [-1, 6]),
        itertools.cycle([(-1, False, 0), (4, True, 3), (4, False, 3), (-1, True, 0)]),
    )
] + [(False, [], -1, -1, False, 3)]


def v2(families, relative, terms, reach, buckets, shared, conv):
    options = families.small(
        relative_attention=relative,
        pos_att_type=terms,
        max_relative_positions=reach,
        position_buckets=buckets,
        share_att_key=shared,
        conv_kernel_size=conv,
        norm_rel_ebd="layer_norm",
        position_biased_input=not relative,
        type_vocab_size=0,
    )
    return hf.DebertaV2Config(**options)


def v1(families, relative, terms, reach, *_, **more):
    options = families.small(
        relative_attention=relative,
        pos_att_type=terms,
        max_relative_positions=reach,
        position_biased_input=not relative,
        **more,
    )
    return hf.DebertaConfig(**options)


def build(cls, config, dtype=torch.float32):
    torch.manual_seed(0)
    net = cls(config).eval()
    for parameter in net.parameters():
        parameter.data += 0.05 * torch.randn_like(parameter)
    return net.to(dtype)


def rows():
    words = torch.randint(8, 60, (3, 9), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(words)
    mask[1, -3:] = 0
    mask[2, :4] = 0
    return {"input_ids": words, "attention_mask": mask}


def run(net, batch=None, **options):
    with torch.no_grad():
        return net(**(batch or rows()), **options)


@pytest.mark.parametrize(
    ("variant", "dtype", "tolerance"),
    [(VARIANTS[0], torch.float32, 1e-5), *((variant, torch.float64, 1e-12) for variant in VARIANTS)],
    ids=str,
)
@pytest.mark.parametrize(("cls", "config"), [(hf.DebertaV2Model, v2), (hf.DebertaModel, v1)])
def test_converted_is_the_familys_own_with_padding_on_both_sides(
    families, cls, config, variant, dtype, tolerance
):
    net = build(cls, config(families, *variant), dtype)
    plain, classes = run(net, output_attentions=True), [type(module) for module in net.modules()]
    real = rows()["attention_mask"].bool()
    pairs = (real[:, None, :, None] & real[:, None, None, :]).expand_as(plain.attentions[0])
    convert(net, BayesianAttention())
    for network in (net, copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        found = run(network, output_attentions=True)
        assert (found[0] - plain[0])[real].abs().max() < tolerance
        for weights, own in zip(found.attentions, plain.attentions, strict=True):
            assert (weights - own)[pairs].abs().max() < tolerance
            assert not weights[~pairs & real[:, None, :, None]].any()
        assert run(network).attentions is None
        revert(network)
        assert [type(module) for module in network.modules()] == classes
        assert torch.equal(run(network)[0], plain[0])


@pytest.mark.parametrize(("cls", "config"), [(hf.DebertaV2Model, v2), (hf.DebertaModel, v1)])
def test_gradients_are_the_familys_own(families, cls, config):
    plain = build(cls, config(families, *VARIANTS[1]), torch.float64)
    other = copy.deepcopy(plain)
    convert(other, BayesianAttention())
    real = rows()["attention_mask"].bool()
    for network in (plain, other):
        network(**rows())[0][real].sin().sum().backward()
    converted = dict(other.named_parameters())
    for name, parameter in plain.named_parameters():
        torch.testing.assert_close(converted[name].grad, parameter.grad, atol=1e-10, rtol=1e-10)


def test_masks_of_pairs_are_read(families):
    """DeBERTa also takes ``[B, T, T]``: here every query sees its neighbours alone."""
    net = build(hf.DebertaV2Model, v2(families, *VARIANTS[0]))
    near = (torch.arange(9)[:, None] - torch.arange(9)).abs() < 3
    batch = {"hidden_states": torch.randn(3, 9, 16), "attention_mask": near.long().expand(3, -1, -1)}
    plain = run(net.encoder, batch)[0]
    convert(net, BayesianAttention())
    assert (run(net.encoder, batch)[0] - plain).abs().max() < 1e-5


def test_capture_shows_the_familys_weights_and_leaves_its_classes(families):
    net = build(hf.DebertaV2Model, v2(families, *VARIANTS[1]))
    classes = [type(module) for module in net.modules()]
    plain = run(net, output_attentions=True)
    for call, own in zip(capture(net, rows()).values(), plain.attentions, strict=True):
        assert torch.equal(call.weights, own)
        assert torch.equal(call.query_valid, rows()["attention_mask"].bool())
    assert [type(module) for module in net.modules()] == classes


def test_saved_and_loaded_bit_for_bit(families, tmp_path):
    torch.manual_seed(1)
    net = convert(
        build(hf.DebertaV2ForSequenceClassification, v2(families, *VARIANTS[1])),
        families.FULL,
        AlignmentAttention("gan"),
        RepulsiveAttention(),
    )
    again = load(save(net, tmp_path / "net"))
    assert torch.equal(run(again).logits, run(net).logits)
    assert [call.name for call in inspect(again)] == [call.name for call in inspect(net)]
    assert hf.DebertaV2ForSequenceClassification.from_pretrained(tmp_path / "net").config.share_att_key


def test_what_is_no_softmax_of_scores_is_refused_by_name_and_untouched(families):
    net = build(hf.DebertaModel, v1(families, *VARIANTS[0], talking_head=True))
    plain, classes = run(net)[0], [type(module) for module in net.modules()]
    with pytest.raises(TypeError, match="DebertaModel: talking heads mix the weights of all heads"):
        convert(net, BayesianAttention())
    fused = build(hf.DebertaModel, v1(families, *VARIANTS[0]))
    with pytest.raises(ValueError, match=r"no projection of its own for the query; it has in_proj"):
        convert(fused, RepulsiveAttention())
    assert [type(module) for module in net.modules()] == classes
    assert torch.equal(run(net)[0], plain)


def test_a_bridge_that_forgets_something_is_refused(families, monkeypatch):
    monkeypatch.setattr("probattn.models.hosts.disentangled._root", lambda *_: 1.0)
    net = build(hf.DebertaV2Model, v2(families, *VARIANTS[0]))
    with pytest.raises(TypeError, match=r"DebertaV2Model: this family prepares its attention in another way"):
        inspect(net)
