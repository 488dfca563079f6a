"""Counts what a GPU would do: kernels that are launched, and how often a step waits for it. `make bench`.

A count needs no GPU and does not depend on the machine. Every operator that torch dispatches and that computes or
copies numbers is a kernel; views, and results without values, are none. Operators of :mod:`probattn.sites.kernels` and
:mod:`probattn.sites.flash` count as what they launch. The code takes the ways of an accelerator, and runs on the CPU,
kernels of Triton by its interpreter: :data:`WAYS` has the functions that tell the machine, and rows of a pass are those
of a GPU. Counts of a training step are what a method adds to those of eager attention, for each layer; the others are
in units of one eager pass without gradients.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Self
from unittest.mock import patch

import attention
import pyro.distributions as dist
import torch
import typer
import yaml
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from probattn.host import on_cpu
from probattn.inference import predictive
from probattn.sites import flash, kernels
from probattn.sites.fused import runs_flash, runs_kernels

LAUNCH = kernels.launch

DECLARED = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8"))
SHAPE = attention.Shape(**DECLARED["shape"])
SMALL = replace(SHAPE, layers=2)
"""Shape of networks that are compiled, which takes a minute a layer."""
KINDS: dict[str, dict[str, Any]] = DECLARED["kinds"]
WITHOUT_KERNEL = {
    "_unsafe_view",
    "is_pinned",
    "lift_fresh",
    "empty",
    "empty_like",
    "empty_strided",
    "new_empty",
}
WITHOUT_KERNEL |= {"new_empty_strided", "sym_size", "sym_numel", "sym_stride"}
WAITS = {"_local_scalar_dense", "equal", "nonzero", "masked_select", "_unique2", "is_nonzero", "unique_dim"}


class _Reads(TorchFunctionMode):
    """Counts what moves a tensor's values to Python at once, which torch does not dispatch."""

    def __init__(self, waits: Counter[str]) -> None:
        super().__init__()
        self._waits = waits

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        name = getattr(func, "__name__", "")
        if name in {"tolist", "numpy", "cpu"}:
            self._waits[name] += 1
        return func(*args, **(kwargs or {}))


class Count(TorchDispatchMode):
    """Counts kernels and waits within it, by operator."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels: Counter[str] = Counter()
        self.waits: Counter[str] = Counter()
        self._reads = _Reads(self.waits)

    def __enter__(self) -> Self:
        self._reads.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *raised: object) -> None:
        super().__exit__(*raised)
        self._reads.__exit__(*raised)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        package, _, name = func._schema.name.partition("::")
        if name in WAITS or (name == "index" and any(_is_mask(item) for item in args[1])):
            self.waits[name] += 1
        result = func(*args, **(kwargs or {}))
        tensors = [item for item in tree_leaves(result) if isinstance(item, torch.Tensor)]
        if (
            package != "probattn"
            and not func.is_view
            and name not in WITHOUT_KERNEL | WAITS
            and any(map(torch.numel, tensors))
        ):
            self.kernels[name] += 1
        return result


def _is_mask(index: Any) -> bool:
    return index is not None and index.dtype == torch.bool


def _elsewhere(_: Any) -> bool:
    return False


def _is_float32(tensor: torch.Tensor) -> bool:
    return tensor.dtype == torch.float32


WAYS = {
    "on_cpu": (on_cpu, _elsewhere),
    "runs_kernels": (runs_kernels, _is_float32),
    "runs_flash": (runs_flash, _is_float32),
}
"""Functions that tell the machine, and those that take their place."""


@contextmanager
def as_on_a_gpu() -> Iterator[None]:
    """The code goes the ways that it goes on an accelerator."""
    with ExitStack() as stack:
        for module in list(sys.modules.values()):
            if not getattr(module, "__name__", "").startswith("probattn."):
                continue
            for name, (function, other) in WAYS.items():
                if vars(module).get(name) is function:
                    stack.enter_context(patch.object(module, name, other))
        stack.enter_context(dist.validation_enabled(False))  # which is Pyro's default
        stack.enter_context(patch.object(predictive, "CPU_ROWS_PER_PASS", predictive.ROWS_PER_PASS))
        yield


def counted(kind: str, variant: str) -> Count:
    """Kernels and waits of a step, after a first one; of a compiled network those that Inductor makes, for this CPU."""
    device = torch.device("cpu")
    if kind == "compiled":
        return _compiled(attention.build_step("train", variant, SMALL, device, compiled_network=True))
    shape = replace(SHAPE, batch=KINDS[kind].get("batch", SHAPE.batch))
    step = attention.build_step(kind, variant, shape, device)
    with as_on_a_gpu():
        step()
        with Count() as count, _within_operators(count):
            step()
    return count


def _compiled(step: Callable[[], Any]) -> Count:
    """What a first step compiles, and what its operators launch; graphs that are made already are compiled again."""
    from torch._inductor import metrics

    count = Count()
    torch._dynamo.reset()
    metrics.reset()
    with torch._inductor.config.patch(force_disable_caches=True), as_on_a_gpu(), _within_operators(count):
        step()
    count.kernels["generated"] = metrics.generated_kernel_count
    return count


@contextmanager
def _within_operators(count: Count) -> Iterator[None]:
    """Counts what the operators of Triton's kernels launch."""

    def launch(kernel: Any, programs: int, *arguments: Any, **options: Any) -> None:
        count.kernels[kernel.__name__] += 1
        with _disable_current_modes():  # the interpreter computes with torch
            LAUNCH(kernel, programs, *arguments, **options)

    def counting(function: Callable[..., Any], *arguments: Any) -> Any:
        with _disable_current_modes(), count:
            return function(*arguments)

    with ExitStack() as stack:
        stack.enter_context(patch.object(kernels, "launch", launch))
        for operator in (*kernels.OPERATORS, *flash.OPERATORS):
            made = operator._backend_fns
            wrapped = {device: partial(counting, function) for device, function in made.items()}
            stack.enter_context(patch.dict(made, wrapped))
        yield


