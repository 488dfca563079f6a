"""What the study of words measures, against closed forms on a network of one layer."""

import effects_measures
import effects_methods
import effects_posterior
import effects_summary
import numpy as np
import pytest
import runs
import torch
from effects_methods import METHODS, Question, Subject, Text
from sklearn.metrics import roc_auc_score
from transformers import BertConfig, BertForSequenceClassification

from probattn.inference import attention_effects

WORDS = tuple(runs.WORDS[:6])
PACKAGES = {"captum": "captum.attr", "shap": "shap", "lime": "lime.lime_text", "lxt": "lxt"}


def package(name):
    return pytest.importorskip(
        PACKAGES[name], reason=f"needs {name} (pip install {name}), which the study alone uses"
    )


@pytest.fixture(scope="module")
def subject():
    torch.manual_seed(0)
    tokenizer = runs.tokenizer()
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=64,
        initializer_range=0.5,
        num_labels=3,
    )
    return Subject(BertForSequenceClassification(config), tokenizer, 32)


def question_of(subject, first=None):
    text = Text(WORDS, first)
    return Question(subject, text, int(subject.logits([text]).argmax()), 0)


@pytest.fixture(params=[None, 2], ids=["text", "pair"])
def question(request, subject):
    return question_of(subject, request.param)


def of_ids(question, ids):
    return float(question.of_ids(ids, question.inputs()))


def test_a_text_without_words_keeps_its_pair():
    text = Text(("a", "b", "c", "d"), 2)
    assert text.without([1]) == Text(("a", "c", "d"), 1) and text.only([2, 3]) == Text(("c", "d"), 0)
    assert text.only([0]).texts() == (["a"], []) and Text(("a",), None).texts() == (["a"],)


def test_words_that_the_network_does_not_read_whole_are_cut_off(subject):
    short = Subject(subject.net, subject.tokenizer, 6)
    assert short.shortened(Text(WORDS[:2], None)).words == WORDS[:2]
    cut = short.shortened(Text(WORDS, None))
    assert 0 < len(cut.words) < len(WORDS) and short.encoded([cut])["input_ids"].shape[1] <= 6
    pair = short.shortened(Text(WORDS, 1))
    assert pair.first in (0, 1) and len(pair.words) < len(WORDS)


def test_passes_are_rows_forward_and_backward(subject):
    question = question_of(subject)
    before = subject.passes.number
    effects_methods.scores_of("attention_gradient", question)
    assert subject.passes.number - before == 2
    effects_methods.scores_of("knockout", question)
    assert subject.passes.number - before == 2 + 2 + len(WORDS)


def test_of_one_layer_rollout_and_relevance_are_the_first_row_of_the_map(question):
    with torch.no_grad():
        (weights,) = question.subject.net(**question.inputs(), output_attentions=True).attentions
    expected = question.by_word(weights[0].mean(dim=0)[0] / 2)
    assert np.allclose(METHODS["rollout"](question), expected, atol=1e-6)
    (map_,), (slope,) = effects_methods.with_maps(question)
    assert np.allclose(
        METHODS["chefer"](question),
        question.by_word((map_ * slope).clamp_min(0).mean(dim=1)[0, 0]),
        atol=1e-6,
    )


def test_maps_and_gradients_sum_to_attention_times_gradient_less_its_centring(question):
    """The slope by log S of a weight W is W (g - sum W g): that of a key sums its queries."""
    (map_,), (slope,) = effects_methods.with_maps(question)
    centred = map_ * (slope - (map_ * slope).sum(dim=-1, keepdim=True))
    assert np.allclose(METHODS["slope"](question), question.by_word(centred.sum(dim=(0, 1, 2))), atol=1e-5)


@pytest.mark.parametrize("name", ["integrated_gradients", "shapley_sampling"])
def test_values_of_captum_sum_to_the_change_from_the_reference(name, question, monkeypatch):
    package("captum")
    monkeypatch.setattr(effects_methods, "STEPS", 400)
    change = of_ids(question, question.inputs()["input_ids"]) - of_ids(question, question.reference())
    assert effects_methods.scores_of(name, question).sum() == pytest.approx(change, abs=0.02)


def test_occlusion_replaces_a_word_by_the_reference(question):
    package("captum")
    scores = effects_methods.scores_of("occlusion", question)
    ids, groups = question.inputs()["input_ids"], question.subject.groups(question.text)
    for word in range(len(WORDS)):
        other = ids.clone()
        other[0, [group == word for group in groups]] = question.subject.tokenizer.pad_token_id
        assert scores[word] == pytest.approx(of_ids(question, ids) - of_ids(question, other), abs=1e-5)


@pytest.mark.slow
def test_owen_values_sum_to_the_change_from_masked_words(question):
    package("shap")
    masked = question.text._replace(words=(question.subject.mask,) * len(WORDS))
    change = np.subtract(*question.of_rows([question.text, masked]))
    scores = effects_methods.scores_of("shap_partition", question)
    assert scores.sum() == pytest.approx(change, abs=1e-4) and len(scores) == len(WORDS)


