"""The self-attentive classifier against its equations, torch's own LSTM and transformers' loading."""

import json

import numpy as np
import pytest
import torch
from torch import nn
from transformers import AutoModel

from probattn import AlignmentAttention, BayesianAttention, DisagreementAttention, RepulsiveAttention
from probattn.inference import SVGDDriver, SVIDriver
from probattn.models import (
    Classifier,
    SelfAttentiveConfig,
    SelfAttentiveForSequenceClassification,
    SelfAttentiveModel,
    capture,
    convert,
    inspect,
    load,
    save,
)
from probattn.probes import classifier_probe
from probattn.sites.repulsive import repulsive_heads

SIZES = {"vocab_size": 20, "embedding_size": 6, "hidden_size": 5, "attention_size": 7, "classifier_size": 8}
ADDITIVE = {"num_attention_heads": 1, "attention_activation": "relu", "classifier_size": 0, "num_labels": 2}


def network(seed=0, **options):
    torch.manual_seed(seed)
    config = SelfAttentiveConfig(**SIZES | {"num_attention_heads": 3, "num_labels": 4} | options)
    return SelfAttentiveForSequenceClassification(config).eval()


def words(*lengths, size=6):
    mask = torch.tensor([[1] * length + [0] * (size - length) for length in lengths])
    ids = torch.randint(1, 20, mask.shape, generator=torch.Generator().manual_seed(1))
    return {"input_ids": ids, "attention_mask": mask}


def test_attention_is_that_of_the_equations():
    """A = softmax(V^T tanh(W H^T)) and M = A H, An et al. 2020, appendix A, word by word."""
    net, batch = network().double(), words(6, 4)
    with torch.no_grad():
        read = net.sentence(**batch, output_attentions=True)
        logits = net(**batch).logits
    V = net.sentence.attention.query.weight.detach().numpy().T  # [d_a, r]
    W = net.sentence.attention.key.weight.detach().numpy()  # [d_a, 2u]
    for row, length in enumerate((6, 4)):
        H = read.last_hidden_state[row, :length].numpy()  # [n, 2u]
        scores = np.array([[V[:, i] @ np.tanh(W @ H[t]) for t in range(length)] for i in range(3)])
        A = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
        assert np.allclose(
            read.attentions[0][row, :, 0, :length], A, atol=1e-7
        )  # weights pass through float32
        assert (read.attentions[0][row, :, 0, length:] == 0).all()
        M = A @ H
        assert np.allclose(read.pooler_output[row], M.reshape(-1), atol=1e-7)
        first, second = net.dense, net.classifier
        hidden = np.maximum(first.weight.detach().numpy() @ M.reshape(-1) + first.bias.detach().numpy(), 0)
        expected = second.weight.detach().numpy() @ hidden + second.bias.detach().numpy()
        assert np.allclose(logits[row], expected, atol=1e-6)


def test_the_additive_classifier_is_that_of_snell_et_al():
    """Eq. 7 to 9 word by word; their one logit is the difference of the two."""
    net, batch, labels = network(**ADDITIVE).double(), words(6, 4), torch.tensor([1, 0])
    with torch.no_grad():
        found = net(**batch, output_attentions=True)
        H = net.sentence(**batch).last_hidden_state
        beta = classifier_probe(net.classifier, H, labels, batch["attention_mask"].bool()).numpy()
    v, Q = net.sentence.attention.query.weight.detach().numpy()[0], net.sentence.attention.key.weight
    U, b = net.classifier.weight.detach().numpy(), net.classifier.bias.detach().numpy()
    W, shift = U[1] - U[0], b[1] - b[0]
    for row, length in enumerate((6, 4)):
        h = H[row, :length].numpy()
        a = np.array([v @ np.maximum(Q.detach().numpy() @ h[place], 0) for place in range(length)])
        alpha = np.exp(a) / np.exp(a).sum()
        assert np.ptp(alpha) > 1e-3
        assert np.allclose(found.attentions[0][row, 0, 0, :length], alpha, atol=1e-7)
        logit = sum(alpha[place] * (W @ h[place] + shift) for place in range(length))
        positive = 1 / (1 + np.exp(-logit))
        assert np.allclose(found.logits[row].softmax(-1)[1], positive, atol=1e-7)
        sign = 2 * labels[row].item() - 1
        expected = 1 / (1 + np.exp(-sign * (h @ W + shift)))
        assert np.allclose(beta[row, :length], expected) and (beta[row, length:] == 0).all()


@pytest.mark.parametrize("options", [{}, ADDITIVE, {"classifier_size": 0}])
def test_uniform_attention_is_uniform_over_real_words_and_has_gradients_of_0(options):
    net, batch = network(uniform_attention=True, **options), words(6, 4, 1)
    output = net(**batch, labels=torch.tensor([0, 1, 1]), output_attentions=True)
    for row, length in enumerate((6, 4, 1)):
        expected = torch.tensor([1 / length] * length + [0.0] * (6 - length))
        weights = output.attentions[0][row]
        torch.testing.assert_close(weights, expected.expand_as(weights))
    output.loss.backward()
    for parameter in net.sentence.attention.parameters():
        assert (parameter.grad == 0).all()
    assert net.classifier.weight.grad.abs().sum() > 0
    states = net.sentence(**batch).last_hidden_state
    means = torch.stack([states[row, :length].mean(0) for row, length in enumerate((6, 4, 1))])
    rows = net.sentence(**batch).pooler_output.unflatten(1, (net.config.num_attention_heads, -1))
    torch.testing.assert_close(rows, means[:, None].expand_as(rows))


