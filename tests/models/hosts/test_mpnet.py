"""MPNet, whose attention modules do not call the attention interface: bridged, it is the family's own."""

import copy

import pytest
import torch
import transformers as hf

from probattn import BayesianAttention, load, posterior_predict
from probattn.models import convert, revert
from probattn.models.hosts.mpnet import BridgedMPNet, eager_attention_forward


@pytest.fixture
def net(families):
    torch.manual_seed(0)
    return hf.MPNetForSequenceClassification(hf.MPNetConfig(num_labels=3, **families.small())).eval()


def batch():
    """Texts whose padding, of MPNet's pad word 1, is on both sides."""
    ids = torch.randint(3, 60, (3, 9), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[0, 6:], mask[2, :3] = 0, 0
    return {"input_ids": ids.where(mask.bool(), 1), "attention_mask": mask}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_its_eager_function_is_the_family_s_to_the_last_bit(net, dtype):
    module = net.mpnet.encoder.layer[0].attention.attn.to(dtype)
    hidden, bias = torch.randn(2, 5, 16, dtype=dtype), torch.randn(2, 2, 5, 5, dtype=dtype)
    mask = torch.zeros(2, 1, 1, 5, dtype=dtype)
    mask[1, ..., 3:] = torch.finfo(dtype).min
    theirs, weights = module(hidden, mask, bias, output_attentions=True)
    heads = [layer(hidden).unflatten(-1, (2, 8)).transpose(1, 2) for layer in (module.q, module.k, module.v)]
    output, ours = eager_attention_forward(module, *heads, mask, position_bias=bias, scaling=8**-0.5)
    assert torch.equal(module.o(output.flatten(2)), theirs) and torch.equal(ours, weights)


def test_predictions_maps_and_gradients_without_spread_are_the_network_s(net):
    ours, inputs = convert(copy.deepcopy(net), BayesianAttention.bam(1e8)), batch()
    for name in ("logits", "attentions"):
        values = [getattr(each(**inputs, output_attentions=True), name) for each in (net, ours)]
        torch.testing.assert_close(*values, rtol=1e-4, atol=1e-5)
    for each in (net, ours):
        each(**inputs).logits.square().sum().backward()
    torch.testing.assert_close(
        ours.mpnet.encoder.relative_attention_bias.weight.grad,
        net.mpnet.encoder.relative_attention_bias.weight.grad,
        rtol=1e-3,
        atol=1e-5,
    )
    assert net.mpnet.encoder.relative_attention_bias.weight.grad.abs().sum() > 0


def test_draws_spread_and_saved_networks_are_the_same(net, tmp_path):
    ours, inputs = convert(copy.deepcopy(net), BayesianAttention()), batch()
    drawn = posterior_predict(ours, inputs, 8, seed=0)
    assert drawn.logits.std(dim=0).min() > 0
    ours.save_pretrained(tmp_path)
    loaded = hf.MPNetForSequenceClassification.from_pretrained(tmp_path)
    assert type(loaded.mpnet.encoder.layer[0].attention.attn) is not BridgedMPNet  # a plain network
    assert torch.equal(posterior_predict(load(tmp_path).eval(), inputs, 8, seed=0).logits, drawn.logits)
    assert torch.equal(revert(ours)(**inputs).logits, net(**inputs).logits)
