"""Selection of layers and kinds, and what conversion refuses, leaving the network as it was."""

import pytest
import torch
import transformers as hf
from torch import nn

from probattn import AlignmentAttention, BayesianAttention
from probattn.models import convert, inspect, revert
from probattn.models.hosts.discovery import find_calls
from probattn.sites import AttentionSite


def latent(net):
    return [name for name, module in net.named_modules() if isinstance(module, AttentionSite)]


@pytest.mark.parametrize(
    ("layers", "numbers"),
    [("all", [0, 1]), ("first", [0]), ("last", [1]), ([1], [1]), ([-2], [0]), ((1, 0), [0, 1])],
)
def test_layers_are_selected_in_every_stack(by_name, layers, numbers):
    net = convert(by_name["bart"].network(), BayesianAttention(), layers=layers)
    assert {int(name.split(".layers.")[1][0]) for name in latent(net)} == set(numbers)
    assert len(inspect(net)) == len(latent(net)) == 3 * len(numbers)


@pytest.mark.parametrize(("kind", "count"), [("all", 6), ("self", 4), ("cross", 2)])
@pytest.mark.parametrize("name", ["t5", "bart", "marian"])
def test_kinds_are_selected(families, by_name, name, kind, count):
    net = by_name[name].network()
    before = families.forward(net, by_name[name].inputs())
    chosen = inspect(net, attention=kind)
    convert(net, BayesianAttention(), attention=kind)
    assert len(latent(net)) == len(chosen) == count
    assert {call.kind for call in inspect(net)} == ({"self", "cross"} if kind == "all" else {kind})
    assert (families.forward(net, by_name[name].inputs()) - before).abs().max() < 1e-5


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", ["t5", "bart", "marian"])
@pytest.mark.parametrize("selection", [{"attention": "cross"}, {"layers": "last"}])
def test_padded_decoder_queries_stay_out_of_selected_cross_attention(
    families, by_name, name, side, selection
):
    family = by_name[name]
    torch.manual_seed(0)
    net, inputs = convert(family.network(), families.FULL, **selection), family.inputs()
    _, old = families.observe(net, inputs)
    _, new = families.observe(net, family.pad(inputs, side))
    assert {call.kind for call in inspect(net)} >= {"cross"}
    for site, posterior in old.items():
        torch.testing.assert_close(new[site].kl(), posterior.kl(), atol=1e-5, rtol=1e-5)
    revert(net)
    assert not any("probattn" in key for module in net.modules() for key in vars(module))


def test_a_refusal_leaves_the_network_as_it_was(families, by_name):
    family = by_name["bart"]
    net, inputs = family.network(), family.inputs()
    before, keys = families.forward(net, inputs), list(net.state_dict())
    refused = [
        (TypeError, "expected an attention method", ()),
        (TypeError, "expected one BayesianAttention, got 2", (BayesianAttention(), BayesianAttention())),
        (
            TypeError,
            "expected one of BayesianAttention, AlignmentAttention, RepulsiveAttention, .*, got str",
            ("weibull",),
        ),
        (TypeError, r"got type; give an object: AlignmentAttention\(\)", (AlignmentAttention,)),
        (ValueError, "decoder.*see the future; use upward='heads'", (families.POSITIONS,)),
    ]
    for error, message, methods in refused:
        with pytest.raises(error, match=message):
            convert(net, *methods)
    with pytest.raises(
        ValueError, match=r"encoder_attn: .*see the future"
    ):  # cross attention of a causal decoder
        convert(net, families.POSITIONS, attention="cross")
    for options, message in [
        ({"layers": "middle"}, "'all', 'first', 'last' or numbers"),
        ({"layers": None}, "'all', 'first', 'last' or numbers such as .-1., got None"),
        ({"layers": [2]}, r"numbers from -2 to 1 for the self attention of 'model.encoder.layers', got 2"),
        ({"layers": [True]}, "got True"),
        ({"layers": []}, "no attention call"),
        ({"attention": "decoder"}, "'all', 'self' or 'cross'"),
    ]:
        for act in (lambda network, **kw: convert(network, BayesianAttention(), **kw), inspect):
            with pytest.raises(ValueError, match=message):
                act(net, **options)
    assert list(net.state_dict()) == keys
    assert torch.equal(families.forward(net, inputs), before)
    assert net.config._attn_implementation == "eager"


