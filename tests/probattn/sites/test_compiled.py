"""Compiled sites compute what the others compute, to rounding."""

import shutil
from functools import partial

import pyro
import pytest
import torch
import transformers as hf

import probattn
from probattn.inference import SVIDriver, posterior_predict
from probattn.models import Classifier, convert
from probattn.sites import fused
from probattn.sites.fused import compile_sites, draw_weibull, draw_weights, sites_compile
from probattn.sites.weibull import WeibullConstants

SIZES = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 16, "vocab_size": 40}
needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, ("g++", "clang++"))),
    reason="tests kernels that torch.compile makes with a C++ compiler, and none is on the path",
)
pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning"
)  # of torch's own modules, when it compiles


@pytest.fixture
def on():
    """Compiled sites, off again afterwards."""
    compile_sites()
    assert sites_compile()
    yield
    compile_sites(False)


def both(function):
    """What a function gives without and with compiled sites."""
    compile_sites(False)
    plain = function()
    compile_sites()
    return plain, function()


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("shape", [(3, 2, 5, 7), (1, 2, 1, 1), (2, 3, 40, 33)])
@pytest.mark.parametrize("low", [4.0, 0.7, 0.1])
def test_draws_for_predictions(on, shape, low):
    torch.manual_seed(1)
    scores, uniform = 3 * torch.randn(2 * shape[0], *shape[1:]), torch.rand(2 * shape[0], *shape[1:])
    scores[..., -1] = -1e4 if shape[-1] > 1 else 0.0
    uniform[0, 0, 0, 0] = 0.0
    positive = low + torch.rand(shape)

    def draw():
        options = WeibullConstants(1.0, 0.0, 1.0)
        smallest = positive.flatten(1).amin(dim=1).tolist()
        return draw_weights(scores.clone(), positive, smallest, uniform.clone(), options)

    (value, weights), (ours, our_weights) = both(draw)
    torch.testing.assert_close(ours, value, rtol=3e-5, atol=1e-7)
    torch.testing.assert_close(our_weights, weights, rtol=3e-5, atol=1e-7)


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize(
    ("dtype", "mixes", "kl", "normalise"),
    [
        (torch.float32, True, "contextual", False),
        (torch.float64, False, "scalar", True),
        (torch.float64, True, "none", False),
    ],
)
def test_draws_and_divergences_of_training_and_their_gradients(on, dtype, mixes, kl, normalise):
    torch.manual_seed(2)
    shape = (3, 2, 6, 5)
    log_mean = torch.randn(shape, dtype=dtype).log_softmax(-1).requires_grad_()
    rise = torch.rand(shape, dtype=dtype).requires_grad_() if mixes else None
    sizes = {"none": None, "scalar": (), "contextual": (3, 2, 1, 5)}[kl]
    alpha = None if sizes is None else torch.rand(sizes, dtype=dtype).add(0.5).requires_grad_()
    weight = (torch.rand(3, 1, 1, 5) > 0.3).to(dtype) if kl == "contextual" else None
    uniform = torch.rand(shape, dtype=dtype)
    inputs = [each for each in (log_mean, rise, alpha) if each is not None]
    options = WeibullConstants(1.5, 0.1, 0.7)

    def run():
        draw = draw_weibull(log_mean, rise, uniform.clone(), alpha, weight, options, normalise=normalise)
        total = draw.value.sin().sum() + 1.7 * draw.kl.sum()
        return [*draw[:2], *torch.autograd.grad(total, inputs)]

    for plain, ours in zip(*both(run), strict=True):
        exact = {"rtol": 1e-9, "atol": 1e-9} if dtype == torch.float64 else {"rtol": 1e-4, "atol": 2e-5}
        torch.testing.assert_close(ours, plain, **exact)


def network():
    torch.manual_seed(0)
    config = hf.BertConfig(**SIZES, num_hidden_layers=2, initializer_range=0.3, hidden_dropout_prob=0.0)
    return Classifier(convert(hf.BertForSequenceClassification(config), probattn.BayesianAttention())).eval()


def rows(number, length):
    ids = torch.randint(3, 40, (number, length), generator=torch.Generator().manual_seed(length))
    mask = torch.ones_like(ids)
    mask[0, length - 2 :] = 0
    return {"input_ids": ids, "attention_mask": mask}


@pytest.mark.slow
@needs_compiler
def test_whole_networks_of_changing_sizes_without_compiling_anew(on):
    model = network()
    for number, length in ((2, 9), (3, 12), (5, 7), (1, 12), (4, 4)):
        plain, ours = both(partial(posterior_predict, model, rows(number, length), 4, attention="all"))
        torch.testing.assert_close(ours.logits, plain.logits, rtol=1e-4, atol=1e-5)
        for name, weights in plain.attention.items():
            torch.testing.assert_close(ours.attention[name], weights, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@needs_compiler
def test_training(on):
    data = {**rows(4, 6), "labels": torch.tensor([0, 1, 1, 0])}

    def trained():
        model = network()
        pyro.set_rng_seed(3)
        SVIDriver(model, batch_size=2, progress=False, cpu=True).fit(data, steps=3)
        return model.state_dict()

    plain, ours = both(trained)
    for name, value in plain.items():
        torch.testing.assert_close(ours[name], value, rtol=1e-3, atol=1e-5)


def test_without_a_compiler_it_says_what_to_do(monkeypatch):
    def broken(*_, **__):
        def fail(*_):
            raise RuntimeError(
                "backend='inductor' raised:\nInvalidCxxCompiler: no working C++ compiler\n\nmore"
            )

        return fail

    fused.check_compiler.cache_clear()
    monkeypatch.setattr(fused.torch, "compile", broken)
    message = r"expected a compiler .* got: InvalidCxxCompiler: no working C\+\+ compiler$"
    with pytest.raises(RuntimeError, match=message):
        compile_sites()
    assert not sites_compile()
