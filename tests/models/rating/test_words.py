"""Ratings of words against the definitions written out, on every kind of network that has them."""

from typing import Any

import pytest
import torch
from torch.nn import functional as F
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    DistilBertConfig,
    DistilBertForSequenceClassification,
    GPT2Config,
    GPT2ForSequenceClassification,
    RobertaConfig,
    RobertaForSequenceClassification,
)

import probattn
from probattn.models import (
    Classifier,
    RecurrentForTranslation,
    RecurrentTranslationConfig,
    SelfAttentiveConfig,
    SelfAttentiveForSequenceClassification,
    TransformerSize,
    build_transformer,
    own_head,
    rate_words,
)

MASK = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [1, 1, 0, 0, 0]])
WORDS = torch.tensor([[4, 5, 6, 7, 8], [8, 4, 5, 0, 0], [6, 7, 0, 0, 0]])
LABELS = torch.tensor([0, 1, 1])
BATCH = {"input_ids": WORDS, "attention_mask": MASK, "labels": LABELS}
SMALL = {
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 8,
    "vocab_size": 9,
}


def translation_batch() -> dict[str, torch.Tensor]:
    return {
        "input_ids": WORDS,
        "attention_mask": MASK,
        "decoder_input_ids": torch.tensor([[2, 5, 4], [2, 7, 0], [2, 8, 6]]),
        "decoder_attention_mask": torch.tensor([[1, 1, 1], [1, 1, 0], [1, 1, 1]]),
        "labels": torch.tensor([[5, 4, 3], [7, 3, -100], [8, 6, 3]]),
    }


@pytest.mark.parametrize("heads", [1, 3])
def test_translation_is_the_definition(heads: int) -> None:
    torch.manual_seed(0)
    config = RecurrentTranslationConfig(
        vocab_size=9,
        hidden_size=4,
        embedding_size=4,
        num_hidden_layers=1,
        num_attention_heads=heads,
        dropout=0.5,
    )
    net = RecurrentForTranslation(config)
    batch = translation_batch()
    found = rate_words(net, batch)
    assert net.training
    net.eval()
    inputs = {name: value for name, value in batch.items() if name != "labels"}
    output = net(**inputs, output_attentions=True)
    states, queries = output.encoder_last_hidden_state, output.decoder_last_hidden_state
    for row in range(3):
        for t in range(int((batch["labels"][row] >= 0).sum())):
            target = int(batch["labels"][row, t])
            assert found.correct[row, t] == (output.logits[row, t].argmax() == target)
            for place in range(5):
                if not MASK[row, place]:
                    assert found.attention[row, t, place] == 0
                    assert found.probe[row, t, place] == -torch.inf
                    continue
                logits = net.output(heads * states[row, place], queries[row, t])
                torch.testing.assert_close(found.probe[row, t, place], logits.log_softmax(-1)[target])
                weight = output.cross_attentions[0][row, :, t, place].mean()
                torch.testing.assert_close(found.attention[row, t, place], weight)
    assert torch.equal(found.query_mask, batch["labels"] >= 0)
    assert torch.equal(found.mask, MASK.bool())


@pytest.mark.parametrize("heads", [1, 3])
def test_self_attentive_classifier_is_the_definition(heads: int) -> None:
    torch.manual_seed(0)
    config = SelfAttentiveConfig(
        vocab_size=9,
        embedding_size=4,
        hidden_size=4,
        attention_size=5,
        num_attention_heads=heads,
        classifier_size=6,
    )
    net = SelfAttentiveForSequenceClassification(config).eval()
    found = rate_words(net, BATCH)
    output = net(WORDS, MASK, output_attentions=True)
    states = net.sentence(WORDS, MASK).last_hidden_state
    for row in range(3):
        assert found.correct[row, 0] == (output.logits[row].argmax() == LABELS[row])
        for place in range(int(MASK[row].sum())):
            logits = net.classifier(F.relu(net.dense(states[row, place].repeat(heads))))
            torch.testing.assert_close(found.probe[row, 0, place], logits.log_softmax(-1)[LABELS[row]])
    torch.testing.assert_close(found.attention[:, 0], output.attentions[0].mean(1)[:, 0])
    torch.testing.assert_close(found.attention.sum(-1), torch.ones(3, 1))