def test_no_cross_attention_in_an_encoder(by_name):
    with pytest.raises(ValueError, match="no attention call with layers='all' and attention='cross'"):
        inspect(by_name["bert"].network(), attention="cross")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gpt2", "see the future"),
        ("clip", "see the future"),
        ("swin", "different keys"),
        ("modernbert", "different keys"),
    ],
)
def test_positions_are_refused_at_conversion_where_queries_see_different_keys(
    families, by_name, name, message
):
    with pytest.raises(ValueError, match=rf"{message}.*upward='heads'"):
        convert(by_name[name].network(), families.POSITIONS)


def test_positions_need_a_longest_length(families, by_name):
    by_name["t5"].require()
    net = hf.T5EncoderModel(hf.T5Config(**families.t5()))
    with pytest.raises(ValueError, match=r"no longest length; set BayesianAttention\(max_positions=\.\.\.\)"):
        convert(net, families.POSITIONS)
    convert(net, BayesianAttention(upward="positions", max_positions=9))


def test_positions_take_the_networks_own_length(families, by_name):
    net = convert(by_name["bert"].network(), families.POSITIONS)
    shapes = {len(p) for name, p in net.named_parameters() if "upward" in name}
    assert shapes == {40}


def test_twice_and_never(by_name):
    net = by_name["bert"].network()
    with pytest.raises(ValueError, match="is not converted"):
        revert(net)
    convert(net, BayesianAttention())
    with pytest.raises(ValueError, match=r"converted already; revert\(net\) first"):
        convert(net, BayesianAttention())
    convert(revert(net), BayesianAttention.bam(), layers="last")
    assert len(latent(net)) == 1


def test_only_hugging_face_networks():
    with pytest.raises(TypeError, match=r"got Linear; .*MultiheadAttention"):
        convert(nn.Linear(2, 2), BayesianAttention())


def test_configurations_of_parts_that_differ_come_back(by_name):
    net = by_name["clip"].network()
    net.set_attn_implementation({"text_config": "sdpa", "vision_config": "eager"})
    before = [net.config.text_config._attn_implementation, net.config.vision_config._attn_implementation]
    assert before == ["sdpa", "eager"]
    inspect(net)
    assert [
        net.config.text_config._attn_implementation,
        net.config.vision_config._attn_implementation,
    ] == before
    convert(net, BayesianAttention())
    assert net.config.text_config._attn_implementation == "probattn"
    revert(net)
    assert [
        net.config.text_config._attn_implementation,
        net.config.vision_config._attn_implementation,
    ] == before


def test_modes_and_frozen_weights_are_kept(by_name):
    net = by_name["bert"].network().train()
    net.bert.embeddings.requires_grad_(False)
    convert(net, BayesianAttention())
    assert all(module.training for module in net.modules())
    assert not any(p.requires_grad for p in net.bert.embeddings.parameters())


def test_a_network_loaded_with_another_implementation_is_converted_alike(families, by_name):
    family = by_name["bert"]
    net, inputs = family.network(), family.pad(family.inputs(), "left")
    net.set_attn_implementation("sdpa")
    before = families.forward(net, inputs)
    converted = families.forward(convert(net, BayesianAttention()), inputs)
    real = inputs["attention_mask"].bool()
    assert (converted - before)[real].abs().max() < 1e-5
    assert torch.equal(families.forward(revert(net), inputs), before)
    assert net.config._attn_implementation == "sdpa"


def test_networks_do_not_disturb_each_other(families, by_name):
    family = by_name["bert"]
    torch.manual_seed(0)
    first, second = (convert(family.network(), families.FULL) for _ in range(2))
    plain, inputs = family.network(), family.inputs()
    before = [families.forward(net, inputs) for net in (first, second, plain)]
    revert(second)
    assert torch.equal(families.forward(first, inputs), before[0])
    assert torch.equal(families.forward(second, inputs), before[2])
    assert torch.equal(families.forward(plain, inputs), before[2])


def test_gpt2_scales_by_layer_and_upcasts_as_its_own_attention_does(families):
    families.needs("5.4", "GPT-2 that tells its attention function the scale of a layer")
    config = hf.GPT2Config(
        **families.gpt2_options(scale_attn_by_inverse_layer_idx=True, reorder_and_upcast_attn=True)
    )
    torch.manual_seed(0)
    net = hf.GPT2LMHeadModel(config).eval()
    net.set_attn_implementation("eager")
    words = {"input_ids": torch.arange(3, 9)[None]}
    before = families.forward(net, words)
    assert (families.forward(convert(net, BayesianAttention()), words) - before).abs().max() < 1e-5


