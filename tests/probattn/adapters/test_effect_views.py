"""Effects of words in shap's plots and by captum's convention, by their own functions."""

import re
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification, BertForTokenClassification

from probattn.adapters import AttentionAttribution, to_shap
from probattn.checks import MissingPackageError
from probattn.data import word_tokenizer
from probattn.inference import Explanation, Word, attention_effects, explain

SIZES = {
    "vocab_size": 40,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "initializer_range": 0.3,
}
TEXTS = ["a  plot, thin but fine", "the plot is"]


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    return BertForSequenceClassification(BertConfig(**SIZES, num_labels=3)).double().eval()


@pytest.fixture(scope="module")
def inputs():
    mask = torch.ones(3, 6, dtype=torch.long)
    mask[1, 4:] = 0
    return torch.randint(1, 40, (3, 6), generator=torch.Generator().manual_seed(1)), mask


@pytest.fixture(scope="module")
def tokenizer():
    return word_tokenizer(TEXTS)


@pytest.fixture(scope="module")
def explanations(net, tokenizer):
    return explain(net, tokenizer, TEXTS, method="knockout")


@pytest.fixture
def shap(monkeypatch):
    """Keeps what shap's own class would be given."""
    package = SimpleNamespace(Explanation=lambda *values, **named: SimpleNamespace(values=values, **named))
    monkeypatch.setitem(sys.modules, "shap", package)


def log_odds(logits, answer):
    return logits[:, answer] - torch.cat([logits[:, :answer], logits[:, answer + 1 :]], 1).logsumexp(1)


@pytest.mark.usefixtures("shap")
def test_values_of_shap_end_at_the_probability_and_pieces_are_the_text(explanations):
    drawn = to_shap(explanations)
    values, bases, pieces = drawn.values
    assert [len(row) for row in values] == [len(row) for row in pieces] == [6, 3]
    for explanation, of_text, base, some in zip(explanations, values, bases, pieces, strict=True):
        assert "".join(some) == explanation.texts[0]
        assert base + of_text.sum() == pytest.approx(explanation.probability)
        assert of_text.tolist() == [word.change for word in explanation.words]
    assert np.abs(values[0]).max() > 1e-3
    assert pieces[0].tolist() == ["a  ", "plot", ", ", "thin ", "but ", "fine"]


@pytest.mark.usefixtures("shap")
def test_pairs_numbers_and_what_is_not_read():
    words = (Word("b", 0, 2, 3, 1.0, 0.25, None, None), Word("c", 1, 0, 1, -1.0, -0.5, None, None))
    drawn = to_shap([Explanation(("a b ...", "c"), "score", None, None, words, 3.0)])
    (values, bases, pieces) = (item[0] for item in drawn.values)
    assert (pieces.tolist(), values.tolist()) == (
        ["b", " | ", "c"],
        [0.25, 0.0, -0.5],
    )
    assert bases == 3.25
    with pytest.raises(ValueError, match="expected explanations, got none"):
        to_shap([])


@pytest.mark.usefixtures("shap")
def test_words_without_knock_outs_are_no_values(net, tokenizer):
    screened = explain(net, tokenizer, " ".join(["a plot"] * 12), method="screened")
    with pytest.raises(ValueError, match=r"text 1: .* got none of \d+ of 24 words; explain\(.*'knockout'\)"):
        to_shap(screened)


def test_without_shap_its_extra_is_named(explanations, monkeypatch):
    monkeypatch.setitem(sys.modules, "shap", None)
    with pytest.raises(MissingPackageError, match=r"to_shap: .* pip install 'probattn\[shap\]'"):
        to_shap(explanations)


@pytest.mark.filterwarnings("ignore")  # of numba and of shap
def test_shap_draws_them(explanations):
    package = pytest.importorskip("shap", reason="needs shap (the extra 'shap')")
    drawn = to_shap(explanations)
    page = package.plots.text(drawn, display=False)
    shown = [item.strip() for item in re.findall(r"_ind_\d+'[^<]*?>([^<>]*)</div", page)]
    assert " ".join(shown).replace(" ,", ",").split() == " ".join(TEXTS).split()
    axes = package.plots.bar(drawn[0], show=False)
    lengths = sorted(patch.get_width() for patch in axes.patches if patch.get_width())
    assert lengths == pytest.approx(sorted(word.change for word in explanations[0].words))


