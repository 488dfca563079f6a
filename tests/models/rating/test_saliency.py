"""Saliency of words against gradients of single examples, and the proxy as a program against its equations."""

import pytest
import torch
from transformers import BartConfig, BartForConditionalGeneration, BertConfig, BertForSequenceClassification

from probattn.inference import OptimizerOptions, SVIDriver
from probattn.models import (
    ProxyProgram,
    RatedWords,
    RecurrentForTranslation,
    RecurrentTranslationConfig,
    SelfAttentiveConfig,
    SelfAttentiveForSequenceClassification,
    word_saliency,
)
from probattn.probes import BagOfWordsProxy

MASK = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])
WORDS = torch.tensor([[4, 5, 6, 7], [8, 4, 0, 0]])


def classifiers() -> list[torch.nn.Module]:
    torch.manual_seed(0)
    own = SelfAttentiveConfig(
        vocab_size=9,
        embedding_size=3,
        hidden_size=4,
        attention_size=4,
        num_attention_heads=2,
        classifier_size=5,
    )
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    bert = BertConfig(vocab_size=9, **sizes)
    return [SelfAttentiveForSequenceClassification(own), BertForSequenceClassification(bert)]


@pytest.mark.parametrize("which", [0, 1])
def test_classes_one_example_at_a_time(which: int) -> None:
    net, labels = classifiers()[which], torch.tensor([1, 0])
    found = word_saliency(net, {"input_ids": WORDS, "attention_mask": MASK, "labels": labels})
    assert net.training and found.shape == (2, 1, 4)
    assert all(parameter.grad is None for parameter in net.parameters())
    net.eval()
    for row in range(2):
        length = int(MASK[row].sum())
        embedded = net.get_input_embeddings()(WORDS[row : row + 1, :length]).detach().requires_grad_()
        logits = net(inputs_embeds=embedded, attention_mask=MASK[row : row + 1, :length]).logits
        logits.log_softmax(-1)[0, labels[row]].backward()
        torch.testing.assert_close(
            found[row, 0, :length], embedded.grad[0].norm(dim=-1), rtol=1e-4, atol=1e-7
        )
        assert (found[row, 0, length:] == 0).all()


def test_words_of_a_translation_one_at_a_time() -> None:
    torch.manual_seed(0)
    config = RecurrentTranslationConfig(vocab_size=9, hidden_size=4, embedding_size=3, num_hidden_layers=1)
    net = RecurrentForTranslation(config).eval()
    batch = {
        "input_ids": WORDS,
        "attention_mask": MASK,
        "decoder_input_ids": torch.tensor([[2, 5], [2, 0]]),
        "labels": torch.tensor([[5, 3], [3, -100]]),
    }
    found = word_saliency(net, batch)
    assert found.shape == (2, 2, 4)
    for t in range(2):
        embedded = net.get_input_embeddings()(WORDS[:1]).detach().requires_grad_()
        logits = net(inputs_embeds=embedded, decoder_input_ids=batch["decoder_input_ids"][:1]).logits
        logits.log_softmax(-1)[0, t, batch["labels"][0, t]].backward()
        torch.testing.assert_close(found[0, t], embedded.grad[0].norm(dim=-1), rtol=1e-4, atol=1e-7)


def test_the_worst_other_word_is_at_least_as_bad_as_none() -> None:
    net, labels = classifiers()[0], torch.tensor([1, 0])
    batch = {"input_ids": WORDS, "attention_mask": MASK, "labels": labels}
    # zero is the padding word's vector, so that erasing a word is one of the exchanges
    assert (word_saliency(net, batch, kind="replace") >= word_saliency(net, batch, kind="erase") - 1e-6).all()


def test_every_part_keeps_its_mode() -> None:
    net = classifiers()[0]
    net.sentence.lstm.eval()
    word_saliency(net, {"input_ids": WORDS, "attention_mask": MASK, "labels": torch.tensor([1, 0])})
    assert net.training and net.sentence.training and not net.sentence.lstm.training


