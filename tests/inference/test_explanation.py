"""Explanations of a classifier's answers: words, sides, sizes, and what is printed."""

import copy
import json

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import BPE, Unigram, WordLevel, WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer, ByteLevel, Metaspace
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertForTokenClassification,
    GPT2Config,
    GPT2ForSequenceClassification,
    PreTrainedTokenizerFast,
)

from probattn.inference import Explanation, Word, explain
from probattn.inference.explaining import word_spans

TEXT = "the film is not good , a bad film ."

SMALL = {
    "vocab_size": 14,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
}


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(1)
    config = BertConfig(
        vocab_size=14,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        initializer_range=0.5,
        max_position_embeddings=64,
        id2label={0: "negative", 1: "positive", 2: "neither"},
    )
    return BertForSequenceClassification(config).double().eval()


def probabilities(net, tokenizer, text, without=(), pair=None):
    encoding = tokenizer(text, pair, return_tensors="pt")
    for token in without:
        encoding["attention_mask"][0, token] = 0
    with torch.no_grad():
        return net(**encoding).logits[0].softmax(0)


def test_words_are_left_out_in_turn(net, word_tokenizer):
    (item,) = explain(net, word_tokenizer, TEXT)
    whole = probabilities(net, word_tokenizer, TEXT)
    answer = int(whole.argmax())
    entropy = torch.special.entr(whole).sum().item()
    assert item.answer == net.config.id2label[answer]
    assert item.probability == pytest.approx(whole[answer].item(), abs=1e-6)
    assert item.entropy == pytest.approx(entropy, abs=1e-9)
    assert [word.word for word in item.words] == TEXT.split()
    for index, word in enumerate(item.words):
        assert TEXT[word.start : word.end] == word.word
        left = probabilities(net, word_tokenizer, TEXT, [index + 1])
        assert word.change == pytest.approx((whole - left)[answer].item(), abs=1e-6)
        odds = [torch.logit(p[answer]).item() for p in (whole, left)]
        assert word.effect == pytest.approx(odds[0] - odds[1], abs=1e-9)
        assert word.doubt == pytest.approx(entropy - torch.special.entr(left).sum().item(), abs=1e-9)
        other = net.config.id2label[int(left.argmax())]
        assert word.answer == (None if other == item.answer else other)


def test_second_texts_and_words_of_several_tokens(net, word_tokenizer):
    several = explain(net, word_tokenizer, ["good films", "a film"], ["a bad film", "films"])
    assert [word.word for word in several[0].words] == ["good", "films", "a", "bad", "film"]
    assert [word.text for word in several[0].words] == [0, 0, 1, 1, 1]
    whole = probabilities(net, word_tokenizer, "good films", pair="a bad film")
    left = probabilities(net, word_tokenizer, "good films", [2, 3], pair="a bad film")
    answer = int(whole.argmax())
    assert several[0].words[1].change == pytest.approx((whole - left)[answer].item(), abs=1e-6)


def test_long_texts_are_screened(net, word_tokenizer):
    text = " ".join(["good film is not bad the a"] * 7)
    (item,) = explain(net, word_tokenizer, text)
    assert len(item.words) == 49
    assert 3 <= sum(word.change is not None for word in item.words) <= 6
    (whole,) = explain(net, word_tokenizer, text, method="knockout")
    sized = {word.start: word.change for word in whole.words}
    for word in item.words:
        assert word.change is None or word.change == pytest.approx(sized[word.start], abs=1e-6)
    half = " ".join(["good film is not bad the a"] * 3)
    (pair,) = explain(net, word_tokenizer, half, half)
    assert (
        6 < sum(word.change is not None for word in pair.words) <= 24
    )  # on two sides, for the answer and the doubt
    with pytest.warns(UserWarning, match="text 1 has more than 12 tokens"):
        (cut,) = explain(net, word_tokenizer, text, max_length=12)
    assert len(cut.words) == 10


def test_long_texts_say_how_many_words_were_left_out(net, word_tokenizer):
    (item,) = explain(net, word_tokenizer, " ".join(["good film is not bad the a"] * 7))
    tried = sum(word.change is not None for word in item.words)
    line = f"{tried} of 49 words were masked in turn"
    assert tried < 49 and str(item).endswith(line) and line in item.to_html()
    assert "left out" not in str(explain(net, word_tokenizer, TEXT)[0])


def test_texts_are_explained_alike_whatever_is_beside_them(net, word_tokenizer):
    long = " ".join(["good film is not bad the a"] * 7)
    (alone,) = explain(net, word_tokenizer, TEXT)
    beside = explain(net, word_tokenizer, [long, TEXT, "good"])
    assert str(beside[1]) == str(alone)
    assert [len(item.words) for item in beside] == [49, 10, 1]


