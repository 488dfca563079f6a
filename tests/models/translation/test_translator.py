"""The translator's likelihood against torch's cross-entropy, and every method on its network."""

import pyro
import pytest
import torch
from pyro import poutine
from torch.nn.functional import cross_entropy

import probattn
from probattn.inference import (
    AttentionELBO,
    AttentionGuide,
    posterior_predict,
)
from probattn.models import TransformerSize, Translator, build_transformer, convert, load, save
from probattn.models.translation import token_measures

SIZE = TransformerSize(width=16, layers=2, heads=2, feed_forward=16, dropout=0.0, max_positions=32)
WORDS = 23


def network(**options):
    return build_transformer(SIZE, WORDS, seed=1, **options).eval()


def batch(rows=3, source=6, target=5, seed=0):
    draw = torch.Generator().manual_seed(seed)
    labels = torch.randint(4, WORDS, (rows, target), generator=draw)
    return {
        "input_ids": torch.randint(4, WORDS, (rows, source), generator=draw),
        "attention_mask": torch.ones(rows, source, dtype=torch.long),
        "decoder_input_ids": torch.cat([torch.full((rows, 1), 2), labels[:, :-1]], 1),
        "decoder_attention_mask": torch.ones(rows, target, dtype=torch.long),
        "labels": labels,
    }


def padded(inputs, extra=3):
    fills = {
        "input_ids": 7,
        "attention_mask": 0,
        "decoder_input_ids": 9,
        "decoder_attention_mask": 0,
        "labels": -100,
    }
    return {
        name: torch.cat([value, torch.full((len(value), extra), fills[name])], 1)
        for name, value in inputs.items()
    }


def terms(model, inputs):
    torch.manual_seed(0)
    return AttentionELBO()(model, AttentionGuide(model))(inputs)


@pytest.mark.parametrize("epsilon", [0.0, 0.1])
def test_the_log_likelihood_is_minus_the_summed_cross_entropy_of_a_pair(epsilon):
    net, inputs = network(), batch()
    inputs["labels"][0, 3:] = -100
    logits = net(**{name: value for name, value in inputs.items() if name != "labels"}).logits
    total = cross_entropy(
        logits.flatten(0, 1), inputs["labels"].flatten(), reduction="sum", label_smoothing=epsilon
    )
    found = terms(Translator(net, label_smoothing=epsilon), inputs)
    torch.testing.assert_close(-found.log_likelihood, total / 3)
    torch.testing.assert_close(found.loss, total / 3)
    per_token = terms(Translator(net, label_smoothing=epsilon, mean_length=13 / 3), inputs)
    torch.testing.assert_close(per_token.loss, total / 13)
    of_many = terms(Translator(net, label_smoothing=epsilon, num_data=1000), inputs)
    torch.testing.assert_close(of_many.loss, found.loss)


def test_a_mask_from_the_labels_changes_no_prediction_of_a_label():
    """Labels may be missing before others too, where the words count."""
    model, inputs = Translator(network()), batch()
    inputs["labels"] = torch.tensor([[-100, 7, -100, 8, -100], [9, 7, -100, -100, -100], [-100] * 5])
    del inputs["decoder_attention_mask"]
    mask = model.inputs(inputs)["decoder_attention_mask"]
    assert mask.tolist() == [[1, 1, 1, 1, 0], [1, 1, 0, 0, 0], [1, 0, 0, 0, 0]]
    observed = inputs["labels"] != -100
    expected = model.net(**{name: value for name, value in inputs.items() if name != "labels"}).logits
    torch.testing.assert_close(model(inputs)[observed], expected[observed], rtol=1e-6, atol=1e-6)
    assert "decoder_attention_mask" not in model.inputs(inputs | {"labels": inputs["labels"][:, :3]})


