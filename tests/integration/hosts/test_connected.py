"""A converted network keeps its sites, whatever is done to its configuration, and says so where nothing is random."""

import copy
import inspect
import logging
import threading
from functools import partial, wraps

import pytest
import torch
import transformers as hf
from torch import nn
from transformers import TrainingArguments

import probattn
from probattn import AlignmentAttention, BayesianAttention, RepulsiveAttention
from probattn.inference import (
    AttentionELBO,
    AttentionGuide,
    ParticleEnsemble,
    SVGDDriver,
    SVIDriver,
    posterior_moments,
    posterior_predict,
)
from probattn.models import Classifier, convert, program_for, revert

SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
BATCH = {
    "input_ids": torch.arange(12).view(2, 6) + 1,
    "attention_mask": torch.tensor([[1] * 6, [1] * 4 + [0] * 2]),
}
DATA = {**BATCH, "labels": torch.tensor([0, 1])}


def plain(config=None, **options):
    torch.manual_seed(0)
    config = hf.BertConfig(vocab_size=40, initializer_range=0.4, **SIZES) if config is None else config
    return hf.BertForSequenceClassification._from_config(config, **options).eval()


def causal(attn_implementation="sdpa"):
    torch.manual_seed(0)
    config = hf.LlamaConfig(vocab_size=40, initializer_range=0.4, pad_token_id=0, **SIZES)
    return hf.LlamaForCausalLM._from_config(config, attn_implementation=attn_implementation).eval()


def sampled(net, seed=0):
    with torch.no_grad(), probattn.sampling(net, seed=seed):
        return net(**BATCH).logits


def spread(net):
    return posterior_predict(net, BATCH, 4).std.max().item()


def each_config(net, name):
    for module in net.modules():
        if hasattr(module, "config"):
            module.config._attn_implementation = name


ROADS = {
    "set_attn_implementation": lambda net, name: net.set_attn_implementation(name),
    "the configuration": lambda net, name: setattr(net.config, "_attn_implementation", name),
    "the configuration of a part": lambda net, name: setattr(
        net.base_model.config, "_attn_implementation", name
    ),
    "every configuration": each_config,
}


@pytest.mark.parametrize("name", ["eager", "sdpa"])
@pytest.mark.parametrize("road", ROADS)
@pytest.mark.parametrize("make", [plain, causal])
def test_another_implementation_is_that_of_plain_passes_and_sites_stay(make, road, name):
    former = "sdpa" if name == "eager" else "eager"
    net = convert(make(attn_implementation=former), BayesianAttention())
    expected = sampled(net)
    ROADS[road](net, name)
    assert torch.equal(sampled(net), expected)
    theirs = make(attn_implementation=name)
    with torch.no_grad():
        assert torch.equal(net(**BATCH).logits, theirs(**BATCH).logits)
    with pytest.raises(RuntimeError, match="training without a driver"):
        net.train()(**BATCH)
    assert revert(net).config._attn_implementation == name


def test_trainings_and_closed_forms_go_on_under_another_implementation(tmp_path):
    net = convert(plain(), BayesianAttention(), AlignmentAttention("ct"))
    program = program_for(net)

    def terms():
        torch.manual_seed(0)
        return AttentionELBO()(program, AttentionGuide(program))(DATA)

    expected, moments = terms(), posterior_moments(net, BATCH, method="expansion").std
    net.set_attn_implementation("eager")
    torch.testing.assert_close(terms(), expected)
    assert expected.kl_nats > 1 and expected.factors != 0
    torch.testing.assert_close(posterior_moments(net, BATCH, method="expansion").std, moments)
    net.set_attn_implementation("sdpa")
    rows = [{name: value[i % 2] for name, value in DATA.items()} for i in range(4)]
    arguments = TrainingArguments(str(tmp_path), max_steps=1, report_to=[], use_cpu=True, disable_tqdm=True)
    trainer = probattn.ProbabilisticTrainer(model=net, args=arguments, train_dataset=rows, eval_dataset=rows)
    trainer.train()
    assert trainer.evaluate()["eval_kl_nats"] > 1
    with pytest.raises(RuntimeError, match="training without a driver"):
        hf.Trainer(model=net, args=arguments, train_dataset=rows).train()


