"""Attention without a map on a GPU, by Triton's interpreter or on one, against tiles in float64."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import numpy as np
import pyro
import pytest
import torch
from scipy import stats
from torch import Tensor
from transformers import BertConfig, BertForSequenceClassification

import probattn
from probattn import AttentionMask, BayesianAttention
from probattn.inference import AttentionELBO, AttentionGuide, posterior_predict
from probattn.models import Classifier
from probattn.sites import answers, fused
from probattn.sites import noise as noise_sources
from probattn.sites.answers import Attending, FlashPosterior, TiledPosterior, can_flash
from probattn.sites.layout import PAIRS
from probattn.sites.noise import GlobalNoise, PlacedNoise, SeededNoise
from probattn.sites.upward import SharedUpward

pytestmark = pytest.mark.triton
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
B, H = 3, 2


if find_spec("triton") is not None:
    import triton
    from triton import language as tl

    from probattn.sites.kernels import noise_limits
    from probattn.sites.triton_kernels import site_noise

    @triton.jit
    # PLR0917: a kernel takes pointers and sizes one by one.
    def noise_kernel(  # noqa: PLR0917
        seeds, out, rows, heads, queries, keys, low, high,
        NORMAL: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    ):  # fmt: skip
        at, query, key = tl.program_id(0), tl.arange(0, ROWS)[:, None], tl.arange(0, COLUMNS)[None, :]
        datum, head = at // heads, at % heads
        seed = tl.load(seeds + datum // rows)
        noise = site_noise(seed, datum % rows, head, query, 0, low, high, NORMAL, ROWS, COLUMNS)
        tl.store(out + (at * queries + query) * keys + key, noise, mask=(query < queries) & (key < keys))


def kernel_noise(method: BayesianAttention, seeds: Tensor, shape: Sequence[int]) -> Tensor:
    """What the kernels draw: log(-log u), or n, ``[B, H, T, S]``."""
    batch, heads, queries, keys = shape
    out, block = torch.empty(tuple(shape), device=seeds.device), triton.next_power_of_2
    noise_kernel[(batch * heads,)](
        seeds, out, batch // len(seeds), heads, queries, keys, *noise_limits(method),
        NORMAL=method.posterior == "lognormal", ROWS=block(queries), COLUMNS=block(max(4, keys)),
    )  # fmt: skip
    return out


class KernelNoise:
    """The numbers of the kernels, for those that ask for a map too."""

    def __init__(self, method: BayesianAttention, draws: int = 1) -> None:
        self._method, self.draws = method, draws

    def seeds(self, like: Tensor) -> Tensor:
        return torch.arange(5, 5 + self.draws, device=like.device) * 2**40

    def uniform(self, like: Tensor) -> Tensor:
        low, high = noise_limits(self._method)
        return (self._numbers(like).exp().neg().exp() - low) / (high - low)

    def normal(self, like: Tensor) -> Tensor:
        return self._numbers(like)

    def _numbers(self, like: Tensor) -> Tensor:
        return kernel_noise(self._method, self.seeds(like), like.shape).to(like)


def masks(queries: int, keys: int) -> dict[str, AttentionMask | None]:
    """For any lengths; the last leaves queries without keys."""
    long, short = torch.arange(keys) < max(1, keys - 3), torch.arange(keys) >= min(2, keys - 1)
    padded = torch.stack([torch.ones(keys).bool(), long, short])
    real = torch.ones(B, queries, dtype=torch.bool)
    real[0, queries // 2 :] = queries == 1
    causal = torch.ones(queries, keys).tril(keys - queries).bool()
    rows = padded[:, None, None].expand(B, 1, queries, keys)
    late = torch.ones(queries, keys).tril(-queries // 3).bool()
    masks = {
        "none": None,
        "padded": AttentionMask(rows, real),
        "one row": AttentionMask(padded[:, None, None], real),
        "causal": AttentionMask((rows & causal).contiguous(), real),
        "by head": AttentionMask((causal | causal.flip(0)).expand(B, H, queries, keys)),
        "empty": AttentionMask((rows & late).contiguous(), real),
    }
    return {
        name: mask and AttentionMask(
            mask.valid.to(DEVICE), None if mask.query_valid is None else mask.query_valid.to(DEVICE)
        ) for name, mask in masks.items()
    }  # fmt: skip


def step(
    method: BayesianAttention,
    mask: AttentionMask | None,
    lengths: tuple[int, int],
    dtype: torch.dtype,
    *,
    groups: int = H,
    widths: tuple[int, int] = (5, 5),
    rounded: torch.dtype = torch.float64,
    noise: Callable[[], Any] | None = None,
    alone: bool = True,
) -> dict[str, Tensor]:
    """Output, KL, and all gradients of a step; the rows of queries, keys and values are strided."""
    torch.manual_seed(3)
    queries, keys = lengths
    sizes = ((H, queries, widths[0]), (groups, keys, widths[0]), (groups, keys, widths[1]))
    tensors = [torch.randn(B, length, heads, width, dtype=torch.float64) for heads, length, width in sizes]
    leaves = [tensor.to(rounded).to(DEVICE, dtype).requires_grad_() for tensor in tensors]
    site = method.build(H, widths[0]).to(DEVICE, torch.float64 if dtype == torch.float64 else torch.float32)
    pull = torch.linspace(-2, 2, B * H * queries * widths[1], dtype=torch.float64).sin()
    outputs = []

    def model() -> None:
        query, key, value = (leaf.transpose(1, 2) for leaf in leaves)
        attending = Attending(query, key, value, PAIRS if mask is None else mask)
        with pyro.plate("data", B):
            if alone:
                output, _ = site.train().attend_alone("site", attending)
            else:
                output, _ = site.train()("site", *attending.tensors)
            outputs.append(output)
            pyro.factor("pull", (output * pull.view(output.shape).to(output)).sum(dim=(1, 2, 3)))

    make = noise or (lambda: KernelNoise(method))
    with pyro.validation_enabled(False):
        module = AttentionELBO()(model, AttentionGuide(model, noise=make()))
        terms = module()
        terms.loss.backward()
    results = {"output": outputs[0], "kl": terms.kl, **module.diagnostics()["site"]}
    named = [(f"by {index}", leaf) for index, leaf in enumerate(leaves)]
    results |= {name: leaf.grad for name, leaf in (*named, *site.named_parameters()) if leaf.grad is not None}
    return {name: torch.as_tensor(value).detach().double().cpu() for name, value in results.items()}


KERNELS = ["attend_kernel", "attend_query_kernel", "attend_key_kernel"]


def compare(
    method: BayesianAttention, mask: str, lengths: tuple[int, int], ran: list[str], **options: Any
) -> None:
    """A step of float32 by kernels against that of float64 without them."""
    call = method, masks(*lengths)[mask], lengths
    exact = step(*call, torch.float64, **options)
    assert not ran
    found = step(*call, torch.float32, **options)
    if method.learns_concentration:
        assert {"draw_kernel", "draw_backward_kernel"} <= set(ran)
    else:
        assert ran == KERNELS
    assert exact.keys() == found.keys()
    for name, expected in exact.items():
        limit = 1e-6 if name == "output" else 1e-5 * max(float(expected.abs().max()), 0.1)
        torch.testing.assert_close(
            found[name], expected, rtol=1e-5, atol=limit, msg=lambda text, n=name: f"{n}: {text}"
        )


METHODS = {
    "constant k": BayesianAttention.bam(4.0, rate=1.3, prior_strength=2.5),
    "constant prior": BayesianAttention.bam(prior="constant", prior_concentration=0.7, kl_reduction="sum"),
    "truncated": BayesianAttention.bam(2.0, noise="truncated", kl_reduction="keys"),
    "log-normal": BayesianAttention.bam(posterior="lognormal"),
    "log-normal, constant": BayesianAttention.bam(posterior="lognormal", prior="constant", prior_scale=0.6),
}
LENGTHS = [(7, 9), (1, 1), (1, 70), (33, 40), (70, 67), (40, 5)]
MASKS = list(masks(2, 2))
QUICK = {
    *itertools.product(METHODS, ["causal"]),
    *itertools.product(["constant k"], ("padded", "by head", "empty")),
}


@pytest.mark.slow_but(*(f"{method}-{mask}" for method, mask in sorted(QUICK)))
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("method", METHODS)
def test_a_step_is_that_of_tiles(method: str, mask: str, by_kernel: list[str]) -> None:
    compare(METHODS[method], mask, (17, 40), by_kernel)


@pytest.mark.slow
@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("method", METHODS)
def test_lengths_of_every_kind(
    method: str, mask: str, lengths: tuple[int, int], by_kernel: list[str]
) -> None:
    compare(METHODS[method], mask, lengths, by_kernel)


@pytest.mark.parametrize("method", ["constant k", "log-normal"])
def test_grouped_keys(method: str, by_kernel: list[str]) -> None:
    compare(METHODS[method], "causal", (33, 9), by_kernel, groups=1)


@pytest.mark.parametrize("noise", ["exact", "truncated"])
def test_draws_of_a_map_make_their_noise(noise: Any, by_kernel: list[str]) -> None:
    compare(BayesianAttention(noise=noise), "causal", (7, 9), by_kernel)


def test_predictions_of_a_learned_concentration_make_their_noise(
    by_kernel: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Draws that share the upward path of their rows in the first layer, and do not in the second."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    net = BertForSequenceClassification(BertConfig(vocab_size=30, **sizes))
    net = probattn.convert(net, BayesianAttention()).eval().to(DEVICE)
    inputs = {
        "input_ids": torch.randint(1, 30, (3, 6)).to(DEVICE),
        "attention_mask": torch.ones(3, 6).long().to(DEVICE),
    }
    inputs["attention_mask"][1, 4:] = 0
    call: dict[str, Any] = {"num_samples": 3, "seed": 5}
    by_kernels = posterior_predict(net, inputs, **call)
    assert set(by_kernel) == {"mix_kernel", "draw_kernel"}

    def numbers(self: SeededNoise, kind: str, like: Tensor) -> Tensor:
        seeds = self.seeds(like)
        assert seeds is not None
        return kernel_noise(BayesianAttention(), seeds, like.shape).exp().neg().exp().to(like)

    monkeypatch.setattr(SeededNoise, "_make", numbers)
    monkeypatch.setattr(answers, "runs_kernels", lambda _: False)
    plain = posterior_predict(net, inputs, **call)
    torch.testing.assert_close(by_kernels.logits, plain.logits, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("widths", [(1, 3), (20, 33), (128, 16)])
def test_widths(widths: tuple[int, int], by_kernel: list[str]) -> None:
    compare(METHODS["constant k"], "padded", (7, 9), by_kernel, widths=widths)


# The interpreter multiplies the bits of bfloat16.
@pytest.mark.parametrize("dtype", [pytest.param(torch.bfloat16, marks=pytest.mark.cuda), torch.float16])
@pytest.mark.parametrize("method", ["constant k", "log-normal"])
def test_tensors_of_16_bits(method: str, dtype: torch.dtype, by_kernel: list[str]) -> None:
    """No further from float64 at the same numbers than the map that the site holds in their type."""
    call = METHODS[method], masks(33, 40)["causal"], (33, 40)
    exact = step(*call, torch.float64, rounded=dtype)
    found = step(*call, dtype)
    assert by_kernel == KERNELS
    plain = step(*call, dtype, alone=False)
    assert by_kernel == KERNELS

    def error(results: dict[str, Tensor]) -> float:
        names = [name for name in exact if exact[name].dim()]
        return sum(
            float((results[name] - exact[name]).abs().mean() / exact[name].abs().mean()) for name in names
        )

    assert error(found) <= 1.1 * error(plain) < 0.2


def test_draws_in_one_batch_are_those_of_their_seeds(by_kernel: list[str]) -> None:
    """A prediction of P draws in the batch: a draw's numbers depend on its seed, its row, head, query and key alone."""
    method = METHODS["constant k"]
    site = method.build(H, 5).to(DEVICE)
    query, key, value = (torch.randn(2, H, 6, 5, device=DEVICE) for _ in range(3))

    def predicted(seeds: list[int], times: int) -> Tensor:
        folded = [tensor.repeat(times, 1, 1, 1) for tensor in (query, key, value)]
        posterior = FlashPosterior(method, Attending(*folded), site.prior)
        posterior.predict(SeededNoise(seeds, DEVICE), SharedUpward())
        assert posterior.answer is not None
        return posterior.answer

    both = predicted([3, 2**63 + 4], 2)
    torch.testing.assert_close(both[2:], predicted([2**63 + 4], 1), rtol=0, atol=0)
    torch.testing.assert_close(both[:2], predicted([3], 1), rtol=0, atol=0)
    assert (both[:2] - both[2:]).abs().min() > 1e-5
    assert set(by_kernel) == {"attend_kernel"}