def test_labels_are_needed() -> None:
    with pytest.raises(ValueError, match="word_saliency: expected labels in the batch, got input_ids"):
        word_saliency(classifiers()[0], {"input_ids": WORDS})


def test_proxy_learns_what_words_say_by_the_driver() -> None:
    rows = {
        "input_ids": torch.tensor([[2 + row % 2, 4 + row % 3] for row in range(60)]),
        "attention_mask": torch.ones(60, 2, dtype=torch.long),
        "labels": torch.tensor([row % 2 for row in range(60)]),
    }
    program = ProxyProgram(BagOfWordsProxy(7, 2, 16, generator=torch.Generator().manual_seed(0)), 60)
    optimizer = OptimizerOptions("Adam", 0.05, 0.05, weight_decay=0.0)
    driver = SVIDriver(program, optimizer=optimizer, scheduler=None, batch_size=20, cpu=True, progress=False)
    result = driver.fit(rows, steps=80)
    assert result.train["loss"] < 0.1
    probe = program.rate({name: value[:2] for name, value in rows.items()}).exp()
    assert (probe[:, 0, 0] > 0.9).all()


def test_proxy_is_scaled_and_masked_as_its_likelihood() -> None:
    """The driver's loss per datum is the mean over rows of the summed negative log-likelihoods (Eq. 14)."""
    proxy = BagOfWordsProxy(9, 9, 4, generator=torch.Generator().manual_seed(0))
    batch = {
        "input_ids": WORDS,
        "attention_mask": MASK,
        "labels": torch.tensor([[5, 3, 4], [3, -100, -100]]),
    }
    real = batch["labels"] >= 0
    expected = proxy.loss(WORDS, batch["labels"].clamp(min=0), MASK.bool(), real).item() / 2
    options = {
        "optimizer": OptimizerOptions("SGD", 1e-9, 1e-9),
        "scheduler": None,
        "cpu": True,
        "progress": False,
    }
    result = SVIDriver(ProxyProgram(proxy, 2), batch_size=2, **options).fit(batch, steps=1)
    assert result.train["loss"] == pytest.approx(expected, rel=1e-5)


def test_flat_ratings_are_in_the_order_of_gathered_ones() -> None:
    program = ProxyProgram(BagOfWordsProxy(9, 9, 4, generator=torch.Generator().manual_seed(0)), 2)
    batch = {"input_ids": WORDS, "attention_mask": MASK, "labels": torch.tensor([[5, 3], [3, -100]])}
    halves = [{name: value[row : row + 1] for name, value in batch.items()} for row in range(2)]
    found = RatedWords.flat(halves, program.rate)
    whole = program.rate(batch)
    expected = torch.cat([whole[0, 0], whole[0, 1], whole[1, 0, :2]])
    torch.testing.assert_close(found, expected)


def test_scaled_embeddings_are_replaced_by_scaled_ones() -> None:
    """BART's embedding multiplies by a factor in its forward pass."""
    config = BartConfig(vocab_size=9, d_model=8, encoder_layers=1, decoder_layers=1, scale_embedding=True)
    config.update({"encoder_attention_heads": 2, "decoder_attention_heads": 2, "dropout": 0.0})
    torch.manual_seed(0)
    net = BartForConditionalGeneration(config).eval()
    batch = {
        "input_ids": WORDS[:1],
        "decoder_input_ids": torch.tensor([[2, 5]]),
        "labels": torch.tensor([[5, 6]]),
    }
    found = word_saliency(net, batch, kind="replace")
    table = net.get_input_embeddings()
    embedded = table(WORDS[:1]).detach().requires_grad_()
    logits = net(inputs_embeds=embedded, decoder_input_ids=batch["decoder_input_ids"]).logits
    scores = logits.log_softmax(-1)[0, [0, 1], [5, 6]]
    for position, score in enumerate(scores):
        (slope,) = torch.autograd.grad(score, embedded, retain_graph=True)
        gains = (embedded[0].unsqueeze(1) - table(torch.arange(9))) @ slope[0].unsqueeze(-1)  # [S, V, 1]
        torch.testing.assert_close(found[0, position], gains.squeeze(-1).amax(dim=1).detach())
