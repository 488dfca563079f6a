"""Options and the factor of disagreement regularisation."""

import pyro
import pytest
import torch
from pyro import poutine

from probattn import DisagreementAttention
from probattn.sites import cosine_agreement, frobenius_penalty, position_agreement


@pytest.mark.parametrize(
    ("method", "function"),
    [
        ("frobenius", frobenius_penalty),
        ("positions", position_agreement),
        ("subspaces", cosine_agreement),
        ("outputs", cosine_agreement),
    ],
)
def test_the_factor_is_minus_the_weighted_penalty(method, function):
    heads = torch.rand(3, 2, 4, 5, generator=torch.Generator().manual_seed(0))
    mask = torch.tensor([[True] * 4, [True, False, True, False], [False, True, True, True]])
    factor = DisagreementAttention(method, weight=0.3).build()

    def model(heads):
        with pyro.plate("data", 30, subsample=torch.arange(len(heads))):
            factor("attend", heads, mask)

    trace = poutine.trace(model).get_trace(heads)
    trace.compute_log_prob()
    site = trace.nodes["attend.disagreement"]
    expected = -0.3 * function(heads, mask)
    torch.testing.assert_close(site["unscaled_log_prob"], expected)
    torch.testing.assert_close(site["log_prob_sum"], 10 * expected.sum())  # 30 data, 3 of them here


def test_parameters_pay_once_per_datum_whatever_the_batch():
    factor = DisagreementAttention("parameters", weight=0.5).build()
    particles = [torch.eye(2), torch.ones(2, 3)]

    def model(rows):
        with pyro.plate("data", 12, subsample=torch.arange(rows)):
            factor.announce("attend", rows, lambda: factor.parameter_penalty(particles))

    for rows in (1, 4):
        trace = poutine.trace(model).get_trace(rows)
        trace.compute_log_prob()
        expected = pytest.approx(-12 * 0.5 * (0.5 + 1.0))
        assert trace.nodes["attend.disagreement"]["log_prob_sum"].item() == expected
    with pytest.raises(ValueError, match="'parameters' looks at weights of projections"):
        factor.penalty(torch.rand(1, 2, 3, 4))


def test_without_a_handler_it_is_silent_in_prediction_and_refused_in_training():
    factor = DisagreementAttention().build()
    heads = torch.rand(1, 2, 3, 4)
    with pytest.raises(RuntimeError, match="would leave the disagreement out unnoticed"):
        factor("attend", heads)
    factor.eval()("attend", heads)
    with torch.no_grad():
        factor.train()("attend", heads)


def test_prediction_does_not_pay_for_it():
    asked = []
    factor = DisagreementAttention().build()

    def model():
        with pyro.plate("data", 2):
            factor.announce("attend", 2, lambda: asked.append(1) or torch.zeros(2))

    trace = poutine.trace(model).get_trace()
    assert not asked
    trace.compute_log_prob()
    assert asked == [1]