def test_a_name_without_sites_and_a_reader_of_another_thread_are_refused():
    net = convert(plain(), BayesianAttention())
    net.config._attn_implementation = "paged|sdpa"
    with pytest.raises(RuntimeError, match=r"set to 'paged\|sdpa' after conversion.*revert\(net\)"):
        sampled(net)
    net = convert(plain(), BayesianAttention())
    expected, found = sampled(net), []
    net.set_attn_implementation("eager")
    thread = threading.Thread(target=lambda: found.append(sampled(net)))
    thread.start()
    thread.join()
    assert torch.equal(found[0], expected)


def test_parts_run_by_themselves():
    """An encoder alone, a decoder with cached states, and a layer that is left out."""
    torch.manual_seed(0)
    config = hf.BartConfig(
        vocab_size=40, d_model=16, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2
    )
    config.decoder_attention_heads, config.decoder_ffn_dim, config.encoder_ffn_dim = 2, 16, 16
    config.decoder_layerdrop = config.encoder_layerdrop = 0.9
    net = convert(hf.BartForConditionalGeneration(config), BayesianAttention.bam())
    words = BATCH["input_ids"]
    with torch.no_grad(), probattn.sampling(net):
        encoded = net.eval().get_encoder()(words)
        assert net(encoder_outputs=encoded, decoder_input_ids=words).logits.isfinite().all()
        assert net.generate(words, max_new_tokens=3, num_beams=2).shape[0] == 2
        for _ in range(6):
            assert net.train()(words).logits.isfinite().all()


@pytest.mark.parametrize("first", ["a", "b"])
def test_networks_of_one_configuration_object_are_converted_each_by_itself(first):
    config = hf.BertConfig(vocab_size=40, initializer_range=0.4, **SIZES)
    a, b = plain(config), plain(config)
    c = plain(config)
    expected = c(**BATCH).logits
    convert(a, BayesianAttention())
    assert config._attn_implementation == b.config._attn_implementation == "sdpa"
    assert torch.equal(b(**BATCH).logits, expected)
    convert(b, BayesianAttention())
    left, other = (a, b) if first == "a" else (b, a)
    revert(left)
    assert left.config._attn_implementation == "sdpa"
    assert spread(other) > 1e-3
    assert SVIDriver(program_for(other), progress=False, cpu=True).fit(DATA, steps=1).train["kl_nats"] > 1
    other.config.id2label = {0: "no", 1: "yes"}
    assert revert(other).config.id2label == {0: "no", 1: "yes"}
    assert torch.equal(c(**BATCH).logits, expected) and c.config is config


def around(hidden, *_, **__):
    """A forward without attention."""
    return hidden, None


def replace_instance(net, monkeypatch):
    monkeypatch.setattr(net.bert.encoder.layer[1].attention, "forward", around)


def replace_class(net, monkeypatch):
    """By a function with the name of the former, which leaves one layer out."""
    outer, former = (
        type(net.bert.encoder.layer[1].attention),
        net.bert.encoder.layer[1].attention.forward.__func__,
    )

    @wraps(former)
    def forward(self, *args, **kwargs):
        return (around if self is net.bert.encoder.layer[1].attention else partial(former, self))(
            *args, **kwargs
        )

    monkeypatch.setattr(outer, "forward", forward)


def replace_layer(net, monkeypatch):
    monkeypatch.setattr(net.bert.encoder.layer[1], "forward", lambda hidden, *_, **__: hidden)