def test_print_shows_sites_and_a_table(by_name):
    net = convert(by_name["albert"].network(), BayesianAttention())
    assert "attention#0, albert.encoder" in repr(net)
    lines = str(inspect(net)).splitlines()
    assert lines[0].split() == ["site", "kind", "mask", "heads", "head", "size"]
    assert len(lines) == 3 and lines[1].split()[1:] == ["self", "full", "2", "8"]


def test_one_call_of_a_shared_layer_can_be_chosen(families, by_name):
    family = by_name["albert"]
    plain, inputs = family.network(), family.inputs()
    torch.manual_seed(0)
    net = convert(family.network(), families.FULL, layers="last")
    assert [call.name[-2:] for call in inspect(net)] == ["#1"]
    with torch.no_grad():
        before, after = (
            network(**inputs, output_hidden_states=True).hidden_states for network in (plain, net)
        )
    assert torch.equal(after[1], before[1])
    assert not torch.allclose(after[2], before[2], atol=1e-5)


def keep(outputs, name):
    def hook(_module, _inputs, output):
        outputs[name] = output[0]

    return hook


def test_calls_that_were_not_chosen_stay_the_familys_own_bit_for_bit(families, family):
    plain, inputs = family.network(), family.inputs()
    torch.manual_seed(0)
    net = convert(family.network(), families.FULL, layers="last")
    chosen = {call.module for call in inspect(net)}
    seen, calls = [{}, {}], find_calls(plain)[: 3 if family.name == "clip" else 1]
    for network, outputs in zip((plain, net), seen, strict=True):
        for call in calls:
            if call.module not in chosen:
                module = network.get_submodule(call.module)
                module.register_forward_hook(keep(outputs, call.name))
        families.forward(network, inputs)
    assert seen[0].keys() == seen[1].keys()
    assert seen[0] or len({call.module for call in calls} - chosen) == 0
    assert all(torch.equal(seen[0][name], seen[1][name]) for name in seen[0])


def test_new_parameters_are_float32_beside_half_precision_and_float64_in_float64(families, by_name):
    for dtype, expected in [(torch.bfloat16, torch.float32), (torch.float64, torch.float64)]:
        net = convert(by_name["bert"].network().to(dtype), families.FULL)
        assert {p.dtype for name, p in net.named_parameters() if ".probattn." in name} == {expected}
        assert {p.dtype for name, p in net.named_parameters() if ".probattn." not in name} == {dtype}


@pytest.mark.cuda
def test_sites_lie_on_the_networks_device(families, family):
    net = family.network().cuda()
    inputs = {name: value.cuda() for name, value in family.inputs().items()}
    eager, state = families.forward(net, inputs), torch.cuda.get_rng_state()
    inspect(net)
    assert torch.equal(torch.cuda.get_rng_state(), state)
    convert(net, BayesianAttention())
    assert {value.device.type for value in net.state_dict().values()} == {"cuda"}
    assert (families.forward(net, inputs) - eager).abs().max() < 1e-4


def test_grouped_heads_are_listed(by_name):
    call = inspect(by_name["llama"].network())[0]
    assert (call.num_heads, call.num_key_value_heads, call.head_dim, call.causal) == (4, 2, 4, True)
    assert "4 (2 key heads)" in str(inspect(by_name["llama"].network()))
    calls = inspect(by_name["gemma2"].network())
    assert [call.window for call in calls] == [4, None]
    assert "causal, 4 near" in str(calls)
    assert calls[0].chain != calls[1].chain  # with a cache the near layer keeps fewer keys


def test_windows_are_counted(by_name):
    windows = [call.shape[0] for call in inspect(by_name["swin"].network())]
    assert windows == [16, 16, 4, 4]


def test_layer_numbers_are_those_of_the_network(families):
    family = families.BY_NAME["bert"]
    net = convert(family.network(), BayesianAttention(), layers=[1])
    (only,) = inspect(net)
    assert list(inspect(net, layers=[1])) == list(inspect(net, layers=[-1])) == [only]
    assert list(inspect(net, layers="first")) == [only]  # words are about what was converted
    with pytest.raises(
        ValueError, match=r"layers=\[0\]: convert left the attention of these layers as it was"
    ):
        inspect(net, layers=[0])
    with pytest.raises(ValueError, match=r"expected numbers from -2 to 1"):
        inspect(net, layers=[2])
