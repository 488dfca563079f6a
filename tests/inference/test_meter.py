"""Means between records, and the report of a step that is not finite."""

import math
from pathlib import Path

import torch
from torch import nn

from probattn.inference.loop import StepTerms
from probattn.inference.meter import Meter, describe_failure, unhealthy_gradients, unhealthy_sites

TERMS = StepTerms(1.0, -0.5, 0.5, 7.0, 0.0)


def test_means_start_anew_after_each_record() -> None:
    meter = Meter()
    for factor in (1.0, 3.0):
        meter.add(StepTerms(*(factor * term for term in TERMS)))
    assert meter.take() == StepTerms(*(2 * term for term in TERMS))
    meter.add(TERMS)
    assert meter.take() == TERMS


def test_means_survive_a_checkpoint() -> None:
    meter, other = Meter(), Meter()
    meter.add(TERMS)
    other.load_state_dict(meter.state_dict())
    meter.add(TERMS)  # the copy is its own
    other.add(StepTerms(*(3 * term for term in TERMS)))
    assert other.take() == StepTerms(*(2 * term for term in TERMS))


def test_unhealthy_sites_and_gradients_are_named() -> None:
    figures = {
        "a": {"kl_nats": 1.0, "cv": math.nan},
        "b": {"kl_nats": math.inf, "cv": math.nan},
        "c": {"cv": 1.0},
    }
    assert unhealthy_sites(figures) == ["a (cv nan)", "b (kl_nats inf, cv nan)"]
    network = nn.Sequential(nn.Linear(2, 1), nn.Linear(1, 1))
    network(torch.zeros(1, 2)).sum().backward()
    network[0].weight.grad[0, 1] = math.inf
    network[1].bias.grad = None
    assert unhealthy_gradients(network) == ["0.weight"]


def test_the_message_names_step_site_and_checkpoint() -> None:
    message = describe_failure(
        where="the loss of step 7",
        terms=TERMS._replace(kl=math.inf, loss=math.inf),
        gradient_norm=math.nan,
        sites=["a (kl_nats inf)", "b", "c", "d"],
        gradients=["w"],
        complaints=["Expected parameter logits"],
        checkpoint=Path("runs/checkpoints/step-000006"),
    )
    for words in (
        "the loss of step 7 is not finite",
        "loss inf",
        "log_likelihood -0.5",
        "gradient norm nan",
        "sites: a (kl_nats inf), b, c and 1 more",
        "gradients that are not finite: w",
        "Pyro's validation: Expected parameter logits",
        "last checkpoint: runs/checkpoints/step-000006",
        "max_grad_norm",
    ):
        assert words in message


def test_the_message_says_when_no_site_is_to_blame() -> None:
    message = describe_failure(
        where="x", terms=TERMS, gradient_norm=1.0, sites=[], gradients=[], complaints=[], checkpoint=None
    )
    assert "no attention site is to blame" in message
    assert "there is no checkpoint" in message