@pytest.mark.parametrize("change", [replace_instance, replace_class, replace_layer])
@pytest.mark.parametrize(
    "use",
    [
        sampled,
        spread,
        lambda net: posterior_moments(net, BATCH, method="expansion"),
        lambda net: SVIDriver(program_for(net), progress=False, cpu=True).fit(DATA, steps=1),
    ],
    ids=["sampling", "draws", "moments", "training"],
)
def test_one_layer_whose_outer_module_goes_round_its_site_is_refused(change, use, monkeypatch):
    net = convert(plain(), BayesianAttention())
    change(net, monkeypatch)
    layer = r"bert\.encoder\.layer\.1"
    words = rf"site of {layer}\.attention\.self was not reached.*forward of {layer}.*revert"
    for one in (net, copy.deepcopy(net)):
        if change is not replace_class or one is net:
            with pytest.raises(RuntimeError, match=words):
                use(one)
    monkeypatch.undo()
    use(net)


def test_a_part_that_goes_round_its_sites_is_refused_and_one_that_is_left_out_is_not(monkeypatch):
    torch.manual_seed(0)
    sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2}
    config = hf.BartConfig(
        vocab_size=40, **sizes, decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16
    )
    net = convert(hf.BartForConditionalGeneration(config).eval(), BayesianAttention.bam())
    encoder, words = net.model.encoder, BATCH["input_ids"]
    encoded, former = encoder(words), encoder.forward
    with torch.no_grad(), probattn.sampling(net):
        monkeypatch.setattr(encoder, "forward", partial(former))
        net(words)
        net(
            encoder_outputs=encoded, decoder_input_ids=words
        )  # its forward is another, and rightly does not run
        monkeypatch.setattr(encoder, "forward", lambda *_, **__: encoded)
        with pytest.raises(
            RuntimeError, match=r"site of model\.encoder\..* not reached.*forward of model\.encoder,"
        ):
            net(words)


class Idle(nn.Module):
    """Without attention; may keep the module that it replaces."""

    def __init__(self, inner=None, *, layer=False):
        super().__init__()
        self.inner, self.layer = inner, layer

    def forward(self, hidden, *_, **__):
        return hidden if self.layer else (hidden, None)


