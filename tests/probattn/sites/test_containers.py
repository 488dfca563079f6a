"""MultiheadAttention inside the containers of torch.nn: what torch's own attention gives."""

import copy
import itertools
import re

import pyro
import pytest
import torch
from torch import nn

import probattn
from probattn import MultiheadAttention
from probattn.inference import AttentionGuide

B, T, S, E, H = 3, 5, 4, 8, 2
pytestmark = [
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage"),
    pytest.mark.filterwarnings("ignore:enable_nested_tensor is True, but"),
    pytest.mark.filterwarnings("ignore:Support for mismatched"),
]
OPTIONS = [
    {"batch_first": batch_first, "norm_first": norm_first}
    for batch_first, norm_first in itertools.product([False, True], repeat=2)
]
IDS = ["-".join(name for name, value in options.items() if value) or "plain" for options in OPTIONS]


def replace(net):
    """Every attention of torch by one of this library with its weights."""
    for module in list(net.modules()):
        for name, theirs in module.named_children():
            if type(theirs) is nn.MultiheadAttention:
                ours = MultiheadAttention(
                    theirs.embed_dim,
                    theirs.num_heads,
                    bias=theirs.in_proj_bias is not None,
                    batch_first=theirs.batch_first,
                )
                ours.load_state_dict(theirs.state_dict())
                setattr(module, name, ours.train(theirs.training))
    return net


def padding(length):
    lengths = torch.tensor([length, length - 1, 2])
    return torch.arange(length) >= lengths[:, None]


def causal(length, kind):
    mask = torch.ones(length, length, dtype=torch.bool).triu(1)
    return mask if kind == "bool" else torch.zeros(length, length).masked_fill(mask, -torch.inf)


def floating(mask):
    return torch.zeros(mask.shape).masked_fill(mask, -torch.inf)


def pair(net):
    for name, parameter in net.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(parameter)  # torch starts biases at zero, which would hide mistakes
    return net.eval(), replace(copy.deepcopy(net)).eval()


def compare(nets, inputs, batch_first, no_grad, **masks):
    if not batch_first:
        inputs = [tensor.transpose(0, 1) for tensor in inputs]
    with torch.set_grad_enabled(not no_grad):
        want, got = (net(*inputs, **masks) for net in nets)
    torch.testing.assert_close(got, want, atol=2e-6, rtol=1e-5)


ENCODER_MASKS = {
    "none": {},
    "padding": {"src_key_padding_mask": padding(T)},
    "float padding": {"src_key_padding_mask": floating(padding(T))},
    "causal": {"mask": causal(T, "bool")},
    "float causal": {"mask": causal(T, "float")},
    "hint": {"mask": causal(T, "float"), "is_causal": True},
    "both": {"mask": causal(T, "bool"), "src_key_padding_mask": padding(T)},
}


@pytest.mark.parametrize("no_grad", [False, True], ids=["grad", "no_grad"])
@pytest.mark.parametrize("options", OPTIONS, ids=IDS)
@pytest.mark.parametrize("nested", [True, False], ids=["nested", "padded"])
def test_transformer_encoder(options, no_grad, nested):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(E, H, 16, **options)
    nets = pair(nn.TransformerEncoder(layer, 2, nn.LayerNorm(E), enable_nested_tensor=nested))
    for masks in ENCODER_MASKS.values():
        compare(nets, [torch.randn(B, T, E)], options["batch_first"], no_grad, **masks)


@pytest.mark.parametrize("no_grad", [False, True], ids=["grad", "no_grad"])
@pytest.mark.parametrize("options", OPTIONS, ids=IDS)
def test_layers_by_themselves(options, no_grad):
    torch.manual_seed(0)
    encoder = pair(nn.TransformerEncoderLayer(E, H, 16, activation="gelu", **options))
    for masks in ENCODER_MASKS.values():
        of_layer = {"src_mask" if name == "mask" else name: mask for name, mask in masks.items()}
        compare(encoder, [torch.randn(B, T, E)], options["batch_first"], no_grad, **of_layer)
    decoder = pair(nn.TransformerDecoderLayer(E, H, 16, **options))
    for masks in DECODER_MASKS.values():
        compare(
            decoder, [torch.randn(B, T, E), torch.randn(B, S, E)], options["batch_first"], no_grad, **masks
        )


