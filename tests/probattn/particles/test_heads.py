"""Heads as particles: which weights they are, that they are views, and that directions come back to them."""

import pytest
import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from probattn.particles import FusedProjection, HeadSlices, MedianRBF, head_slices, svgd_direction

HEADS, KEY_HEADS, SIZE, WIDTH = 4, 2, 3, 5


def numbered(*shape):
    """A weight whose numbers tell where they stand."""
    return nn.Parameter(torch.arange(float(torch.Size(shape).numel())).view(shape))


def linear(rows):
    layer = nn.Linear(WIDTH, rows)
    layer.weight = numbered(rows, WIDTH)
    return nn.ModuleDict({"proj": layer})


def conv(rows):
    layer = Conv1D(rows, WIDTH)
    layer.weight = nn.Parameter(numbered(rows, WIDTH).detach().T.contiguous())
    return nn.ModuleDict({"proj": layer})


def parameter(rows):
    return nn.ParameterDict({"proj": numbered(rows, WIDTH)})


def rows_of(part, order):
    """Which output features each head of a fused, grouped projection has, by the meaning of the orders."""
    made = []
    if order == "blocks":
        made = [("query", h) for h in range(HEADS)]
        made += [(part, h) for part in ("key", "value") for h in range(KEY_HEADS)]
    else:
        for group in range(KEY_HEADS):
            made += [("query", 2 * group), ("query", 2 * group + 1), ("key", group), ("value", group)]
    places = {head: place for place, (name, head) in enumerate(made) if name == part}
    return [list(range(places[head] * SIZE, (places[head] + 1) * SIZE)) for head in sorted(places)]


LAYOUTS = {
    "separate": (None, HEADS * SIZE, [list(range(h * SIZE, (h + 1) * SIZE)) for h in range(HEADS)], HEADS),
    "grouped, separate": (None, KEY_HEADS * SIZE, [[0, 1, 2], [3, 4, 5]], KEY_HEADS),
}
for _part in ("query", "key", "value"):
    LAYOUTS[f"fused, {_part}"] = (
        FusedProjection(_part),
        3 * HEADS * SIZE,
        [
            list(range(start, start + SIZE))
            for start in range(
                ("query", "key", "value").index(_part) * HEADS * SIZE,
                (("query", "key", "value").index(_part) + 1) * HEADS * SIZE,
                SIZE,
            )
        ],
        HEADS,
    )
    for _order in ("blocks", "heads"):
        LAYOUTS[f"fused by {_order}, grouped, {_part}"] = (
            FusedProjection(_part, KEY_HEADS, _order),
            (HEADS + 2 * KEY_HEADS) * SIZE,
            rows_of(_part, _order),
            HEADS,
        )


@pytest.fixture(params=sorted(LAYOUTS))
def layout(request):
    return LAYOUTS[request.param]


@pytest.fixture(params=[linear, conv, parameter], ids=["Linear", "Conv1D", "parameter"])
def make(request):
    return request.param


def set_gradient(slices, rows_by_width):
    """Gives the weight a gradient, written ``[out, in]``."""
    slices.parameter.grad = (rows_by_width.T if slices.transposed else rows_by_width).contiguous()


def written(slices):
    return slices.parameter.grad.T if slices.transposed else slices.parameter.grad


def test_a_head_is_its_output_features(make, layout):
    fused, features, rows, heads = layout
    slices = head_slices(make(features), "proj", heads, fused=fused)
    weight = torch.arange(float(features * WIDTH)).view(features, WIDTH)
    expected = torch.stack([weight[own].flatten() for own in rows])
    assert torch.equal(slices.particles(), expected)
    set_gradient(slices, -weight)
    assert torch.equal(slices.gradients(), -expected)


def test_directions_go_to_the_same_features_and_no_others(make, layout):
    fused, features, rows, heads = layout
    slices = head_slices(make(features), "proj", heads, fused=fused)
    set_gradient(slices, torch.full((features, WIDTH), 7.0))
    directions = torch.randn(len(rows), SIZE * WIDTH, generator=torch.Generator().manual_seed(0))
    slices.write(directions, 0.5)
    expected = torch.full((features, WIDTH), 7.0)
    for head, own in enumerate(rows):
        expected[own] = -0.5 * directions[head].view(SIZE, WIDTH)
    assert torch.equal(written(slices), expected)


