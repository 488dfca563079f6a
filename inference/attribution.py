"""Attributed uncertainty: sums of shares, leading pairs, and predictions with more or less attention somewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from probattn.checks import check_batch, check_integer
from probattn.inference.derivatives import Expansion
from probattn.inference.moments import Moments
from probattn.inference.predictive import Model, batched_inputs, prepared_batch
from probattn.inference.session import evaluating
from probattn.sites.method import as_program

Part = Literal["site", "head", "query", "key"]
PARTS: tuple[Part, ...] = ("site", "head", "query", "key")


class Pair(NamedTuple):
    """An attention weight and its part in the variance of a prediction.

    Attributes:
        site: name of the attention call.
        head: index of the head.
        query: position that attends.
        key: position that is attended to.
        share: its part of the variance, in [0, 1].
        slope: derivative of the attributed number by the logarithm of the unnormalised weight.
    """

    site: str
    head: int
    query: int
    key: int
    share: float
    slope: float


def share_by(maps: Mapping[str, Tensor], *parts: Part) -> Tensor:
    """Sums attributed maps over everything but the named parts.

    Args:
        maps: :attr:`Moments.share`, or :attr:`Moments.slope`, whose sums are derivatives by a factor that the weights
            have in common; ``[B, ..., H, T, S]`` by site.
        parts: what to keep, of "site", "head", "query" and "key"; none for the sum of all.

    Returns:
        ``[B, ...]`` and the kept dimensions, in the order site, head, query, key.

    Raises:
        ValueError: no maps, an unknown part, or maps whose kept dimensions differ in size (the keys of an encoder and
            of a decoder, say): take some of the sites.

    Example:
        >>> maps = {"layer.0": torch.full((1, 2, 3, 3), 0.01), "layer.1": torch.full((1, 2, 3, 3), 0.04)}
        >>> share_by(maps, "site"), share_by(maps, "site", "key").shape
        (tensor([[0.1800, 0.7200]]), torch.Size([1, 2, 3]))
    """
    unknown = [part for part in parts if part not in PARTS]
    if unknown or not maps:
        got = repr(unknown[0]) if unknown else "no maps; call posterior_moments(..., attribution=True)"
        raise ValueError(
            f"share_by: expected parts among {', '.join(PARTS)} and maps of some site, got {got}"
        )
    summed = [index - 3 for index, part in enumerate(PARTS[1:]) if part not in parts]
    each = [one.sum(dim=summed) if summed else one for one in maps.values()]
    shapes = sorted({tuple(one.shape) for one in each})
    if len(shapes) > 1:
        raise ValueError(
            f"share_by: expected sites whose maps agree in what is kept ({', '.join(parts)}), got shapes {shapes}; "
            "take the sites that belong together"
        )
    sites = next(iter(maps.values())).dim() - 3
    stacked = torch.stack(each, dim=sites)
    return stacked if "site" in parts else stacked.sum(dim=sites)


def leading_pairs(moments: Moments, number: int = 10) -> list[list[Pair]]:
    """The pairs of query and key that bring in most of the variance, by row.

    Args:
        moments: made with ``attribution``, of predictions of which each row has one.
        number: of pairs, at most.

    Returns:
        For each row its pairs, the largest share first.

    Raises:
        ValueError: moments without shares, or with several predictions a row: compute one with ``positions``.
    """
    check_integer("leading_pairs", "number", number, minimum=1)
    share, slope = moments.share, moments.slope
    if share is None or slope is None:
        raise ValueError(
            "leading_pairs: expected shares, got none; call posterior_moments(..., attribution=True)"
        )
    rows = len(moments.logits)
    if any(item.dim() != 4 for item in share.values()):
        got = [list(item.shape) for item in share.values()]
        raise ValueError(f"leading_pairs: expected shares [B, H, T, S], got {got}; use positions=[one]")
    flat = torch.cat([item.reshape(rows, -1) for item in share.values()], dim=1)
    order = flat.topk(min(number, flat.shape[1])).indices
    found: list[list[tuple[int, Pair]]] = [[] for _ in range(rows)]
    first = 0
    for name, value in share.items():
        inside = (order >= first) & (order < first + value[0].numel())
        row, rank = inside.nonzero(as_tuple=True)
        head, query, key = torch.unravel_index(order[inside] - first, value.shape[1:])
        values = (value[row, head, query, key], slope[name][row, head, query, key])
        first += value[0].numel()
        columns = (column.tolist() for column in (row, rank, head, query, key, *values))
        for here, place, *numbers in zip(*columns, strict=True):
            found[here].append((place, Pair(name, *numbers)))
    return [[pair for _, pair in sorted(pairs)] for pairs in found]


def reweighted_expectation(
    model: Model,
    batch: Mapping[str, Tensor],
    factors: Mapping[str, Tensor],
    *,
    batch_keys: Sequence[str] | None = None,
) -> Tensor:
    r"""The prediction at the posterior expectation with more or less attention in some places.

    .. math:: z(W'), \qquad W'_j = \frac{f_j\, \mathrm E[S_j]}{\sum_i f_i\, \mathrm E[S_i]}

    through the whole network: what follows from the changed weights, in later layers too, changes with them.

    Args:
        model: as in :func:`posterior_moments`.
        batch: its inputs.
        factors: f by site, positive, broadcastable to ``[B, H, T, S]``: 2 in a column gives a key twice its weight.
        batch_keys: inputs whose first dimension is the batch. Default: all of them.

    Returns:
        Predictions ``[B, ..., C]``.

    Raises:
        ValueError: an unknown site, or a factor that is not positive and finite.

    Example:
        >>> from transformers import BertConfig, BertForSequenceClassification
        >>> import probattn
        >>> from probattn.models import convert
        >>> config = BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
        >>> net = convert(BertForSequenceClassification(config), probattn.BayesianAttention())
        >>> twice = torch.tensor([1.0, 1.0, 2.0, 1.0])
        >>> inputs = {"input_ids": torch.arange(8).view(2, 4)}
        >>> reweighted_expectation(net, inputs, {"bert.encoder.layer.0.attention.self": twice}).shape
        torch.Size([2, 2])
    """
    owner = "reweighted_expectation"
    check_batch(owner, batch)
    wrong = [name for name, factor in factors.items() if not bool(((factor > 0) & factor.isfinite()).all())]
    if wrong:
        raise ValueError(f"{owner}: {wrong[0]}: expected factors above 0 and finite")
    program: Any = as_program(model)
    inputs, _, _ = batched_inputs(owner, prepared_batch(program, batch), batch_keys, "labels")
    logs = {name: factor.log() for name, factor in factors.items()}
    with evaluating(program), Expansion(logs) as expansion:
        logits: Tensor = program(inputs)
    unknown = sorted(set(factors) - set(expansion.points))
    if unknown:
        raise ValueError(
            f"{owner}: expected sites of this model, got {unknown[0]!r}; it has {', '.join(expansion.points)}"
        )
    return logits