DECODER_MASKS = {
    "none": {},
    "causal": {"tgt_mask": causal(T, "bool")},
    "hint": {"tgt_mask": causal(T, "float"), "tgt_is_causal": True},
    "padding": {"tgt_key_padding_mask": padding(T), "memory_key_padding_mask": padding(S)},
    "memory": {"memory_mask": torch.ones(T, S, dtype=torch.bool).triu(1), "tgt_mask": causal(T, "bool")},
    "all": {
        "tgt_mask": causal(T, "float"),
        "tgt_key_padding_mask": floating(padding(T)),
        "memory_key_padding_mask": padding(S),
    },
}


@pytest.mark.parametrize("no_grad", [False, True], ids=["grad", "no_grad"])
@pytest.mark.parametrize("options", OPTIONS, ids=IDS)
def test_transformer_decoder_and_transformer(options, no_grad):
    torch.manual_seed(0)
    inputs = [torch.randn(B, T, E), torch.randn(B, S, E)]
    decoder = pair(nn.TransformerDecoder(nn.TransformerDecoderLayer(E, H, 16, **options), 2))
    for masks in DECODER_MASKS.values():
        compare(decoder, inputs, options["batch_first"], no_grad, **masks)
    whole = pair(nn.Transformer(E, H, 1, 1, 16, **options))
    for masks in DECODER_MASKS.values():
        with_source = masks | {"src_key_padding_mask": padding(S)}
        compare(whole, inputs[::-1], options["batch_first"], no_grad, **with_source)


def test_stacks_of_torch_have_paths_of_their_own():
    net = nn.Transformer(E, H, 2, 2, 16, batch_first=True)
    replace(net)
    probattn.link(net)
    modules = dict(net.named_modules())
    chains = {
        name: id(modules[name].latent.chain)
        for name in modules
        if isinstance(modules[name], MultiheadAttention)
    }
    groups = {}
    for name, chain in chains.items():
        groups.setdefault(chain, []).append(re.sub(r"\d", "*", name))
    assert sorted(groups.values()) == [
        ["decoder.layers.*.multihead_attn"] * 2,
        ["decoder.layers.*.self_attn"] * 2,
        ["encoder.layers.*.self_attn"] * 2,
    ]
    source, target = torch.randn(B, T, E), torch.randn(B, T + 1, E)
    with AttentionGuide(net) as guide, pyro.plate("data", B):
        net.eval()(source, target)
    assert set(guide.trace.nodes) >= set(chains)


def test_a_nested_batch_under_a_guide_draws_as_a_padded_one():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(E, H, 16, batch_first=True, dropout=0.0)
    net = probattn.link(replace(nn.TransformerEncoder(layer, 2)).eval())
    x, mask = torch.randn(B, T, E), padding(T)
    results = []
    for nested in (True, False):
        net.use_nested_tensor = nested
        pyro.set_rng_seed(0)
        with torch.no_grad(), AttentionGuide(net) as guide, pyro.plate("data", B):
            output = net(x, src_key_padding_mask=mask)
        value = guide.trace.nodes["layers.1.self_attn"]["value"]
        valid = ~mask[:, None, :, None] & ~mask[:, None, None, :]
        results.append((output[~mask], value.masked_fill(~valid, 0.0)))
    for first, second in zip(*results, strict=True):
        torch.testing.assert_close(first, second, atol=1e-5, rtol=1e-5)


def test_the_kl_of_a_padded_batch_is_that_of_its_real_queries():
    """Torch's containers hand a float mask on, where the layer itself was given a bool one."""
    layer, x, mask = MultiheadAttention(E, H, batch_first=True).eval(), torch.randn(B, T, E), padding(T)
    nats = []
    for padding_mask in (mask, floating(mask)):
        with AttentionGuide(layer) as guide, pyro.plate("data", B):
            layer(x, x, x, key_padding_mask=padding_mask)
        posterior = guide.trace.nodes["attention"]["infer"]["attention"]
        nats.append((posterior.kl(), posterior.reduction_factor()))
    for first, second in zip(*nats, strict=True):
        torch.testing.assert_close(first, second)


def test_a_nested_tensor_with_a_mask_is_refused():
    layer = MultiheadAttention(E, H, batch_first=True).eval()
    x = torch.nested.nested_tensor([torch.randn(3, E), torch.randn(2, E)])
    with pytest.raises(ValueError, match=r"expected a nested tensor .* without masks; give padded tensors"):
        layer(x, x, x, attn_mask=causal(3, "bool"))
    with pytest.raises(ValueError, match="expected a nested tensor as query, key and value alike"):
        layer(x, torch.randn(2, 3, E), torch.randn(2, 3, E))
