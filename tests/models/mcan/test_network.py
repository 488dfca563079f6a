"""MCAN against plain computations, torch's own attention, and itself with other padding and order of regions."""

from __future__ import annotations

import re

import pyro
import pytest
import torch
from pyro import poutine
from torch import nn
from torch.nn import functional as F

from probattn import BayesianAttention
from probattn.inference import posterior_predict
from probattn.models import (
    McanConfig,
    McanForQuestionAnswering,
    VisualQuestionProgram,
    convert,
    inspect,
)
from probattn.models.layers import eager_attention_forward
from probattn.models.mcan.layers import AttentionalReduction, CoAttention, MultiHeadAttention, PaddingMask

SIZES = {
    "vocab_size": 12,
    "num_labels": 4,
    "embedding_size": 6,
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 10,
    "fused_size": 6,
    "region_size": 5,
}
GRID = {"grid_channels": [4, 5], "image_size": 8}


def network(seed=0, **options):
    torch.manual_seed(seed)
    return McanForQuestionAnswering(McanConfig(**SIZES | options)).eval()


def batch():
    """Two rows: 4 and 3 words, 5 and 3 regions, with scores of answers."""
    generator = torch.Generator().manual_seed(0)
    return {
        "input_ids": torch.tensor([[3, 4, 5, 6], [7, 8, 9, 0]]),
        "attention_mask": torch.tensor([[1] * 4, [1] * 3 + [0]]),
        "region_features": torch.randn(2, 5, 5, generator=generator),
        "region_mask": torch.tensor([[1] * 5, [1] * 3 + [0] * 2]),
        "labels": torch.tensor([[1.0, 0.0, 0.3, 0.0], [0.0, 0.6, 0.0, 1.0]]),
    }


def padding(mask):
    return PaddingMask.of(mask.bool(), torch.float32)


def close(first, second, **options):
    torch.testing.assert_close(first, second, **{"atol": 1e-5, "rtol": 1e-5} | options)


def test_attention_is_torchs():
    torch.manual_seed(0)
    own = MultiHeadAttention(McanConfig(**SIZES)).eval()
    torchs = nn.MultiheadAttention(8, 2, batch_first=True)
    parts = (own.query, own.key, own.value)
    with torch.no_grad():
        torchs.in_proj_weight.copy_(torch.cat([part.weight for part in parts]))
        torchs.in_proj_bias.copy_(torch.cat([part.bias for part in parts]))
        torchs.out_proj.weight.copy_(own.output.weight)
        torchs.out_proj.bias.copy_(own.output.bias)
        states, others = torch.randn(3, 5, 8), torch.randn(3, 6, 8)
        valid = torch.rand(3, 6) < 0.7
        valid[:, 0] = True
        expected, weights = torchs(
            states, others, others, key_padding_mask=~valid, average_attn_weights=False
        )
        found, own_weights = own(states, others, padding(torch.ones(3, 5)), padding(valid))
    close(found, expected)
    close(own_weights, weights)


@pytest.mark.parametrize("glimpses", [1, 3])
def test_the_reduction_is_a_sum_under_a_softmax_of_a_network_with_one_hidden_layer(glimpses):
    torch.manual_seed(0)
    module = AttentionalReduction(McanConfig(**SIZES, glimpses=glimpses)).eval()
    states = torch.randn(2, 5, 8)
    valid = torch.tensor([[True] * 5, [True, False, True, False, False]])
    found, weights = module(states, padding(valid))
    for row in range(2):
        own = states[row][valid[row]]
        hidden = torch.relu(own @ module.key.weight.T + module.key.bias)
        alpha = torch.softmax(hidden @ module.query.weight.T, dim=0)  # [S, g]
        close(weights[row, :, 0][:, valid[row]], alpha.T)
        close(found[row], module.output((alpha.T @ own).flatten()))
    assert (weights[1, :, :, ~valid[1]] == 0).all()


def test_the_layers_are_encoder_then_decoder_guided_by_its_last_words():
    net, inputs = network(), batch()
    layers: CoAttention = net.layers
    words = torch.randn(2, 4, 8)
    regions = torch.randn(2, 5, 8)
    of_words, of_regions = padding(inputs["attention_mask"]), padding(inputs["region_mask"])
    found = layers(words, regions, of_words, of_regions)

    def added(module, states, new):
        return F.layer_norm(states + new, (8,), module.norm.weight, module.norm.bias)

    for layer in layers.encoder:
        words = added(layer.add_norm[0], words, layer.attention(words, words, of_words, of_words)[0])
        words = added(layer.add_norm[1], words, layer.feed_forward(words))
    for layer in layers.decoder:
        own = layer.attention(regions, regions, of_regions, of_regions)[0]
        regions = added(layer.add_norm[0], regions, own)
        guided = layer.guided(regions, words, of_regions, of_words)[0]
        regions = added(layer.add_norm[1], regions, guided)
        regions = added(layer.add_norm[2], regions, layer.feed_forward(regions))
    close(found.words, words)
    close(found.regions, regions)


