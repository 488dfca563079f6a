"""The loop's use of accelerate: gradients against plain torch, means over rows, and no trace left behind."""

import math
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import nn

from probattn.inference.elbo import AttentionELBO, ELBOTerms
from probattn.inference.guide import AttentionGuide
from probattn.inference.loop import (
    Meter,
    NonFiniteThrough,
    StepTerms,
    accumulate_gradients,
    describe_failure,
    evaluate,
    mean_diagnostics,
    unhealthy_gradients,
    unhealthy_sites,
)
from probattn.inference.session import accelerator_session


def module_of(tiny: ModuleType, **options: Any) -> nn.Module:
    model = tiny.tiny_model(**options).double()
    return AttentionELBO()(model, AttentionGuide(model))


def rows_of(data: dict[str, torch.Tensor], rows: slice) -> dict[str, torch.Tensor]:
    return {name: column[rows].double() for name, column in data.items()}


@pytest.mark.parametrize("sizes", [(8,), (4, 4), (2, 2, 2, 2), (5, 3), (7, 1)])
def test_accumulated_gradients_are_those_of_the_whole_batch(tiny: ModuleType, sizes: tuple[int, ...]) -> None:
    data = tiny.tiny_data(8)
    x, y = data["x"].double(), data["y"].double()
    model = tiny.tiny_model(attend=False).double()
    mean = model.out(model.query(x).tanh()).squeeze(-1).mean(-1)
    loss = -torch.distributions.Normal(mean, 1.0).log_prob(y).mean()
    loss.backward()
    module = module_of(tiny, attend=False)
    starts = [sum(sizes[:index]) for index in range(len(sizes))]
    batches = [rows_of(data, slice(first, first + size)) for first, size in zip(starts, sizes, strict=True)]
    with accelerator_session(precision="no", cpu=True) as accelerator:
        prepared = accelerator.prepare(module)
        terms = accumulate_gradients(accelerator, prepared, [size / 8 for size in sizes], iter(batches))
    assert StepTerms(*terms.tolist()).loss == pytest.approx(loss.item(), rel=1e-12)
    for expected, found in zip(model.parameters(), module.parameters(), strict=True):
        torch.testing.assert_close(found.grad, expected.grad, rtol=1e-10, atol=1e-12)


def test_accelerates_environment_does_not_rescale_gradients(
    tiny: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gradient() -> torch.Tensor:
        module = module_of(tiny, attend=False)
        with accelerator_session(precision="no", cpu=True) as accelerator:
            batch = rows_of(tiny.tiny_data(8), slice(None))
            accumulate_gradients(accelerator, accelerator.prepare(module), [1.0], iter([batch]))
        return next(module.parameters()).grad

    expected = gradient()
    monkeypatch.setenv("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "4")
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    assert torch.equal(gradient(), expected)


class Picky(nn.Module):
    """A program with an observed value that must not be negative."""

    def forward(self, batch: dict[str, torch.Tensor]) -> ELBOTerms:
        loss = -dist.Exponential(batch["rate"]).log_prob(batch["y"]).mean()
        return ELBOTerms(loss, -loss, 0 * loss, 0 * loss, 0 * loss)


def test_a_nan_passes_validation_and_other_errors_do_not() -> None:
    module = NonFiniteThrough(Picky())
    fine = {"rate": torch.ones(2), "y": torch.ones(2)}
    with pyro.validation_enabled(True):
        assert module(fine).loss.isfinite()
        assert module.complaint is None
        assert module(fine | {"rate": torch.tensor([1.0, math.nan])}).loss.isnan()
        assert module.complaint is not None
        assert module.complaint.startswith("Expected parameter rate")
        assert dist.is_validation_enabled()
        with pytest.raises(ValueError, match="within the support"):
            module(fine | {"y": -torch.ones(2)})
        with pytest.raises(ValueError, match="not broadcastable"):
            module(fine | {"y": torch.ones(3)})


def test_an_evaluation_counts_rows_not_batches(tiny: ModuleType) -> None:
    data = tiny.tiny_data(5)
    module = module_of(tiny, attend=False)
    whole = module(rows_of(data, slice(None)))
    seen = []

    def metrics(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        seen.append((len(batch["y"]), torch.is_grad_enabled(), module.training))
        return {"mean_y": batch["y"], "is_large": len(batch["y"]) > 1}

    parts = [(rows_of(data, slice(0, 4)), 4), (rows_of(data, slice(4, 5)), 1)]
    with accelerator_session(precision="no", cpu=True) as accelerator:
        means = evaluate(accelerator, accelerator.prepare(module), parts, metrics)
    assert list(means) == ["loss", "log_likelihood", "kl", "kl_nats", "factors", "mean_y", "is_large"]
    assert means["loss"] == pytest.approx(whole.loss.item())
    assert means["mean_y"] == pytest.approx(data["y"].mean().item())
    assert means["is_large"] == pytest.approx(0.8)
    assert seen == [(4, False, False), (1, False, False)]
    assert module.training


def test_a_metric_may_not_take_a_terms_name(tiny: ModuleType) -> None:
    parts = [(rows_of(tiny.tiny_data(2), slice(None)), 2)]
    with accelerator_session(precision="no", cpu=True) as accelerator:
        module = accelerator.prepare(module_of(tiny))
        with pytest.raises(ValueError, match=r"\['loss'\] are names of the objective"):
            evaluate(accelerator, module, parts, lambda _: {"loss": torch.ones(2)})


TERMS = StepTerms(1.0, -0.5, 0.5, 7.0, 0.0)


def test_means_start_anew_after_each_record() -> None:
    meter = Meter()
    for factor in (1.0, 3.0):
        meter.add(StepTerms(*(factor * term for term in TERMS)))
    assert meter.take() == StepTerms(*(2 * term for term in TERMS))
    meter.add(TERMS)
    assert meter.take() == TERMS


def test_means_survive_a_checkpoint() -> None:
    meter = Meter()
    meter.add(TERMS)
    other = Meter(**asdict(meter))
    meter.add(TERMS)  # the copy is its own
    other.add(StepTerms(*(3 * term for term in TERMS)))
    assert other.take() == StepTerms(*(2 * term for term in TERMS))


def test_diagnostics_are_averaged_over_the_ranks_that_ran_a_site() -> None:
    ranks = [{"a": {"kl": 1.0, "cv": 2.0}}, {"a": {"kl": 3.0, "cv": 4.0}, "b": {"kl": 5.0, "cv": 6.0}}]
    assert mean_diagnostics(ranks) == {"a": {"kl": 2.0, "cv": 3.0}, "b": {"kl": 5.0, "cv": 6.0}}


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