class Around(nn.Module):
    """Runs the module that it replaces."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, *args, **kwargs):
        return self.inner(*args, **kwargs)


def stock_attention(net):
    """Of another configuration, as a network of its own has it."""
    return copy.deepcopy(plain(attn_implementation="eager").bert.encoder.layer[1].attention)


def new_layers(net):
    layers = net.bert.encoder.layer
    net.bert.encoder.layer = nn.ModuleList([layers[0], Idle(layer=True)])


LAYER = "bert.encoder.layer.1"
SWAPS = {
    "attention": lambda net: net.set_submodule(f"{LAYER}.attention", Idle()),
    "stock attention": lambda net: net.set_submodule(f"{LAYER}.attention", stock_attention(net)),
    "self attention": lambda net: net.set_submodule(f"{LAYER}.attention.self", Idle()),
    "wrapper that skips it": lambda net: net.set_submodule(
        f"{LAYER}.attention", Idle(net.bert.encoder.layer[1].attention)
    ),
    "layer": lambda net: net.set_submodule(LAYER, Idle(layer=True)),
    "layers": new_layers,
}


@pytest.mark.parametrize("swap", SWAPS)
@pytest.mark.parametrize(
    "use",
    [sampled, spread, lambda net: SVIDriver(program_for(net), progress=False, cpu=True).fit(DATA, steps=1)],
    ids=["sampling", "draws", "training"],
)
def test_another_module_in_place_of_one_that_runs_a_site_is_refused(swap, use):
    net = convert(plain(), BayesianAttention())
    former = net.bert.encoder.layer
    layer, attention, inner = former[1], former[1].attention, former[1].attention.self
    SWAPS[swap](net)
    words = rf"site of {LAYER}\.attention\.self was not reached.*replaced the forward of {LAYER}[a-z.]*, or the whole"
    for one in (copy.deepcopy(net), net, net):
        with pytest.raises(RuntimeError, match=words):
            use(one)
    layer.attention, attention.self, former[1] = attention, inner, layer
    net.bert.encoder.layer = former
    use(net)
    SWAPS[swap](net)
    reverted = revert(net)
    hooks = [hook for module in reverted.modules() for hook in module._forward_pre_hooks.values()]
    assert not hooks


@pytest.mark.parametrize("swap", ["bert", "bert.encoder"])
def test_another_module_in_place_of_all_that_run_sites_is_refused(swap):
    net = convert(plain(), BayesianAttention())
    values = torch.randn(2, 6, 16), torch.randn(2, 16)
    outputs = hf.modeling_outputs.BaseModelOutputWithPoolingAndCrossAttentions(*values)
    other = Idle(net.get_submodule(swap))
    other.forward = lambda *_, **__: outputs
    net.set_submodule(swap, other)
    with pytest.raises(RuntimeError, match=rf"not reached.*forward of {swap}, or the whole"):
        sampled(net)


@pytest.mark.parametrize(
    "wrap",
    [
        pytest.param(Around, id="module"),
        pytest.param(partial(torch.compile, backend="eager"), id="compiled", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("name", [f"{LAYER}.attention.self", f"{LAYER}.attention", LAYER, "bert.encoder"])
def test_a_wrapper_that_runs_the_module_is_accepted(wrap, name):
    net = convert(plain(), BayesianAttention())
    expected = sampled(net)
    net.set_submodule(name, wrap(net.get_submodule(name)))
    for _ in range(2):
        torch.testing.assert_close(sampled(net), expected)
    torch._dynamo.reset()


def test_hooks_of_accelerate_and_adapters_are_accepted():
    accelerate, peft = pytest.importorskip("accelerate"), pytest.importorskip("peft")
    net = convert(plain(), BayesianAttention())
    expected = sampled(net)
    for module in net.modules():
        accelerate.hooks.add_hook_to_module(module, accelerate.hooks.ModelHook())
    torch.testing.assert_close(sampled(net), expected)
    net = convert(plain(), BayesianAttention())
    adapted = peft.get_peft_model(net, peft.LoraConfig(r=2, target_modules=["query", "dense"]))
    torch.testing.assert_close(sampled(adapted), expected)
    adapted.base_model.model.bert.encoder.layer[1].attention = Idle()
    with pytest.raises(RuntimeError, match=rf"forward of {LAYER}\.attention, or the whole"):
        sampled(adapted)


@pytest.mark.parametrize("number", [1, 2])
def test_layers_that_are_removed_are_named_once(number, tmp_path):
    sizes = SIZES | {"num_hidden_layers": 3}
    net = convert(plain(hf.BertConfig(vocab_size=40, initializer_range=0.4, **sizes)), BayesianAttention())
    layers = net.bert.encoder.layer
    net.bert.encoder.layer = nn.ModuleList([layer for i, layer in enumerate(layers) if i != number])
    with pytest.warns(
        UserWarning, match=rf"bert\.encoder\.layer\.{number}\..*was removed.*\(1 of 3 attention"
    ):
        expected = sampled(net)
    assert torch.equal(sampled(net), expected) and spread(net) > 1e-3
    assert torch.equal(sampled(copy.deepcopy(net)), expected)
    assert revert(net).config._attn_implementation == "sdpa"


def bart(**options):
    torch.manual_seed(0)
    sizes = {"d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2}
    sizes |= {"decoder_attention_heads": 2, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "vocab_size": 40}
    return hf.BartForConditionalGeneration(hf.BartConfig(**sizes, **options)).eval()


def t5():
    torch.manual_seed(0)
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 2, "num_heads": 2, "vocab_size": 40}
    return hf.T5ForConditionalGeneration(hf.T5Config(**sizes)).eval()


def translated(net):
    words = BATCH["input_ids"]
    with torch.no_grad(), probattn.sampling(net, seed=0):
        return net(words, decoder_input_ids=words).logits


def without_states(layer):
    """A forward of a layer that leaves its cross attention out."""
    former = layer.forward
    states = list(inspect.signature(former).parameters).index("encoder_hidden_states")

    def forward(*args, **kwargs):
        kwargs = {name: value for name, value in kwargs.items() if not name.startswith("encoder_")}
        return former(*args[:states], **kwargs)

    return forward


def cross_alone(layer):
    """A forward of BART's layer that runs its cross attention alone."""

    def forward(hidden, attention_mask=None, encoder_hidden_states=None, **_):
        return layer.encoder_attn(hidden, key_value_states=encoder_hidden_states)[0]

    return forward