def test_effects_are_those_of_the_function_and_of_masks(net, inputs):
    ids, mask = inputs
    method = AttentionAttribution(net)
    effects = method.attribute(ids, 1, mask)
    expected = attention_effects(
        net, {"input_ids": ids, "attention_mask": mask}, target=1, method="knockout"
    ).effect
    assert effects.equal(expected)
    without = mask.clone()
    without[:, 2] = 0
    with torch.no_grad():
        change = log_odds(net(ids, mask).logits, 1) - log_odds(net(ids, without).logits, 1)
    torch.testing.assert_close(effects[:, 2], change, rtol=0.0, atol=1e-12)
    embeddings = net.get_input_embeddings()(ids)
    torch.testing.assert_close(method.attribute(embeddings, 1, (mask, None)), expected)
    by_row = method.attribute(ids, [1, 0, 2], mask)
    assert by_row[0].equal(effects[0])
    assert by_row.equal(method.attribute(ids, torch.tensor([1, 0, 2]), mask))
    answers = net(ids, mask).logits.argmax(1)
    assert method.attribute(ids, additional_forward_args=mask).equal(method.attribute(ids, answers, mask))
    assert method.attribute(ids, torch.tensor(1), mask).equal(effects)


def test_a_class_of_a_token(inputs):
    torch.manual_seed(1)
    net = BertForTokenClassification(BertConfig(**SIZES, num_labels=3)).double().eval()
    ids, mask = inputs
    method = AttentionAttribution(net)
    effects = method.attribute(ids, (2, 1), mask)
    without = mask.clone()
    without[:, 3] = 0
    with torch.no_grad():
        change = log_odds(net(ids, mask).logits[:, 2], 1) - log_odds(net(ids, without).logits[:, 2], 1)
    torch.testing.assert_close(effects[:, 3], change, rtol=0.0, atol=1e-12)
    by_row = method.attribute(ids, [(2, 1), (0, 0), (3, 2)], mask)
    assert by_row[0].equal(effects[0])
    assert by_row[2].equal(method.attribute(ids, (3, 2), mask)[2])


def test_calls_that_fit_no_network_are_refused(net, inputs):
    ids, mask = inputs
    method = AttentionAttribution(net, "slope")
    for options, error, message in (
        ({"inputs": (ids, mask)}, TypeError, "expected tokens or embeddings as one tensor, got tuple"),
        (
            {"inputs": ids, "additional_forward_args": (None,) * 40},
            TypeError,
            "too many positional arguments",
        ),
        ({"inputs": ids, "target": (0, 1, 2)}, ValueError, r"a pair \(token, class\), got \(0, 1, 2\)"),
        ({"inputs": ids, "target": 3}, ValueError, r"a target among 0\.\.2"),
    ):
        with pytest.raises(error, match=message):
            method.attribute(**options)


@pytest.mark.filterwarnings("ignore")  # of captum
def test_captum_finds_the_same_by_its_ablation_and_draws_it(net, inputs):
    captum = pytest.importorskip("captum.attr", reason="needs captum: pip install captum")
    ids, mask = inputs
    effects = AttentionAttribution(net).attribute(ids, 1, mask)

    def of_mask(keys):
        return log_odds(net(ids, keys).logits, 1)

    oracle = captum.FeatureAblation(of_mask).attribute(mask, baselines=0)
    torch.testing.assert_close(effects[0], oracle[0].to(effects.dtype), rtol=0.0, atol=1e-12)
    record = captum.visualization.VisualizationDataRecord(
        effects[0] / effects[0].norm(), 0.5, 1, 1, 1, effects[0].sum(), [f"w{n}" for n in range(6)], 0.0
    )
    page = captum.visualization.visualize_text([record]).data
    colors = re.findall(r"background-color: hsl\((\d+), 75%, \d+%\); opacity:1.0", page)
    assert [color == "120" for color in colors[-6:]] == (effects[0] > 0).tolist()
