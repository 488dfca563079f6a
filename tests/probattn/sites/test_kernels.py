"""Kernels of Triton against the plain site in float64: run by Triton's interpreter, or on a GPU where there is one."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyro
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from probattn import AttentionMask, BayesianAttention
from probattn.inference import AttentionELBO, AttentionGuide
from probattn.sites import fused
from probattn.sites.mixes import HeadMix, mixed_positive

pytestmark = pytest.mark.triton
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
B, H, D = 3, 2, 5


class FixedNoise:
    """The same numbers in float64 as in float32, on any device."""

    draws = 1

    def __init__(self) -> None:
        self._generator = torch.Generator().manual_seed(7)

    def _numbers(self, make: Any, like: Tensor) -> Tensor:
        return make(like.shape, generator=self._generator).to(like)

    def uniform(self, like: Tensor) -> Tensor:
        return self._numbers(torch.rand, like)

    def normal(self, like: Tensor) -> Tensor:
        return self._numbers(torch.randn, like)


def masks(queries: int, keys: int) -> dict[str, AttentionMask | None]:
    """Those of the tests of tiles, for any lengths."""
    long, short = torch.arange(keys) < max(1, keys - 3), torch.arange(keys) >= min(2, keys - 1)
    padded = torch.stack([torch.ones(keys).bool(), long, short])
    real = torch.ones(B, queries, dtype=torch.bool)
    real[0, queries // 2 :] = queries == 1
    causal = torch.ones(queries, keys).tril(keys - queries).bool()
    empty = padded.clone()
    empty[2] = False
    rows = padded[:, None, None].expand(B, 1, queries, keys)
    return {
        "none": None,
        "padded": AttentionMask(rows, real),
        "one row": AttentionMask(padded[:, None, None], real),
        "empty": AttentionMask(empty[:, None, None].expand(B, 1, queries, keys)),
        "causal": AttentionMask((rows & causal).contiguous(), real),
        "by head": AttentionMask((causal | causal.flip(0)).expand(B, H, queries, keys)),
    }


def step(
    method: BayesianAttention,
    mask: AttentionMask | None,
    lengths: tuple[int, int],
    dtype: torch.dtype,
    groups: int = H,
    *,
    alone: bool = True,
) -> dict[str, Tensor]:
    """Output, KL, and all gradients of a step."""
    torch.manual_seed(3)
    queries, keys = lengths
    sizes = ((H, queries), (groups, keys), (groups, keys))
    leaves = [torch.randn(B, heads, length, D, dtype=torch.float64) for heads, length in sizes]
    leaves = [leaf.to(DEVICE, dtype).requires_grad_() for leaf in leaves]
    site = method.build(H, D).to(DEVICE, dtype).train()
    pull = torch.linspace(-2, 2, B * H * queries * D, dtype=torch.float64).view(B, H, queries, D).sin()
    placed = None if mask is None else AttentionMask(
        mask.valid.to(DEVICE), None if mask.query_valid is None else mask.query_valid.to(DEVICE)
    )  # fmt: skip
    outputs = []

    def model() -> None:
        with pyro.plate("data", B):
            output, weights = site("site", *leaves, placed, alone=alone)
            outputs.extend([output, weights])
            pyro.factor("pull", (output * pull.to(output)).sum(dim=(1, 2, 3)))

    with pyro.validation_enabled(False):
        module = AttentionELBO()(model, AttentionGuide(model, noise=FixedNoise()))
        terms = module()
        terms.loss.backward()
    results = {"output": outputs[0], "weights": outputs[1], "kl": terms.kl, **module.diagnostics()["site"]}
    named = [(f"by {index}", leaf) for index, leaf in enumerate(leaves)]
    results |= {name: leaf.grad for name, leaf in (*named, *site.named_parameters()) if leaf.grad is not None}
    return {name: torch.as_tensor(value).detach().double().cpu() for name, value in results.items()}


def compare(
    method: BayesianAttention, mask: str, lengths: tuple[int, int], ran: list[str], groups: int = H
) -> None:
    """A step of float32 by kernels against that of float64 without them."""
    options = (masks(*lengths)[mask], lengths)
    exact, found = (step(method, *options, dtype, groups) for dtype in (torch.float64, torch.float32))
    assert {"draw_kernel", "draw_backward_kernel"} <= set(ran)
    assert exact.keys() == found.keys()
    for name, expected in exact.items():
        size = float(expected.abs().max())
        limit = 1e-6 if name in ("output", "weights") else 1e-5 * max(size, 0.1)
        limit *= 1 if method.rho else 10  # log S is noise / k, and k is near the floor
        torch.testing.assert_close(
            found[name], expected, rtol=1e-5, atol=limit, msg=lambda text, n=name: f"{n}: {text}"
        )


METHODS = {
    "learned": BayesianAttention(),
    "strong": BayesianAttention(prior_strength=2.5, rate=1.3, kl_reduction="sum", noise="truncated"),
    "rho 0": BayesianAttention(rho=0.0, prior="constant", prior_concentration=0.7),
    "narrow floor": BayesianAttention(floor=0.4, rho=1.0, kl_reduction="keys"),
    "separate": BayesianAttention(width_scores="separate"),
    "constant k": BayesianAttention.bam(4.0, rate=1.3, prior_strength=2.5),
    "constant prior": BayesianAttention.bam(prior="constant", prior_concentration=0.7),
    "log-normal": BayesianAttention.bam(posterior="lognormal"),
    "log-normal, constant": BayesianAttention.bam(posterior="lognormal", prior="constant", prior_scale=0.6),
}
LENGTHS = [(7, 9), (1, 1), (5, 16), (16, 5), (33, 40), (1, 130)]


MASKS = list(masks(2, 2))
QUICK = {*itertools.product(METHODS, ("padded", "by head")), *itertools.product(["learned"], MASKS)}


@pytest.mark.slow_but(*(f"{method}-{mask}" for method, mask in sorted(QUICK)))
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("method", METHODS)
def test_a_step_is_that_of_the_plain_site(method: str, mask: str, by_kernel: list[str]) -> None:
    compare(METHODS[method], mask, LENGTHS[0], by_kernel)


@pytest.mark.slow
@pytest.mark.parametrize("lengths", LENGTHS[1:])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("method", METHODS)
def test_lengths_of_every_kind(
    method: str, mask: str, lengths: tuple[int, int], by_kernel: list[str]
) -> None:
    compare(METHODS[method], mask, lengths, by_kernel)


@pytest.mark.parametrize("method", ["learned", "log-normal"])
def test_grouped_keys(method: str, by_kernel: list[str]) -> None:
    compare(METHODS[method], "padded", LENGTHS[0], by_kernel, groups=1)


def test_maps_that_are_asked_for_can_be_differentiated_twice(by_kernel: list[str]) -> None:
    """Draws of a constant spread, whose gradient a kernel would give only once."""
    for method in ("constant k", "log-normal"):
        step(METHODS[method], None, (7, 9), torch.float32, alone=False)
    assert not by_kernel


@pytest.mark.parametrize("options", [{"sigma": 1e-6}, {"scores": "raw"}, {"prior_strength": "learned"}])
def test_what_no_kernel_computes_is_left_to_torch(options: dict[str, Any], by_kernel: list[str]) -> None:
    method = BayesianAttention(**options)
    found = step(method, masks(7, 9)["padded"], (7, 9), torch.float32)
    assert "draw_kernel" not in by_kernel
    exact = step(method, masks(7, 9)["padded"], (7, 9), torch.float64)
    torch.testing.assert_close(found["output"], exact["output"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("heads", "mixes_", "pairs"), [(4, 2, 70), (12, 1, 130), (20, 2, 65), (32, 2, 3)])
def test_mixes_of_heads_and_their_gradients(
    heads: int, mixes_: int, pairs: int, by_kernel: list[str]
) -> None:
    torch.manual_seed(heads)
    layers = [HeadMix(heads).to(DEVICE) for _ in range(mixes_)]
    state = torch.rand(2, heads, 1, pairs, device=DEVICE)
    pulls = torch.randn(mixes_, *state.shape, device=DEVICE)

    def gradients(dtype: torch.dtype) -> list[Tensor]:
        leaf = state.to(dtype).requires_grad_()
        weights = [
            weight.detach().to(dtype).requires_grad_() for mix in layers for weight in (mix.weight, mix.bias)
        ]
        if dtype == torch.float32:
            outputs = mixed_positive(layers, leaf, None)
            weights = [weight for mix in layers for weight in (mix.weight, mix.bias)]
        else:
            pairs_of = zip(weights[::2], weights[1::2], strict=True)
            flat = leaf.flatten(2)
            outputs = [F.softplus(matrix @ flat + bias[:, None]).view_as(leaf) for matrix, bias in pairs_of]
        total = sum((output * pull.to(dtype)).sum() for output, pull in zip(outputs, pulls, strict=True))
        return [*outputs, *torch.autograd.grad(total, [leaf, *weights])]

    for expected, found in zip(gradients(torch.float64), gradients(torch.float32), strict=True):
        torch.testing.assert_close(
            found.double(), expected, rtol=1e-5, atol=1e-5 * float(expected.detach().abs().max())
        )
    assert by_kernel == ["mix_kernel", "mix_backward_kernel"]


def test_slopes_of_strongly_negative_mixes_do_not_cancel(by_kernel: list[str]) -> None:
    mix = HeadMix(4).to(DEVICE)
    mix.bias.data.fill_(-17.0)
    state = torch.rand(1, 4, 1, 3, device=DEVICE, requires_grad=True)
    (mixed,) = mixed_positive([mix], state, None)
    (found,) = torch.autograd.grad(mixed.sum(), mix.bias)
    exact = torch.sigmoid(mix.weight.double() @ state.double().flatten(2) + mix.bias.double()[:, None])
    torch.testing.assert_close(found.double(), exact.sum(dim=(0, 2)), rtol=1e-5, atol=0)


def test_inputs_that_are_not_contiguous(by_kernel: list[str]) -> None:
    mix = HeadMix(4).to(DEVICE)
    mix.weight = torch.nn.Parameter(torch.rand(4, 4, device=DEVICE).t())
    state = torch.rand(2, 1, 3, 4, device=DEVICE).permute(0, 3, 1, 2)
    (mixed,) = mixed_positive([mix], state, None)
    torch.testing.assert_close(
        mixed, F.softplus(mix.weight @ state.flatten(2) + mix.bias[:, None]).view_as(mixed)
    )


@pytest.fixture
def untried(monkeypatch: pytest.MonkeyPatch) -> dict[int, bool]:
    """No GPU was tried yet; the CPU counts as one."""
    tried: dict[int, bool] = {}
    monkeypatch.setattr(fused, "_WORKING", tried)
    return tried


def test_kernels_are_tried_once_and_within_a_checkpoint(untried: dict[int, bool]) -> None:
    from probattn.sites.kernels import gap_to_torch

    assert gap_to_torch(DEVICE) < 1e-5 < fused.TOLERANCE
    tensor = torch.rand(3, device=DEVICE, requires_grad=True)

    def block(values: Tensor) -> Tensor:
        assert fused.kernels_work(tensor)
        return values.sin().cos()

    with torch.inference_mode():
        assert fused.kernels_work(tensor)
    untried.clear()
    checkpoint(block, tensor, use_reentrant=False).sum().backward()
    assert list(untried.values()) == [True]


@pytest.mark.parametrize("trouble", ["fails", "differs"])
def test_kernels_that_do_not_work_are_not_used(
    trouble: str, untried: dict[int, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    from probattn.sites import kernels

    def gap(device: torch.device) -> float:
        if trouble == "fails":
            raise RuntimeError("no such instruction")
        return 0.1

    monkeypatch.setattr(kernels, "gap_to_torch", gap)
    with pytest.warns(
        RuntimeWarning, match="no such instruction" if trouble == "fails" else "differ from torch's by 1"
    ):
        assert not fused.kernels_work(torch.rand(3, device=DEVICE))
    assert not fused.kernels_work(torch.rand(3, device=DEVICE))


@pytest.mark.parametrize(
    ("method", "tried"),
    [
        (BayesianAttention(), [fused.MAPS]),
        (BayesianAttention.bam(), [fused.MAPS, fused.FLASH]),
        (BayesianAttention.bam(posterior="lognormal"), [fused.MAPS, fused.FLASH]),
        (BayesianAttention(rho=0.0), [fused.MAPS]),
    ],
)
def test_those_that_a_model_needs_are_tried_before_a_pass(
    method: BayesianAttention, tried: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    modules: list[str] = []
    monkeypatch.setattr(fused, "kernels_work", lambda _, module=fused.MAPS: modules.append(module))
    site = method.build(2, 4)
    with AttentionGuide(site):
        assert not modules
    monkeypatch.setattr(site, "parameters", lambda: iter([SimpleNamespace(is_cuda=True)]))
    with AttentionGuide(site):
        assert modules == tried


def test_a_graph_does_not_try_them(untried: dict[int, bool], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert not fused.kernels_work(torch.rand(3, device=DEVICE))
    assert not untried


def test_a_second_derivative_is_refused(by_kernel: list[str]) -> None:
    state = torch.rand(1, 4, 1, 3, device=DEVICE, requires_grad=True)
    (mixed,) = mixed_positive([HeadMix(4).to(DEVICE)], state, None)
    (gradient,) = torch.autograd.grad(mixed.sum(), state, create_graph=True)
    with pytest.raises(RuntimeError, match="expected one derivative"):
        gradient.sum().backward()


def test_operators_are_what_torch_expects_of_them() -> None:
    """Schemas, fake tensors and gradients, for shapes that are known and for those that are not."""
    from probattn.sites import kernels

    torch.manual_seed(0)
    scores, noise = (
        torch.randn(2, 2, 3, 4, device=DEVICE).requires_grad_(),
        torch.rand(2, 2, 3, 4, device=DEVICE),
    )
    rise, logits = (
        torch.rand_like(scores).requires_grad_(),
        torch.randn(2, 1, 4, device=DEVICE).requires_grad_(),
    )
    valid, real = (torch.ones(2, *rest, device=DEVICE).bool() for rest in ((1, 1, 4), (3,)))
    maps = torch.rand(2, 2, 12, device=DEVICE).requires_grad_()
    options = kernels.draw_options(BayesianAttention())
    checks = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    arguments: list[tuple[Any, tuple[Any, ...]]] = [
        (kernels.draw_map, (scores, rise, noise, logits, valid, real, None, *options, True)),
        (
            kernels.draw_map,
            (
                scores,
                None,
                None,
                None,
                None,
                None,
                torch.zeros(1, dtype=torch.int64, device=DEVICE),
                *options,
                False,
            ),
        ),
        (kernels.mix_maps, (maps, torch.eye(2, device=DEVICE), torch.zeros(2, device=DEVICE), None, None)),
    ]
    for operator, given in arguments:
        torch.library.opcheck(operator, given, test_utils=checks)


@pytest.mark.slow
@pytest.mark.skipif(
    sys.platform != "linux", reason="compiles for GPUs, with the assembler that Triton has for Linux"
)
def test_kernels_compile_for_gpus_without_one(tmp_path: Path) -> None:
    """For compute capability 8.0 and 9.0, within the shared memory of every such GPU (99 KiB)."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path), "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, str(Path(__file__).with_name("compiling.py"))]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    results = json.loads(done.stdout)
    assert len(results) == 2 * (3 * 2 * 3 * 2 + 2 + 3 + 2 * 2 * 2) + 2 * 4 * 6 + 3
    assert all(size > 0 and shared <= 99 * 1024 for size, shared in results)