BART_LAYER, T5_LAYER = "model.decoder.layers.1", "decoder.block.1"


@pytest.mark.parametrize(
    ("make", "name", "skip", "site"),
    [
        (bart, BART_LAYER, without_states, "encoder_attn"),
        (bart, BART_LAYER, cross_alone, "self_attn"),
        (t5, T5_LAYER, without_states, "layer.1.EncDecAttention"),
    ],
)
def test_a_replaced_layer_that_skips_one_of_its_attentions_is_refused(make, name, skip, site):
    net = convert(make(), BayesianAttention())
    expected = translated(net)
    layer = net.get_submodule(name)
    former = layer.forward
    layer.forward = skip(layer)
    with pytest.raises(RuntimeError, match=rf"site of {name}\.{site} was not reached.*forward of {name}, or"):
        translated(net)
    layer.forward = partial(former)
    assert torch.equal(translated(net), expected)


def test_a_replaced_decoder_that_skips_a_layer_is_refused():
    net = convert(bart(), BayesianAttention())
    decoder = net.model.decoder
    former = decoder.forward

    def forward(*args, **kwargs):
        layers, decoder.layers = decoder.layers, decoder.layers[:1]
        try:
            return former(*args, **kwargs)
        finally:
            decoder.layers = layers

    decoder.forward = forward
    words = r"site of model\.decoder\.layers\.1\.\w+ was not reached.*forward of model\.decoder, or"
    with pytest.raises(RuntimeError, match=words):
        translated(net)


@pytest.mark.parametrize("wrap", [True, False])
def test_attentions_that_a_network_rightly_leaves_out_are_accepted(wrap):
    """Cross attention without states, an encoder whose states are there, layers by layer dropout."""
    net = convert(bart(decoder_layerdrop=0.5, encoder_layerdrop=0.5), BayesianAttention.bam())
    words = BATCH["input_ids"]
    for name in ["model.encoder", "model.decoder", BART_LAYER] if wrap else []:
        module = net.get_submodule(name)
        module.forward = partial(module.forward)
    if wrap:
        net.model.encoder = Around(net.model.encoder)
    with torch.no_grad(), probattn.sampling(net):
        assert net.model.decoder(words).last_hidden_state.isfinite().all()
        encoded = net.model.encoder(words)
        assert net(encoder_outputs=encoded, decoder_input_ids=words).logits.isfinite().all()
        for _ in range(6):
            assert net.train()(words).logits.isfinite().all()


def test_a_failed_conversion_gives_the_configuration_back():
    net = plain()
    config = net.config
    with pytest.raises(ValueError, match="layer"):
        convert(net, BayesianAttention(), layers=[7])
    assert net.config is net.bert.config is config


def test_configurations_of_parts_stay_those_of_the_whole():
    torch.manual_seed(0)
    text = {"vocab_size": 40, "max_position_embeddings": 16, **SIZES}
    config = hf.CLIPConfig(text_config=text, vision_config={"image_size": 8, "patch_size": 4, **SIZES})
    net = hf.CLIPModel(config)
    for each in (convert(net, BayesianAttention()), copy.deepcopy(net), revert(net)):
        assert each.config is not config
        assert each.text_model.config is each.config.text_config
        assert each.vision_model.config is each.config.vision_config


