"""Samples that keep their logarithm where float32 cannot hold them."""

import pyro
import torch

from probattn.distributions import Gamma, LogNormal, Weibull
from probattn.distributions.log_space_distribution import (
    carried_log,
    carried_weights,
    carries_log,
    carry_weights,
    exp_carrying_log,
)


def test_the_logarithm_is_kept_exactly_and_lost_by_arithmetic():
    log_value = torch.tensor([-1e4, 0.3, 1e4], requires_grad=True)
    value = exp_carrying_log(log_value)
    assert carried_log(value) is log_value
    assert value.isfinite().all() and (value > 0).all()
    assert not carries_log(value * 1)
    torch.testing.assert_close(carried_log((value * 1)[1:2]), log_value[1:2])


def test_a_tiny_gamma_keeps_its_order_through_pyro_sample():
    prior = Gamma(log_concentration=torch.full((1000,), -6.0))
    for draw in (
        prior.rsample(),
        pyro.sample("s", prior.mask(torch.ones(1000, dtype=torch.bool)).to_event(1)),
    ):
        assert carries_log(draw)
        # Most draws underflow float32 (log S is about -400 on average), their logarithms do not.
        assert (draw == draw.min()).float().mean() > 0.3
        assert carried_log(draw).unique().numel() > 990  # float32 has few equal ones among so many


def test_weights_are_those_of_the_mask_that_they_were_made_under():
    mask, other, weights = object(), object(), torch.tensor([0.25, 0.75])
    value = carry_weights(torch.tensor([1.0, 3.0]), weights, mask)
    assert carried_weights(value, mask) is weights
    assert carried_weights(value, other) is None and carried_weights(value, None) is None
    assert carried_weights(value * 1, mask) is None


def test_every_distribution_carries_it():
    for distribution in (Weibull(1.0, 2.0), Gamma(1.0, 2.0), LogNormal(0.0, 1.0)):
        draw = distribution.rsample((5,))
        torch.testing.assert_close(carried_log(draw), draw.log())
        assert carries_log(draw)
