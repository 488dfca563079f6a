"""Attention maps of single inputs from posterior draws of the weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from probattn.inference.report.examples import AttentionExample, AttentionMap, Example

Rows = tuple[tuple[float, ...], ...]


def attention_example(
    example: Example,
    queries: Sequence[str],
    weights: Mapping[str, Tensor],
    *,
    keys: Sequence[str] | None = None,
    heads: Sequence[int] = (),
    second: int | None = None,
    baseline: Mapping[str, Tensor] | None = None,
    latent: bool = True,
    rows: Literal["tokens", "heads"] = "tokens",
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
        baseline: the deterministic baseline's weights by site, ``[H, T, S]``, to stand beside.
        latent: whether the weights vary; False for deterministic attention, whose maps have no standard deviation.
        rows: what ``queries`` names; "heads" where each head has a single query and all of them make one map, handed
            over as if it were that of one head.
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
        beside = None if baseline is None else _checked(baseline, site, draws)
        shown: list[tuple[int | None, Tensor, Tensor | None]] = [
            (None, draws.mean(dim=1), None if beside is None else beside.mean(dim=0))
        ]
        shown += [(head, draws[:, head], None if beside is None else beside[head]) for head in heads]
        maps += [_map(site, head, own, other, latent) for head, own, other in shown]
    return AttentionExample(
        example=example,
        reason=reason,
        rows=rows,
        queries=tuple(queries),
        keys=tuple(columns),
        second=second,
        maps=tuple(maps),
    )


def _checked(baseline: Mapping[str, Tensor], site: str, draws: Tensor) -> Tensor:
    found = baseline.get(site)
    if found is None or found.shape != draws.shape[1:]:
        got = "none" if found is None else list(found.shape)
        raise ValueError(
            f"attention_example, site {site!r}: expected weights {list(draws.shape[1:])} of the baseline, got {got}"
        )
    return found


def _map(site: str, head: int | None, draws: Tensor, baseline: Tensor | None, latent: bool) -> AttentionMap:
    draws = draws.double().cpu()
    mean = draws.mean(dim=0).clamp(0, 1)  # [T, S]
    std = draws.std(dim=0) if len(draws) > 1 else torch.zeros_like(mean)
    ratio = torch.where(mean > 0, std / mean.clamp_min(torch.finfo(mean.dtype).tiny), 0.0)
    return AttentionMap(
        site=site,
        head=head,
        mean=_rows(mean, 4),
        ratio=_rows(ratio, 3) if latent else (),
        baseline=() if baseline is None else _rows(baseline.double().cpu().clamp(0, 1), 4),
    )


def _rows(values: Tensor, decimals: int) -> Rows:
    return tuple(tuple(round(value, decimals) for value in row) for row in values.tolist())


def own_tokens(weights: Mapping[str, Tensor], row: int, valid: Tensor) -> dict[str, Tensor]:
    """One input's weights between its own tokens, from those of a padded batch.

    Args:
        weights: draws by site, ``[P, B, H, T, T]``, or ``[P, B, H, 1, T]`` where each head has a single query.
        row: index in the batch.
        valid: bool ``[B, T]``, False at padding.

    Returns:
        Draws by site, ``[P, H, t, t]``, or ``[P, H, 1, t]``, with t valid tokens.
    """
    kept = valid[row].bool().nonzero().flatten()
    own = {site: draws[:, row][..., kept] for site, draws in weights.items()}
    return {site: draws if draws.shape[2] == 1 else draws[:, :, kept] for site, draws in own.items()}
