"""Networks with a posterior of constant spread train without maps, to the same numbers."""

import itertools
import json
from collections import Counter

import pyro
import pytest
import torch
from torch.profiler import ProfilerActivity, profile
from transformers import BertConfig, BertForSequenceClassification

from probattn import AlignmentAttention, BayesianAttention, DisagreementAttention
from probattn.inference import AttentionELBO, AttentionGuide, SVIDriver
from probattn.models import Classifier, convert
from probattn.models.hosts.adapter import HostedSite
from probattn.sites.answers import TiledPosterior


@pytest.fixture
def tiled(monkeypatch):
    """How many calls were drawn in tiles."""
    counter, draw = Counter(), TiledPosterior.draw

    def counted(self, *args, **kwargs):
        counter["calls"] += 1
        return draw(self, *args, **kwargs)

    monkeypatch.setattr(TiledPosterior, "draw", counted)
    return counter


def step(net, inputs, model):
    """The terms of a training step and all gradients."""
    torch.manual_seed(5)
    net.zero_grad()
    terms = AttentionELBO()(model, AttentionGuide(model))(inputs)
    terms.loss.backward()
    gradients = {name: each.grad for name, each in net.named_parameters() if each.grad is not None}
    return {**terms._asdict(), **gradients}


def watched(net):
    """Gives every attention module a hook that may look at its weights."""
    modules = [module for module in net.modules() if isinstance(module._modules.get("probattn"), HostedSite)]
    return [module.register_forward_hook(lambda *_: None) for module in modules]


def assert_alike(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        scale = float(value.detach().abs().max()) + 0.1
        torch.testing.assert_close(found[name], value, rtol=0, atol=1e-4 * scale, msg=name)


def test_every_family_takes_the_same_step_with_and_without_maps(family, tiled, families):
    net = convert(family.network(), BayesianAttention.bam(kl_reduction="sum", prior_hidden=4)).eval()
    model, plain = families.program(net), family.inputs()
    batches = [plain, *(family.pad(plain, side) for side in ("left",) if family.padded)]
    without = [step(net, inputs, model) for inputs in batches]
    assert (tiled["calls"] == 0) is not net._supports_sdpa
    tiled.clear()
    watched(net)
    for inputs, found in zip(batches, without, strict=True):
        assert_alike(found, step(net, inputs, model))
    assert not tiled["calls"]


def network(**options):
    config = BertConfig(
        vocab_size=30,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=16,
        max_position_embeddings=1024,
    )
    for name, value in options.items():
        setattr(config, name, value)
    return BertForSequenceClassification(config)


def batch(rows=2, length=8):
    lengths = torch.arange(1, rows + 1)[:, None] * length // rows
    mask = (torch.arange(length) < lengths).long()
    return {"input_ids": torch.arange(rows * length).view(rows, length) % 29 + 1, "attention_mask": mask}


def test_who_asks_for_weights_gets_them(tiled):
    net, seen = convert(network(), BayesianAttention.bam()).eval(), []
    for asks in (False, True):

        def model(inputs, asks=asks):
            with pyro.plate("data", 2):
                output = net(**inputs, output_attentions=asks)
                seen.append(output.attentions)
                pyro.factor("logits", output.logits.sum(dim=-1))

        step(net, batch(), model)
    assert not seen[0]
    assert [each.shape for each in seen[1]] == [(2, 4, 8, 8)] * 2
    assert tiled["calls"] == 2


def test_a_penalty_on_weights_has_them_and_a_factor_on_tokens_needs_none(tiled, families):
    for other, calls in ((AlignmentAttention("gan"), 2), (DisagreementAttention("positions"), 0)):
        tiled.clear()
        net = convert(network(), BayesianAttention.bam(), other).eval()
        model = families.program(net)
        without = step(net, batch(), model)
        assert tiled["calls"] == calls
        watched(net)
        assert_alike(without, step(net, batch(), model))


def test_a_checkpointed_network_takes_the_same_step(tiled, families):
    net = convert(network(hidden_dropout_prob=0.0), BayesianAttention.bam()).train()
    model = families.program(net)
    expected = step(net, batch(), model)
    getattr(net, "activation_checkpointing_enable", net.gradient_checkpointing_enable)()
    assert_alike(step(net, batch(), model), expected)
    assert tiled["calls"] == 6  # once, and twice where layers run again


def peak(length, folder):
    """Bytes that a training step over so many tokens holds at most, beyond what it held before."""
    net = convert(network(), BayesianAttention.bam(prior_hidden=2)).train()
    model = Classifier(net)
    module = AttentionELBO()(model, AttentionGuide(model))
    data = batch(length=length) | {"labels": torch.tensor([0, 1])}
    module(data).loss.backward()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        module(data).loss.backward()
    profiler.export_chrome_trace(str(folder / "trace.json"))
    events = json.loads((folder / "trace.json").read_text(encoding="utf-8"))["traceEvents"]
    changes = sorted((each["ts"], each["args"]["Bytes"]) for each in events if each["name"] == "[memory]")
    return max(itertools.accumulate(size for _, size in changes))


def test_memory_of_padded_texts_grows_linearly(tmp_path, monkeypatch):
    monkeypatch.setattr("probattn.sites.tiles.TILE", 2**13)
    short, long = peak(64, tmp_path), peak(256, tmp_path)
    assert long < 5 * short  # a map would be 16 times as large


def test_a_driver_fits_and_reports_the_health_of_sites_without_maps(tiled):
    model = Classifier(convert(network(), BayesianAttention.bam(5.0)))
    records = []
    driver = SVIDriver(
        model,
        batch_size=2,
        log_every=1,
        progress=False,
        cpu=True,
        callbacks=[lambda record, _: records.append(record)],
    )
    driver.fit(batch(4) | {"labels": torch.tensor([0, 1, 0, 1])}, steps=2)
    assert tiled["calls"] == 4
    assert any("concentration" in str(record) for record in records)


def test_modules_without_a_site_are_left_alone(tiled, families):
    net = convert(network(), BayesianAttention.bam(), layers="last").eval()
    step(net, batch(), families.program(net))
    assert tiled["calls"] == 1
