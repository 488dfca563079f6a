"""A converted network without a driver: predictions, generation, and what is refused."""

import copy
import gc
import pickle
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import pyro
import pytest
import torch
import transformers as hf
from torch import nn

import probattn
from probattn import BayesianAttention
from probattn.inference import AttentionELBO, AttentionGuide, posterior_expectation
from probattn.models import convert, inspect, revert
from probattn.models.hosts.cache import CACHE
from probattn.models.hosts.passes import _cached
from probattn.sites.answers import TiledPosterior


def converted(families, name, method=None, **selection):
    torch.manual_seed(0)
    return convert(families.BY_NAME[name].network(), method or BayesianAttention(), **selection)


def test_output_attentions_are_the_normalised_expectation(families, family):
    families.needs(family.shows_since, f"{family.name} that gives all its weights")
    inputs = family.inputs()
    eager = attentions(family.network(), inputs)
    net = convert(family.network(), BayesianAttention())
    ours = attentions(net, inputs)
    assert len(ours) == len(eager) == family.layers
    for mine, theirs in zip(ours, eager, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-5)
    revert(net)
    torch.manual_seed(0)
    convert(net, families.FULL)
    _, sites = families.observe(net, inputs)
    for mine in attentions(net, inputs):
        rows = mine.sum(-1)  # 0 at words of the other text
        torch.testing.assert_close(rows, (rows > 0).float() if family.two_texts else torch.ones_like(rows))
    posterior = next(iter(sites.values()))
    mean = posterior.distribution.mean
    if posterior.mask is not None:
        mean = mean * posterior.mask.valid
    first = attentions(net, inputs)[0].reshape(mean.shape)
    sums = mean.sum(-1, keepdim=True)
    torch.testing.assert_close(first, mean / sums.where(sums > 0, 1.0))


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_an_undriven_pass_is_that_of_the_unconverted_network_to_the_last_bit(
    families, family, implementation
):
    net = family.network()
    if implementation == "sdpa" and not net._supports_sdpa:
        implementation = "eager"
    if family.name in families.BRIDGED:
        pytest.skip("its attention has no function of its own to call; it is computed by the site")
    net.set_attn_implementation(implementation)
    ours = convert(copy.deepcopy(net), BayesianAttention())
    sides = ("left", "right") if family.padded else ()
    for inputs in (family.inputs(3), *(family.pad(family.inputs(3), side) for side in sides)):
        assert torch.equal(families.forward(ours, inputs), families.forward(net, inputs))
    inputs = family.inputs()
    for each in (ours, net):
        families.logits(each(**inputs)).square().sum().backward()
    theirs = dict(net.named_parameters())
    for name, parameter in ours.named_parameters():
        if name in theirs and theirs[name].grad is not None:
            assert torch.equal(parameter.grad, theirs[name].grad), name


@pytest.mark.parametrize("mode", ["last layer", "training mode", "compiled"])
def test_an_undriven_pass_is_the_same_to_the_last_bit_in_other_ways_too(families, family, mode):
    net = family.network()
    if family.name in families.BRIDGED or (mode == "compiled" and family.name != "llama"):
        pytest.skip("computed by the site" if family.name in families.BRIDGED else "one family is enough")
    net.set_attn_implementation("sdpa" if net._supports_sdpa else "eager")
    ours = convert(copy.deepcopy(net), BayesianAttention(), layers="last" if mode == "last layer" else "all")
    inputs, found = family.inputs(3), []
    for subject in (ours.train(mode == "training mode"), net.train(mode == "training mode")):
        torch.manual_seed(0)  # of dropout
        compiled = mode == "compiled" and subject is ours
        found.append(
            families.forward(torch.compile(subject, backend="eager") if compiled else subject, inputs)
        )
    assert torch.equal(*found)


def test_what_wants_weights_gets_them(families, bert):
    """A handler, a sampler, a request for attentions and a hook each make a pass one of the sites."""
    net = converted(families, "bert")
    inputs, seen = bert.inputs(), []
    site = net.bert.encoder.layer[0].attention.self.probattn.site
    own = type(site).forward

    def watched(*args, **options):
        seen.append(args[0])
        return own(site, *args, **options)

    site.forward = watched
    families.forward(net, inputs)
    posterior_expectation(net, inputs)
    assert not seen
    with pyro.poutine.trace():
        families.forward(net, inputs)
    assert len(seen) == 1
    with probattn.sampling(net):
        families.forward(net, inputs)
    assert len(seen) == 2
    with torch.no_grad():
        assert net(**inputs, output_attentions=True).attentions[0] is not None
    assert len(seen) == 3
    handle = net.bert.encoder.layer[1].attention.self.register_forward_hook(lambda *_: None)
    families.forward(net, inputs)
    assert len(seen) == 4
    handle.remove()
    families.forward(net, inputs)
    assert len(seen) == 4