def test_answers_have_probabilities_of_their_own_and_the_loss_is_their_cross_entropy():
    net, inputs = network(), batch()
    output = net(**inputs)
    p, s = output.logits.sigmoid(), inputs["labels"]
    expected = -(s * p.log() + (1 - s) * (1 - p).log()).sum(-1).mean()
    close(output.loss, expected)
    names = dict(enumerate("abcd"))
    assert (
        McanForQuestionAnswering(McanConfig(**SIZES | {"num_labels": 4}, id2label=names)).config.num_labels
        == 4
    )
    assert McanConfig().num_labels == 3129


def test_the_papers_size_has_the_papers_number_of_parameters():
    with torch.device("meta"):
        net = McanForQuestionAnswering(McanConfig(vocab_size=20_573))
    assert sum(p.numel() for p in net.parameters()) == 43_099_957  # 43.1 million; they report 43.3


def test_padding_of_words_and_of_regions_changes_nothing():
    net, inputs = network(), batch()
    expected = net(**inputs)
    wide = dict(inputs)
    wide["input_ids"] = F.pad(inputs["input_ids"], (0, 3), value=5)
    wide["attention_mask"] = F.pad(inputs["attention_mask"], (0, 3))
    wide["region_features"] = F.pad(inputs["region_features"], (0, 0, 0, 2), value=9.0)
    wide["region_mask"] = F.pad(inputs["region_mask"], (0, 2))
    close(net(**wide).logits, expected.logits)
    for row, (words, regions) in enumerate(((4, 5), (3, 3))):
        alone = net(
            input_ids=inputs["input_ids"][row : row + 1, :words],
            region_features=inputs["region_features"][row : row + 1, :regions],
        )
        close(alone.logits[0], expected.logits[row])


def test_words_that_are_padding_are_no_words_without_a_mask():
    net, inputs = network(), batch()
    expected = net(**inputs).logits
    inputs.pop("attention_mask")
    close(net(**inputs).logits, expected)


def test_attention_is_told_of_padded_queries_and_of_dropout(monkeypatch):
    net, inputs, given = network(dropout=0.3).train(), batch(), []

    def attend(*arguments, **options):
        given.append(options)
        return eager_attention_forward(*arguments, **options)

    monkeypatch.setattr("probattn.models.layers.attention_function", lambda _: attend)
    for training in (True, False):
        net.train(training)(**inputs)
    words, regions = inputs["attention_mask"].bool(), inputs["region_mask"].bool()
    expected = [words] * 2 + [regions] * 4
    assert len(given) == 12 and all(
        torch.equal(each["query_mask"], mask) for each, mask in zip(given, expected * 2, strict=True)
    )
    assert [each["dropout"] for each in given] == [0.3] * 6 + [0.0] * 6


@pytest.mark.parametrize("latent", [False, True])
def test_the_order_of_regions_changes_nothing_and_that_of_words_does(latent):
    net, inputs = network(latent_reduction=latent), batch()
    if latent:
        convert(net, BayesianAttention())
    expected = net(**inputs).logits
    order = torch.tensor([3, 1, 4, 0, 2])
    moved = inputs | {name: inputs[name][:, order] for name in ("region_features", "region_mask")}
    close(net(**moved).logits, expected)
    other = inputs | {
        "input_ids": inputs["input_ids"].flip(1),
        "attention_mask": inputs["attention_mask"].flip(1),
    }
    assert not torch.allclose(net(**other).logits, expected, atol=1e-4)


def test_noise_is_added_to_the_features():
    net, inputs = network(), batch()
    noise = torch.randn(2, 5, 5)
    summed = inputs | {"region_features": inputs["region_features"] + noise}
    assert torch.equal(net(**inputs, feature_noise=noise).logits, net(**summed).logits)


def test_a_grid_makes_normalised_regions_of_pixels_row_by_row():
    net = network(**GRID)
    pixels = torch.rand(2, 3, 8, 8) * 2 - 1
    regions = net.grid(pixels)
    assert regions.shape == (2, 4, 5) and net.config.grid_size == 2
    close(regions.mean(-1), torch.zeros(2, 4))
    whole = net.grid.convolutions(pixels)
    close(regions[:, 1], F.layer_norm(whole[:, :, 0, 1], (5,)))
    words = {"input_ids": torch.ones(2, 3, dtype=torch.long)}
    assert net(**words, pixel_values=pixels).logits.shape == (2, 4)


