"""What predicts with your own model: how it is called, what it returns, and the errors that say so."""

from dataclasses import dataclass
from typing import NamedTuple

import pyro
import pytest
import torch
from pyro.nn import PyroModule
from torch import nn
from transformers import BertConfig, BertForSequenceClassification, BertModel

import probattn
from probattn.inference import (
    attention_effects,
    explain,
    posterior_expectation,
    posterior_moments,
    posterior_predict,
)
from probattn.models import convert, revert
from probattn.sites.observation import ObservationNoise, ObservationScale

B, T, E = 3, 4, 8
METHOD = probattn.BayesianAttention.bam(5.0)
PREDICT = {
    "posterior_predict": lambda model, batch: posterior_predict(model, batch, 4),
    "posterior_moments": posterior_moments,
}


class Logits(NamedTuple):
    logits: torch.Tensor


@dataclass
class Scores:
    scores: torch.Tensor


class Own(PyroModule):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(9, E)
        self.attend = probattn.MultiheadAttention(E, 2, batch_first=True)
        self.head = nn.Linear(E, 2)

    def read(self, tokens):
        x = self.embed(tokens)
        with pyro.plate("data", len(x)):
            return self.head(self.attend(x, x, x)[0].mean(1))


def batch():
    return {"tokens": torch.randint(9, (B, T)), "mask": torch.zeros(B, T, dtype=torch.bool)}


def model_of(forward):
    return type("Model", (Own,), {"forward": forward})()


def first(value, *_others):
    return value


def named_apart(self, *, tokens, mask):
    return first(self.read(tokens), mask)


FORMS = {
    "batch": lambda self, batch: self.read(batch["tokens"]),
    "names": lambda self, tokens, mask=None, labels=None: first(self.read(tokens), mask, labels),
    "any names": lambda self, **inputs: self.read(inputs["tokens"]),
    "keywords alone": named_apart,
    "logits by key": lambda self, batch: {"loss": None, "logits": self.read(batch["tokens"])},
    "logits by attribute": lambda self, tokens, mask: first(Logits(self.read(tokens)), mask),
}


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_forward_give_the_same_predictions(form):
    """Whatever the form of the call and of what is returned, the numbers are those of forward(batch)."""
    torch.manual_seed(0)
    plain = model_of(FORMS["batch"])
    other = model_of(FORMS[form])
    other.load_state_dict(plain.state_dict())
    data = batch() | {"labels": torch.zeros(B)}
    for call in PREDICT.values():
        torch.testing.assert_close(call(other, data).mean, call(plain, data).mean, rtol=0, atol=0)
    for call in (posterior_expectation, lambda *args: attention_effects(*args).knockout):
        torch.testing.assert_close(call(other, data), call(plain, data), rtol=0, atol=0, equal_nan=True)


def test_inputs_without_rows_are_the_same_for_all_rows():
    """Predictions with a temperature are those without, divided by it: in closed form, and the draws as well."""
    torch.manual_seed(0)
    plain = model_of(FORMS["batch"])
    warm = model_of(
        lambda self, tokens, mask, t, size, extra: first(self.read(tokens) / t / size, mask, extra)
    )
    warm.load_state_dict(plain.state_dict())
    data = batch()
    inputs = data | {"t": 4.0, "size": torch.tensor(0.5), "extra": None}
    drawn = [posterior_predict(model, rows, 4).logits for model, rows in ((plain, data), (warm, inputs))]
    torch.testing.assert_close(drawn[1], drawn[0] / 2)
    moments = [posterior_moments(model, rows) for model, rows in ((plain, data), (warm, inputs))]
    torch.testing.assert_close(moments[1].covariance, moments[0].covariance / 4)
    assert attention_effects(warm, inputs).effect.shape == (B, T)


def test_one_number_a_row_is_a_column_of_numbers():
    model = model_of(lambda self, tokens, mask: first(self.read(tokens)[:, 0], mask))
    with pytest.raises(ValueError, match=r"got \[12\]; of one number a row set .* link to 'identity'"):
        posterior_predict(model, batch(), 4)
    model.link = "identity"
    for call in PREDICT.values():
        assert call(model, batch()).mean.shape == (B, 1)