def host(kind: str) -> Any:
    torch.manual_seed(0)
    if kind == "bert":
        return BertForSequenceClassification(BertConfig(**SMALL, num_labels=3))
    if kind == "roberta":
        return RobertaForSequenceClassification(RobertaConfig(**SMALL, pad_token_id=0))
    if kind == "distilbert":
        sizes = {"dim": 8, "n_layers": 2, "n_heads": 2, "hidden_dim": 8, "vocab_size": 9}
        return DistilBertForSequenceClassification(DistilBertConfig(**sizes))
    sizes = {"n_embd": 8, "n_layer": 2, "n_head": 2, "vocab_size": 9, "n_positions": 16}
    return GPT2ForSequenceClassification(GPT2Config(**sizes, pad_token_id=0))


def written_out(kind: str, net: Any, states: torch.Tensor) -> torch.Tensor:
    """The heads of these families, as their papers and configurations have them."""
    if kind == "bert":
        return net.classifier(torch.tanh(net.bert.pooler.dense(states)))
    if kind == "roberta":
        return net.classifier.out_proj(torch.tanh(net.classifier.dense(states)))
    if kind == "distilbert":
        return net.classifier(F.relu(net.pre_classifier(states)))
    return net.score(states)


@pytest.mark.parametrize("kind", ["bert", "roberta", "distilbert", "gpt2"])
def test_hosts_are_probed_with_their_own_head(kind: str) -> None:
    net = host(kind)
    found = rate_words(net, BATCH)
    assert net.training
    net.eval()
    net.set_attn_implementation("eager")  # which gives weights
    output = net(WORDS, attention_mask=MASK, output_attentions=True, output_hidden_states=True)
    states = output.hidden_states[-1]
    expected = written_out(kind, net, states).log_softmax(-1)
    torch.testing.assert_close(own_head(net, states), written_out(kind, net, states))
    place = MASK.sum(1) - 1 if kind == "gpt2" else torch.zeros(3, dtype=torch.long)
    rows = torch.arange(3)
    for row in range(3):
        length = int(MASK[row].sum())
        torch.testing.assert_close(found.probe[row, 0, :length], expected[row, :length, LABELS[row]])
    weights = output.attentions[-1][rows, :, place].mean(1)
    torch.testing.assert_close(found.attention[:, 0], weights.masked_fill(MASK == 0, 0))
    # the network itself is as it was
    torch.testing.assert_close(net(WORDS, attention_mask=MASK).logits, output.logits)
    base = getattr(net, net.base_model_prefix)
    assert "forward" not in vars(base) and not base._forward_hooks


def test_padding_on_the_left_moves_nothing() -> None:
    net = host("gpt2")
    turned = torch.tensor([[4, 5, 6, 7, 8], [0, 0, 8, 4, 5], [0, 0, 0, 6, 7]])
    place = torch.tensor([[0, 1, 2, 3, 4], [0, 0, 0, 1, 2], [0, 0, 0, 0, 1]])  # in its own text
    found = rate_words(
        net,
        {"input_ids": turned, "attention_mask": MASK.flip(1), "position_ids": place, "labels": LABELS},
    )
    right = rate_words(net, BATCH)
    assert torch.equal(found.mask, MASK.flip(1).bool())
    for ours, plain in ((found.attention, right.attention), (found.probe, right.probe)):
        torch.testing.assert_close(ours[:, 0][found.mask], plain[:, 0][right.mask])


def test_padding_on_the_left_moves_nothing_of_a_sentence() -> None:
    torch.manual_seed(0)
    net = SelfAttentiveForSequenceClassification(SelfAttentiveConfig(vocab_size=9, hidden_size=4))
    turned = torch.tensor([[4, 5, 6, 7, 8], [0, 0, 8, 4, 5], [0, 0, 0, 6, 7]])
    found = rate_words(net, {"input_ids": turned, "attention_mask": MASK.flip(1), "labels": LABELS})
    right = rate_words(net, BATCH)
    for ours, plain in ((found.attention, right.attention), (found.probe, right.probe)):
        torch.testing.assert_close(ours[:, 0][found.mask], plain[:, 0][right.mask])