def test_texts_of_tokenizers_without_special_tokens(net):
    raw = Tokenizer(WordLevel({"[UNK]": 0, "the": 1, "plot": 2}, unk_token="[UNK]"))
    raw.pre_tokenizer = BertPreTokenizer()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, unk_token="[UNK]", pad_token="[UNK]")
    for text in ("the plot", "plot"):
        (item,) = explain(net, tokenizer, text)
        assert [word.word for word in item.words] == text.split()
    with pytest.raises(ValueError, match="the tokenizer knows none of its words"):
        explain(net, tokenizer, "zebra crossing")


@pytest.mark.parametrize("pre_tokenizer", [BertPreTokenizer(), ByteLevel(add_prefix_space=True)])
def test_apostrophes_and_hyphens_between_letters_part_no_words(pre_tokenizer):
    text = "you can't fight a 'good' one-sided film -- it's bad- really. o'clock's -a"
    plain = "you can't fight a ' good ' one-sided film - - it's bad - really . o'clock's - a"
    letters = {letter: index for index, letter in enumerate(["[UNK]", *sorted({*text, "\u0120"})])}
    raw = Tokenizer(BPE(letters, [], unk_token="[UNK]"))
    raw.pre_tokenizer = pre_tokenizer
    encoding = PreTrainedTokenizerFast(tokenizer_object=raw)(text)
    words = [text[span.start : span.end] for span in word_spans(encoding, (text,))]
    expected = plain if isinstance(pre_tokenizer, BertPreTokenizer) else plain.replace("- - it", "-- it")
    assert words == expected.split()


@pytest.mark.parametrize("pre_tokenizer", [Metaspace(), ByteLevel(add_prefix_space=True)])
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a joy, a joy", "a joy , a joy"),
        ("can\u2019t caf\u00e9-bar \U0001f600-x", "can\u2019t caf\u00e9-bar \U0001f600- x"),
        ("\u8fd9\u90e8\u7535\u5f71", "\u8fd9 \u90e8 \u7535 \u5f71"),
        ("\u0645\u0631\u062d\u0628\u0627 \u0628\u0643", "\u0645\u0631\u062d\u0628\u0627 \u0628\u0643"),
    ],
)
def test_words_of_other_scripts_and_marks(pre_tokenizer, text, expected):
    marks = [*ByteLevel.alphabet(), *text, "\u2581"]
    raw = Tokenizer(BPE({mark: index for index, mark in enumerate(dict.fromkeys(marks))}, []))
    raw.pre_tokenizer = pre_tokenizer
    encoding = PreTrainedTokenizerFast(tokenizer_object=raw)(text)
    assert [text[span.start : span.end] for span in word_spans(encoding, (text,))] == expected.split()


def test_an_accent_that_is_left_out_parts_no_word():
    text = "\u0643\u0650\u062a\u064e\u0627\u0628 na\u0308ive"
    letters = dict.fromkeys(["[UNK]", *text, *(f"##{letter}" for letter in text)])
    raw = Tokenizer(WordPiece({piece: index for index, piece in enumerate(letters)}, unk_token="[UNK]"))
    raw.normalizer, raw.pre_tokenizer = BertNormalizer(strip_accents=True), BertPreTokenizer()
    encoding = PreTrainedTokenizerFast(tokenizer_object=raw)(text)
    assert [text[span.start : span.end] for span in word_spans(encoding, (text,))] == text.split()


def test_networks_with_one_type_of_text_and_tokenizers_without_a_limit(word_tokenizer):
    torch.manual_seed(0)
    net = BertForSequenceClassification(BertConfig(**SMALL, type_vocab_size=1)).eval()
    typed = copy.copy(word_tokenizer)
    typed.model_input_names = ["input_ids", "token_type_ids", "attention_mask"]
    assert max(typed("good film", "bad")["token_type_ids"]) == 1
    (item,) = explain(net, typed, "good film", "bad")
    assert [word.word for word in item.words] == ["good", "film", "bad"]
    del net.config.max_position_embeddings
    assert word_tokenizer.model_max_length > 10**9
    assert str(explain(net, word_tokenizer, "good film", "bad")[0]) == str(item)


def test_causal_classifiers_without_a_token_of_padding():
    raw = Tokenizer(WordLevel({"the": 0, "plot": 1, "is": 2}, unk_token="the"))
    raw.pre_tokenizer = BertPreTokenizer()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw)
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=3, n_embd=16, n_layer=1, n_head=2, num_labels=2, initializer_range=0.5)
    net = GPT2ForSequenceClassification(config).eval()
    short, long = explain(net, tokenizer, ["plot is", "the plot is the plot"])
    assert str(short) == str(explain(net, tokenizer, "plot is")[0]) and len(long.words) == 5


def test_a_label_is_another_answer_where_it_no_longer_holds(word_tokenizer):
    torch.manual_seed(0)
    config = BertConfig(**SMALL, initializer_range=1.0, num_labels=3)
    config.problem_type = "multi_label_classification"
    net = BertForSequenceClassification(config).double().eval()
    crossed = 0
    for text in ("good bad film", "the film is not good", "a bad film .", "not a film"):
        (item,) = explain(net, word_tokenizer, text)
        for word in item.words:
            crosses = (item.probability > 0.5) != (item.probability - word.change > 0.5)
            assert (word.answer is not None) == crosses
            crossed += crosses
    assert crossed