def test_a_source_that_the_kernels_do_not_know_has_a_map(by_kernel: list[str]) -> None:
    method, mask = METHODS["constant k"], masks(7, 9)["causal"]
    torch.manual_seed(0)
    tensors = [torch.randn(B, H, length, 5, device=DEVICE) for length in (7, 9, 9)]
    site = method.build(H, 5).to(DEVICE)
    assert mask is not None
    results = []
    for kind in (FlashPosterior, TiledPosterior):
        posterior = kind(method, Attending(*tensors, mask), site.prior)
        posterior.draw(PlacedNoise(torch.arange(B, device=DEVICE)))
        assert posterior.answer is not None
        results.append([posterior.answer, posterior.kl()])
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    assert not by_kernel


@pytest.mark.parametrize("posterior", ["weibull", "lognormal"])
def test_mirrored_draws_and_maps_have_the_numbers_of_the_kernels(
    posterior: Any, by_kernel: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pair in one chunk, in two, and as maps that somebody asked for: one draw each."""
    monkeypatch.setattr(fused, "runs_kernels", lambda tensor: tensor.dtype == torch.float32)
    monkeypatch.setattr(noise_sources, "on_cpu", lambda _: False)
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    net = BertForSequenceClassification(BertConfig(vocab_size=30, **sizes))
    method = BayesianAttention.bam(1.0, posterior=posterior)
    net = probattn.convert(net, method).eval().to(DEVICE)
    inputs = {"input_ids": torch.randint(1, 30, (3, 6), device=DEVICE)}
    pair, single, maps = (
        posterior_predict(net, inputs, 3, antithetic=True, **options)
        for options in ({}, {"chunk_size": 1}, {"attention": "all"})
    )
    assert set(by_kernel) == {"attend_kernel", "noise_kernel"}
    torch.testing.assert_close(single.logits, pair.logits, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(maps.logits, pair.logits, rtol=1e-5, atol=1e-6)
    like = torch.empty(1, 2, 3, 4, device=DEVICE)
    plain, mirrored = (SeededNoise([7], DEVICE, [flag]) for flag in (False, True))
    total = plain.uniform(like) + mirrored.uniform(like)
    torch.testing.assert_close(total, torch.full_like(like, 1 - 2**-24), rtol=0, atol=0)
    torch.testing.assert_close(plain.normal(like), -mirrored.normal(like), rtol=0, atol=0)


@pytest.mark.slow
@pytest.mark.parametrize("posterior", ["weibull", "lognormal"])
def test_a_compiled_network_has_no_maps_either(posterior: Any, by_kernel: list[str]) -> None:
    """One graph for each of training and prediction, with the numbers of the network that is not compiled."""
    torch._dynamo.reset()
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    inputs = {
        "input_ids": torch.randint(1, 30, (3, 6), device=DEVICE),
        "attention_mask": torch.ones(3, 6, device=DEVICE).long(),
        "labels": torch.tensor([0, 1, 1], device=DEVICE),
    }
    inputs["attention_mask"][1, 4:] = 0
    results = []
    for compiled in (False, True):
        torch.manual_seed(0)
        net = BertForSequenceClassification(BertConfig(vocab_size=30, hidden_dropout_prob=0.0, **sizes))
        net = probattn.convert(net, BayesianAttention.bam(2.0, posterior=posterior)).to(DEVICE)
        program = Classifier(torch.compile(net, backend="eager", fullgraph=True) if compiled else net).train()
        objective = AttentionELBO()(program, AttentionGuide(program))
        torch.manual_seed(1)
        by_kernel.clear()
        terms = objective(inputs)
        terms.loss.backward()
        assert by_kernel == KERNELS
        gradients = [parameter.grad for parameter in net.parameters() if parameter.grad is not None]
        draws = posterior_predict(program, inputs, 5, chunk_size=3).logits
        assert set(by_kernel) == set(KERNELS)
        results.append([*terms[:2], *gradients, draws])
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)
    if posterior == "weibull":  # a graph with maps takes some seconds
        return
    by_kernel.clear()
    guide = AttentionGuide(lambda: torch.compile(net, backend="eager")(**inputs, output_attentions=True))
    with torch.no_grad(), guide.outputs_alone(), guide, pyro.plate("data", 3):
        (weights,) = guide.model().attentions
    torch.testing.assert_close(weights.sum(dim=-1), torch.ones(3, 2, 6, device=DEVICE))
    assert by_kernel == ["draw_kernel"]
    torch._dynamo.reset()


def test_draws_that_do_not_divide_the_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="expected a batch of 2 draws"):
        SeededNoise([1, 2], DEVICE).seeds(torch.empty(3, 1, 4, 4, device=DEVICE))


def test_nan_reaches_the_gradient_of_the_values(by_kernel: list[str]) -> None:
    query, key, value = (torch.randn(1, 2, 3, 4, device=DEVICE, requires_grad=True) for _ in range(3))
    with torch.no_grad():
        query[0, 0, 0, 0] = torch.nan
    site = BayesianAttention.bam(prior="constant")
    posterior = FlashPosterior(site, Attending(query, key, value), None)
    posterior.draw(SeededNoise([0], DEVICE))
    assert posterior.answer is not None
    (gradient,) = torch.autograd.grad(posterior.answer.sum(), value)
    assert gradient[0, 0].isnan().all()
    assert gradient[0, 1].isfinite().all()


def test_shapes_that_do_not_fit_raise_errors(by_kernel: list[str]) -> None:
    method, guide = BayesianAttention.bam(prior="constant"), AttentionGuide(lambda: None)
    site = method.build(2, 4).to(DEVICE).eval()

    def tensors(*shapes: tuple[int, ...]) -> list[Tensor]:
        return [torch.randn(shape, device=DEVICE) for shape in shapes]

    query, key = (4, 2, 5, 4), (4, 2, 7, 4)
    wide = AttentionMask(torch.ones(4, 1, 1, 9, device=DEVICE).bool())
    few = AttentionMask(torch.ones(2, 1, 1, 7, device=DEVICE).bool())
    cases = [
        (tensors(query, key, key), wide),
        (tensors(query, key, key), few),
        (tensors(query, key, (4, 2, 6, 4)), PAIRS),
        (tensors(query, (4, 3, 7, 4), (4, 3, 7, 4)), PAIRS),
        (tensors(query, (4, 2, 7, 5), key), PAIRS),
    ]
    for items, layout in cases:
        with (
            guide.outputs_alone(),
            guide,
            pyro.plate("data", 4),
            pytest.raises((RuntimeError, ValueError), match=r"size|shape|divide"),
        ):
            site.attend_alone("site", Attending(*items, layout))
    assert not by_kernel


def test_the_expectation_has_no_noise(by_kernel: list[str]) -> None:
    method, mask = METHODS["constant k"], masks(7, 9)["causal"]
    assert mask is not None
    tensors = [torch.randn(B, H, length, 5, device=DEVICE) for length in (7, 9, 9)]
    bias = torch.randn(B, 1, 1, 9, device=DEVICE)
    answers = []
    for kind in (FlashPosterior, TiledPosterior):
        posterior = kind(method, Attending(*tensors, mask), None)
        posterior.expect(bias, mask)
        answers.append(posterior.answer)
    torch.testing.assert_close(*answers, rtol=1e-5, atol=1e-6)


def test_seeds_differ_from_call_to_call_and_repeat() -> None:
    like = torch.empty(4, device=DEVICE)
    first, again = SeededNoise([1, 2], DEVICE), SeededNoise([1, 2], DEVICE)
    calls = [first.seeds(like) for _ in range(3)]
    assert len(torch.cat(calls).unique()) == 6
    assert torch.equal(torch.stack(calls), torch.stack([again.seeds(like) for _ in range(3)]))
    torch.manual_seed(0)
    drawn = [GlobalNoise().seeds(like) for _ in range(2)]
    torch.manual_seed(0)
    assert torch.equal(GlobalNoise().seeds(like), drawn[0])
    assert not torch.equal(*drawn)


@pytest.mark.parametrize("method", ["constant k", "truncated", "log-normal"])
def test_noise_has_its_distribution_and_is_independent(method: str) -> None:
    options, shape = METHODS[method], (4, 2, 32, 60)
    noise = kernel_noise(options, torch.tensor([11, 12], device=DEVICE), shape).double().cpu()
    if options.posterior == "lognormal":
        numbers = stats.norm.cdf(noise)
    else:
        low, high = noise_limits(options)
        numbers = (noise.exp().neg().exp().numpy() - low) / (high - low)
    numbers = np.asarray(numbers)
    assert stats.kstest(numbers.ravel(), "uniform").pvalue > 0.01
    for axis in range(4):  # neighbours along draws and rows, heads, queries, keys
        ahead, behind = np.delete(numbers, 0, axis), np.delete(numbers, -1, axis)
        assert abs(np.corrcoef(ahead.ravel(), behind.ravel())[0, 1]) < 4 / np.sqrt(ahead.size)
    assert len(np.unique(numbers)) > 0.999 * numbers.size


def test_the_counter_is_that_of_the_published_generator() -> None:
    """Philox 4x32 with ten rounds: the known answer of Random123 for zeros (Salmon et al. 2011)."""
    method = BayesianAttention.bam(1.0, prior="constant")
    noise = (
        kernel_noise(method, torch.zeros(1, dtype=torch.int64, device=DEVICE), (1, 1, 1, 4)).double().cpu()
    )
    words = np.array(
        [0x6627E8D5, 0xBC57AC4C, 0xE169C58D, 0x9B00DBD8]
    )  # in the order in which they are joined
    expected = np.log(-np.log((words >> 8) * 2.0**-24))
    np.testing.assert_allclose(noise.ravel().numpy(), expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("options", "call"),
    [
        ({"scores": "raw"}, {}),
        ({}, {"softcap": 2.0}),
        ({}, {"bias": torch.zeros(1, 1, 1, 9, device=DEVICE)}),
        ({"sigma": 0.1}, {}),
        ({"prior_strength": "learned"}, {}),
    ],
)
def test_what_no_kernel_computes_is_left_to_others(
    options: dict[str, Any], call: dict[str, Any], by_kernel: list[str]
) -> None:
    tensors = [torch.randn(B, H, length, 5, device=DEVICE) for length in (7, 9, 9)]
    assert can_flash(BayesianAttention.bam(), Attending(*tensors))
    assert not can_flash(BayesianAttention.bam(**options), Attending(*tensors, **call))
    assert not can_flash(BayesianAttention(), Attending(*tensors))
    wide = [tensor.new_ones(*tensor.shape[:3], 129) for tensor in tensors]
    assert not can_flash(BayesianAttention.bam(), Attending(*wide))
    assert not can_flash(BayesianAttention.bam(), Attending(*tensors[:2], tensors[2].half()))
    with pyro.poutine.trace(), pyro.plate("data", B), torch.no_grad():
        site = BayesianAttention.bam(prior="constant").build(H, 5).to(DEVICE)
        assert site.attend_alone("site", Attending(*tensors))[1] is not None
    assert not by_kernel


@contextmanager
def tf32() -> Iterator[None]:
    """Products as ``TrainingArguments(tf32=True)`` sets them."""
    before = torch.backends.fp32_precision
    torch.backends.fp32_precision = "tf32"
    try:
        yield
    finally:
        torch.backends.fp32_precision = before


def test_a_gpu_is_tried() -> None:
    from probattn.sites import flash

    with tf32():
        assert flash.gap_to_torch(DEVICE) < 3e-5 < fused.TOLERANCE


def test_operators_are_what_torch_expects_of_them() -> None:
    """Schemas, fake tensors and gradients, for shapes that are known and for those that are not."""
    from probattn.sites import flash

    torch.manual_seed(0)
    query, key, value = (
        torch.randn(2, length, heads, 5, device=DEVICE).transpose(1, 2).requires_grad_()
        for heads, length in ((2, 3), (1, 6), (1, 6))
    )
    logits = torch.randn(2, 1, 6, device=DEVICE).requires_grad_()
    valid, real = (torch.ones(2, *rest, device=DEVICE).bool() for rest in ((2, 3, 6), (3,)))
    seeds, options = (
        torch.zeros(1, dtype=torch.int64, device=DEVICE),
        flash.attend_options(METHODS["constant k"], 0.4),
    )
    checks = ["test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic"]
    for rest in ((logits, valid, real, seeds, *options, True), (None, None, None, seeds, *options, False)):
        torch.library.opcheck(flash.attend, (query, key, value, *rest), test_utils=checks)
        checks = checks[:-1]


def test_a_second_derivative_is_refused(by_kernel: list[str]) -> None:
    from probattn.sites import flash

    tensors = [torch.randn(1, 2, 3, 4, device=DEVICE, requires_grad=True) for _ in range(3)]
    seeds = torch.zeros(1, dtype=torch.int64, device=DEVICE)
    call = None, None, None, seeds, *flash.attend_options(METHODS["constant k"], 0.4), False
    output, _, _ = flash.attend(*tensors, *call)
    (gradient,) = torch.autograd.grad(output.sum(), tensors[0], create_graph=True)
    with pytest.raises(RuntimeError, match="expected one derivative"):
        gradient.sum().backward()
