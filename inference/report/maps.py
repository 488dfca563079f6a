"""Attention maps of single inputs from posterior draws of the weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from probattn.inference.report.examples import AttentionExample, AttentionMap, Example


def attention_example(
    example: Example,
    queries: Sequence[str],
    weights: Mapping[str, Tensor],
    *,
    keys: Sequence[str] | None = None,
    heads: Sequence[int] = (),
    second: int | None = None,
    reason: Literal["chosen", "uncertain"] = "chosen",
) -> AttentionExample:
    """Mean and standard deviation over mean of the weights between an input's tokens, by site and head.

    The first map of every site is that of the weights averaged over heads: the standard deviation is the average's,
    over draws, and smaller than a head's where heads vary independently.

    Args:
        example: the input and its prediction.
        queries: the T tokens of the rows, padding left out.
        weights: draws of the normalised weights by site, ``[P, H, T, S]``; the first site is shown first.
        keys: the S tokens of the columns; those of the rows by default.
        heads: heads that get maps of their own.
        second: where the second text of a pair begins among the tokens.
        reason: why the input is shown.

    Returns:
        The record; the standard deviation has divisor P - 1 and is 0 for one draw.

    Raises:
        ValueError: no site, a shape that does not fit the tokens, or a head out of range.

    Example:
        >>> example = Example(text="a b", predicted="yes", probability=0.7, spread=0.1, entropy=0.6)
        >>> draws = torch.tensor([[[[0.5, 0.5], [0.2, 0.8]]], [[[0.7, 0.3], [0.4, 0.6]]]])
        >>> attention_example(example, ["a", "b"], {"layer": draws}).maps[0].mean
        ((0.6, 0.4), (0.3, 0.7))
    """
    columns = queries if keys is None else keys
    if not weights:
        raise ValueError("attention_example: expected the weights of at least one site, got none")
    maps = []
    for site, draws in weights.items():
        if draws.dim() != 4 or tuple(draws.shape[2:]) != (len(queries), len(columns)):
            raise ValueError(
                f"attention_example, site {site!r}: expected weights [P, H, {len(queries)}, {len(columns)}] for "
                f"{len(queries)} query and {len(columns)} key tokens, got {list(draws.shape)}"
            )
        wrong = [head for head in heads if not 0 <= head < draws.shape[1]]
        if wrong:
            raise ValueError(
                f"attention_example, site {site!r}: expected heads in 0..{draws.shape[1] - 1}, got {wrong[0]}"
            )
        maps.append(_map(site, None, draws.mean(dim=1)))
        maps += [_map(site, head, draws[:, head]) for head in heads]
    return AttentionExample(
        example=example,
        reason=reason,
        queries=tuple(queries),
        keys=tuple(columns),
        second=second,
        maps=tuple(maps),
    )


def _map(site: str, head: int | None, draws: Tensor) -> AttentionMap:
    draws = draws.double().cpu()
    mean = draws.mean(dim=0).clamp(0, 1)  # [T, S]
    std = draws.std(dim=0) if len(draws) > 1 else torch.zeros_like(mean)
    ratio = torch.where(mean > 0, std / mean.clamp_min(torch.finfo(mean.dtype).tiny), 0.0)
    return AttentionMap(site=site, head=head, mean=_rows(mean, 4), ratio=_rows(ratio, 3))


def _rows(values: Tensor, decimals: int) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(round(value, decimals) for value in row) for row in values.tolist())


def own_tokens(weights: Mapping[str, Tensor], row: int, valid: Tensor) -> dict[str, Tensor]:
    """One input's weights between its own tokens, from those of a padded batch.

    Args:
        weights: draws by site, ``[P, B, H, T, T]``.
        row: index in the batch.
        valid: bool ``[B, T]``, False at padding.

    Returns:
        Draws by site, ``[P, H, t, t]`` with t valid tokens.
    """
    kept = valid[row].bool().nonzero().flatten()
    return {site: draws[:, row][:, :, kept][..., kept] for site, draws in weights.items()}