def test_linear_weights_are_views():
    for name, (fused, features, _, heads) in LAYOUTS.items():
        slices = head_slices(linear(features), "proj", heads, fused=fused)
        slices.parameter.grad = torch.zeros_like(slices.parameter)
        apart = name == "fused by heads, grouped, query"
        for tensor, found in (
            (slices.parameter, slices.particles()),
            (slices.parameter.grad, slices.gradients()),
        ):
            shared = found.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr()
            assert shared is not apart, name
            assert not found.requires_grad
        if not apart:
            slices.particles()[0, 0] = -99.0
            assert bool((slices.parameter == -99.0).any())


def test_interleaved_slices_would_be_found():
    """Gradients by hand: only head 1 has one, so only features 3, 4, 5 attract the others, alike in each head."""
    net = linear(HEADS * SIZE)
    slices = head_slices(net, "proj", HEADS)
    gradient = torch.zeros(HEADS * SIZE, WIDTH)
    gradient[3:6] = torch.tensor([1.0, 10.0, 100.0])[:, None]
    set_gradient(slices, gradient)
    kernel = MedianRBF()
    slices.write(svgd_direction(slices.particles(), slices.gradients(), kernel, 0.0), 1.0)
    weight = net["proj"].weight.detach().view(HEADS, SIZE, WIDTH)
    squares = (weight - weight[1]).square().sum(dim=(1, 2))
    apart = torch.nn.functional.pdist(weight.flatten(1)).median().square() / torch.tensor(4.0).log()
    expected = torch.exp(-squares / apart)[:, None, None] * torch.tensor([1.0, 10.0, 100.0])[:, None] / HEADS
    torch.testing.assert_close(
        written(slices).view(HEADS, SIZE, WIDTH), expected.expand(HEADS, SIZE, WIDTH), rtol=1e-4, atol=1e-6
    )


def test_permuting_heads_permutes_directions():
    generator = torch.Generator().manual_seed(1)
    weight, gradient = torch.randn(2, HEADS, SIZE, WIDTH, generator=generator)
    order = torch.tensor([2, 0, 3, 1])

    def run(weight, gradient):
        net = linear(HEADS * SIZE)
        net["proj"].weight = nn.Parameter(weight.reshape(-1, WIDTH))
        slices = head_slices(net, "proj", HEADS)
        set_gradient(slices, gradient.reshape(-1, WIDTH))
        slices.write(svgd_direction(slices.particles(), slices.gradients(), MedianRBF()), 0.1)
        return written(slices).view(HEADS, SIZE, WIDTH)

    torch.testing.assert_close(run(weight[order], gradient[order]), run(weight, gradient)[order])


def test_heads_of_torch_and_of_additive_attention():
    attention = nn.MultiheadAttention(12, 4)
    keys = head_slices(attention, "in_proj_weight", 4, fused=FusedProjection("key"))
    assert torch.equal(keys.particles()[1], attention.in_proj_weight[15:18].flatten())
    rows = nn.ModuleDict({"v": nn.Linear(7, 5, bias=False)})
    assert torch.equal(head_slices(rows, "v", 5).particles(), rows["v"].weight)


def test_heads_of_pretrained_architectures():
    from transformers import BertConfig, BertModel, GPT2Config, GPT2Model, GPTNeoXConfig, GPTNeoXModel

    small = {"num_hidden_layers": 1, "hidden_size": 12, "num_attention_heads": 4, "intermediate_size": 8}
    bert = BertModel(BertConfig(**small, vocab_size=9)).encoder.layer[0]
    query = head_slices(bert, "attention.self.query", 4)
    assert torch.equal(query.particles()[2], bert.attention.self.query.weight[6:9].flatten())

    gpt2 = GPT2Model(GPT2Config(n_layer=1, n_embd=12, n_head=4, vocab_size=9)).h[0]
    value = head_slices(gpt2, "attn.c_attn", 4, fused=FusedProjection("value"))
    assert torch.equal(value.particles()[1], gpt2.attn.c_attn.weight[:, 27:30].T.flatten())

    neox = GPTNeoXModel(GPTNeoXConfig(**small, vocab_size=9)).layers[0]
    key = head_slices(neox, "attention.query_key_value", 4, fused=FusedProjection("key", order="heads"))
    assert torch.equal(key.particles()[1], neox.attention.query_key_value.weight[12:15].flatten())


