"""Attention heads as particles: slices of projection weights, one per head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from probattn.checks import check_choice, check_integer, check_number

Part = Literal["query", "key", "value"]
Order = Literal["blocks", "heads"]


@dataclass(frozen=True)
class FusedProjection:
    """Selects the queries, keys or values of a fused weight, which computes all three in one product.

    Attributes:
        part: "query", "key" or "value".
        key_heads: number of heads of keys and of values, which divides the number of query heads (grouped queries);
            None if it equals the number of query heads.
        order: order of the output features. "blocks": all queries, all keys, all values (GPT-2, ModernBERT, Phi-3,
            ``torch.nn.MultiheadAttention``). "heads": for each key head its queries, its key, its value (BLOOM,
            GPT-NeoX, Falcon).

    Raises:
        ValueError: an unknown ``part`` or ``order``, or ``key_heads`` below 1.
    """

    part: Part
    key_heads: int | None = None
    order: Order = "blocks"

    def __post_init__(self) -> None:
        for name, choices in (("part", Part), ("order", Order)):
            check_choice("FusedProjection", name, getattr(self, name), choices)
        if self.key_heads is not None:
            check_integer("FusedProjection", "key_heads", self.key_heads, minimum=1)


@dataclass(frozen=True)
class HeadSlices:
    """The attention heads of one projection as H particles, slices of its weight; made by :func:`head_slices`.

    With D the size of a head and E the number of input features, particle i consists of rows i D to (i + 1) D of a
    linear layer's weight ``[H * D, E]``. The object refers to the weight and stores no copy; methods return views where
    the layout of the weight allows them, else copies.

    Attributes:
        name: name of the projection, for messages.
        parameter: the weight, ``[out, E]``, or ``[E, out]`` if ``transposed``.
        heads: H, the number of particles.
        head_size: D.
        groups: number of equal blocks of output features; each holds H / groups heads of this projection.
        start: position of the first output feature of this projection within each block.
        transposed: whether output features are the last dimension of the weight.
        interleaved: whether particle i consists of output features i, i + H, i + 2 H, ... instead of head i.
    """

    name: str
    parameter: nn.Parameter
    heads: int
    head_size: int
    groups: int = 1
    start: int = 0
    transposed: bool = False
    interleaved: bool = False

    def particles(self) -> Tensor:
        """The particles ``[H, D * E]``, detached: for each of D output features in order, its E weights."""
        return self._rows(self.parameter.detach())

    def weights(self) -> Tensor:
        """The particles ``[H, D * E]``, not detached: gradients reach the parameter."""
        return self._rows(self.parameter)

    def gradients(self) -> Tensor:
        """The gradients of the particles, ``[H, D * E]``, detached.

        Raises:
            ValueError: the parameter has no gradient.
        """
        return self._rows(self._gradient().detach())

    @torch.no_grad()
    def write(self, directions: Tensor, step_size: float) -> None:
        r"""Sets the particles' gradient to :math:`-\epsilon \phi` (An et al. 2020, Algorithm 1), for any optimiser.

        Other entries of the parameter's gradient do not change; values are cast to its dtype. With an optimiser that
        normalises gradients, such as Adam, :math:`\epsilon` has almost no effect.

        Args:
            directions: :math:`\phi`, ``[H, D * E]``, in the order of :meth:`particles`.
            step_size: :math:`\epsilon > 0`.

        Raises:
            ValueError: ``directions`` has another shape, ``step_size`` is not > 0, or the parameter has no gradient.
        """
        check_number(f"{self.name}.write", "step_size", step_size, positive=True)
        for gradient, direction in self.targets(directions):
            gradient.copy_(-step_size * direction)

    def targets(self, directions: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Pairs of a view of the gradient and the entries of ``directions`` for it; errors as in :meth:`write`."""
        return [self._paired(self._gradient(), "directions", directions)]

    @torch.no_grad()
    def assign(self, particles: Tensor) -> None:
        """Sets the particles in the parameter, in its dtype; other entries of the parameter do not change.

        Args:
            particles: ``[H, D * E]``, in the order of :meth:`particles`.

        Raises:
            ValueError: ``particles`` has another shape.
        """
        blocks, values = self._paired(self.parameter, "particles", particles)
        blocks.copy_(values)

    def _paired(self, tensor: Tensor, name: str, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The heads of ``tensor``, and rows ``[H, D * E]`` in their shape; ``ValueError`` for rows of another."""
        blocks = self._blocks(tensor.detach())
        expected = [self.heads, blocks.shape[2] * blocks.shape[3]]
        if list(rows.shape) != expected:
            raise ValueError(f"{self.name}: expected {name} {expected}, got {list(rows.shape)}")
        return blocks, rows.view(blocks.shape)

    def _blocks(self, tensor: Tensor) -> Tensor:
        """The heads ``[groups, H / groups, D, E]``, a view in every layout."""
        rows = tensor.T if self.transposed else tensor
        run = rows.unflatten(0, (self.groups, -1))  # [groups, out / groups, E]
        count = self.heads // self.groups
        features = run.narrow(1, self.start, count * self.head_size)
        if self.interleaved:
            return features.unflatten(1, (self.head_size, count)).transpose(1, 2)
        return features.unflatten(1, (count, self.head_size))

    def _rows(self, tensor: Tensor) -> Tensor:
        return self._blocks(tensor).reshape(self.heads, -1)

    def _gradient(self) -> Tensor:
        if self.parameter.grad is None:
            reason = (
                "call backward first; a layer that a pass leaves out has none (set layerdrop to 0)"
                if self.parameter.requires_grad
                else "it is frozen; set requires_grad"
            )
            raise ValueError(f"{self.name}: its weight has no gradient; {reason}")
        return self.parameter.grad


def head_slices(
    module: nn.Module,
    projection: str,
    heads: int,
    *,
    fused: FusedProjection | None = None,
    interleaved: bool = False,
) -> HeadSlices:
    """The attention heads of one projection as particles.

    Args:
        module: a module that contains the projection, at any depth.
        projection: dotted path from ``module`` to a linear layer, a ``Conv1D`` of transformers, or a weight: "q_proj",
            "attn.c_attn", "in_proj_weight".
        heads: number of heads of this projection; for a fused projection, its number of query heads. With grouped
            queries, separate projections of keys and values have as many heads as there are key heads.
        fused: the part of a projection that computes queries, keys and values at once; None for other projections.
        interleaved: whether particle i consists of output features i, i + H, i + 2 H, ... instead of head i.

    Raises:
        TypeError: the path does not lead to a layer with a weight or to a floating-point weight ``[out, in]``.
        ValueError: the module has no such projection, or the output features do not divide into these heads.

    Example:
        >>> layer = nn.ModuleDict({"query": nn.Linear(6, 8)})
        >>> slices = head_slices(layer, "query", heads=4)
        >>> slices.particles().shape
        torch.Size([4, 12])
        >>> torch.equal(slices.particles()[1], layer["query"].weight[2:4].flatten())
        True
        >>> slices.particles().data_ptr() == layer["query"].weight.data_ptr()
        True
        >>> qkv = nn.ModuleDict({"qkv": nn.Linear(6, 16)})  # 4 query heads, 2 of keys and 2 of values
        >>> keys = head_slices(qkv, "qkv", heads=4, fused=FusedProjection("key", key_heads=2))
        >>> torch.equal(keys.particles()[0], qkv["qkv"].weight[8:10].flatten())
        True
    """
    name = f"{type(module).__name__}.{projection}"
    check_integer(name, "heads", heads, minimum=1)
    weight, transposed = _weight(module, projection, name)
    features = weight.shape[1 if transposed else 0]
    if fused is None:
        if features % heads:
            raise ValueError(
                f"{name}: expected heads that divide its {features} output features, got {heads}"
            )
        size = features // heads
        return HeadSlices(name, weight, heads, size, transposed=transposed, interleaved=interleaved)
    key_heads = heads if fused.key_heads is None else fused.key_heads
    if heads % key_heads:
        raise ValueError(
            f"{name}: expected key_heads that divide the {heads} query heads, got {fused.key_heads}"
        )
    total = heads + 2 * key_heads
    if features % total:
        raise ValueError(
            f"{name}: expected {heads} query, {key_heads} key and {key_heads} value heads of one size, "
            f"but its {features} output features do not divide by {total}"
        )
    size = features // total
    groups = key_heads if fused.order == "heads" else 1
    queries = heads // groups * size  # output features of the queries of a run
    keys = key_heads // groups * size
    start = {"query": 0, "key": queries, "value": queries + keys}[fused.part]
    count = heads if fused.part == "query" else key_heads
    if interleaved and groups > 1:
        raise ValueError(
            f"{name}: expected features of a part in one run for interleaved particles, got {groups}"
        )
    return HeadSlices(f"{name} ({fused.part})", weight, count, size, groups, start, transposed, interleaved)


def _weight(module: nn.Module, projection: str, name: str) -> tuple[nn.Parameter, bool]:
    """The weight, and whether its output features are last."""
    target: object = module
    for attribute in projection.split("."):
        if not attribute or not isinstance(target, nn.Module) or not hasattr(target, attribute):
            raise ValueError(f"{name}: {type(module).__name__} has no such projection; {_choices(module)}")
        target = getattr(target, attribute)
    transposed = False
    if isinstance(target, nn.Module) and not isinstance(target, nn.Linear):
        from transformers.pytorch_utils import Conv1D  # slow to import, and few modules come here

        transposed = isinstance(target, Conv1D)
        if not transposed:
            raise TypeError(
                f"{name}: expected a Linear, a Conv1D or a weight, got {type(target).__name__}; {_choices(module)}"
            )
    target = target.weight if isinstance(target, nn.Module) else target
    if not isinstance(target, nn.Parameter):
        raise TypeError(f"{name}: expected its weight to be a parameter, got {type(target).__name__}")
    if target.dim() != 2 or not target.is_floating_point():
        raise TypeError(
            f"{name}: expected a floating-point weight [out, in], got {target.dtype} {list(target.shape)}"
        )
    return target, transposed


def _choices(module: nn.Module) -> str:
    """The projections of a module, for a message."""
    layers = {name for name, child in module.named_modules() if isinstance(child, nn.Linear)}
    weights = {
        name
        for name, parameter in module.named_parameters()
        if parameter.dim() == 2 and name.removesuffix(".weight") not in layers
    }
    names = sorted(layers - {""} | {name.removesuffix(".weight") for name in weights})
    return f"it has {', '.join(names)}" if names else "it has none"
