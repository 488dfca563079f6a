"""Parameter groups, optimisers and schedulers."""

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR

from probattn.inference.optimizers import (
    OptimizerOptions,
    SchedulerOptions,
    build_optimizer,
    learning_rates,
    split_parameters,
)
from probattn.sites.bayesian import BayesianAttention
from probattn.sites.site import AttentionSite, SiteSpec


class Network(nn.Module):
    """A matrix, a bias, a norm, and a site with a contextual prior and an upward path."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.LayerNorm(4)
        self.site = AttentionSite(BayesianAttention(rho=1.5, upward="heads"), SiteSpec(2, 2))
        self.tied = nn.Linear(4, 4, bias=False)
        self.tied.weight = self.linear.weight


def names_of(model: nn.Module, parameters: list[nn.Parameter]) -> set[str]:
    ids = {id(parameter) for parameter in parameters}
    return {name for name, parameter in model.named_parameters() if id(parameter) in ids}


def test_every_trainable_parameter_is_in_one_group() -> None:
    model = Network()
    groups = split_parameters(model)
    assert names_of(model, groups["pretrained"]) == {"linear.weight"}
    assert names_of(model, groups["pretrained.no_decay"]) == {"linear.bias", "norm.weight", "norm.bias"}
    sites = names_of(model, groups["sites"]) | names_of(model, groups["sites.no_decay"])
    assert sites == {name for name, _ in model.named_parameters() if name.startswith("site.")}
    assert all(parameter.ndim > 1 for parameter in groups["sites"])
    every = [id(parameter) for parameters in groups.values() for parameter in parameters]
    assert sorted(every) == sorted(id(parameter) for parameter in model.parameters())


def test_frozen_parameters_are_left_out() -> None:
    model = Network()
    model.linear.requires_grad_(False)
    model.norm.requires_grad_(False)
    assert [name for name in split_parameters(model) if name.startswith("pretrained")] == []
    model.requires_grad_(False)
    with pytest.raises(ValueError, match="no trainable parameter"):
        split_parameters(model)


def test_groups_carry_their_rates_and_decay() -> None:
    options = OptimizerOptions(learning_rate=1e-4, site_learning_rate=1e-2, weight_decay=0.1)
    assert {group["name"]: (group["lr"], group["weight_decay"]) for group in options.groups(Network())} == {
        "pretrained": (1e-4, 0.1),
        "pretrained.no_decay": (1e-4, 0.0),
        "sites": (1e-2, 0.1),
        "sites.no_decay": (1e-2, 0.0),
    }
    options = OptimizerOptions(learning_rate=1e-4, site_learning_rate=None, decay_biases_and_norms=True)
    assert {group["name"]: (group["lr"], group["weight_decay"]) for group in options.groups(Network())} == {
        "pretrained": (1e-4, 0.01),
        "sites": (1e-4, 0.01),
    }


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "NAdam"])
def test_any_torch_optimiser_takes_the_groups(name: str) -> None:
    model = Network()
    optimizer = build_optimizer(OptimizerOptions(name, learning_rate=0.1), model)
    assert type(optimizer).__name__ == name
    assert learning_rates(optimizer)["pretrained"] == 0.1
    assert learning_rates(optimizer)["sites"] == 1e-3


def test_arguments_reach_the_optimiser() -> None:
    options = OptimizerOptions("SGD", arguments={"momentum": 0.9})
    assert build_optimizer(options, Network()).defaults["momentum"] == 0.9


def test_adam_takes_the_fused_update_unless_the_arguments_or_the_parameters_forbid_it() -> None:
    def fused(options: OptimizerOptions, model: nn.Module) -> object:
        return build_optimizer(options, model).defaults.get("fused")

    assert fused(OptimizerOptions(), Network()) is True and fused(OptimizerOptions("Adam"), Network()) is True
    assert fused(OptimizerOptions(arguments={"fused": False}), Network()) is False
    assert not fused(OptimizerOptions(arguments={"foreach": True}), Network())
    assert not fused(OptimizerOptions("NAdam"), Network()) and not fused(OptimizerOptions("SGD"), Network())
    assert not fused(OptimizerOptions(), Network().to("meta"))
    assert not build_optimizer(OptimizerOptions(), Network(), scaled=True).defaults.get("fused")


def test_the_fused_update_is_that_of_adam() -> None:
    models = [Network() for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    for model, fused in zip(models, (True, False), strict=True):
        optimizer = build_optimizer(OptimizerOptions(learning_rate=0.1, arguments={"fused": fused}), model)
        for step in range(3):
            for place, parameter in enumerate(model.parameters()):
                parameter.grad = torch.full_like(parameter, 0.3 + 0.1 * place - 0.2 * step)
            optimizer.step()
    for one, other in zip(*(model.parameters() for model in models), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-7)


def test_a_function_may_make_the_optimiser() -> None:
    made = build_optimizer(lambda groups: torch.optim.SGD(groups[0]["params"], lr=0.5), Network())
    assert learning_rates(made) == {"0": 0.5}
    with pytest.raises(TypeError, match="torch optimiser, got list"):
        build_optimizer(lambda groups: groups, Network())


def rates(scheduler_options: SchedulerOptions, total: int) -> list[float]:
    optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=1.0)
    scheduler = scheduler_options.build(optimizer, total)
    found = []
    for _ in range(total):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return found


def test_linear_schedule_warms_up_and_falls_to_zero() -> None:
    expected = [0.0, 0.5, 1.0, 0.75, 0.5, 0.25]
    assert rates(SchedulerOptions("linear", warmup_steps=2), 6) == pytest.approx(expected)
    assert rates(SchedulerOptions("linear", warmup_fraction=1 / 3), 6) == pytest.approx(expected)


def test_other_schedules_of_transformers_by_name() -> None:
    assert rates(SchedulerOptions("constant"), 3) == [1.0, 1.0, 1.0]
    lowest = SchedulerOptions("cosine_with_min_lr", warmup_steps=0, arguments={"min_lr": 0.5})
    assert rates(lowest, 10)[-1] == pytest.approx(0.5, abs=0.02)
    with pytest.raises(ValueError, match="nonsense is not a valid SchedulerType"):
        rates(SchedulerOptions("nonsense"), 3)
    optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=1.0)
    torchs = CosineAnnealingLR(optimizer, 4)
    for rate in rates(SchedulerOptions("cosine", warmup_steps=0), 4):
        assert rate == pytest.approx(optimizer.param_groups[0]["lr"])
        optimizer.step()
        torchs.step()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: OptimizerOptions("AdamX"), "no optimiser 'AdamX'"),
        (lambda: OptimizerOptions("lr_scheduler"), "no optimiser 'lr_scheduler'"),
        (lambda: OptimizerOptions(learning_rate=0.0), "learning_rate.*> 0"),
        (lambda: OptimizerOptions(learning_rate=float("nan")), "learning_rate"),
        (lambda: OptimizerOptions(site_learning_rate=-1.0), "site_learning_rate"),
        (lambda: OptimizerOptions(weight_decay=-0.1), "weight_decay"),
        (lambda: SchedulerOptions(warmup_steps=-1), "warmup_steps"),
        (lambda: SchedulerOptions(warmup_fraction=1.1), "warmup_fraction"),
    ],
)
def test_options_out_of_range_are_refused(make, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()