@pytest.mark.parametrize("network", ["neox", "gpt2"])
def test_a_head_is_what_the_network_takes_for_one(network):
    """Zeroing a head's value slice silences its D features of the attention output, and no others."""
    from transformers import GPT2Config, GPT2Model, GPTNeoXConfig, GPTNeoXModel

    torch.manual_seed(0)
    if network == "neox":
        config = GPTNeoXConfig(
            num_hidden_layers=1, hidden_size=12, num_attention_heads=4, intermediate_size=8, vocab_size=9
        )
        net = GPTNeoXModel(config).eval()
        attention, out = net.layers[0].attention, net.layers[0].attention.dense
        path, order = "query_key_value", "heads"
    else:
        net = GPT2Model(GPT2Config(n_layer=1, n_embd=12, n_head=4, vocab_size=9)).eval()
        attention, out = net.h[0].attn, net.h[0].attn.c_proj
        path, order = "c_attn", "blocks"
    mixed = []
    out.register_forward_pre_hook(lambda _, inputs: mixed.append(inputs[0]))
    value = head_slices(attention, path, 4, fused=FusedProjection("value", order=order))
    with torch.no_grad():
        getattr(attention, path).bias.zero_()
        value.parameter.grad = value.parameter.clone()
        kept = -value.particles()
        kept[2] = 0.0
        value.write(kept, 1.0)
        value.parameter.copy_(value.parameter.grad)
        net(torch.arange(5)[None])
    silent = mixed[0].abs().amax(dim=(0, 1)) == 0
    assert silent.tolist() == [False] * 6 + [True] * 3 + [False] * 3


def test_low_precision_gradients_keep_their_type():
    net = linear(HEADS * SIZE).to(torch.bfloat16)
    slices = head_slices(net, "proj", HEADS)
    slices.parameter.grad = torch.ones_like(slices.parameter)
    slices.write(svgd_direction(slices.particles(), slices.gradients(), MedianRBF()), 0.1)
    assert slices.parameter.grad.dtype == torch.bfloat16
    assert bool(slices.parameter.grad.isfinite().all())


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda net: head_slices(net, "q_proj", 4),
            ValueError,
            r"ModuleDict.q_proj: ModuleDict has no such projection; it has proj",
        ),
        (
            lambda net: head_slices(
                nn.ParameterDict({"proj": net.proj.weight, "gain": torch.ones(3)}), "q", 4
            ),
            ValueError,
            "no such projection; it has proj$",
        ),
        (lambda net: head_slices(net, "proj.query", 4), ValueError, "no such projection"),
        (lambda net: head_slices(net, "", 4), ValueError, "no such projection"),
        (
            lambda net: head_slices(net, "proj", 5),
            ValueError,
            "ModuleDict.proj: expected heads that divide its 12 output features, got 5",
        ),
        (
            lambda net: head_slices(net, "proj", 0),
            ValueError,
            "ModuleDict.proj.heads: expected an integer >= 1",
        ),
        (
            lambda net: head_slices(net, "proj", 4, fused=FusedProjection("key", key_heads=3)),
            ValueError,
            "expected key_heads that divide the 4 query heads, got 3",
        ),
        (
            lambda net: head_slices(net, "proj", 5, fused=FusedProjection("key")),
            ValueError,
            "5 query, 5 key and 5 value heads of one size, but its 12 output features do not divide by 15",
        ),
        (
            lambda net: head_slices(net, "proj.bias", 4),
            TypeError,
            r"expected a floating-point weight \[out, in\]",
        ),
        (
            lambda _: head_slices(nn.ModuleDict({"proj": nn.Tanh()}), "proj", 4),
            TypeError,
            "expected a Linear, a Conv1D or a weight, got Tanh; it has none",
        ),
        (
            lambda _: FusedProjection("output"),
            ValueError,
            "FusedProjection.part: expected one of 'query', 'key'",
        ),
        (
            lambda _: FusedProjection("key", 0),
            ValueError,
            "FusedProjection.key_heads: expected an integer >= 1",
        ),
        (lambda _: FusedProjection("key", order="mixed"), ValueError, "FusedProjection.order: expected one"),
        (lambda net: head_slices(net, "proj", 4).gradients(), ValueError, "no gradient; call backward first"),
        (
            lambda net: head_slices(net.requires_grad_(False), "proj", 4).gradients(),
            ValueError,
            "no gradient; it is frozen",
        ),
    ],
)
def test_bad_input_is_one_clear_line(call, error, message):
    with pytest.raises(error, match=message) as caught:
        call(linear(HEADS * SIZE))
    assert "\n" not in str(caught.value)


def test_wrong_directions_and_steps_are_refused():
    slices = head_slices(linear(12), "proj", 4)
    assert isinstance(slices, HeadSlices)
    set_gradient(slices, torch.zeros(12, WIDTH))
    with pytest.raises(ValueError, match=r"ModuleDict.proj: expected directions \[4, 15\], got \[12, 5\]"):
        slices.write(torch.zeros(12, 5), 0.1)
    with pytest.raises(ValueError, match=r"ModuleDict.proj.write.step_size: expected a number > 0, got 0.0"):
        slices.write(torch.zeros(4, 15), 0.0)
