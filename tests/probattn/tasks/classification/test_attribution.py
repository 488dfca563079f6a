"""Which words make a prediction unsure: words of tokenizers, and what a run's records say of its inputs."""

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

import probattn
from probattn.inference import posterior_moments, share_by
from probattn.models import Classifier, convert
from probattn.report import Example
from probattn.tasks.classification import attribution
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


class SlowTokenizer:
    """A tokenizer without offsets or word numbers."""

    is_fast = False

    def __init__(self, fast):
        self.convert_ids_to_tokens = fast.convert_ids_to_tokens


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


def attributed(net, codec, *texts, tokenizer=None):
    batch = dict((tokenizer or codec)(*texts, return_tensors="pt"))
    pair = texts[1] if len(texts) > 1 else None
    example = Example(text=texts[0], pair=pair, predicted=NAMES[0], probability=0.6, spread=0.1, entropy=0.6)
    program = Network(Classifier(net), Path("nowhere"), "bayesian_mean", codec)
    return batch, attribution.attribution_of(program, batch, example, NAMES, seed=0, reason="chosen")


def test_words_are_those_of_the_text_and_special_tokens_stand_alone(codec):
    texts = "a dullest films' plot", "not great"
    encoding = codec(*texts, return_offsets_mapping=True)
    found = attribution.words_of(encoding, codec.convert_ids_to_tokens(encoding["input_ids"]), *texts)
    expected = ["[CLS]", "a", "dullest", "films", "'", "plot", "[SEP]", "not", "great", "[SEP]"]
    assert [word.word for word in found] == expected
    assert [word.tokens for word in found][2:4] == [[2, 3], [4, 5]]
    assert sorted(place for word in found for place in word.tokens) == list(range(len(encoding["input_ids"])))


def test_shares_of_words_are_sums_over_their_tokens(net, codec):
    batch, found = attributed(net, codec, "a dullest film", "not great plot")
    share = posterior_moments(Classifier(net), batch, attribution=True, method="expansion").share
    by_token = share_by(share, "key")[0]
    assert found.words == ("[CLS]", "a", "dullest", "film", "[SEP]", "not", "great", "plot", "[SEP]")
    assert found.words[found.second] == "not"
    places = [[0], [1], [2, 3], [4], [5], [6], [7], [8], [9]]
    torch.testing.assert_close(
        torch.tensor(found.by_word()),
        torch.stack([by_token[some].sum() for some in places]),
        atol=1e-4,
        rtol=0,
    )
    assert sum(found.by_word()) == pytest.approx(1, abs=1e-3)
    changes = [change for change in found.changes if change.query is None]
    assert len(changes) == attribution.LEADING_WORDS
    assert len(found.changes) == attribution.LEADING_WORDS + attribution.LEADING_PAIRS
    shares = dict(zip(found.words, found.by_word(), strict=True))
    assert all(change.share == pytest.approx(shares[change.key], abs=1e-4) for change in changes[:2])
    assert [change.share for change in changes] == sorted((change.share for change in changes), reverse=True)
    assert found.removed["share"] > found.removed["spread"] and found.draws == 50


def test_leading_words_are_those_of_the_text_with_the_largest_shares(net, codec):
    batch, found = attributed(net, codec, "a dullest film", "not great plot")
    program = Network(Classifier(net), Path("nowhere"), "bayesian_mean", codec)
    ranked = sorted(zip(found.by_word(), found.words, strict=True), reverse=True)
    expected = [word for _, word in ranked if word not in {"[CLS]", "[SEP]"}][:3]
    assert attribution.leading_words(program, batch, found.example) == tuple(expected)


def test_answers_change_as_the_network_with_that_much_attention_does(net, codec):
    """Half and twice the weight to a word, put into the network's own softmax as a term of its scores."""
    text = "a dullest film not great"
    batch, found = attributed(net, codec, text)
    moments = posterior_moments(net, batch, method="expansion")
    probability, label = moments.logits[0].double().softmax(dim=-1).max(dim=-1)
    assert found.expected.label == NAMES[label]
    assert found.expected.probability == pytest.approx(float(probability), abs=1e-5)
    plain = BertForSequenceClassification(net.config).eval()
    plain.requires_grad_(False).load_state_dict(
        {k: v for k, v in net.state_dict().items() if k in plain.state_dict()}
    )
    change = next(each for each in found.changes if each.query is None and each.key == "dullest")
    for factor, answer in ((0.5, change.half), (2.0, change.twice)):
        term = torch.zeros(1, 1, 1, batch["input_ids"].shape[1])
        term[..., 2:4] = torch.tensor(factor).log()
        logits = plain(batch["input_ids"], attention_mask=term.expand(-1, 1, term.shape[-1], -1)).logits[0]
        probabilities = logits.double().softmax(dim=-1)
        assert answer.probability == pytest.approx(float(probabilities[NAMES.index(answer.label)]), abs=1e-4)


def test_tokens_stand_for_words_where_the_tokenizer_knows_none(net, codec):
    _, found = attributed(net, SlowTokenizer(codec), "a dullest film", tokenizer=codec)
    assert found.words == ("[CLS]", "a", "dull", "##est", "film", "[SEP]")
    assert found.second is None


def test_nothing_is_attributed_where_no_call_attends_to_the_tokens(net, codec):
    """As in networks that shorten their sequence before they attend."""
    slow = SlowTokenizer(codec)
    slow.convert_ids_to_tokens = lambda _: ["token"] * 50
    assert attributed(net, slow, "a film", tokenizer=codec)[1] is None
