"""The estimator in scikit-learn's own tools, and the checks of scikit-learn that concern it."""

import pickle

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils import estimator_checks
from sklearn.utils.estimator_checks import check_estimator
from transformers import BertConfig

from probattn.adapters import ProbabilisticTextClassifier

SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
WORDS = {"good": ["good", "fine", "great"], "bad": ["bad", "poor", "awful"]}


def estimator(**options):
    given = {"steps": 25, "learning_rate": 1e-2, "num_samples": 4, "device": "cpu"} | options
    return ProbabilisticTextClassifier(BertConfig(**SIZES), **given)


@pytest.fixture(scope="module")
def reviews():
    rng = np.random.default_rng(0)
    y = np.array(["good", "bad"] * 24)
    return [f"a {rng.choice(WORDS[label])} film number {n % 5}" for n, label in enumerate(y)], y


@pytest.fixture(scope="module")
def fitted(reviews):
    return estimator().fit(*reviews)


def test_it_learns_and_its_probabilities_are_means_over_draws(fitted, reviews):
    texts, y = reviews
    assert fitted.classes_.tolist() == ["bad", "good"]
    assert fitted.score(texts, y) > 0.9
    draws = fitted.posterior(texts)
    probabilities = fitted.predict_proba(texts)
    assert draws.logits.shape == (4, 48, 2)
    assert np.allclose(probabilities, draws.logits.softmax(-1).mean(0).numpy(), atol=1e-12)
    assert np.allclose(probabilities.sum(axis=1), 1, atol=1e-12)
    assert (fitted.predict(texts) == fitted.classes_[probabilities.argmax(axis=1)]).all()
    told = fitted.predict_uncertainty(texts)
    entropy = -(probabilities * np.log(probabilities)).sum(axis=1)
    assert np.allclose(told["entropy"], entropy, atol=1e-5)
    assert (told["mutual_information"] <= told["entropy"]).all()


@pytest.mark.slow
def test_moments_are_the_limit_of_many_draws(reviews):
    """Of mutual information, the leading order; its error by draws is small at 500."""
    texts = reviews[0][:12]
    fitted = estimator(uncertainty="moments", num_samples=500).fit(*reviews)
    probabilities, told = fitted.predict_proba(texts), fitted.predict_uncertainty(texts)
    assert fitted.moments(texts).source == "expansion"
    assert np.allclose(probabilities.sum(axis=1), 1, atol=1e-12)
    drawn = fitted.set_params(uncertainty="draws").predict_uncertainty(texts)
    assert np.allclose(fitted.predict_proba(texts), probabilities, atol=0.01)
    assert np.allclose(told["entropy"], drawn["entropy"], rtol=0.1)
    assert np.allclose(told["mutual_information"], drawn["mutual_information"], rtol=0.35)
    with pytest.raises(ValueError, match="uncertainty"):
        fitted.set_params(uncertainty="mean").predict_proba(texts)


def test_the_seed_decides_and_generators_stay(fitted, reviews):
    before = torch.get_rng_state()
    again = clone(fitted).fit(*reviews).predict_proba(reviews[0])
    assert torch.equal(before, torch.get_rng_state())
    assert np.array_equal(again, fitted.predict_proba(reviews[0]))
    other = estimator(seed=1).fit(*reviews).predict_proba(reviews[0])
    assert not np.array_equal(again, other)


def test_a_pickle_predicts_the_same(fitted, reviews):
    assert np.array_equal(
        pickle.loads(pickle.dumps(fitted)).predict_proba(reviews[0]), fitted.predict_proba(reviews[0])
    )


