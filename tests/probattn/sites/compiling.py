"""Compiles the kernels of probattn.sites.triton_kernels for GPUs; prints size and shared memory of each, in bytes.

Triton brings the assembler and needs no GPU. TRITON_INTERPRET must not be set.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import product
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget

from probattn.sites import flash, flash_kernels, kernels, triton_kernels

FLOATS = {
    "rho",
    "floor",
    "rate",
    "log_rate",
    "strength",
    "spread",
    "prior",
    "factor",
    "surprise",
    "low",
    "high",
}
SIZES = {
    "heads",
    "groups",
    "queries",
    "keys",
    "pairs",
    "total",
    "span",
    "share",
    "risen",
    "key_heads",
    "width",
    "value_width",
}
SIZES |= {"by_datum", "by_head", "by_query", "by_key"}
SIZES |= {f"{letter}_{step}" for letter in "qkv" for step in ("datum", "head", "row")}
MAPS = ("valid", "real", "logits", "rise")
"""Arguments of a draw that may be absent."""
TENSORS = ("queries_of", "keys_of", "values_of", "pull_of", "output", "to_query", "to_key", "to_value")
"""Arguments that may be of 16 bits."""


def compiled(
    kernel: Any,
    architecture: int,
    warps: int,
    constants: dict[str, Any],
    tensors: str = "*fp32",
    stages: int = 3,
) -> tuple[int, int]:
    """Size of the machine code and of the shared memory; absent arguments are constants, None."""
    kinds: dict[str, Any] = {}
    for name in kernel.arg_names:
        kinds[name] = "*u8" if name in ("valid", "real") else tensors if name in TENSORS else "*fp32"
        kinds[name] = "*i64" if name == "seeds" else kinds[name]
        kinds[name] = "i32" if name in SIZES else "fp32" if name in FLOATS else kinds[name]
    kinds |= dict.fromkeys(constants, "constexpr")
    values = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    source = triton.compiler.ASTSource(kernel, kinds, values)
    target = GPUTarget("cuda", architecture, 32)
    made = triton.compile(source, target=target, options={"num_warps": warps, "num_stages": stages})
    return len(made.asm["cubin"]), made.metadata.shared


def results() -> Iterator[tuple[int, int]]:
    """Of all kernels, with all arguments, without those that may be absent, and without the logits of a prior."""
    for architecture in (80, 90):
        lengths = ((128, 128), (1, 4096))
        for family, length, absent in product((0, 1, 2), lengths, ((), MAPS, ("logits",))):
            tile = kernels._tile(*length)
            warps = tile.pop("num_warps")
            shared = {"FAMILY": family, **tile, **dict.fromkeys(absent)}
            forward = dict.fromkeys(["divergence", "seeds"] if absent == MAPS else ["noise"])
            backward = dict.fromkeys(["by_divergence", "to_rise"] if absent == MAPS else [])
            backward |= dict.fromkeys(["to_logits"] if absent else [])
            yield compiled(triton_kernels.draw_kernel, architecture, warps, shared | forward)
            yield compiled(triton_kernels.draw_backward_kernel, architecture, warps, shared | backward)
        for normal in (True, False):
            tile = kernels._tile(128, 128)
            warps = tile.pop("num_warps")
            yield compiled(triton_kernels.noise_kernel, architecture, warps, {"NORMAL": normal, **tile})
        # Triton compiles numbers of 1 as constants.
        ones = dict.fromkeys(("heads", "groups", "queries", "keys"), 1) | {"by_key": 1}
        tile = kernels._tile(1, 1)
        warps = tile.pop("num_warps")
        yield compiled(triton_kernels.draw_kernel, architecture, warps, {"FAMILY": 0, **tile, **ones})
        yield compiled(
            triton_kernels.draw_backward_kernel, architecture, warps, {"FAMILY": 0, **tile, **ones}
        )
        ones = dict.fromkeys(("heads", "pairs", "total", "span"), 1) | kernels._mix_tile(1) | {"MIXES": 2}
        warps = ones.pop("num_warps")
        yield compiled(triton_kernels.mix_backward_kernel, architecture, warps, ones)
        for heads, two in product((16, 32), (True, False)):
            shared = kernels._mix_tile(heads)
            warps = shared.pop("num_warps")
            forward = dict.fromkeys([] if two else ["weight_2", "bias_2", "mixed_2"])
            backward = dict.fromkeys([] if two else ["weight_2", "mixed_2", "pull_2"])
            yield compiled(triton_kernels.mix_kernel, architecture, warps, shared | forward)
            backward["MIXES"] = 1 + two
            yield compiled(triton_kernels.mix_backward_kernel, architecture, warps, shared | backward)


def flash_results() -> Iterator[tuple[int, int]]:
    """Of the kernels without a map, for 16 and 32 bits, narrow and wide, with and without all arguments."""
    cases = ((False, torch.bfloat16, 64, True), (True, torch.bfloat16, 128, False))
    cases += ((True, torch.float32, 64, True), (False, torch.float32, 128, False))
    for architecture, (normal, dtype, width, whole) in product((80, 90), cases):
        like = torch.empty(1, 1, 512, width, dtype=dtype)
        tile = flash._tile(like, like)
        warps = tile.pop("num_warps")
        shared = {"NORMAL": normal, **{name: size for name, size in tile.items() if name != "num_stages"}}
        shared |= {} if whole else dict.fromkeys(("valid", "real", "logits"))
        forward = {} if whole else {"divergence": None}
        backward = {"WITH_KL": True} if whole else {"WITH_KL": False, "by_divergence": None}
        by_logits = {} if whole else {"to_logits": None}
        tensors = "*bf16" if dtype == torch.bfloat16 else "*fp32"
        constant = {"logits": None, "WITH_KL": True}  # of a prior without logits
        for kernel, absent in (
            (flash_kernels.attend_kernel, forward),
            (flash_kernels.attend_query_kernel, backward),
            (flash_kernels.attend_key_kernel, backward | by_logits),
            (flash_kernels.attend_kernel, {"logits": None}),
            (flash_kernels.attend_query_kernel, constant),
            (flash_kernels.attend_key_kernel, constant | {"to_logits": None}),
        ):
            yield compiled(kernel, architecture, warps, shared | absent, tensors, 2)
    # Triton compiles numbers of 1 as constants.
    ones = dict.fromkeys(
        ("share", "heads", "key_heads", "groups", "queries", "keys", "width", "value_width"), 1
    )
    ones |= {"by_key": 1, "NORMAL": False}
    like = torch.empty(1, 1, 1, 1)
    tile = flash._tile(like, like)
    warps, _ = tile.pop("num_warps"), tile.pop("num_stages")
    yield compiled(flash_kernels.attend_kernel, 90, warps, ones | tile, stages=2)
    for kernel in (flash_kernels.attend_query_kernel, flash_kernels.attend_key_kernel):
        yield compiled(kernel, 90, warps, ones | tile | {"WITH_KL": True}, stages=2)


if __name__ == "__main__":
    print(json.dumps([*results(), *flash_results()]))