CALLS = {**PREDICT, "posterior_expectation": posterior_expectation, "attention_effects": attention_effects}
REFUSED = {
    "two tensors": (
        lambda self, batch: (self.read(batch["tokens"]),) * 2,
        r"got tuple of \[\d+, 2\], \[\d+, 2\]",
    ),
    "another key": (
        lambda self, batch: {"scores": self.read(batch["tokens"])},
        r"got dict of scores \[\d+, 2\]",
    ),
    "a data class": (
        lambda self, batch: Scores(self.read(batch["tokens"])),
        r"got Scores of scores \[\d+, 2\]",
    ),
    "nothing": (lambda *_: None, "got NoneType; return the tensor alone"),
    "classes": (
        lambda self, batch: self.read(batch["tokens"]).argmax(-1, True),
        "int64; return logits, not classes",
    ),
    "NaN": (
        lambda self, batch: self.read(batch["tokens"]) * torch.nan,
        r"NaN or infinity in (\d+) of \1 rows",
    ),
    "minus infinity": (
        lambda self, batch: self.read(batch["tokens"]) - torch.inf,
        r"NaN or infinity in (\d+) of \1 rows",
    ),
    "infinity": (
        lambda self, batch: self.read(batch["tokens"]) + torch.inf,
        r"NaN or infinity in (\d+) of \1 rows",
    ),
    "too many names": (lambda self, tokens: self.read(tokens), None),
    "another name": (
        lambda self, tokens, padding: first(self.read(tokens), padding),
        r"forward\(tokens, padding\), got tokens, mask",
    ),
    "an optional one": (
        lambda self, tokens, size=1: first(self.read(tokens), size),
        "unexpected keyword argument 'mask'",
    ),
    "other names": (
        lambda self, words, padding: first(self.read(words), padding),
        r"missing a required argument: 'words'; or write",
    ),
}


@pytest.mark.parametrize("owner", CALLS)
@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_no_prediction_or_no_call_is_refused_by_name(owner, kind):
    forward, message = REFUSED[kind]
    with pytest.raises(
        (TypeError, ValueError), match=message and f"^{owner}: expected .*{message}"
    ) as refused:
        CALLS[owner](model_of(forward), batch())
    if message is None:  # an error of the model itself, with a note that says how it was called
        assert (
            f"{owner}: in forward(batch) of Model, where batch is dict of tokens ["
            in refused.value.__notes__[0]
        )


def test_one_class_is_not_certain():
    model = model_of(lambda self, batch: self.read(batch["tokens"])[:, :1])
    for call in (*PREDICT.values(), attention_effects):
        with pytest.raises(ValueError, match=r"expected .*two classes or more"):
            call(model, batch())


def test_a_site_that_is_left_out_is_not_certain():
    """A prediction that comes from no site has no spread; it is refused, not reported as certain."""

    def reading(use):
        def forward(self, tokens, mask):
            x = self.embed(tokens)
            return self.head((x + use(self, x)).mean(1))

        return model_of(forward)

    def attended(self, x):
        return self.attend(x, x, x)[0]

    ignored = reading(lambda self, x: 0 * x if attended(self, x) is None else x)
    detached = reading(lambda self, x: attended(self, x).detach())
    for call in (posterior_moments, attention_effects):
        for model in (ignored, detached):
            with pytest.raises(
                ValueError, match="no derivative by the attention weights of attend: the model leaves"
            ):
                call(model, batch())
    with pytest.raises(
        ValueError, match=r"weights of attend: the model leaves their .*; its 4 draws are equal"
    ):
        posterior_predict(ignored, batch(), 4)
    drawn = posterior_moments(detached, batch(), method="draws", num_samples=20)
    assert (drawn.std > 0).all()
    for call in (
        lambda *args: posterior_predict(*args, attention="all"),
        posterior_moments,
        attention_effects,
    ):
        with pytest.raises(
            ValueError, match="called none of the model's attention sites, attend; call them in forward"
        ):
            call(reading(lambda _, x: x), batch())


def test_zero_weights_and_single_keys_are_connected():
    """Equal draws of a connected network are an answer: its head is 0, or each query has one key."""
    model = model_of(FORMS["batch"])
    one = {name: value[:, :1] for name, value in batch().items()}
    assert (posterior_predict(model, one, 4).std < 1e-6).all()
    nn.init.zeros_(model.head.weight)
    assert (posterior_predict(model, batch(), 4).std < 1e-6).all()


def test_a_layer_that_a_pass_leaves_out_is_named():
    model = model_of(FORMS["batch"])
    model.second = probattn.MultiheadAttention(E, 2, batch_first=True)
    for name, call in PREDICT.items():
        with pytest.warns(UserWarning, match=f"{name}: the pass did not call the attention layers second"):
            call(model, batch())


def test_a_function_that_hides_a_network_in_training_mode():
    model = model_of(FORMS["batch"]).train()
    for call in (*PREDICT.values(), attention_effects):
        with pytest.raises(RuntimeError, match="site 'attend': expected a network in evaluation mode"):
            call(model.__call__, batch())
        call(model, batch())
        assert model.training
    assert posterior_predict(model.eval().__call__, batch(), 2).logits.shape == (2, B, 2)


def test_what_is_no_batch():
    model = model_of(FORMS["batch"])
    with pytest.raises(TypeError, match="posterior_predict: expected a tensor under 'tokens', got array"):
        posterior_predict(model, {"tokens": batch()["tokens"].numpy()})
    with pytest.raises(ValueError, match=r"tensors with a row a datum, got dict of tokens \[\]"):
        posterior_predict(model, {"tokens": torch.tensor(3)})
    with pytest.raises(ValueError, match=r"got 1 rows; .* or predict with chunk_size=1"):
        posterior_predict(
            model_of(lambda self, tokens: self.read(tokens[None])), {"tokens": batch()["tokens"][0]}, 3
        )


