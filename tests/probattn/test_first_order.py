"""Functions with analytic gradients: a second derivative is right or raises, through every path to it."""

from collections.abc import Callable
from functools import partial

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import Tensor, nn
from transformers import BertConfig, BertForSequenceClassification

import probattn
from probattn import BayesianAttention
from probattn.divergences import Critic, Navigator, conditional_transport, sinkhorn
from probattn.inference import AttentionELBO, AttentionGuide
from probattn.models import convert, program_for
from probattn.sites import AttentionSite, SeededNoise, SiteSpec
from probattn.sites.answers import Attending

REFUSED = "expected one derivative, got a derivative of a gradient; "


def _loss_of_site(method: BayesianAttention, alone: bool, tensors: tuple[Tensor, ...]) -> Tensor:
    torch.manual_seed(0)
    site = AttentionSite(method, SiteSpec(2, 4)).double()

    def model() -> None:
        with pyro.plate("data", 2):
            attended = site.attend_alone("site", Attending(*tensors)) if alone else site("site", *tensors)
            pyro.factor("pull", attended[0].square().sum((1, 2, 3)))

    loss: Tensor = AttentionELBO()(model, AttentionGuide(model, noise=SeededNoise([1], "cpu")))().loss
    return loss


def _transported(tensors: tuple[Tensor, ...]) -> Tensor:
    torch.manual_seed(0)
    nets = {"navigator": Navigator(4).double(), "critic": Critic(4).double()}
    return conditional_transport(*tensors[:2], **nets).sum()


CASES: dict[str, Callable[[tuple[Tensor, ...]], Tensor]] = {
    "tiles": lambda tensors: _loss_of_site(BayesianAttention.bam(2.0, prior="constant"), True, tensors),
    "learned concentration": lambda tensors: _loss_of_site(BayesianAttention(), False, tensors),
    "transport": _transported,
    "plan cost": lambda tensors: sinkhorn(*tensors[:2], debias=False).sum(),
    "divergence": lambda tensors: sinkhorn(*tensors[:2]).sum(),
}


@pytest.mark.parametrize("way", ["of leaves", "backward"])
@pytest.mark.parametrize("case", CASES)
def test_a_second_derivative_that_would_lack_a_part_raises(case: str, way: str) -> None:
    torch.manual_seed(3)
    tensors = tuple(torch.randn(2, 2, 5, 4, dtype=torch.float64, requires_grad=True) for _ in range(3))
    used = [each for each in tensors if case in ("tiles", "learned concentration") or each is not tensors[2]]
    gradients = torch.autograd.grad(CASES[case](tensors), used, create_graph=True)
    penalty = torch.stack([each.square().sum() for each in gradients]).sum()
    again = penalty.backward if way == "backward" else partial(torch.autograd.grad, penalty, used)
    with pytest.raises(RuntimeError, match=REFUSED):
        again()


def test_the_map_of_a_constant_spread_has_the_second_derivative_of_finite_differences() -> None:
    torch.manual_seed(3)
    tensors = [torch.randn(2, 2, 5, 4, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    direction = [torch.randn_like(each) for each in tensors]
    method = BayesianAttention.bam(2.0, prior="constant")

    def gradients(step: float) -> list[Tensor]:
        moved = tuple(
            (each + step * by).detach().requires_grad_() for each, by in zip(tensors, direction, strict=True)
        )
        return list(torch.autograd.grad(_loss_of_site(method, False, moved), moved))

    first = torch.autograd.grad(_loss_of_site(method, False, tuple(tensors)), tensors, create_graph=True)
    along = torch.stack([(each * by).sum() for each, by in zip(first, direction, strict=True)]).sum()
    products = torch.autograd.grad(along, tensors)
    for product, ahead, behind in zip(products, gradients(1e-4), gradients(-1e-4), strict=True):
        torch.testing.assert_close(product, (ahead - behind) / 2e-4, atol=1e-6, rtol=1e-5)


def _hosted(**options: bool) -> tuple[Tensor, list[Tensor]]:
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 8}
    net = BertForSequenceClassification(BertConfig(vocab_size=20, hidden_dropout_prob=0.0, **sizes))
    program = program_for(convert(net, BayesianAttention.bam(2.0))).train()
    program.arguments = options
    batch = {"input_ids": torch.arange(3, 15).view(2, 6), "labels": torch.tensor([0, 1])}
    loss = AttentionELBO()(program, AttentionGuide(program, noise=SeededNoise([1, 2], "cpu")))(batch).loss
    return loss, [each for each in net.bert.parameters() if each.requires_grad]


def test_a_network_in_tiles_refuses_a_second_derivative_and_names_what_has_one() -> None:
    loss, weights = _hosted()
    gradients = torch.autograd.grad(loss, weights, create_graph=True, allow_unused=True)
    penalty = torch.stack([each.square().sum() for each in gradients if each is not None]).sum()
    with pytest.raises(RuntimeError, match=f"{REFUSED}.*output_attentions=True"):
        torch.autograd.grad(penalty, weights, allow_unused=True)
    loss, weights = _hosted(output_attentions=True)
    gradients = torch.autograd.grad(loss, weights, create_graph=True, allow_unused=True)
    penalty = torch.stack([each.square().sum() for each in gradients if each is not None]).sum()
    assert any(each is not None for each in torch.autograd.grad(penalty, weights, allow_unused=True))


@pytest.mark.parametrize("method", [BayesianAttention.bam(2.0), BayesianAttention()], ids=["bam", "babn"])
def test_a_backward_pass_inside_autocast_has_the_gradient_of_one_outside(method: BayesianAttention) -> None:
    def gradients(inside: bool) -> list[Tensor]:
        torch.manual_seed(0)
        attend = probattn.MultiheadAttention(8, 2, batch_first=True, method=method)
        x = torch.randn(2, 5, 8)

        def model() -> None:
            with pyro.plate("data", 2):
                output = attend(x, x, x, need_weights=False)[0]
                pyro.sample("y", dist.Normal(output.float(), 1.0).to_event(2), obs=x)

        objective = AttentionELBO()(model, AttentionGuide(model, noise=SeededNoise([1, 2], "cpu")))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = objective().loss
            if inside:
                loss.backward()
        if not inside:
            loss.backward()
        return [each.grad for each in attend.parameters() if each.grad is not None]

    for inside, outside in zip(gradients(True), gradients(False), strict=True):
        torch.testing.assert_close(inside, outside, rtol=0, atol=2e-2 * float(outside.abs().max()))


def test_derivatives_that_do_not_pass_through_the_function_stay() -> None:
    torch.manual_seed(0)
    head, q = nn.Linear(4, 1).double(), torch.randn(1, 1, 3, 4, dtype=torch.float64, requires_grad=True)
    loss = head(q).sin().sum() + sinkhorn(q, q.detach() + 1).sum()
    (gradient,) = torch.autograd.grad(loss, head.weight, create_graph=True)
    assert torch.autograd.grad(gradient.square().sum(), head.weight)[0].abs().sum() > 0