def test_the_mean_length_scales_the_whole_program():
    net = convert(network(), probattn.BayesianAttention(), probattn.AlignmentAttention(method="mmd"))
    by_pair, by_token = terms(Translator(net), batch()), terms(Translator(net, mean_length=5.0), batch())
    for name in ("loss", "log_likelihood", "kl", "factors"):
        assert getattr(by_pair, name) != 0
        torch.testing.assert_close(getattr(by_pair, name), 5 * getattr(by_token, name))
    torch.testing.assert_close(by_pair.kl_nats, by_token.kl_nats)


METHODS = {
    "babn": (probattn.BayesianAttention(),),
    "bam": (probattn.BayesianAttention.bam(),),
    "ct": (probattn.AlignmentAttention(),),
    "repulsive": (probattn.RepulsiveAttention(),),
    "cross": (probattn.RepulsiveAttention(layers="cross", projections=("value",)),),
    "all": (
        probattn.BayesianAttention(),
        probattn.AlignmentAttention(method="mmd"),
        probattn.RepulsiveAttention(),
    ),
}


@pytest.mark.parametrize("name", METHODS)
def test_padding_changes_nothing(name):
    net = convert(network(), *METHODS[name])
    inputs = batch()
    inputs["labels"] = inputs["labels"].clone()
    model = Translator(net)
    with torch.no_grad():
        torch.testing.assert_close(model(padded(inputs))[:, :5], model(inputs), atol=1e-5, rtol=1e-4)
        plain, more = (
            terms(Translator(network(), label_smoothing=0.1), each) for each in (inputs, padded(inputs))
        )
    torch.testing.assert_close(plain.log_likelihood, more.log_likelihood)


def test_a_step_of_plain_pyro_trains_the_host_too():
    pyro.clear_param_store()
    model = Translator(convert(network(), probattn.BayesianAttention()), num_data=3)
    before = model.net.model.shared.weight.clone()
    svi = pyro.infer.SVI(model, AttentionGuide(model), pyro.optim.Adam({"lr": 1e-2}), AttentionELBO())
    losses = [svi.step(batch()) for _ in range(20)]
    assert sum(losses[-5:]) < sum(losses[:5]) and not torch.equal(before, model.net.model.shared.weight)


def test_one_site_observes_the_tokens_of_a_pair():
    model = Translator(network(), num_data=100)
    trace = poutine.trace(model).get_trace(batch())
    site = trace.nodes["target"]
    assert site["is_observed"] and site["fn"].batch_shape == (3,) and site["fn"].event_shape == (5,)
    assert [frame.name for frame in site["cond_indep_stack"]] == ["data"]
    assert site["scale"] == pytest.approx(100 / 3)


def test_without_labels_the_target_is_a_value_to_predict():
    inputs = {name: value for name, value in batch().items() if name != "labels"}
    model = Translator(convert(network(), probattn.BayesianAttention()))
    trace = poutine.trace(model).get_trace(inputs)
    assert trace.nodes["target"]["infer"]["prediction"]
    assert trace.nodes["target"]["value"].shape == (3, 5)
    draws = posterior_predict(model, inputs, 4)
    assert draws.logits.shape == (4, 3, 5, WORDS)
    assert not torch.equal(draws.logits[0], draws.logits[1])


def test_undriven_it_answers_with_logits_and_announces_nothing():
    net, inputs = network(), batch()
    with torch.no_grad():
        expected = net(**{name: value for name, value in inputs.items() if name != "labels"}).logits
        assert torch.equal(Translator(net)(inputs), expected)


