"""Saliency of each input word for the prediction, by gradients (Snell et al. 2021, section 5.1)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

import torch
from torch import Tensor

from probattn.probes.rows import valid_positions

SaliencyKind = Literal["norm", "erase", "replace"]
"""``"norm"``: length of the gradient. ``"erase"``: what zeroing the word would cost, to first order.
``"replace"``: what the worst other word would cost, to first order."""


INDEPENDENT = "gradient_saliency: expected a score that depends on the embeddings, got "


def gradient_saliency(
    score: Callable[[Tensor], Tensor],
    embeddings: Tensor,
    mask: Tensor | None = None,
    *,
    kind: SaliencyKind = "norm",
    table: Tensor | None = None,
) -> Tensor:
    r"""First-order influence of each input word on the model's output.

    .. math::
        \Delta_l = \|\nabla_{e_l} g\|_2 \;\text{(norm)}, \qquad
        \Delta_l = e_l^T \nabla_{e_l} g \;\text{(erase)}, \qquad
        \Delta_l = \max_w\, (e_l - e_w)^T \nabla_{e_l} g \;\text{(replace)}

    for the embedding e_l of word l and the score g, a log-probability of the right answer for instance. The last is
    HotFlip's estimate of how far the score can fall by one exchanged word (Ebrahimi et al. 2018, Eq. 5 to 7); the
    first bounds every change of unit length and asks for no second word. Snell et al. 2021 name HotFlip and no form.

    On a GPU, cuDNN refuses the backward pass of a recurrent network in evaluation mode: call this under
    ``torch.backends.cudnn.flags(enabled=False)`` there.

    Args:
        score: embeddings ``[B, S, D]`` to scores ``[B]``, or ``[B, T]`` for T output words; each example's score
            may depend on its own embeddings only.
        embeddings: e, ``[B, S, D]``; no gradient is left on them or on the model's parameters.
        mask: bool ``[B, S]``, True for a position that counts.
        kind: which of the three.
        table: all embeddings ``[V, D]``, for ``"replace"``.

    Returns:
        ``[B, S]`` or ``[B, T, S]``, without gradients; 0 at masked positions. T backward passes in the latter case.

    Raises:
        TypeError: ``mask`` is not bool.
        ValueError: shapes do not fit, ``kind`` is unknown, ``table`` is missing or superfluous, or the score does not
            depend on the embeddings.

    Example:
        >>> weight = torch.tensor([[3.0, 4.0], [0.0, 1.0]])
        >>> gradient_saliency(lambda e: (e * weight).sum((1, 2)), torch.zeros(1, 2, 2))
        tensor([[5., 1.]])
    """
    _check(embeddings, kind, table)
    with torch.enable_grad():
        leaves = embeddings.detach().requires_grad_()
        scores = score(leaves)
        _check_scores(scores, len(embeddings))
        columns = scores.unsqueeze(-1) if scores.ndim == 1 else scores  # [B, T]
        sums = columns.sum(dim=0).unbind()
    saliency = embeddings.new_zeros(len(embeddings), len(sums), embeddings.shape[1])  # [B, T, S]
    for t, total in enumerate(sums):
        (gradient,) = torch.autograd.grad(total, leaves, retain_graph=t + 1 < len(sums), allow_unused=True)
        if gradient is None:
            raise ValueError(INDEPENDENT + "one of the model's parameters alone")
        saliency[:, t] = _influence(gradient, embeddings.detach(), kind, table)
    if mask is not None:
        valid = valid_positions("gradient_saliency", mask, embeddings[..., 0])
        saliency = saliency.masked_fill(~valid.unsqueeze(1), 0)
    return saliency.squeeze(1) if scores.ndim == 1 else saliency


def _check_scores(scores: Tensor, examples: int) -> None:
    if scores.ndim not in {1, 2} or len(scores) != examples:
        raise ValueError(
            f"gradient_saliency: expected scores [{examples}] or [{examples}, T], got {list(scores.shape)}"
        )
    if not scores.requires_grad:
        reason = (
            "; torch.inference_mode() is on, which keeps none" if torch.is_inference_mode_enabled() else ""
        )
        raise ValueError(f"{INDEPENDENT}one without a gradient{reason}")


def _check(embeddings: Tensor, kind: str, table: Tensor | None) -> None:
    if kind not in get_args(SaliencyKind):
        raise ValueError(f"gradient_saliency: expected kind in {get_args(SaliencyKind)}, got {kind!r}")
    if embeddings.ndim != 3:
        raise ValueError(f"gradient_saliency: expected embeddings [B, S, D], got {list(embeddings.shape)}")
    if (table is not None) != (kind == "replace"):
        raise ValueError(
            "gradient_saliency: expected a table of embeddings for kind='replace' and for no other, "
            f"got {'none' if table is None else 'one'} for kind={kind!r}"
        )
    if table is not None and (table.ndim != 2 or table.shape[-1] != embeddings.shape[-1]):
        raise ValueError(
            f"gradient_saliency: expected a table [V, {embeddings.shape[-1]}], got {list(table.shape)}"
        )


def _influence(gradient: Tensor, embeddings: Tensor, kind: SaliencyKind, table: Tensor | None) -> Tensor:
    """``[B, S]`` for gradients ``[B, S, D]``."""
    if kind == "norm":
        return gradient.norm(dim=-1)
    influence = (embeddings * gradient).sum(dim=-1)
    if table is None:
        return influence
    return influence - torch.matmul(gradient, table.detach().mT).amin(dim=-1)
