"""What the dry run sees of a network."""

import random

import pytest
import torch
import transformers as hf
from pyro.util import get_rng_state
from scipy import stats

from probattn import BayesianAttention
from probattn.models import convert, revert
from probattn.models.hosts.discovery import find_calls
from probattn.models.hosts.dry_run import DECODER_LENGTH, ENCODER_LENGTH, dry_inputs, untouched
from probattn.models.hosts.eager import eager_attention


def test_every_family_can_be_fed(families, family):
    net = family.network()
    inputs = next(dry_inputs(net))
    assert {"input_ids"} <= inputs.keys() if family.text else "pixel_values" in inputs
    assert all(len(value) == 2 for value in inputs.values())
    if family.text:
        assert inputs["input_ids"].shape[1] == ENCODER_LENGTH
        assert inputs["attention_mask"][1, -1] == 0
    if family.pair:
        assert inputs["decoder_input_ids"].shape[1] == DECODER_LENGTH != ENCODER_LENGTH
    assert families.forward(net, inputs).isfinite().all()


def test_kinds_stacks_and_causality_of_an_encoder_with_a_decoder(by_name):
    calls = find_calls(by_name["bart"].network())
    seen = [(call.stack, call.kind, call.causal) for call in calls]
    encoder, decoder = "model.encoder.layers", "model.decoder.layers"
    pair = [(decoder, "self", True), (decoder, "cross", False)]
    assert seen == [(encoder, "self", False)] * 2 + pair * 2
    assert {call.max_positions for call in calls} == {40}


def test_images_have_the_length_of_their_patches(by_name):
    assert {call.max_positions for call in find_calls(by_name["vit"].network())} == {5}
    calls = find_calls(by_name["clip"].network())
    assert [(call.causal, call.max_positions) for call in calls] == [(False, 5)] * 2 + [(True, 40)] * 2


def test_a_head_of_another_task_changes_nothing(families, by_name):
    for name in ("bert", "gpt2", "llama"):
        tokens, rows = by_name[name].network(), by_name[name].classification()
        assert [call.shape for call in find_calls(tokens)] == [call.shape for call in find_calls(rows)]


def test_networks_of_neither_words_nor_pixels_nor_sounds_are_refused():
    options = {
        "d_model": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "ffn_dim": 16,
        "num_input_channels": 1,
    }
    net = hf.PatchTSTModel(hf.PatchTSTConfig(**options, context_length=16))
    with pytest.raises(
        ValueError,
        match=r"PatchTSTModel: expected a network of token ids, pixels or audio, its forward takes",
    ):
        find_calls(net)


@pytest.mark.parametrize("error", [RuntimeError, ValueError, TypeError])
def test_a_network_that_takes_no_known_form_is_refused_with_its_own_reason(by_name, monkeypatch, error):
    net = by_name["bert"].network()

    def fail(*_, **__):
        raise error("inside")

    monkeypatch.setattr(net.bert.encoder.layer[1].attention.self, "forward", fail)
    with pytest.raises(
        ValueError, match=rf"BertForMaskedLM: expected a network that runs on .*gave {error.__name__}: inside"
    ):
        find_calls(net)


