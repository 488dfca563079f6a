"""Attention of a posterior, and shares of uncertainty, as the lists of tensors that bertviz draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from probattn.inference import Moments, Posterior

Statistic = Literal["mean", "std", "noise_share"]


def attention_layers(
    posterior: Posterior | Moments,
    *,
    row: int = 0,
    statistic: Statistic | None = None,
    sites: Sequence[str] | None = None,
    queries: Tensor | None = None,
    keys: Tensor | None = None,
) -> list[Tensor]:
    """Attention weights of one row by layer, for ``bertviz.head_view`` and ``bertviz.model_view``.

    Args:
        posterior: predictions with attention weights, ``posterior_predict(..., attention="all")``, streaming or not; or
            moments with noise shares, ``posterior_moments(..., attribution=True)``.
        row: number of the row, from 0.
        statistic: for draws "mean" (default) or "std", the standard deviation (divisor P - 1; 0 for one draw); for
            moments "noise_share", the shares of the variance of the prediction.
        sites: names of the sites to return, in this order. Default: all, in the order of the network. For an
            encoder-decoder name only sites of the encoder, the decoder or the cross-attention.
        queries: attention mask of the row's queries, ``[T]``; positions where it is 0 are left out.
        keys: attention mask of the row's keys, ``[S]``. Default: ``queries``.

    Returns:
        Tensors ``[1, H, T, S]`` (H heads, T queries, S keys) on the CPU, one per site.

    Raises:
        IndexError: there is no row of this number.
        ValueError: predictions without attention, an unknown site or statistic, a mask of another length, or sites of
            different shapes.

    Example:
        >>> maps = {"layer.0": torch.rand(5, 1, 2, 3, 3).softmax(-1)}
        >>> [layer.shape for layer in attention_layers(Posterior(torch.zeros(5, 1, 2), attention=maps))]
        [torch.Size([1, 2, 3, 3])]
    """
    maps = _maps(posterior, statistic)
    unknown = [name for name in sites or () if name not in maps]
    if unknown:
        raise ValueError(
            f"attention_layers: expected sites of this posterior, got {unknown[0]!r}; it has {', '.join(maps)}"
        )
    rows = posterior.logits.shape[0 if isinstance(posterior, Moments) else 1]
    if not -rows <= row < rows:
        raise IndexError(f"attention_layers: expected a row in 0..{rows - 1}, got {row}")
    layers = [maps[name][row].detach().cpu() for name in (maps if sites is None else sites)]
    shapes = {tuple(layer.shape) for layer in layers}
    if len(shapes) != 1:
        raise ValueError(
            f"attention_layers: expected sites of one shape [H, T, S], got {sorted(shapes)}; choose some with sites"
        )
    keys = queries if keys is None else keys
    return [_real(_real(layer, queries, 1), keys, 2)[None] for layer in layers]


def _maps(posterior: Posterior | Moments, statistic: Statistic | None) -> Mapping[str, Tensor]:
    """Maps ``[B, H, T, S]`` by site."""
    statistics = ("noise_share",) if isinstance(posterior, Moments) else ("mean", "std")
    if (statistic or statistics[0]) not in statistics:
        raise ValueError(
            f"attention_layers: expected statistic {' or '.join(map(repr, statistics))} of {type(posterior).__name__}, "
            f"got {statistic!r}"
        )
    if isinstance(posterior, Moments):
        maps, how = posterior.noise_share, "use posterior_moments(..., attribution=True)"
    elif posterior.attention:
        return {name: _summary(draws, statistic) for name, draws in posterior.attention.items()}
    else:
        maps = posterior.attention_std if statistic == "std" else posterior.attention_mean
        how = "predict with attention='all'"
    if not maps:
        raise ValueError(f"attention_layers: expected maps of attention, got none; {how}")
    return maps


def _summary(draws: Tensor, statistic: Statistic | None) -> Tensor:
    if statistic != "std":
        return draws.mean(dim=0)
    return draws.std(dim=0) if len(draws) > 1 else torch.zeros_like(draws[0])


def _real(layer: Tensor, mask: Tensor | None, dim: int) -> Tensor:
    if mask is None:
        return layer
    if mask.shape != (layer.shape[dim],):
        raise ValueError(
            f"attention_layers: expected a mask [{layer.shape[dim]}], got {list(mask.shape)}; give that of one row"
        )
    return layer.index_select(dim, mask.cpu().nonzero()[:, 0])