def test_a_network_made_from_the_configuration_of_a_converted_one_is_a_plain_one():
    net = convert(plain(), BayesianAttention())
    again = type(net)(net.config).eval()
    again.load_state_dict(plain().state_dict())
    torch.testing.assert_close(again(**BATCH).logits, plain()(**BATCH).logits)
    convert(again, BayesianAttention())
    assert torch.equal(again(**BATCH).logits, plain()(**BATCH).logits)
    assert spread(net) > 1e-3 and spread(again) > 1e-3
    assert revert(again).config._attn_implementation == "sdpa"


class _Noisy(nn.Module):
    """Dropout that stays on in evaluation mode, of torch's generators or of its own."""

    def __init__(self, net, generator=None):
        super().__init__()
        self.net, self.generator = net, generator

    def forward(self, batch):
        logits = self.net(**batch).logits
        return logits + torch.randn(logits.shape, generator=self.generator)


@pytest.mark.parametrize("chunk", [None, 1, 3])
def test_draws_of_a_network_without_randomness_are_refused(chunk):
    words = r"nothing is random in BertForSequenceClassification.*convert it first"
    for net in (plain(), convert(plain(), RepulsiveAttention()), plain().to(torch.bfloat16)):
        with pytest.raises(ValueError, match=words):
            posterior_predict(net, BATCH, 5, chunk_size=chunk)
        with pytest.raises(ValueError, match="no attention sites"), probattn.sampling(net):
            pass
        assert posterior_predict(net, BATCH, 1).logits.shape == (1, 2, 2)
    for generator in (None, torch.Generator()):
        assert posterior_predict(_Noisy(plain(), generator), BATCH, 5, chunk_size=chunk).std.max() > 0
    ensemble = ParticleEnsemble(Classifier(plain()), num_particles=3)
    assert len(posterior_predict(ensemble, BATCH).logits) == 3


def test_the_first_line_of_a_training_says_what_is_latent(caplog, tmp_path):
    def lines(train):
        caplog.clear()
        with caplog.at_level(logging.INFO, logger="probattn"):
            train()
        return [
            (record.levelname, record.getMessage()) for record in caplog.records if record.name == "probattn"
        ]

    def fit(net, driver=SVIDriver, **options):
        return lines(lambda: driver(program_for(net), progress=False, cpu=True, **options).fit(DATA, steps=1))

    def train(net):
        rows = [{name: value[i % 2] for name, value in DATA.items()} for i in range(4)]
        arguments = TrainingArguments(
            str(tmp_path), max_steps=1, report_to=[], use_cpu=True, disable_tqdm=True
        )
        return lines(probattn.ProbabilisticTrainer(model=net, args=arguments, train_dataset=rows).train)

    for way, name in ((fit, "SVIDriver"), (train, "ProbabilisticTrainer")):
        nothing = way(plain())
        assert [level for level, _ in nothing] == ["WARNING"]
        assert nothing[0][1].startswith(f"{name}: nothing is latent in BertForSequenceClassification")
        latent = way(convert(plain(), BayesianAttention()))
        assert latent == [("INFO", f"{name}: latent: the attention weights of 2 sites")]
    heads = fit(convert(plain(), RepulsiveAttention()), SVGDDriver)
    assert heads == [("INFO", "SVGDDriver: latent: the heads of 6 projections, as particles")]
    ensemble = ParticleEnsemble(Classifier(plain()), num_particles=3)
    whole = lines(lambda: SVGDDriver(ensemble, progress=False, cpu=True).fit(DATA, steps=1))
    assert whole == [("INFO", "SVGDDriver: latent: the model itself, as 3 particles")]
