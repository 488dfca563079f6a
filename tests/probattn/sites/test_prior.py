"""The prior of the weights against loops over keys."""

import math

import pytest
import torch

from probattn import BayesianAttention
from probattn.distributions import Gamma, LogNormal
from probattn.sites import AttentionMask
from probattn.sites.layout import PAIRS
from probattn.sites.prior import ContextualPrior, site_prior


def contextual():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return ContextualPrior(BayesianAttention(prior_hidden=6), 4).double()


def keys(groups=2):
    return torch.randn(2, groups, 5, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def by_loop(prior, key, valid):
    """log alpha ``[B, H, T, S]`` of four heads, 0 at forbidden pairs."""
    found = torch.zeros(2, 4, valid.shape[2], 5, dtype=torch.float64)
    for b in range(2):
        for h in range(4):
            states = key[b, h // (4 // key.shape[1])]
            values = [prior.output(torch.relu(prior.hidden(state))).item() for state in states]
            for t in range(valid.shape[2]):
                seen = [s for s in range(5) if valid[b, 0, t, s]]
                total = math.log(sum(math.exp(values[s]) for s in seen)) if seen else 0.0
                for s in seen:
                    found[b, h, t, s] = values[s] - total
    return found


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_it_is_a_softmax_over_all_keys_without_a_mask(groups):
    prior, key = contextual(), keys(groups)
    expected = by_loop(prior, key, torch.ones(2, 1, 1, 5, dtype=torch.bool))
    torch.testing.assert_close(prior(key, 4), expected)


def test_under_a_mask_it_is_one_over_the_keys_that_a_query_sees_and_0_elsewhere():
    prior, key = contextual(), keys()
    padding = torch.tensor([[True, True, True, False, False], [True] * 5])[:, None, None, :]
    causal = torch.ones(5, 5, dtype=torch.bool).tril().expand(2, 1, 5, 5)
    both = causal & padding
    both[0, 0, 1] = False  # a query that sees nothing
    for valid in (padding, padding.expand(-1, 1, 5, -1), causal, both):
        expected = by_loop(prior, key, valid)
        found = prior(key, 4, AttentionMask(valid))
        alike = AttentionMask(valid).rows_alike
        assert found.shape == (2, 4, 1 if alike else 5, 5)
        torch.testing.assert_close(found, expected[:, :, :1] if alike else expected)


@pytest.mark.parametrize("posterior", ["weibull", "lognormal"])
def test_options_reach_the_distribution(posterior):
    shape = torch.Size([2, 4, 3, 5])
    method = BayesianAttention(
        posterior=posterior, rate=0.5, prior_scale=0.7, prior="constant", prior_concentration=3
    )
    found = site_prior(method, None, keys(), shape, torch.float64, PAIRS)
    assert found.batch_shape == shape
    if posterior == "weibull":
        assert isinstance(found, Gamma)
        assert (found.concentration - 3).abs().max() < 1e-12 and (found.rate == 0.5).all()
    else:
        assert isinstance(found, LogNormal)
        assert (found.loc - math.log(3)).abs().max() < 1e-12 and (found.scale == 0.7).all()