def test_modes_and_generators_survive(by_name):
    net = by_name["bert"].network().train()
    net.bert.encoder.layer[0].eval()
    modes, state = [module.training for module in net.modules()], torch.get_rng_state()
    with untouched(net):
        assert not any(module.training for module in net.modules())
        torch.rand(3)
    assert modes == [module.training for module in net.modules()]
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def test_a_network_that_draws_when_it_predicts(device):
    """Both passes that are compared draw the same patches."""
    sizes = {"num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 16, "patch_size": 4}
    decoder = {f"decoder_{name}": value for name, value in sizes.items() if "size" not in name}
    widths = dict.fromkeys(
        ("hidden_size", "intermediate_size", "decoder_hidden_size", "decoder_intermediate_size"), 8
    )
    net = hf.ViTMAEForPreTraining(hf.ViTMAEConfig(**sizes, **decoder, **widths)).to(device)
    assert len(find_calls(net)) == 1


def precisions():
    """Settings of matrix products of each backend."""
    return torch.backends.cuda.matmul.fp32_precision, torch.backends.mkldnn.matmul.fp32_precision


@pytest.mark.parametrize("precision", ["highest", "high", "medium", "of one backend"])
def test_products_are_exact_where_the_user_allows_others(precision):
    """Else a network in TF32 or bfloat16, of usual width, looks like one whose attention is more than a softmax."""
    sizes = {"hidden_size": 384, "num_attention_heads": 12, "intermediate_size": 64, "vocab_size": 100}
    net = hf.BertModel(hf.BertConfig(**sizes, num_hidden_layers=1))
    before = precisions()
    try:
        if precision == "of one backend":
            torch.backends.mkldnn.matmul.fp32_precision = "bf16"
        else:
            torch.set_float32_matmul_precision(precision)
        allowed = precisions()
        with untouched(net):
            assert precisions() == ("ieee", "ieee")
            assert torch.get_float32_matmul_precision() == "highest"
        assert precisions() == allowed
        assert find_calls(net)
        with pytest.raises(KeyError), untouched(net):
            raise KeyError
        assert precisions() == allowed
        if precision != "of one backend":
            assert torch.get_float32_matmul_precision() == precision
    finally:
        torch.set_float32_matmul_precision("highest")
        torch.backends.cuda.matmul.fp32_precision, torch.backends.mkldnn.matmul.fp32_precision = before


def test_what_a_pass_changes_is_put_back(by_name):
    """Swin's layers shrink their windows to the image they see; random generators and buffers may be used."""
    by_name["swin"].require()
    options = {"image_size": 16, "patch_size": 2, "embed_dim": 8, "depths": [2, 2], "num_heads": [2, 4]}
    net = hf.SwinModel(hf.SwinConfig(**options, window_size=4))
    block = net.encoder.layers[1].blocks[1]
    net.register_buffer("seen", torch.zeros(2))

    def disturb(module, *_):
        module.seen += 1
        module.later = random.random() + stats.uniform.rvs()  # which draws from numpy's

    net.register_forward_pre_hook(disturb)

    def state():
        generators = get_rng_state()
        numbers = generators["numpy"][1].tolist(), generators["numpy"][2], generators["torch"].tolist()
        return block.shift_size, generators["random"], numbers

    before = state()
    find_calls(net)
    assert state() == before
    assert net.seen.tolist() == [0, 0] and not hasattr(net, "later")


def test_attention_that_does_more_than_a_site_is_refused(families):
    """GPT-OSS has sinks: a weight per head that takes its share of the softmax."""
    options = families.grouped(head_dim=8, num_local_experts=2, num_experts_per_tok=1, sliding_window=4)
    net = hf.GptOssForCausalLM(hf.GptOssConfig(**options))
    with pytest.raises(TypeError, match=r"GptOssAttention: .*more than a softmax of scores"):
        find_calls(net)
    assert not any("probattn" in name for module in net.modules() for name in vars(module))


def test_weights_too_large_for_finite_outputs_are_named_as_the_cause(families):
    net = hf.BertModel(hf.BertConfig(**families.small()))
    with torch.no_grad():
        net.embeddings.word_embeddings.weight.fill_(3e38)
    with pytest.raises(
        TypeError, match=r"BertSelfAttention: expected finite outputs, got NaN or infinity; .*too large"
    ):
        find_calls(net)


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_cross_attention_of_a_decoder_alone_is_found(families, name):
    if name == "bert":
        net = hf.BertLMHeadModel(hf.BertConfig(**families.small(is_decoder=True, add_cross_attention=True)))
    else:
        net = hf.GPT2LMHeadModel(hf.GPT2Config(**families.gpt2_options(add_cross_attention=True)))
    calls = find_calls(net)
    assert [(call.kind, call.causal, call.decoder) for call in calls] == [
        ("self", True, True),
        ("cross", False, True),
    ] * 2


def test_composed_networks_are_found_whole_or_refused_by_the_part(families):
    decoder = {"is_decoder": True, "add_cross_attention": True}

    def compose(encoder):
        return hf.EncoderDecoderModel(
            encoder=encoder, decoder=hf.BertLMHeadModel(hf.BertConfig(**families.small(**decoder)))
        )

    net = compose(hf.BertModel(hf.BertConfig(**families.small()))).eval()
    assert [call.kind for call in find_calls(net)] == ["self"] * 2 + ["self", "cross"] * 2
    words = {"input_ids": torch.arange(8, 14)[None], "decoder_input_ids": torch.arange(20, 24)[None]}
    before = families.forward(net, words)
    convert(net, BayesianAttention())
    assert (families.forward(net, words) - before).abs().max() < 1e-5
    assert torch.equal(families.forward(revert(net), words), before)
    with pytest.raises(TypeError, match=r"XLNetModel: .*this family computes attention by itself"):
        find_calls(compose(families.REFUSED["XLNet"]()))


def test_a_network_without_weights_is_refused(families):
    with torch.device("meta"):
        net = hf.BertModel(hf.BertConfig(**families.small()))
    with pytest.raises(
        ValueError, match="BertModel: expected a network with weights, got one on the meta device"
    ):
        find_calls(net)


def test_a_failing_dry_run_leaves_the_network_as_it_was(by_name, monkeypatch):
    net = by_name["bert"].network()

    def fail(*_, **__):
        raise OSError("inside")

    monkeypatch.setattr(net.bert.encoder.layer[1].attention.self, "forward", fail)
    with pytest.raises(OSError, match="inside"):
        find_calls(net.train())
    assert all(module.training for module in net.modules())
    assert net.config._attn_implementation == "eager"


@pytest.mark.parametrize("name", ["t5", "gemma2"])
def test_eager_attention_is_the_familys_own(by_name, name):
    net = by_name[name].network()
    module = net.get_submodule(find_calls(net)[0].module)
    assert eager_attention(module).__module__ == type(module).__module__


def test_eager_attention_of_what_has_none():
    with pytest.raises(RuntimeError, match="defines no eager_attention_forward"):
        eager_attention(torch.nn.Linear(2, 2))