def test_threads_are_driven_each_by_itself(families, bert):
    net, inputs = converted(families, "bert"), bert.inputs()
    plain, inside = families.forward(net, inputs), threading.Event()
    done = threading.Event()

    def wait(*_):
        inside.set()
        assert done.wait(30)

    def other():
        handle = net.bert.encoder.layer[0].register_forward_pre_hook(wait)
        with pyro.poutine.trace() as traced:
            families.forward(net, inputs)
        handle.remove()
        return [name for name, node in traced.trace.nodes.items() if node["type"] == "sample"]

    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(other)
        assert inside.wait(30)
        net.bert.encoder.layer[0]._forward_pre_hooks.clear()
        assert torch.equal(families.forward(net, inputs), plain)
        done.set()
        assert len(found.result()) == 2


def attentions(net, inputs):
    with torch.no_grad():
        out = net(**inputs, output_attentions=True)
    kinds = ("encoder_attentions", "decoder_attentions", "cross_attentions")
    if isinstance(net, hf.CLIPModel):
        return [*out.vision_model_output.attentions, *out.text_model_output.attentions]
    if out.get("cross_attentions"):  # GPT-2 has an empty one
        return [weights for kind in kinds for weights in out.get(kind) or ()]
    if isinstance(net, hf.SwinForImageClassification):
        return captured(net, inputs)
    return list(out.attentions)


def captured(net, inputs):
    """Swin reports one map a stage only; its attention modules return them all."""
    seen = []
    modules = [module for name, module in net.named_modules() if name.endswith(".attention")]
    handles = [m.register_forward_hook(lambda _m, _i, out: seen.append(out[1])) for m in modules]
    with torch.no_grad():
        net(**inputs)
    for handle in handles:
        handle.remove()
    return seen


@pytest.mark.only("generates")
@pytest.mark.parametrize("cache", ["dynamic", "static", None])
def test_greedy_generation_is_unchanged(families, family, cache):
    net = family.network()
    inputs = {name: value for name, value in family.inputs().items() if not name.startswith("decoder")}
    inputs = family.pad(inputs, "left")
    inputs.pop("position_ids", None)
    options = {"max_new_tokens": 7, "do_sample": False, "min_new_tokens": 7}
    options |= {"use_cache": False} if cache is None else {"cache_implementation": cache}
    if family.pair and cache == "static":
        options["max_length"] = None
    before = net.generate(**inputs, **options)
    convert(net, BayesianAttention())
    assert torch.equal(net.generate(**inputs, **options), before)
    revert(net)
    torch.manual_seed(0)
    convert(net, families.FULL)
    assert net.generate(**inputs, **options).shape == before.shape


@pytest.mark.only("generates")
def test_a_cache_gives_the_posterior_of_the_whole_sequence(families, family):
    """The upward path stays within a query's row, so one token at a time sees the same maps."""
    torch.manual_seed(0)
    net, inputs = convert(family.network(), families.FULL), family.inputs()
    if family.pair:
        words, kept = inputs.pop("decoder_input_ids"), inputs | {"decoder_attention_mask": None}
        name = "decoder_input_ids"
    else:
        words, kept, name = inputs["input_ids"], {}, "input_ids"

    def feed(part):
        return kept | {name: part}

    whole = families.forward(net, feed(words))
    cache, steps = None, []
    for place in range(words.shape[1]):
        with torch.no_grad():
            out = net(**feed(words[:, place : place + 1]), **{CACHE: cache}, use_cache=True)
        cache = out[CACHE]
        steps.append(out.logits)
    torch.testing.assert_close(torch.cat(steps, 1), whole, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ["cache", "past_key_values"])
def test_queries_before_a_pass_are_counted_by_either_name_of_a_cache(name):
    cache = hf.DynamicCache()
    assert _cached({name: cache}) == _cached({name: None}) == _cached({}) == 0
    cache.update(torch.zeros(1, 2, 3, 4), torch.zeros(1, 2, 3, 4), 0)
    assert _cached({name: cache}) == 3


@pytest.mark.only("classifier")
def test_training_undriven_raises_and_names_the_fix(families, family):
    net = convert(family.classification(), BayesianAttention()).train()
    names = {"input_ids", "attention_mask", "pixel_values"}
    inputs = {name: value for name, value in family.inputs().items() if name in names}
    with pytest.raises(RuntimeError, match=r"site '.*': training without a driver .*SVIDriver"):
        net(**inputs)
    with torch.no_grad():
        assert net(**inputs).logits.isfinite().all()
    assert net.eval()(**inputs).logits.requires_grad


