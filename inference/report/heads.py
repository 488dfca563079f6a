"""How heads differ, from what their attention calls gave."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from probattn.inference.report.heads_records import HeadsKey, SiteHeads
from probattn.metrics.functional import attention_overlap, head_distance, head_similarity


class HeadOutputs(Protocol):
    """What the heads of an attention call gave, and for which queries."""

    @property
    def output(self) -> Tensor:
        """``[B, H, T, E]``."""

    @property
    def weights(self) -> Tensor | None:
        """``[B, H, T, S]``."""

    @property
    def query_valid(self) -> Tensor:
        """Bool ``[B, T]``, True for a real query."""


def site_heads(
    batches: Iterable[Mapping[str, HeadOutputs]], model: HeadsKey, lengths: Mapping[str, Mapping[str, float]]
) -> tuple[SiteHeads, ...]:
    """Compares the heads of each attention call over the real queries of all batches.

    Args:
        batches: calls by name, as :func:`probattn.models.capture` gives them.
        model: whose they are.
        lengths: mean length of a head's weights by call and projection; calls may be missing.

    Returns:
        One record a call with two heads or more, in order.

    Raises:
        ValueError: no batch, or no real query.
    """
    outputs: dict[str, list[Tensor]] = {}
    weights: dict[str, list[Tensor] | None] = {}
    for batch in batches:
        for name, call in batch.items():
            if call.output.shape[1] < 2:
                continue
            valid = call.query_valid
            outputs.setdefault(name, []).append(_queries(call.output, valid))
            known = weights.setdefault(name, [])
            if call.weights is None or known is None:
                weights[name] = None
            else:
                known.append(_queries(call.weights, valid))
    if not outputs:
        raise ValueError("site_heads: expected a batch with an attention call of two heads or more, got none")
    return tuple(
        _record(name, model, found, weights[name], lengths.get(name, {})) for name, found in outputs.items()
    )


def _queries(tensor: Tensor, valid: Tensor) -> Tensor:
    """The real queries ``[N, H, ...]``, on the CPU."""
    return tensor.detach().transpose(1, 2)[valid].float().cpu()


def _record(
    name: str,
    model: HeadsKey,
    outputs: Sequence[Tensor],
    weights: Sequence[Tensor] | None,
    lengths: Mapping[str, float],
) -> SiteHeads:
    output = _as_one_text(outputs)
    distance = head_distance(output)
    overlap = None
    if weights is not None:
        longest = max(part.shape[-1] for part in weights)
        padded = [F.pad(part, (0, longest - part.shape[-1])) for part in weights]
        overlap = min(1.0, attention_overlap(_as_one_text(padded)).item())
    similarity = head_similarity(output).tolist()
    return SiteHeads(
        model=model,
        site=name,
        distance=distance.distance.item(),
        relative=distance.relative.item(),
        overlap=overlap,
        similarity=tuple(tuple(round(value, 4) for value in row) for row in similarity),
        lengths=dict(lengths),
    )


def _as_one_text(parts: Sequence[Tensor]) -> Tensor:
    """Queries of several batches as those of one text, ``[1, H, N, ...]``."""
    return torch.cat(list(parts)).transpose(0, 1).unsqueeze(0)
