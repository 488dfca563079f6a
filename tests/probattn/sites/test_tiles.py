"""Attention in tiles against the site that holds the map, and against finite differences."""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import pyro
import pytest
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from probattn import AttentionMask, BayesianAttention, MultiheadAttention
from probattn.inference import AttentionELBO, AttentionGuide
from probattn.sites import AttentionSite, answers
from probattn.sites.answers import Attending, TiledPosterior
from probattn.sites.layout import PAIRS
from probattn.sites.noise import Noise, PlacedNoise, SeededNoise
from probattn.sites.posterior import SitePosterior
from probattn.sites.tiles import NoisyRows, TiledCall, TileKL, tiled_attention

B, H, T, S, D = 3, 4, 7, 9, 5
CLOSE = {torch.float32: 5e-5, torch.float64: 1e-11}


def _padding(*, left: bool = False, empty: bool = False) -> Tensor:
    valid = torch.ones(B, S, dtype=torch.bool)
    valid[1, :3] = not left
    valid[1, 6:] = left
    if empty:
        valid[2] = False
    return valid[:, None, None, :].expand(B, 1, T, S)


def _real() -> Tensor:
    real = torch.ones(B, T, dtype=torch.bool)
    real[0, 5:] = False
    real[2, :2] = False
    return real


CAUSAL = torch.ones(T, S).tril(S - T).bool()
MASKS: dict[str, AttentionMask | None] = {
    "none": None,
    "right": AttentionMask(_padding(), _real()),
    "left": AttentionMask(_padding(left=True).contiguous(), _real()),
    "empty": AttentionMask(_padding(empty=True)),
    "causal": AttentionMask(_padding(left=True) & CAUSAL, _real()),
    "window": AttentionMask((CAUSAL & CAUSAL.T.new_ones(T, S).triu(-1)).expand(B, H, T, S)),
}
EXTRAS: dict[str, dict[str, Any]] = {
    "plain": {},
    "capped": {"softcap": 1.5},
    "biased": {"bias": torch.linspace(-1, 1, H * T * S).view(1, H, T, S)},
}


def _step(
    method: BayesianAttention,
    mask: AttentionMask | None,
    dtype: torch.dtype,
    *,
    need_weights: bool,
    groups: int = H,
    extra: str = "plain",
    noise: Callable[[], Noise] | None = None,
    rounded: torch.dtype | None = None,
) -> tuple[list[Tensor], dict[str, float]]:
    """The terms of a step, all gradients, and the site's health."""
    torch.manual_seed(3)
    leaves = [
        torch.randn(B, heads, length, D, dtype=dtype if rounded is None else torch.float64)
        .to(rounded)
        .to(dtype)
        .requires_grad_()
        for heads, length in ((H, T), (groups, S), (groups, S))
    ]
    options = dict(EXTRAS[extra])
    if "bias" in options:
        leaves.append(options["bias"].detach().clone().to(dtype).requires_grad_())
        options["bias"] = leaves[3]
    site = method.build(H, D).to(dtype).train()
    pull = torch.linspace(-2, 2, B * H * T * D, dtype=torch.float64).view(B, H, T, D).sin().to(dtype)

    def model() -> None:
        with pyro.plate("data", B):
            if need_weights:
                output, _ = site("site", *leaves[:3], mask, **options)
            else:
                output, weights = site.attend_alone("site", _attending(leaves[:3], mask, **options))
                assert weights is None
            pyro.factor("pull", (output * pull).sum(dim=(1, 2, 3)))

    module = AttentionELBO()(model, AttentionGuide(model, noise=None if noise is None else noise()))
    terms = module()
    terms.loss.backward()
    gradients = [leaf.grad for leaf in (*leaves, *site.parameters()) if leaf.grad is not None]
    return [*terms, *gradients], module.diagnostics()["site"]


def _attending(tensors: Sequence[Tensor], mask: AttentionMask | None, **options: Any) -> Attending:
    query, key, value = tensors
    return Attending(query, key, value, PAIRS if mask is None else mask, **options)


def _compare(**options: Any) -> None:
    dtype = options["dtype"]
    (plain, health), (tiled, other) = (_step(**options, need_weights=need) for need in (True, False))
    assert len(plain) == len(tiled)
    for expected, found in zip(plain, tiled, strict=True):
        scale = float(expected.detach().abs().max()) + 0.1
        torch.testing.assert_close(found, expected, rtol=0, atol=CLOSE[dtype] * scale)
    assert other == pytest.approx(health, rel=1e-4)