@pytest.mark.parametrize(("name", "needed"), [("lime", "lime"), ("attnlrp", "lxt"), ("deeplift", "captum")])
def test_other_methods_score_every_word_and_leave_the_network_as_it_is(name, needed, question):
    package(needed)
    before = question.subject.logits([question.text])
    scores = effects_methods.scores_of(name, question)
    assert scores.shape == (len(WORDS),) and np.ptp(scores) > 0
    assert torch.equal(question.subject.logits([question.text]), before)


def test_a_word_left_out_changes_what_the_reference_says(question):
    reference = effects_measures.Reference.of(question.subject, question.text, 100, 0)
    rows = [question.text, question.text.without([3])]
    assert reference.deleted[3] == pytest.approx(float(np.subtract(*question.of_rows(rows))), abs=1e-5)
    entropies = effects_measures.entropies(question.subject.logits(rows))
    assert reference.doubt[3] == pytest.approx(entropies[0] - entropies[1], abs=1e-6)
    assert reference.whole and not effects_measures.Reference.of(question.subject, question.text, 4, 0).whole


def test_a_margin_is_the_difference_of_two_logits_for_references_and_methods(subject):
    text = Text(WORDS, None)
    reference = effects_measures.Reference.of(subject, text, 100, 0, margin=True)
    first, second = reference.logits[0].topk(2).indices.tolist()
    without = subject.logits([text.without([2])])[0]
    logits = reference.logits[0]
    change = logits[first] - logits[second] - (without[first] - without[second])
    assert reference.deleted[2] == pytest.approx(float(change), abs=1e-5)
    question = reference.question
    effects = attention_effects(
        subject.net,
        question.inputs(),
        words=[subject.groups(text)],
        target=(first, second),
        method="slope",
    )
    scores = effects_methods.scores_of("slope", question)
    np.testing.assert_allclose(scores, effects.effect[0].numpy(), atol=1e-6)
    assert np.abs(scores - effects_methods.scores_of("slope", question_of(subject))).max() > 1e-3
    assert float(question.odds(reference.logits)) == pytest.approx(float(logits[first] - logits[second]))


def test_a_screened_method_names_a_word_whose_knock_out_it_has():
    slope = np.array([5.0, 4, 3, 2, 1, -1, -2, -3, -4])
    scores = {"slope": slope, "screened": np.array([1.0, 2, 0, 9, 9, -9, -1, -2, -3])}
    assert effects_measures.named(scores, "screened", 1) == 1
    assert effects_measures.named(scores, "screened", -1) == 8
    assert effects_measures.named(scores, "slope", 1) == 0


def test_a_planted_clause_stands_in_the_last_text(subject):
    host, donor = Text(tuple("abcdef"), 2), Text(tuple("uvwxyz"), 1)
    text, where, before = effects_measures.with_clause(subject, host, donor, np.random.default_rng(0))
    assert before == host and text.first == 2 and not where[:2].any()
    assert [word for word, new in zip(text.words, where, strict=True) if new] == list("vwxyz")
    assert text.without(np.flatnonzero(where).tolist()) == host


def test_a_clause_is_ahead_of_parts_whose_sums_are_larger():
    where = np.array([False, False, True, True, False])
    scores = np.array([0.0, -1, -3, 1, 0])  # the others' sums are -1, -4 and 1, its own -2
    assert effects_measures.ahead(scores, where) == pytest.approx(2 / 3)
    assert effects_measures.ahead(np.zeros(5), where) == 0.5


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("dull , a film of great charm . bad", "a film of great charm ."),
        ("one two three four five six seven eight nine ten", "one two three four five six seven eight"),
        ("so, yes", "so, yes"),
    ],
)
def test_a_clause_is_the_longest_part_between_marks(words, expected):
    assert effects_measures.clause(words.split()) == expected.split()


def test_function_words_and_marks_are_told_from_others():
    told = [
        effects_posterior.is_function_word(word) for word in ("The", ",", "--", "n't", "film", "2nd", "plot")
    ]
    assert told == [True, True, True, True, False, False, False]


def test_areas_and_intervals_agree_with_others():
    generator = np.random.default_rng(0)
    scores, wrong = generator.integers(5, size=60), generator.random(60) < 0.3
    assert effects_posterior.auroc(wrong, scores) == pytest.approx(roc_auc_score(wrong, scores))
    assert effects_posterior.auroc(np.zeros(3, dtype=bool), scores[:3]) == 0.5
    rows = [generator.standard_normal(50).tolist(), (1 + generator.standard_normal(80)).tolist()]
    value, low, high = effects_summary.averaged(rows)
    error = np.sqrt(sum(np.var(texts) / len(texts) for texts in rows)) / 2  # of the mean of two means
    assert value == pytest.approx(np.mean([np.mean(texts) for texts in rows]), abs=1e-4)
    assert (high - low) / 2 == pytest.approx(1.96 * error, rel=0.1)
    assert effects_summary.ratio([[(1, 2), (2, 2)], [(3, 4)]])[0] == pytest.approx(6 / 8)
    assert effects_summary.averaged([[]]) is None