def main(
    *,
    kinds: Annotated[str, typer.Option(help=f"Some of: {', '.join(KINDS)}. Compiled takes minutes.")] = "",
    operators: Annotated[bool, typer.Option(help="Show the operators too.")] = False,
    output: Annotated[Path, typer.Option(help="The JSON file.")] = Path("bench/launches.json"),
) -> None:
    """Counts, prints them beside their ceilings and writes them."""
    results = []
    for kind in kinds.split(",") if kinds else KINDS:
        for row, count in measured(kind):
            results.append(row)
            print(
                "  {kind}, {variant}: {kernels} kernels, {ratio} {unit}, {waits} waits{verdict}".format(**row)
            )
            if operators:
                print(f"    {dict(count.kernels.most_common())} {dict(count.waits)}")
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(
        json.dumps({"layers": SHAPE.layers, "results": results}, indent=1) + "\n", encoding="utf-8"
    )


def measured(kind: str, variants: Sequence[str] | None = None) -> Iterator[tuple[dict[str, Any], Count]]:
    """The records of some or all variants of a kind, with their counts."""
    declared, training = KINDS[kind], kind in ("train", "compiled")
    base = counted(kind if training else "expectation", "eager")
    layers = (SMALL if kind == "compiled" else SHAPE).layers
    for variant, (most, waits) in declared["ceilings"].items():
        if variants is not None and variant not in variants:
            continue
        count = counted(kind, variant)
        kernels, basis = count.kernels.total(), base.kernels.total()
        ratio = (kernels - basis) / layers if training else kernels / basis
        waiting = count.waits.total()
        passed = ratio <= most and waiting <= waits
        yield (
            {
                "kind": kind,
                "variant": variant,
                "kernels": kernels,
                "ratio": round(ratio, 1),
                "unit": declared["unit"],
                "waits": waiting,
                "goal": declared.get("goals", {}).get(variant),
                "passed": passed,
                "verdict": "" if passed else f", ceilings {most} and {waits}: MISSED",
            },
            count,
        )


if __name__ == "__main__":
    if os.environ.get("TRITON_INTERPRET") != "1":  # which Triton reads when it is loaded
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "TRITON_INTERPRET": "1"})
    typer.run(main)