def test_token_measures_give_perplexity_and_accuracy():
    logits, labels = torch.randn(4, 6, WORDS), torch.randint(0, WORDS, (4, 6))
    labels[1, 2:], labels[3, :] = -100, -100
    found = token_measures(logits, labels)
    mean = cross_entropy(logits.flatten(0, 1), labels.flatten())
    torch.testing.assert_close(found["nll"].sum() / found["tokens"].sum(), mean)
    kept = labels != -100
    assert found["tokens"].tolist() == kept.sum(1).tolist() == [6, 2, 6, 0]
    assert found["correct"].sum() == (logits.argmax(-1)[kept] == labels[kept]).sum()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"labels": torch.full((3, 5), WORDS)},
            rf"labels in 0..{WORDS - 1}, or -100 where there is none, got 23..23",
        ),
        ({"labels": torch.full((3, 5), -1)}, "got -1..-1"),
        ({"labels": torch.zeros(3, 4, dtype=torch.long)}, r"\[3, 5\] as labels, got torch.int64 \[3, 4\]"),
        ({"labels": torch.zeros(3, 5)}, "expected class numbers int64 .* got torch.float32"),
        ({"decoder_input_ids": None, "labels": None}, "expected decoder_input_ids in the batch"),
        ({"decoder_input_ids": torch.ones(2, 5).long()}, r"neither empty, got \[3, \d\] and \[2, 5\]"),
        ({"decoder_input_ids": torch.ones(3, 0).long()}, r"neither empty, got \[3, \d\] and \[3, 0\]"),
        ({"input_ids": torch.ones(3, 0).long()}, r"neither empty, got \[3, 0\] and \[3, 5\]"),
    ],
)
def test_a_batch_that_does_not_fit_is_refused(change, words):
    inputs = {name: value for name, value in (batch() | change).items() if value is not None}
    with pytest.raises(ValueError, match=words):
        terms(Translator(network()), inputs)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_data": 0}, "num_data: expected an integer >= 1, got 0"),
        ({"label_smoothing": 1.0}, r"label_smoothing: expected a number in \[0, 1\), got 1.0"),
        ({"mean_length": 0.0}, "mean_length: expected a number > 0, got 0.0"),
    ],
)
def test_options_out_of_range_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        Translator(torch.nn.Linear(1, 1), **options)


def test_a_network_without_logits_is_refused():
    class Sum(torch.nn.Module):
        def forward(self, input_ids, use_cache, **rest):
            return input_ids.float()

    with pytest.raises(ValueError, match=r"expected a network that returns logits \[3, 5, C\], got \[3, 6\]"):
        Translator(Sum())(batch())


def test_the_network_is_vaswanis():
    net = network()
    config = net.config
    assert (config.activation_function, config.scale_embedding, config.tie_word_embeddings) == (
        "relu",
        True,
        True,
    )
    assert net.lm_head.weight is net.model.shared.weight is net.model.encoder.embed_tokens.weight
    position = torch.arange(4.0)[:, None] / 10000 ** (torch.arange(0, 16, 2) / 16)
    expected = torch.cat([position.sin(), position.cos()], 1)
    torch.testing.assert_close(net.model.encoder.embed_positions.weight[:4], expected)
    assert not any("embed_positions" in name for name, _ in net.named_parameters())
    assert all(torch.equal(a, b) for a, b in zip(network().parameters(), net.parameters(), strict=True))
    assert net.model.shared.weight.std().item() == pytest.approx(16**-0.5, rel=0.1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"layers": 0}, "layers: expected an integer >= 1, got 0"),
        ({"max_positions": 15}, "max_positions: expected an integer >= 16, got 15"),
        ({"dropout": 1.0}, r"dropout: expected a number in \[0, 1\), got 1.0"),
        ({"width": 10, "heads": 4}, r"width: expected an even multiple of heads \(4\), got 10"),
    ],
)
def test_sizes_that_cannot_be_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        TransformerSize(**options)


def test_it_is_saved_and_loaded_as_it_is(tmp_path):
    net = convert(network(), probattn.BayesianAttention(rho=1.0, sigma=0.5))
    inputs = {name: value for name, value in batch().items() if name != "labels"}
    again = load(save(net, tmp_path / "net"))
    with torch.no_grad():
        torch.testing.assert_close(again(**inputs).logits, net(**inputs).logits)
    assert again.generation_config.decoder_start_token_id == 2
    assert again.generation_config.forced_eos_token_id is None


def test_a_vocabulary_of_special_tokens_alone_is_refused():
    with pytest.raises(ValueError, match="at least 5 tokens, got 4"):
        build_transformer(SIZE, 4)