@pytest.mark.cuda
def test_a_pickle_of_a_gpu_is_read_on_the_cpu(reviews, monkeypatch):
    fitted = estimator(device="auto").fit(*reviews)
    saved = pickle.dumps(fitted)
    read = pickle.loads(saved)
    assert fitted.network_.device.type == read.network_.device.type == "cuda"
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    there = pickle.loads(saved)
    assert there.network_.device.type == "cpu"
    expected = fitted.moments(reviews[0]).mean.cpu()
    torch.testing.assert_close(there.moments(reviews[0]).mean, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("names", [(0, 1), (-1, 5), (False, True), ("no", "yes"), (1.0, 2.0)], ids=str)
def test_labels_of_any_type(reviews, names):
    y = np.array([names[label == "good"] for label in reviews[1]])
    found = estimator(steps=1).fit(np.array(reviews[0], dtype=object), y).predict(reviews[0])
    assert found.dtype == y.dtype and set(found) <= set(names)


@pytest.mark.parametrize(("weight", "share"), [(None, 0.2), ("balanced", 0.5), ({"no": 2, "yes": 1}, 1 / 9)])
def test_weights_of_classes(weight, share):
    """Of texts that say nothing the probability is the weighted share of the class."""
    y = np.array(["yes"] + ["no"] * 4)
    model = estimator(method=(), num_samples=1, batch_size=5, steps=60, class_weight=weight).fit(
        ["a film"] * 5, y
    )
    assert model.predict_proba(["a film"])[0, 1] == pytest.approx(share, abs=0.01)


@pytest.mark.slow
def test_it_works_in_the_tools_of_scikit_learn(reviews):
    texts, y = reviews
    model = estimator()
    assert cross_val_score(model, texts, y, cv=2, error_score="raise").mean() > 0.7
    pipeline = make_pipeline(FunctionTransformer(lambda rows: [row.upper() for row in rows]), model)
    search = GridSearchCV(
        pipeline, {"probabilistictextclassifier__learning_rate": [1e-6, 1e-2]}, cv=2, error_score="raise"
    ).fit(texts, y)
    assert search.best_params_ == {"probabilistictextclassifier__learning_rate": 1e-2}
    calibrated = CalibratedClassifierCV(model, cv=2).fit(texts, y)
    assert np.allclose(calibrated.predict_proba(texts).sum(axis=1), 1)


@pytest.mark.filterwarnings("ignore:Can't test estimator")
def test_check_estimator_passes():
    results = check_estimator(estimator(), on_skip=None)
    assert results and all(each["status"] == "passed" for each in results)


@pytest.mark.parametrize(
    "check",
    [
        "check_estimator_cloneable",
        "check_estimator_repr",
        "check_estimator_tags_renamed",
        "check_get_params_invariance",
        "check_mixin_order",
        "check_no_attributes_set_in_init",
        "check_parameters_default_constructible",
        "check_set_params",
        "check_valid_tag_types",
    ],
)
def test_checks_that_need_no_table(check):
    """check_estimator leaves them out where the input is text. All others fit tables of numbers."""
    getattr(estimator_checks, check)("ProbabilisticTextClassifier", estimator())


@pytest.mark.parametrize(
    ("texts", "y", "error", "message"),
    [
        ("one text", [0], ValueError, r"got one text; give \[text\]"),
        ([], [], ValueError, "at least one"),
        (np.array([["a"], ["b"]]), [0, 1], ValueError, "of a table give one column"),
        (["a", None], [0, 1], TypeError, "got NoneType; write a missing text"),
        (["a", "b"], [0, 0], ValueError, "two classes or more, got 1"),
        (["a", "b"], [0, 1, 1], ValueError, "each of 2 texts, got 3"),
    ],
)
def test_wrong_texts_and_labels(texts, y, error, message):
    with pytest.raises(error, match=message):
        estimator().fit(texts, y)


def test_a_lone_surrogate_is_named_with_its_place():
    model = estimator(steps=1).fit(["so good", "so bad"], [0, 1])
    for use in (model.predict, model.predict_uncertainty, lambda texts: estimator().fit(texts, [0, 1])):
        with pytest.raises(ValueError, match=r"X\[1\]: .* half of a surrogate pair, U\+D800, at character 6"):
            use(["good", "some \ud800"])


@pytest.mark.parametrize("uncertainty", ["draws", "moments"])
def test_texts_without_a_word_are_predicted_whatever_stands_beside_them(uncertainty):
    model = estimator(steps=2, uncertainty=uncertainty).fit(["so good", "so bad"], [0, 1])
    alone, mixed = model.predict_proba([""]), model.predict_proba(["", "so good"])
    np.testing.assert_allclose(alone[0], mixed[0], atol=1e-6)
    assert model.predict_proba(["a"] * 16 + ["", ""]).shape == (18, 2)


def test_before_fit():
    with pytest.raises(NotFittedError):
        estimator().predict(["a"])


def test_messages_against_the_most_frequent_class(public_data):
    file = public_data("sms_spam") / "sms_spam" / "SMSSpamCollection"
    lines = file.read_text(encoding="utf-8")
    y, texts = zip(*(line.split("\t", 1) for line in lines.splitlines()[:600]), strict=True)
    config = BertConfig(**SIZES)
    model = ProbabilisticTextClassifier(
        config, steps=100, learning_rate=5e-3, num_samples=4, max_length=40, device="cpu"
    )
    with pytest.warns(UserWarning, match="longer than 40 tokens"):
        model.fit(texts[:400], y[:400])
    accuracy = model.score(texts[400:], y[400:])
    assert accuracy > np.mean(np.array(y[400:]) == "ham")