def test_a_model_with_another_number_of_rows_than_its_batch():
    model = model_of(lambda self, batch: self.read(batch["tokens"]).mean(0, keepdim=True))
    with pytest.raises(ValueError, match=r"expected predictions \[12, \.\.\., C\], .* got \[1, 2\]"):
        posterior_predict(model, batch(), 4, chunk_size=4)


def test_errors_of_the_model_itself_stay_what_they_are():
    def broken(batch):
        raise KeyError("missing")

    with pytest.raises(KeyError, match="missing"):
        posterior_predict(broken, batch(), 2)


def test_an_unknown_link_is_named():
    model = model_of(lambda self, batch: self.read(batch["tokens"]))
    model.link = "linear"
    for call in PREDICT.values():
        with pytest.raises(
            ValueError, match="attribute link: expected one of 'softmax', 'sigmoid', 'identity'"
        ):
            call(model, batch())


def test_a_regression_of_ones_own_as_the_page_describes_it():
    class Regression(Own):
        link = "identity"

        def __init__(self):
            super().__init__()
            self.scale = ObservationScale(ObservationNoise(), 2)

        @property
        def noise(self):
            return self.scale.learned()

        def forward(self, batch):
            numbers = self.read(batch["tokens"])
            with pyro.plate("rows", len(numbers)):
                law = self.scale(numbers).to_event(1)
                pyro.sample("y", law, obs=batch.get("labels"), infer={"prediction": True})
            return numbers

    model, data = Regression(), batch()
    drawn, moments = (call(model, data) for call in PREDICT.values())
    assert drawn.logits.shape == (4, B, 2) and moments.mean.shape == (B, 2)
    torch.testing.assert_close(drawn.predictive_std.square(), drawn.std.square() + 1)
    assert drawn.interval().shape == (2, B, 2)


class Early(nn.Module):
    """Reads the hidden states of the first layer, so that the second one's attention reaches no prediction."""

    def __init__(self):
        super().__init__()
        sizes = {"hidden_size": E, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": E}
        config = BertConfig(vocab_size=9, initializer_range=0.5, **sizes)
        self.encoder = probattn.convert(BertModel(config), METHOD)
        self.head = nn.Linear(E, 2)

    def forward(self, batch):
        hidden = self.encoder(input_ids=batch["tokens"], output_hidden_states=True).hidden_states
        return self.head(hidden[1].mean(1))


def test_a_site_that_reaches_no_prediction_is_named_and_takes_no_spread():
    """Moments are those of a network whose second layer is deterministic; effects of its weights are none."""
    torch.manual_seed(0)
    model, inputs = Early().eval(), {"tokens": batch()["tokens"]}
    message = r"the output of encoder\.layer\.1\S* reaches no prediction and has no effect"
    with pytest.warns(UserWarning, match=f"posterior_moments: {message}"):
        moments = posterior_moments(model, inputs, method="expansion")
    with pytest.warns(UserWarning, match=f"attention_effects: {message}"):
        effects = attention_effects(model, inputs)
    revert(model.encoder)
    probattn.convert(model.encoder, METHOD, layers=[0])
    alone = posterior_moments(model, inputs, method="expansion")
    assert alone.std.min() > 1e-4
    torch.testing.assert_close(moments.std, alone.std, rtol=1e-4, atol=1e-7)
    with pytest.warns(UserWarning, match=message):  # effects are those of deterministic attention too
        again = attention_effects(model, inputs)
    torch.testing.assert_close(effects.effect, again.effect, rtol=1e-4, atol=1e-7)


@pytest.mark.filterwarnings("ignore:.*reaches no prediction")
def test_draws_of_a_single_key_are_equal():
    """Its weight is 1 whatever is drawn, which is no mistake."""
    drawn = posterior_predict(Early().eval(), {"tokens": batch()["tokens"][:, :1]}, 4)
    torch.testing.assert_close(drawn.logits[0], drawn.logits[3], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("ask", [posterior_predict, posterior_moments, attention_effects])
def test_a_network_of_nan_is_refused_in_words(ask):
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    net = convert(
        BertForSequenceClassification(BertConfig(vocab_size=30, **sizes)), probattn.BayesianAttention()
    )
    net.classifier.weight.data.fill_(torch.nan)
    with pytest.raises(ValueError, match=f"{ask.__name__}: expected finite predictions, got NaN or infinity"):
        ask(net.eval(), {"input_ids": torch.ones(3, 4, dtype=torch.int64)})


@pytest.mark.parametrize("texts", [[("a", "b")], ["a", None], [3]])
def test_texts_to_explain_are_strings(texts):
    with pytest.raises(
        TypeError, match=r"expected strings, of pairs the second texts .* got (tuple|NoneType|int)"
    ):
        explain(None, None, texts)
