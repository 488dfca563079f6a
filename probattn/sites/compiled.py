"""Elementwise arithmetic of attention sites as kernels that torch.compile makes, where a compiler is at hand.

:mod:`probattn.sites.traced` is for networks that a user compiles as a whole: there sites must be part of the graph.
Here the network runs as it is, which starts in seconds and costs less on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


class _Switch:
    """Whether sites compile, one answer for the process."""

    on = False


def compile_sites(enabled: bool = True) -> None:
    """Lets attention sites compute draws, divergences and their gradients in kernels of ``torch.compile``.

    A draw is some twenty operations, each a pass over the map ``[B, H, T, S]``; a kernel makes one pass of them. Noise
    is the same, and results are to rounding. It needs a compiler (C++ for a CPU, Triton for a GPU) and some seconds
    when a process first meets a kind of site; torch keeps the kernels on disk. It holds for the whole process and for
    Weibull posteriors whose concentration is learned, without a learned scale; other sites are as before.

    Args:
        enabled: False goes back.

    Raises:
        RuntimeError: torch finds no compiler for a CPU that works.

    Example:
        >>> compile_sites(False)
        >>> sites_compile()
        False
    """
    if enabled:
        _check_compiler()
    _Switch.on = enabled


@cache
def _check_compiler() -> None:
    """Raises ``RuntimeError`` unless torch compiles; asked until it does."""
    try:
        torch.compile(_probe)(torch.zeros(8))
    except Exception as error:
        lines = [line for line in str(error).splitlines() if line and not line.startswith("backend=")]
        raise RuntimeError(
            "compile_sites: expected a compiler that torch.compile can use (for a CPU g++ or clang++ on the path, "
            f"or in the variable CXX), got: {lines[0]}"
        ) from error


def sites_compile() -> bool:
    """Whether :func:`compile_sites` is on."""
    return _Switch.on


def site_kernel(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """A function of tensors and numbers, as one kernel for any sizes where sites compile.

    Reductions stay outside: where several are fused, torch 2.13 fails to compile them for changing sizes. Past torch's
    limit of variants the function runs as it is.
    """
    return _kernel(function) if sites_compile() else function


@cache
def _kernel(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    compiled = torch.compile(function, dynamic=True)  # which loads torch's compiler

    @wraps(function)
    def call(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        # Dynamo asks every tensor for its gradient; those within a graph warn.
        plain: Any = tree_map_only(Tensor, Tensor.detach, (args, kwargs))
        return compiled(*plain[0], **plain[1])

    return call


def _probe(values: Tensor) -> Tensor:
    return values.exp() + 1
