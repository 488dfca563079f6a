"""What predicts with your own model: how it is called, what it returns, and the errors that say so."""

import pyro
import pytest
import torch
from pyro.nn import PyroModule
from torch import nn

import probattn
from probattn.inference import posterior_expectation, posterior_moments, posterior_predict
from probattn.sites.observation import ObservationNoise, ObservationScale

B, T, E = 3, 4, 8
PREDICT = {
    "posterior_predict": lambda model, batch: posterior_predict(model, batch, 4),
    "posterior_moments": posterior_moments,
}


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


PARTS = {
    "one part": lambda self, tokens, labels=None: (self.read(tokens), labels)[0],
    "two parts": lambda self, tokens, mask: self.read(tokens) + mask.sum(),
    "other names": lambda self, words, padding: self.read(words) + padding.sum(),
}


@pytest.mark.parametrize("owner", [*PREDICT, "posterior_expectation"])
@pytest.mark.parametrize("kind", PARTS)
def test_a_model_that_takes_the_parts_of_a_batch_is_told_how_it_is_called(owner, kind):
    call = PREDICT.get(owner, posterior_expectation)
    with pytest.raises(
        TypeError, match=rf"{owner}: .* takes a batch as one dictionary of tensors, forward\(batch\)"
    ):
        call(model_of(PARTS[kind]), batch())
    with pytest.raises(TypeError, match=r"got one that takes \(tokens, mask\); wrap it"):
        call(lambda tokens, mask: tokens + mask, batch())


@pytest.mark.parametrize("owner", PREDICT)
def test_a_model_that_returns_more_or_less_than_its_predictions(owner):
    def returning(make):
        return model_of(lambda self, batch: make(self.read(batch["tokens"])))

    with pytest.raises(
        TypeError, match=rf"{owner}: .*a tensor \[B, \.\.\., C\], got tuple; return the tensor"
    ):
        PREDICT[owner](returning(lambda logits: (logits, logits)), batch())
    with pytest.raises(ValueError, match=r"got \[\d+\]; of one number a row return \[B, 1\].*'identity'"):
        PREDICT[owner](returning(lambda logits: logits[:, 0]), batch())
    assert PREDICT[owner](returning(lambda logits: logits), batch()).mean_probabilities.shape == (B, 2)


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
