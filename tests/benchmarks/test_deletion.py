"""Weights held at their expectations while the others are drawn."""

import deletion
import numpy as np
import pytest
import torch
import transformers as hf
from deletion import Holding, _leading, variance_removed
from scipy import stats

import probattn
from probattn.inference import (
    posterior_expectation,
    posterior_moments,
    posterior_predict,
)
from probattn.inference.expansion import Expansion
from probattn.models import convert, program_for

SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
METHODS = {
    "babn": probattn.BayesianAttention(),
    "raw": probattn.BayesianAttention(scores="raw"),
    "bam": probattn.BayesianAttention.bam(3.0),
    "lognormal": probattn.BayesianAttention(posterior="lognormal"),
}


def network(method, **options):
    torch.manual_seed(0)
    config = hf.BertConfig(**SIZES, vocab_size=40, initializer_range=0.2, **options)
    return convert(hf.BertForSequenceClassification(config), method).eval()


def rows(number=4, length=12):
    ids = torch.randint(3, 40, (number, length), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[0, length - 4 :] = 0
    return {"input_ids": ids, "attention_mask": mask}


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_all_of_the_variance_goes_with_all_weights_and_most_with_those_of_the_largest_share(method):
    net = network(method)
    options = {"num_samples": 100, "chunk_size": 100}
    everything = variance_removed(net, rows(), fraction=1.0, **options)
    torch.testing.assert_close(everything, torch.ones(4), atol=1e-5, rtol=0)
    share, random = (
        variance_removed(net, rows(), fraction=0.1, by=by, **options) for by in ("share", "random")
    )
    assert share.median() > 0.5
    assert random.median() < 0.4


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_held_weights_have_their_expectations_in_every_draw_of_their_row(method):
    net, batch = network(method), rows()
    sites = posterior_moments(net, batch, attribution=True, method="expansion").noise_share
    held = {name: torch.zeros_like(share, dtype=torch.bool) for name, share in sites.items()}
    for each in held.values():
        each[1] = True

    def program(inputs):
        with Holding(held):
            return net(**inputs).logits

    drawn = posterior_predict(program, batch, 6, chunk_size=3).logits
    expected = posterior_expectation(net, batch)
    torch.testing.assert_close(drawn[:, 1], expected[1].expand(6, -1), atol=1e-5, rtol=1e-4)
    assert (drawn[:, [0, 2, 3]].std(dim=0) > 1e-4).all()


def test_a_batch_of_one_row_and_the_number_of_draws():
    net, batch = network(METHODS["bam"]), {name: value[1:2] for name, value in rows(2, 6).items()}
    by_default = variance_removed(net, batch, fraction=0.1)
    assert 0.3 < by_default.item() <= 1
    torch.testing.assert_close(by_default, variance_removed(net, batch, fraction=0.1, num_samples=100))
    assert abs(by_default - variance_removed(net, batch, fraction=0.1, num_samples=101)) > 1e-6
    several = variance_removed(net, rows(), num_samples=20)
    named = {"fraction": 0.01, "by": "share", "seed": 0, "batch_keys": ["attention_mask", "input_ids"]}
    torch.testing.assert_close(several, variance_removed(net, rows(), num_samples=20, **named))
    for other in ({"fraction": 0.02}, {"by": "spread"}, {"seed": 1}, {"seed": (0, 1)}):
        assert (several - variance_removed(net, rows(), num_samples=20, **(named | other))).abs().max() > 1e-6


@pytest.mark.parametrize("by", ["share", "spread", "random"])
def test_of_three_classes_the_difference_of_the_leading_two_is_meant(by):
    """Also where draws would replace the closed form, which a warning would say."""
    net = network(probattn.BayesianAttention.bam(0.3), num_labels=3)
    everything = variance_removed(net, rows(), fraction=1.0, by=by, num_samples=10)
    torch.testing.assert_close(everything, torch.ones(4), atol=1e-5, rtol=0)
    drawn = posterior_predict(net, rows(), 10).logits
    pair = drawn.gather(-1, posterior_expectation(net, rows()).topk(2).indices.expand(10, 4, 2)).double()
    few = variance_removed(net, rows(), fraction=0.01, by=by, num_samples=10)
    scores = deletion._ranking(program_for(net), rows(), by, 0, _shares(net) if by == "share" else None)
    leading = _leading(scores, 0.01, 4)

    def program(inputs):
        with Holding(leading):
            return net(**inputs).logits

    rest = posterior_predict(program, rows(), 10).logits
    other = rest.gather(-1, posterior_expectation(net, rows()).topk(2).indices.expand(10, 4, 2)).double()
    left = np.var((other[..., 0] - other[..., 1]).numpy(), axis=0, ddof=1)
    whole = np.var((pair[..., 0] - pair[..., 1]).numpy(), axis=0, ddof=1)
    np.testing.assert_allclose(few, 1 - left / whole, rtol=1e-3, atol=1e-4)


def _shares(net):
    return posterior_moments(net, rows(), classes=2, method="expansion", attribution=True).noise_share


def test_rankings_are_by_share_by_the_spread_of_the_distribution_or_random():
    """Forbidden weights come last; equal ones in a random order that the seed repeats."""
    net, shares = network(METHODS["babn"]), _shares(network(METHODS["babn"]))
    with torch.no_grad(), Expansion() as expansion:
        net(**rows())
    rankings = {
        by: deletion._ranking(program_for(net), rows(), by, 0, shares if by == "share" else None)
        for by in ("share", "spread", "random")
    }
    for name, point in expansion.points.items():
        law, allowed = point.inputs.distribution(), point.weights > 0
        spread = (law.variance / law.mean.square()).expand_as(allowed)[allowed]
        torch.testing.assert_close(rankings["spread"][name][allowed], spread.double(), rtol=1e-4, atol=0)
        torch.testing.assert_close(rankings["share"][name][allowed], shares[name][allowed].double())
        assert all(torch.isneginf(rankings[by][name][~allowed]).all() for by in rankings)
        uniform = stats.kstest(rankings["random"][name][allowed].numpy(), "uniform")
        assert uniform.pvalue > 1e-4
    constant = network(METHODS["bam"])
    orders = [
        next(iter(deletion._ranking(program_for(constant), rows(), "spread", seed, None).values()))[
            1
        ].flatten()
        for seed in (0, 0, 1)
    ]
    assert torch.equal(orders[0], orders[1]) and len(orders[0].unique()) == 288
    assert not torch.equal(orders[0].argsort(), orders[2].argsort())


def test_what_is_no_test_is_refused():
    net = network(METHODS["bam"])
    with pytest.raises(ValueError, match=r"variance_removed.fraction: expected a number in \(0, 1\], got 2"):
        variance_removed(net, rows(), fraction=2.0)
    with pytest.raises(ValueError, match=r"fraction: expected a number in \(0, 1\], got 0"):
        variance_removed(net, rows(), fraction=0)
    tokens = hf.BertForTokenClassification(hf.BertConfig(**SIZES, vocab_size=40))
    labels = hf.BertConfig(**SIZES, vocab_size=40, num_labels=3, problem_type="multi_label_classification")
    for other in (tokens, hf.BertForSequenceClassification(labels)):
        with pytest.raises(ValueError, match=r"expected one class a row, got logits \[4, "):
            variance_removed(convert(other, METHODS["bam"]), rows())
    with pytest.raises(ValueError, match="by"):
        variance_removed(net, rows(), by="size")
    with pytest.raises(ValueError, match=r"expected sigma 0, got 0\.5"):
        variance_removed(network(probattn.BayesianAttention(sigma=0.5)), rows())


def test_forbidden_weights_do_not_count_in_the_fraction():
    scores = torch.tensor([[3.0, 1.0, 4.0, 2.0, *[-torch.inf] * 4]]).view(1, 1, 2, 4)
    (held,) = _leading({"site": scores}, 0.5, 1).values()
    assert held.view(-1).tolist() == [True, False, True, False, False, False, False, False]
    (one,) = _leading({"site": scores}, 0.01, 1).values()
    assert one.view(-1).nonzero().tolist() == [[2]]
