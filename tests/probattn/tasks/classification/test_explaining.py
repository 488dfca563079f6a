"""The words for and against the answer to a task's input."""

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

import probattn
from probattn.checks import PlainWarning
from probattn.inference import explain
from probattn.models import Classifier, convert
from probattn.tasks.classification.explaining import explained
from probattn.tasks.networks import Network

PIECES = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "a",
    "dull",
    "##est",
    "film",
    "##s",
    "not",
    "great",
    "'",
    "plot",
]
NAMES = ("negative", "positive")


@pytest.fixture(scope="module")
def codec():
    pieces = Tokenizer(
        models.WordPiece({word: place for place, word in enumerate(PIECES)}, unk_token="[UNK]")
    )
    pieces.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    pieces.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    return PreTrainedTokenizerFast(tokenizer_object=pieces, pad_token="[PAD]", unk_token="[UNK]")


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    config = BertConfig(**sizes, vocab_size=len(PIECES), initializer_range=0.3)
    return convert(BertForSequenceClassification(config), probattn.BayesianAttention()).eval()


def made(net, codec, *texts, answer=NAMES[0]):
    batch = dict(codec(*texts, return_tensors="pt"))
    network = Network(Classifier(net), Path("nowhere"), "bayesian_mean", codec)
    return explained(network, batch, texts, NAMES, answer)


def test_an_input_of_a_task_is_explained_as_its_texts_are(net, codec):
    net.config.id2label = dict(enumerate(NAMES))
    for texts in (("a dullest film",), ("a dullest film", "not great plot")):
        (expected,) = explain(net, codec, *([text] for text in texts))
        item = made(net, codec, *texts, answer=expected.answer)
        assert [(word.word, word.text) for word in item.words] == [
            (word, number) for number, text in enumerate(texts) for word in text.split()
        ]
        for word, other in zip(item.words, expected.words, strict=True):
            assert word.change == pytest.approx(other.change, abs=1e-6)
            assert word.doubt == pytest.approx(other.doubt, abs=1e-6)


def test_the_answer_that_was_given_is_explained(net, codec):
    """Another one than that of the expectation, as the mean of draws may be."""
    net.config.id2label = dict(enumerate(NAMES))
    (expected,) = explain(net, codec, "a dullest film")
    other = next(name for name in NAMES if name != expected.answer)
    item = made(net, codec, "a dullest film", answer=other)
    assert item.answer == other and item.probability == pytest.approx(1 - expected.probability, abs=1e-6)
    for word, opposite in zip(item.words, expected.words, strict=True):
        assert word.change == pytest.approx(-opposite.change, abs=1e-6)
        assert word.answer == opposite.answer and word.doubt == pytest.approx(opposite.doubt, abs=1e-6)


def test_windows_of_a_text_have_the_words_that_they_hold(net, codec):
    """The second of two windows, which the tokenizer makes of a long text."""
    texts = ("not", "a dullest film plot great film")
    windows = codec(*texts, truncation="only_second", max_length=8, stride=1, return_overflowing_tokens=True)
    ids = windows["input_ids"][1]
    batch = {
        "input_ids": torch.tensor([[*ids, 0, 0]]),
        "attention_mask": torch.tensor([[1] * len(ids) + [0] * 2]),
    }
    network = Network(Classifier(net), Path("nowhere"), "bayesian_mean", codec)
    item = explained(network, batch, texts, NAMES, NAMES[0], windows, 1)
    assert item.words[0].word == "not"
    shown = [word for word in item.words if word.text == 1]
    assert [texts[1][word.start : word.end] for word in shown] == [word.word for word in shown]
    assert len(shown) < 6 and shown[-1].word == "film" and shown[-1].end == len(texts[1])


def test_inputs_without_words_are_warned_of(net, codec):
    batch = dict(codec("a film", return_tensors="pt"))
    network = Network(Classifier(net), Path("nowhere"), "bayesian_mean", codec)
    with pytest.warns(PlainWarning, match="its tokens are not those that the tokenizer makes of it"):
        assert explained(network, batch, ("a plot",), NAMES, NAMES[0]) is None
    slow = Network(Classifier(net), Path("nowhere"), "bayesian_mean", object())
    with pytest.warns(PlainWarning, match="object does not say where words stand"):
        assert explained(slow, batch, ("a film",), NAMES, NAMES[0]) is None