def _small_tiles(monkeypatch: pytest.MonkeyPatch, entries: int) -> None:
    monkeypatch.setattr(answers, "TiledCall", functools.partial(TiledCall, entries=entries))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("prior", ["contextual", "constant"])
@pytest.mark.parametrize("posterior", ["weibull", "lognormal"])
def test_a_step_in_tiles_equals_that_of_the_map(posterior, prior, mask, dtype, monkeypatch) -> None:
    method = BayesianAttention.bam(
        4.0,
        posterior=posterior,
        prior=prior,
        rate=1.3,
        prior_concentration=0.7,
        prior_strength=2.5 if posterior == "weibull" else 1.0,
        kl_reduction="keys",
    )
    _small_tiles(monkeypatch, 3 * S)
    _compare(method=method, mask=MASKS[mask], dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("extra", EXTRAS)
@pytest.mark.parametrize("posterior", ["weibull", "lognormal"])
def test_half_precision_is_computed_in_tiles_of_float32(posterior, extra, dtype, monkeypatch) -> None:
    """Against the map in float32, for the same noise: no further from it than the map in half precision."""
    _small_tiles(monkeypatch, 3 * S)
    options: dict[str, Any] = {
        "method": BayesianAttention.bam(4.0, posterior=posterior, prior="constant"),
        "mask": MASKS["right"],
        "extra": extra,
        "rounded": dtype,
    }
    exact, _ = _step(**options, dtype=torch.float32, need_weights=True)
    plain, tiled = (_step(**options, dtype=dtype, need_weights=need)[0] for need in (True, False))

    def error(found: list[Tensor]) -> float:
        pairs = [(a, b) for a, b in zip(found, exact, strict=True) if a.dim()]  # gradients
        return sum(float((a - b).detach().abs().mean() / b.detach().abs().mean()) for a, b in pairs)

    assert error(tiled) <= 1.1 * error(plain) < 0.2


@pytest.mark.parametrize("entries", [1, 2 * T * S, 2 * H * T * S, 10**6])
@pytest.mark.parametrize("extra", EXTRAS)
@pytest.mark.parametrize("posterior", ["weibull", "lognormal"])
def test_raw_scores_grouped_heads_caps_and_biases_in_tiles_of_every_kind(
    posterior: Any, extra: str, entries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = BayesianAttention.bam(2.0, posterior=posterior, scores="raw", kl_reduction="sum")
    _small_tiles(monkeypatch, entries)
    _compare(method=method, mask=MASKS["left"], dtype=torch.float64, groups=2, extra=extra)


class _WithoutRows:
    """A source that knows nothing of rows."""

    draws = 1

    def uniform(self, like: Tensor) -> Tensor:
        return torch.rand(like.shape, dtype=like.dtype, generator=torch.Generator().manual_seed(2))

    normal = uniform


@pytest.mark.parametrize(
    "noise",
    [
        lambda: SeededNoise([1, 2, 3], "cpu"),
        lambda: PlacedNoise(torch.tensor([4, 5, 6]), origin=(2, 1)),
        _WithoutRows,
    ],
)
@pytest.mark.parametrize("kind", ["exact", "truncated"])
def test_every_source_of_noise_gives_both_the_same_draw(kind, noise, monkeypatch) -> None:
    _small_tiles(monkeypatch, 4 * S)
    method = BayesianAttention.bam(noise=kind)
    _compare(method=method, mask=MASKS["right"], dtype=torch.float64, noise=noise)


@pytest.mark.parametrize("scores", ["normalised", "raw"])
@pytest.mark.parametrize("posterior", ["weibull", "lognormal"])
@pytest.mark.parametrize("extra", EXTRAS)
def test_gradients_are_those_of_finite_differences(extra: str, posterior: Any, scores: Any) -> None:
    torch.manual_seed(0)
    query, key, value = (torch.randn(2, 2, size, 3, dtype=torch.float64) for size in (3, 4, 4))
    mask = AttentionMask(torch.ones(3, 4).tril(1).bool().expand(2, 1, 3, 4))
    bias = EXTRAS["biased"]["bias"][:, :2, :3, :4].double() if extra == "biased" else None
    logits = torch.randn(2, 2, 4, dtype=torch.float64)
    normal = torch.randn(12, 4, dtype=torch.float64)
    kl = TileKL(BayesianAttention.bam(2.0, posterior=posterior, scores=scores, rate=1.7))

    def rows(first: int, out: Tensor) -> None:
        out.copy_(normal[first : first + len(out)])

    def attend(*tensors: Tensor) -> tuple[Tensor, ...]:
        bias = tensors[4] if len(tensors) > 4 else None
        noise = NoisyRows(rows, torch.Tensor.exp_)
        call = TiledCall(mask, 0.6, EXTRAS[extra].get("softcap"), noise, True, kl, 8)
        return tiled_attention(*tensors[:3], bias, tensors[3], call)

    leaves = [query, key, value, logits] + ([] if bias is None else [bias])
    assert torch.autograd.gradcheck(attend, [leaf.requires_grad_() for leaf in leaves], fast_mode=True)


def _peak(length: int, folder: Path, kind: str = "float32") -> int:
    """Bytes that a training step over ``length`` tokens holds at most, beyond what it held before."""
    dtype = torch.bfloat16 if kind == "bfloat16" else torch.float32
    layer = MultiheadAttention(16, 8, batch_first=True, method=BayesianAttention.bam()).train().to(dtype)
    tokens = torch.randn(2, length, 16, dtype=dtype)
    padding = (torch.arange(length) > length // 2).expand(2, length)

    def model() -> None:
        with pyro.plate("data", 2):
            output, _ = layer(tokens, tokens, tokens, padding, need_weights=False)
            pyro.factor("output", output.sum(dim=(1, 2)))

    elbo = AttentionELBO()(model, AttentionGuide(model))

    def module() -> Any:
        with torch.autocast("cpu", enabled=kind == "autocast"):
            return elbo()

    module().loss.backward()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        module().loss.backward()
    trace = folder / "trace.json"
    profiler.export_chrome_trace(str(trace))
    events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    changes = sorted((each["ts"], each["args"]["Bytes"]) for each in events if each["name"] == "[memory]")
    return max(itertools.accumulate(size for _, size in changes))


@pytest.mark.slow_but("float32")
@pytest.mark.parametrize("kind", ["float32", "bfloat16", "autocast"])
def test_memory_of_a_step_grows_linearly_with_the_length(kind, tmp_path, monkeypatch) -> None:
    _small_tiles(monkeypatch, 2**12)
    short, long = (_peak(length, tmp_path, kind) for length in (64, 256))
    assert long < 5 * short  # a map would be 16 times as large
    assert long < 4 * 2 * 8 * 256**2 / 3  # a map


def _met(site: AttentionSite, *handlers: AbstractContextManager[Any]) -> Tensor | None:
    """The weights that a call gives under these handlers, to one who does not need them."""
    with ExitStack() as stack:
        for handler in handlers:
            stack.enter_context(handler)
        weights: Tensor | None = site.attend_alone(
            "site", _attending(torch.ones(3, B, H, T, D).unbind(), None)
        )[1]
    return weights


def test_a_handler_that_may_look_at_the_value_meets_one() -> None:
    site = BayesianAttention.bam().build(H, D).eval()
    assert isinstance(site, AttentionSite)
    guide = AttentionGuide(lambda: None)
    plate, scale = pyro.plate("data", B), pyro.poutine.scale(scale=2.0)
    with guide.outputs_alone():
        assert _met(site, guide, plate, scale) is None
        for handler in (pyro.poutine.trace(), pyro.poutine.block(), pyro.poutine.condition(data={})):
            assert _met(site, guide, plate, handler) is not None
            assert _met(site, handler, guide, plate) is not None
    assert _met(site, guide, plate) is not None
    assert _met(site, plate) is not None
    assert _met(site) is not None


@pytest.mark.parametrize(
    "method", [BayesianAttention(), BayesianAttention(rho=0), BayesianAttention.bam(sigma=0.1)]
)
def test_posteriors_whose_spread_is_a_map_hold_it(method: BayesianAttention) -> None:
    guide = AttentionGuide(lambda: None)
    with guide.outputs_alone():
        assert _met(method.build(H, D).eval(), guide, pyro.plate("data", B)) is not None


def test_what_needs_a_map_makes_it_when_asked() -> None:
    torch.manual_seed(0)
    method, mask = BayesianAttention.bam(3.0), MASKS["right"]
    site, tensors = method.build(H, D), [torch.randn(B, H, size, D) for size in (T, S, S)]
    assert mask is not None
    posterior = TiledPosterior(method, _attending(tensors, mask), site.prior)
    drawn = [posterior.draw(SeededNoise([1], "cpu")), posterior.kl()]
    whole = SitePosterior(posterior.inputs, posterior.prior)
    assert drawn[0].shape == (B, 0)
    torch.testing.assert_close(drawn[1], whole.kl())
    density = posterior.event().log_prob(drawn[0]) - posterior.prior_event().log_prob(drawn[0])
    torch.testing.assert_close(density, whole.kl())
    assert posterior.distribution.batch_shape == (B, H, T, S)