@pytest.mark.parametrize("grid", [False, True])
@pytest.mark.parametrize("latent", [False, True])
def test_gradients_reach_every_parameter(grid, latent):
    net = network(**(GRID if grid else {}), latent_reduction=latent, glimpses=2).train()
    inputs = batch()
    if grid:
        for name in ("region_features", "region_mask"):
            inputs.pop(name)
        inputs["pixel_values"] = torch.rand(2, 3, 8, 8)
    net(**inputs).loss.backward()
    missing = [name for name, p in net.named_parameters() if p.grad is None or not p.grad.abs().any()]
    assert not missing


def test_its_attention_calls_are_listed():
    assert [(call.name, call.kind) for call in inspect(network())] == [
        ("layers.encoder.0.attention", "self"),
        ("layers.encoder.1.attention", "self"),
        ("layers.decoder.0.attention", "self"),
        ("layers.decoder.0.guided", "cross"),
        ("layers.decoder.1.attention", "self"),
        ("layers.decoder.1.guided", "cross"),
    ]


def test_the_reductions_are_attention_calls_where_that_is_asked_for():
    net = convert(network(latent_reduction=True), BayesianAttention())
    calls = inspect(net)
    assert [(call.name, call.pools) for call in calls[-2:]] == [
        ("question_reduction", True),
        ("image_reduction", True),
    ]
    drawn = posterior_predict(VisualQuestionProgram(net), batch(), 4, attention="all")
    assert drawn.attention["image_reduction"].shape == (4, 2, 1, 1, 5)
    assert drawn.attention["image_reduction"].std(0).max() > 0
    close(drawn.attention["question_reduction"].sum(-1), torch.ones(4, 2, 1, 1))


def test_the_density_is_that_of_soft_labels_scaled_to_the_data():
    net, inputs = network(), batch()
    trace = poutine.trace(VisualQuestionProgram(net, num_data=10)).get_trace(inputs)
    close(trace.log_prob_sum(), -10 * net(**inputs).loss)
    assert trace.nodes["label"]["fn"].batch_shape == (2,)


def test_scores_and_inputs_that_do_not_fit_are_refused_in_one_line():
    net, inputs = network(), batch()
    program = VisualQuestionProgram(net)
    pyro.clear_param_store()
    refusals = [
        ({"labels": torch.ones(2, 3)}, r"expected labels from 0 to 1 \[2, 4\], got torch.float32 \[2, 3\]"),
        (
            {"labels": torch.full((2, 4), 1.5)},
            r"expected labels from 0 to 1 \[2, 4\], got torch.float32 \[2, 4\] with other",
        ),
        ({"attention_mask": torch.ones(2, 3)}, r"expected attention_mask \[2, 4\], got \[2, 3\]"),
        (
            {"attention_mask": torch.tensor([[1] * 4, [0] * 4])},
            "expected a word in every row, got none in row 1",
        ),
        (
            {"region_mask": torch.tensor([[0] * 5, [1] * 5])},
            "expected a region in every row, got none in row 0",
        ),
        ({"region_features": torch.ones(2, 5, 4)}, r"expected region_features \[2, 5, 5\], got \[2, 5, 4\]"),
        ({"feature_noise": torch.ones(2, 4, 5)}, r"expected feature_noise \[2, 5, 5\], got \[2, 4, 5\]"),
    ]
    for change, words in refusals:
        with pytest.raises(ValueError, match=words) as caught:
            poutine.trace(program).get_trace(inputs | change)
        assert re.search(words, str(caught.value).splitlines()[0])  # Pyro adds a table below
    with pytest.raises(
        ValueError, match="expected region_features, got none; give an image to each question"
    ):
        net(input_ids=inputs["input_ids"])
    with pytest.raises(ValueError, match=r"expected pixel_values \[2, 3, 8, 8\], got \[2, 3, 4, 4\]"):
        network(**GRID)(input_ids=inputs["input_ids"], pixel_values=torch.ones(2, 3, 4, 4))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"hidden_size": 7}, r"hidden_size: expected a multiple of the heads \(2\), got 7"),
        ({"vocab_size": 0}, "vocab_size: expected an integer >= 1, got 0"),
        ({"glimpses": True}, "glimpses: expected an integer >= 1, got True"),
        ({"dropout": 1.0}, r"dropout: expected a number in \[0, 1\), got 1.0"),
        ({"latent_reduction": 1}, "latent_reduction: expected true or false, got 1"),
        (
            {"grid_channels": [4]},
            r"grid_channels: expected one or more, the last 5 \(region_size\), got \[4\]",
        ),
        (
            {"grid_channels": [4, 5], "image_size": 6},
            "image_size: expected a multiple of 4 for 2 halvings, got 6",
        ),
    ],
)
def test_sizes_that_do_not_fit_are_refused(options, words):
    with pytest.raises(ValueError, match=rf"^McanConfig\.{words}$"):
        McanConfig(**SIZES | options)