METHODS = {
    "bayesian": BayesianAttention(),
    "bam": BayesianAttention.bam(),
    "aligned": AlignmentAttention("ct"),
    "penalised": DisagreementAttention("positions"),
    "repulsive": RepulsiveAttention(projections="query", repulsion=0.1),
}


@pytest.mark.parametrize(("method", "uniform"), [*((name, False) for name in METHODS), ("bayesian", True)])
def test_the_additive_form_takes_every_method(method, uniform, tmp_path):
    heads = 3 if method in ("penalised", "repulsive") else 1
    options = ADDITIVE | {"num_attention_heads": heads, "uniform_attention": uniform}
    net, batch = convert(network(**options), METHODS[method]), words(6, 4, 5, 3)
    with torch.no_grad():
        torch.testing.assert_close(net(**batch).logits, network(**options)(**batch).logits)
    before = {name: value.clone() for name, value in net.named_parameters()}
    data = batch | {"labels": torch.tensor([0, 1, 1, 0])}
    kind = SVGDDriver if method == "repulsive" else SVIDriver
    kind(Classifier(net), batch_size=2, cpu=True, progress=False).fit(data, steps=3)
    moved = {name for name, value in net.named_parameters() if not torch.equal(value, before[name])}
    assert "classifier.weight" in moved
    stored = load(save(net, tmp_path))
    assert stored.config.uniform_attention is uniform and stored.config.attention_activation == "relu"
    with torch.no_grad():
        torch.testing.assert_close(stored(**batch).logits, net(**batch).logits, atol=1e-6, rtol=0)


def test_a_folder_of_before_is_read_as_it_was(tmp_path):
    """A configuration without the entries that came later."""
    net, batch = network(), words(6, 4)
    net.save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    kept = json.loads(file.read_text())
    for entry in ("attention_activation", "uniform_attention"):
        kept.pop(entry, None)
    file.write_text(json.dumps(kept))
    again = SelfAttentiveForSequenceClassification.from_pretrained(tmp_path)
    assert again.config.attention_activation == "tanh" and again.config.uniform_attention is False
    with torch.no_grad():
        torch.testing.assert_close(again(**batch).logits, net(**batch).logits, atol=1e-6, rtol=0)


def test_the_paper_s_classifier_has_the_paper_s_size():
    """Appendix A.8: 1,274,882 beside the embedding, which counts 257 biases of the scores and one logit, not two."""
    sizes = {"hidden_size": 256, "attention_size": 256, "embedding_size": 300, "vocab_size": 3}
    net = SelfAttentiveForSequenceClassification(SelfAttentiveConfig(**sizes | ADDITIVE))
    count = sum(each.numel() for each in net.parameters()) - 3 * 300
    assert count + 256 + 1 - 513 == 1_274_882


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("side", ["right", "left"])
def test_states_are_those_of_torchs_lstm_on_each_sentence_alone(layers, side):
    net, lengths = network(num_hidden_layers=layers), (6, 4, 1)
    batch = words(*lengths)
    if side == "left":
        batch = {name: tensor.flip(1) for name, tensor in batch.items()}
    plain = nn.LSTM(6, 5, layers, batch_first=True, bidirectional=True)
    plain.load_state_dict(net.sentence.lstm.state_dict())
    with torch.no_grad():
        states = net.sentence(**batch).last_hidden_state
        for row in range(3):
            real = batch["attention_mask"][row].bool()
            alone = plain(net.sentence.embed_tokens(batch["input_ids"][row][real])[None])[0][0]
            torch.testing.assert_close(states[row, real], alone, atol=1e-6, rtol=1e-6)
            assert (states[row, ~real] == 0).all()


def test_gradients_do_not_see_padding():
    net, batch = network(), words(4, 3)
    longer = {name: nn.functional.pad(tensor, (2, 3), value=0) for name, tensor in batch.items()}
    grads = []
    for inputs in (batch, longer):
        net.zero_grad()
        net(**inputs, labels=torch.tensor([0, 3])).loss.backward()
        grads.append({name: p.grad.clone() for name, p in net.named_parameters() if p.grad is not None})
    assert grads[0].keys() == grads[1].keys() == dict(net.named_parameters()).keys()
    for name, grad in grads[0].items():
        torch.testing.assert_close(grads[1][name], grad, atol=1e-7, rtol=1e-4)
    assert grads[0]["sentence.attention.query.weight"].abs().sum() > 0


def test_the_loss_is_the_cross_entropy_and_the_padding_word_is_zero():
    net, batch, labels = network(), words(6, 4), torch.tensor([1, 2])
    output = net(**batch, labels=labels)
    expected = -output.logits.log_softmax(-1)[torch.arange(2), labels].mean()
    torch.testing.assert_close(output.loss, expected)
    assert (net.get_input_embeddings().weight[0] == 0).all()
    assert output.attentions is None
    net.config.output_attentions = True
    assert net(**batch).attentions[0].shape == (2, 3, 1, 6)