def test_data_parallel_is_refused_by_name(families, bert):
    with pytest.raises(TypeError, match=r"DataParallel.*one\s+process per device"):
        convert(nn.DataParallel(bert.network()), BayesianAttention())
    net = converted(families, "bert")
    for module in net.modules():
        module._is_replica = True  # as torch.nn.parallel.replicate does
    with pytest.raises(RuntimeError, match=r"DataParallel.*accelerate launch"):
        net(**bert.inputs())


@pytest.mark.parametrize(("name", "rows"), [("bert", 6), ("t5", 1)])
def test_finite_biases_in_a_mask_of_ones_own_are_kept(families, name, rows):
    """T5's calls have biases of positions beside those of the mask."""
    family = families.BY_NAME[name]
    net, inputs = family.network(), family.inputs()
    bias = torch.randn(2, 1, rows, families.LENGTH)
    bias[:, :, :, -1] = torch.finfo(torch.float32).min
    inputs["attention_mask"] = bias
    before = families.forward(net, inputs)
    assert (families.forward(convert(net, BayesianAttention()), inputs) - before).abs().max() < 1e-5
    inputs["attention_mask"] = bias.clamp(max=0)
    assert (families.forward(net, inputs) - before).abs().max() > 1e-5


def test_a_part_of_the_network_can_be_called(families, bert):
    net, inputs = converted(families, "bert", families.FULL), bert.inputs()
    hidden = []
    net.cls.register_forward_pre_hook(lambda _module, args: hidden.append(args[0]))
    families.forward(net, inputs)
    with torch.no_grad():
        for _ in range(2):
            assert torch.equal(net.bert(**inputs).last_hidden_state, hidden[0])
        embedded = net.bert.embeddings(inputs["input_ids"])
        assert torch.equal(net.bert.encoder(embedded, None).last_hidden_state, hidden[0])
        with pytest.raises(RuntimeError, match="ran before call 0"):
            net.bert.encoder.layer[1](embedded, None)


def test_a_stage_of_windows_needs_the_whole_network(families):
    family = families.BY_NAME["swin"]
    net = converted(families, "swin")
    with pytest.raises(RuntimeError, match=r"folds windows into the batch.*call the whole network"):
        net.swin.encoder.layers[0](torch.randn(2, 256, 8), (16, 16))
    families.forward(net, family.inputs(3))  # another batch size
    assert net.swin.encoder.layers[0].blocks[0].attention.probattn.state.rows is None


@pytest.mark.parametrize("name", ["albert", "t5", "bert", "swin"])
def test_a_pass_after_one_that_failed_is_clean(families, name):
    family = families.BY_NAME[name]
    net, inputs = converted(families, name, families.FULL), family.inputs()
    expected, sites = families.observe(net, inputs)
    modules = [net.get_submodule(call.module) for call in inspect(net)]

    def fail(*_):
        raise OSError("in the middle")

    handle = modules[-1].register_forward_pre_hook(fail)
    with pytest.raises(OSError, match="in the middle"):
        families.forward(net, inputs)
    handle.remove()
    state = modules[0].probattn.state  # nothing of the failed pass is kept
    assert state.idle
    again, after = families.observe(net, inputs)
    assert torch.equal(again, expected)
    assert list(after) == list(sites)


