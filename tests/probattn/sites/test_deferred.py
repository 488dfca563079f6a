"""A factor that is computed when its density is asked for."""

import pyro
import pytest
import torch
from pyro import poutine

from probattn.sites.handlers import DeferredFactor, deferred_factor


def test_it_is_pyros_factor():
    value = torch.tensor([1.0, -2.0, 0.5])

    def model(announce):
        with (
            pyro.plate("data", 6, subsample=torch.arange(3)),
            poutine.mask(mask=torch.tensor([True, True, False])),
        ):
            announce()

    traces = [
        poutine.trace(model).get_trace(lambda: pyro.factor("f", value)),
        poutine.trace(model).get_trace(lambda: deferred_factor("f", lambda: value, value.shape)),
    ]
    for trace in traces:
        trace.compute_log_prob()
    own, theirs = (trace.nodes["f"] for trace in traces)
    assert torch.equal(own["log_prob"], theirs["log_prob"]) and own["log_prob_sum"] == -2.0
    assert own["infer"] == theirs["infer"] and own["value"].shape == theirs["value"].shape


def test_it_expands_without_being_computed():
    def never():
        raise AssertionError

    factor = DeferredFactor(never, torch.Size([1]))
    assert factor.expand([1]) is factor
    assert factor.expand([2, 3]).batch_shape == (2, 3)
    with pytest.raises(AssertionError):
        factor.log_prob(factor.sample())
    known = DeferredFactor(lambda: torch.ones(1), torch.Size([1])).expand([2, 3])
    assert torch.equal(known.log_prob(known.sample()), torch.ones(2, 3))


def test_another_shape_is_refused_where_the_density_is_asked_for():
    trace = poutine.trace(
        lambda: deferred_factor("f", lambda: torch.zeros(3, 2), torch.Size([3]))
    ).get_trace()
    with pytest.raises(ValueError, match=r"site 'f': expected a log factor of shape \[3\], .* got \[3, 2\]"):
        trace.compute_log_prob()