def test_vectors_in_place_of_words():
    net, batch = network(), words(6, 4)
    vectors = net.get_input_embeddings()(batch["input_ids"])
    with torch.no_grad():
        assert torch.equal(
            net(inputs_embeds=vectors, attention_mask=batch["attention_mask"]).logits, net(**batch).logits
        )


def test_its_base_is_read_from_the_same_folder(tmp_path):
    net, batch = network(num_hidden_layers=2), words(6, 4)
    net.save_pretrained(tmp_path)
    base = AutoModel.from_pretrained(tmp_path).eval()
    assert type(base) is SelfAttentiveModel
    with torch.no_grad():
        assert torch.equal(base(**batch).pooler_output, net.sentence(**batch).pooler_output)


def test_a_particle_is_a_column_of_the_heads_matrix():
    net = convert(network(), RepulsiveAttention(projections="query"))
    ((_, heads),) = repulsive_heads(net).values()
    assert torch.equal(heads.particles(), net.sentence.attention.query.weight)  # [r, d_a]


@pytest.mark.parametrize(
    ("projection", "message"),
    [("key", "expected two heads or more .*got one"), ("value", "no projection of its own for the value")],
)
def test_what_heads_share_cannot_repel(projection, message):
    net = network()
    with pytest.raises(ValueError, match=message):
        convert(net, RepulsiveAttention(projections=("query", projection)))
    assert not repulsive_heads(net)


def test_maps_of_every_head_come_out():
    net, batch = network(), words(6, 4)
    (called,) = inspect(net)
    assert (called.name, called.kind, called.pools) == ("sentence.attention", "cross", True)
    assert (called.num_heads, called.num_key_value_heads, called.max_positions) == (3, 1, 1)
    (call,) = capture(net, batch).values()
    plain = net(**batch, output_attentions=True).attentions[0]
    assert call.weights.shape == (2, 3, 1, 6) and torch.equal(call.weights, plain)
    assert call.query_valid.all() and torch.equal(call.key_valid, batch["attention_mask"].bool())
    kept = call.query.clone()
    with torch.no_grad():
        net.sentence.attention.query.weight.zero_()
    assert torch.equal(call.query, kept)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"num_attention_heads": 0},
            "SelfAttentiveConfig.num_attention_heads: expected an integer >= 1, got 0",
        ),
        ({"hidden_size": 2.5}, "SelfAttentiveConfig.hidden_size: expected an integer >= 1, got 2.5"),
        ({"classifier_dropout": 1.0}, r"SelfAttentiveConfig.classifier_dropout: .* \[0, 1\), got 1.0"),
        ({"classifier_size": -1}, "SelfAttentiveConfig.classifier_size: expected an integer >= 0, got -1"),
        (
            {"attention_activation": "gelu"},
            "SelfAttentiveConfig.attention_activation: expected one of 'tanh', 'relu', got 'gelu'",
        ),
        ({"uniform_attention": 1}, "SelfAttentiveConfig.uniform_attention: expected true or false, got 1"),
    ],
)
def test_sizes_that_cannot_be(options, message):
    with pytest.raises(ValueError, match=message):
        SelfAttentiveConfig(**options)


def test_inputs_that_cannot_be():
    net, batch = network(), words(6, 4)
    with pytest.raises(ValueError, match="expected input_ids or inputs_embeds"):
        net()
    with pytest.raises(ValueError, match=r"expected an attention_mask \[2, 6\], got \[2, 5\]"):
        net(batch["input_ids"], batch["attention_mask"][:, 1:])


def test_a_sentence_without_words_is_finite():
    batch = words(6, 0)
    output = network()(**batch, labels=torch.tensor([0, 1]))
    output.loss.backward()
    assert output.logits.isfinite().all()


def test_half_precision_is_near():
    net, batch = network(), words(6, 4)
    with torch.no_grad():
        full = net(**batch).logits
        with torch.autocast("cpu", torch.bfloat16):
            assert (net(**batch).logits.float() - full).abs().max() < 0.02


@pytest.mark.parametrize("padded", [False, True])
def test_half_precision_on_a_cpu(padded: bool) -> None:
    """Autocast leaves the LSTM in float32 there: many processors have no other."""
    torch.manual_seed(0)
    config = SelfAttentiveConfig(
        vocab_size=9, hidden_size=8, embedding_size=8, attention_size=8, num_attention_heads=2
    )
    net = SelfAttentiveForSequenceClassification(config).eval()
    words = torch.tensor([[4, 5, 6], [7, 8, 0]])
    mask = torch.tensor([[1, 1, 1], [1, 1, 0]]) if padded else None
    expected = net(words, mask).logits
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = net(words, mask).logits
        found.float().square().sum().backward()
    torch.testing.assert_close(found.float(), expected, rtol=0.05, atol=0.02)
    assert net.sentence.lstm.weight_ih_l0.grad.abs().sum() > 0
