"""Weights held at their expectations while the others are drawn."""

import pytest
import torch
import transformers as hf

import probattn
from probattn.inference import posterior_expectation, posterior_moments, posterior_predict, variance_removed
from probattn.inference.deletion import Holding, _leading
from probattn.models import convert

SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
METHODS = {
    "babn": probattn.BayesianAttention(),
    "raw": probattn.BayesianAttention(scores="raw"),
    "bam": probattn.BayesianAttention.bam(3.0),
    "lognormal": probattn.BayesianAttention(posterior="lognormal"),
}


def network(method):
    torch.manual_seed(0)
    config = hf.BertConfig(**SIZES, vocab_size=40, initializer_range=0.2)
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
    sites = posterior_moments(net, batch, attribution=True, method="expansion").share
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


def test_what_is_no_test_is_refused():
    net = network(METHODS["bam"])
    with pytest.raises(ValueError, match=r"variance_removed: expected a fraction in \(0, 1\], got 2"):
        variance_removed(net, rows(), fraction=2.0)
    with pytest.raises(ValueError, match="by"):
        variance_removed(net, rows(), by="size")
    with pytest.raises(ValueError, match=r"expected sigma 0, got 0\.5"):
        variance_removed(network(probattn.BayesianAttention(sigma=0.5)), rows())


def test_forbidden_weights_do_not_count_in_the_fraction():
    scores = torch.tensor([[3.0, 1.0, 4.0, 2.0, *[-torch.inf] * 4]]).view(1, 1, 2, 4)
    (held,) = _leading({"site": scores}, 0.5, 1).values()
    assert held.view(-1).tolist() == [True, False, True, False, False, False, False, False]