def test_inference_mode_leaves_no_trace(families, family):
    net, inputs = convert(family.network(), families.FULL), family.inputs()
    expected = families.forward(net, inputs)
    with torch.inference_mode():
        assert torch.equal(families.logits(net(**inputs)), expected)
    families.logits(net(**inputs)).sum().backward()
    assert torch.equal(families.forward(net, inputs), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision(families, family, dtype):
    net, inputs = family.network().to(dtype), family.inputs()
    inputs = {key: value.to(dtype) if value.is_floating_point() else value for key, value in inputs.items()}
    padded = family.pad(inputs, "left") if family.padded else inputs
    eager = families.forward(net, inputs)
    torch.manual_seed(0)
    convert(net, BayesianAttention())
    assert families.forward(net, inputs).dtype == dtype
    scale = eager.float().abs().max()
    error = 2 * torch.finfo(dtype).eps * 8 * scale
    assert (families.forward(net, inputs).float() - eager.float()).abs().max() < error
    logits, sites = families.observe(net, padded)
    assert logits.dtype == dtype
    assert len(sites) == family.layers
    for posterior in sites.values():
        assert posterior.kl().dtype == torch.float32
        assert posterior.kl().isfinite().all()


@pytest.mark.parametrize("name", ["albert", "swin", "t5"])
def test_copies_and_pickles_are_converted_networks_of_their_own(families, name):
    family = families.BY_NAME[name]
    net, inputs = converted(families, name, families.FULL), family.inputs()
    expected = families.forward(net, inputs)
    for copied in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert torch.equal(families.forward(copied, inputs), expected)
        copied.get_submodule(inspect(copied)[0].module).probattn.site.upward.scale.bias.data += 1
        assert not torch.equal(families.forward(copied, inputs), expected)
        assert torch.equal(families.forward(net, inputs), expected)
        plain = revert(copied)
        assert not any("probattn" in key for key in plain.state_dict())
        assert (families.forward(plain, inputs) - families.forward(family.network(), inputs)).abs().max() == 0
    assert torch.equal(families.forward(net, inputs), expected)


def test_a_state_dict_carries_the_sites(families, family):
    torch.manual_seed(0)
    first = convert(family.network(), families.FULL)
    torch.manual_seed(1)
    second = convert(family.network(), families.FULL)
    inputs = family.inputs()
    assert not torch.equal(families.forward(first, inputs), families.forward(second, inputs))
    assert not second.load_state_dict(first.state_dict()).missing_keys
    assert torch.equal(families.forward(first, inputs), families.forward(second, inputs))


def test_albert_shares_parameters_between_its_calls(families):
    net = converted(families, "albert", families.FULL)
    calls = inspect(net)
    assert [call.index for call in calls] == [0, 1]
    assert len({call.module for call in calls}) == 1
    assert calls[0].name.endswith("#0") and calls[1].name.endswith("#1")
    sites = {id(module) for module in net.modules() if type(module).__name__ == "HostedSite"}
    assert len(sites) == 1


@pytest.mark.parametrize("name", ["bert", "llama", "t5"])
def test_a_pass_that_shows_attentions_leaves_the_next_ones_in_tiles(families, name, monkeypatch):
    """transformers leaves its hooks in place; in tiles, weights are None and memory is linear in the length."""
    net = converted(families, name, BayesianAttention.bam(2.0))
    inputs, tiled = families.BY_NAME[name].inputs(), []
    draw = TiledPosterior.draw

    def counted(posterior, *arguments, **options):
        tiled.append(posterior)
        return draw(posterior, *arguments, **options)

    monkeypatch.setattr(TiledPosterior, "draw", counted)

    def model(**options):
        with pyro.plate("data", len(next(iter(inputs.values())))):
            outputs.append(net.train()(**inputs, **options))
            pyro.factor("first", outputs[-1][0].flatten(1).sum(1))

    outputs, objective = [], AttentionELBO()(model, AttentionGuide(model))

    def calls(**options):
        tiled.clear()
        objective(**options)
        return len(tiled), outputs[-1]

    before, _ = calls()
    assert before > 0
    shown, output = calls(output_attentions=True)
    maps = output.encoder_attentions if name == "t5" else output.attentions
    assert shown == 0 and len(maps) > 0 and all(each is not None for each in maps)
    assert calls()[0] == before


def test_attention_in_a_head_runs_without_a_site(families):
    """The decoder of a masked autoencoder, which is no part of the base that is converted."""
    widths = ("hidden_size", "intermediate_size", "decoder_hidden_size", "decoder_intermediate_size")
    heads = ("num_attention_heads", "decoder_num_attention_heads")
    layers = ("num_hidden_layers", "decoder_num_hidden_layers")
    sizes = dict.fromkeys(widths, 8) | dict.fromkeys(heads, 2) | dict.fromkeys(layers, 1)
    torch.manual_seed(0)
    net = hf.ViTMAEForPreTraining(hf.ViTMAEConfig(**sizes, image_size=16, patch_size=4)).eval()
    inputs = {"pixel_values": torch.randn(2, 3, 16, 16), "noise": torch.rand(2, 16)}
    plain, _ = families.observe(net, inputs)
    convert(net, BayesianAttention.bam(concentration=1e4))
    output, sites = families.observe(net, inputs)
    assert list(sites) == ["vit.layers.0.attention"]
    torch.testing.assert_close(output, plain, atol=1e-2, rtol=0)


def test_a_converted_network_is_freed_with_its_last_reference(families):
    """Without a search for cycles; a classifier, whose head is outside the base."""
    net = convert(families.BY_NAME["bert"].network(), BayesianAttention())
    assert net.base_model is not net
    kept = weakref.ref(net), weakref.ref(net.base_model.embeddings)
    gc.disable()
    try:
        del net
        assert [reference() for reference in kept] == [None, None]
    finally:
        gc.enable()