def test_words_of_tokenizers_that_mark_blanks(net):
    vocabulary = ["<pad>", "<unk>", "\u2581the", "\u2581fi", "lm", "\u2581is", "\u2581good", "\u0120"]
    raw = Tokenizer(Unigram([(piece, -float(index)) for index, piece in enumerate(vocabulary)], unk_id=1))
    raw.pre_tokenizer = Metaspace(split=False)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="<pad>", unk_token="<unk>")
    (item,) = explain(net, tokenizer, "the film is good")
    assert [word.word for word in item.words] == ["the", "film", "is", "good"]


def test_labels_of_which_none_holds_are_no_answer(word_tokenizer):
    torch.manual_seed(0)
    config = BertConfig(**SMALL)
    config.problem_type = "multi_label_classification"
    network = BertForSequenceClassification(config).double().eval()
    with torch.no_grad():
        network.classifier.bias -= 3
    (item,) = explain(network, word_tokenizer, TEXT)
    assert item.answer.endswith(" (does not hold)")
    assert item.probability < 0.5


def test_a_number_is_explained_in_its_own_unit(word_tokenizer):
    torch.manual_seed(2)
    net = BertForSequenceClassification(BertConfig(**SMALL, num_labels=1, initializer_range=0.5)).eval()
    (item,) = explain(net, word_tokenizer, "good bad film")
    inputs = word_tokenizer("good bad film", return_tensors="pt")
    values = []
    for removed in (None, 1, 2, 3):
        mask = inputs["attention_mask"].clone()
        mask[0, [] if removed is None else removed] = 0
        with torch.no_grad():
            values.append(float(net(**{**inputs, "attention_mask": mask}).logits))
    assert item.probability is None and item.entropy is None
    assert item.number == pytest.approx(values[0])
    assert [word.change for word in item.words] == pytest.approx(
        [values[0] - v for v in values[1:]], abs=1e-6
    )
    assert not item.causes_of_doubt() and "points" not in str(item)


def test_lists_have_a_floor_and_an_order():
    sizes = {
        "good": (0.2, 0.0),
        "bad": (-0.3, 0.4),
        "film": (0.001, 0.001),
        "fine": (0.4, -0.1),
        "dull": (-0.1, 0.2),
        "the": (0.004, 0.3),  # of many classes, others than the answer
    }
    words, start = [], 0
    for word, (change, doubt) in sizes.items():
        answer = "negative" if word == "fine" else None
        words.append(Word(word, 0, start, start + len(word), change, change, answer, doubt))
        start += len(word) + 1
    item = Explanation((" ".join(sizes),), "positive", 0.75, 0.56, tuple(words))
    assert [word.word for word in item.words_for()] == ["fine", "good"]
    assert [word.word for word in item.words_against()] == ["bad", "dull"]
    assert [word.word for word in item.causes_of_doubt(1)] == ["bad"]
    assert str(item).splitlines() == [
        "positive 75.0%",
        "[+good] [-bad] film [+fine] [-dull] the",
        "  for      fine  +40 points of probability, without it: negative",
        "  for      good  +20 points of probability",
        "  against  bad  -30 points of probability",
        "  against  dull  -10 points of probability",
        "  doubt    bad  +0.40 nats",
        "  doubt    dull  +0.20 nats",
    ]
    assert json.loads(json.dumps(item.to_dict()))["words"][1]["doubt"] == 0.4


def test_a_page_holds_the_texts_as_text(net, word_tokenizer):
    (item,) = explain(net, word_tokenizer, 'bad <script>alert("film")</script> good')
    assert "<script" not in item.to_html()
    assert "&lt;" in item.to_html()


def test_what_cannot_be_explained_is_refused(net, word_tokenizer):
    with pytest.raises(ValueError, match=r"expected texts, .* got none"):
        explain(net, word_tokenizer, [])
    with pytest.raises(ValueError, match="got 1 with 2 second texts"):
        explain(net, word_tokenizer, "good", ["bad", "film"])
    with pytest.raises(ValueError, match="text 2: expected a text with words, got ''"):
        explain(net, word_tokenizer, ["good", ""])
    with pytest.raises(ValueError, match="text 1: the tokenizer knows none of its words"):
        explain(net, word_tokenizer, "zebra crossing")
    with pytest.raises(ValueError, match="max_length"):
        explain(net, word_tokenizer, "good", max_length=0)
    for other in (BertForTokenClassification(BertConfig(**SMALL)), torch.nn.Linear(2, 2)):
        with pytest.raises(TypeError, match="expected a network that gives a text classes or a number"):
            explain(other, word_tokenizer, "good")
    with pytest.raises(TypeError, match="expected a fast tokenizer"):
        explain(net, object(), "good")