def test_without_a_mask_all_words_count() -> None:
    net = host("bert")
    batch = {"input_ids": WORDS, "labels": LABELS}
    found, expected = (
        rate_words(net, batch),
        rate_words(net, batch | {"attention_mask": torch.ones_like(MASK)}),
    )
    assert found.mask.all()
    torch.testing.assert_close(found.probe, expected.probe)
    torch.testing.assert_close(found.attention, expected.attention)


def test_parts_stay_in_their_modes_and_keep_their_forward() -> None:
    net = host("bert").train()
    net.bert.eval()
    before = {name: module.training for name, module in net.named_modules()}
    net.bert.forward = wrapped = net.bert.forward  # as accelerate does for mixed precision
    rate_words(net, BATCH)
    assert {name: module.training for name, module in net.named_modules()} == before
    assert vars(net.bert)["forward"] is wrapped


def test_latent_attention_is_rated_at_its_expectation() -> None:
    net = host("bert").eval()
    before = rate_words(net, BATCH)
    probattn.models.convert(net, probattn.BayesianAttention())
    found = rate_words(Classifier(net).eval().net, BATCH)
    assert found.attention.shape == before.attention.shape
    torch.testing.assert_close(found.attention.sum(-1), torch.ones(3, 1))


def test_what_has_no_probe_is_refused() -> None:
    translator = build_transformer(TransformerSize(width=8, layers=1, heads=2, feed_forward=8), vocabulary=9)
    with pytest.raises(
        TypeError, match=r"expected a RecurrentForTranslation.*got MarianMTModel|got \w+ with labels"
    ):
        rate_words(translator, translation_batch())
    with pytest.raises(ValueError, match=r"expected labels in the batch, got attention_mask, input_ids"):
        rate_words(host("bert"), {"input_ids": WORDS, "attention_mask": MASK})


def test_a_network_of_one_output_is_refused() -> None:
    net = BertForSequenceClassification(BertConfig(**SMALL, num_labels=1))
    with pytest.raises(
        ValueError, match="expected two classes or more, BertForSequenceClassification has one output"
    ):
        rate_words(net, BATCH)


def test_a_head_that_reads_the_mean_is_refused() -> None:
    class MeanHead(BertForSequenceClassification):
        def forward(self, input_ids: torch.Tensor, attention_mask: Any = None, **_: Any) -> Any:
            output = self.bert(input_ids, attention_mask)
            output.logits = self.classifier(output.last_hidden_state.mean(1))
            return output

    torch.manual_seed(0)
    with pytest.raises(ValueError, match="head reads the first or the last word"):
        rate_words(MeanHead(BertConfig(**SMALL)), BATCH)


def test_a_missing_mask_is_that_of_the_words_read_whatever_the_order_of_the_batch() -> None:
    torch.manual_seed(0)
    config = RecurrentTranslationConfig(vocab_size=9, hidden_size=4, embedding_size=4, num_hidden_layers=1)
    net = RecurrentForTranslation(config).eval()
    batch = {name: tensor for name, tensor in translation_batch().items() if not name.endswith("mask")}
    order = sorted(
        batch, key=lambda name: name != "decoder_input_ids"
    )  # shorter than the words that are read
    assert torch.equal(
        rate_words(net, {name: batch[name] for name in order}).mask, torch.ones_like(WORDS).bool()
    )


def test_a_causal_network_with_a_head_of_zeros_reads_the_last_word() -> None:
    torch.manual_seed(0)
    sizes = {"n_embd": 8, "n_layer": 1, "n_head": 2, "pad_token_id": 0, "vocab_size": 9}
    net = GPT2ForSequenceClassification(GPT2Config(**sizes)).eval()
    batch = {"input_ids": torch.tensor([[4, 5, 6], [7, 8, 0]]), "labels": torch.tensor([0, 1])}
    batch["attention_mask"] = (batch["input_ids"] != 0).long()
    expected = rate_words(net, batch).attention
    torch.nn.init.zeros_(net.score.weight)
    torch.testing.assert_close(rate_words(net, batch).attention, expected)
    assert (expected[0] > 0).all() and expected[1, 0, 2] == 0
