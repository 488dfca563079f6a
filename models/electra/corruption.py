"""Texts whose masked tokens are replaced by those of a generator."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import ElectraForMaskedLM

from probattn.models.program import IGNORED


@dataclass(frozen=True)
class Corrupted:
    """Texts with replaced tokens, and what the generator said of those that were masked.

    Attributes:
        input_ids: tokens with those of the generator at the masked places, int64 ``[B, T]``.
        replaced: bool ``[B, T]``, True where a token differs from the original one.
        masked: bool ``[B, T]``, True where the generator chose the token.
        logits: of the generator at the masked places of each row, in their order, ``[B, K, V]``.
        targets: original tokens there, int64 ``[B, K]``, :data:`IGNORED` where a row has fewer.
    """

    input_ids: Tensor
    replaced: Tensor
    masked: Tensor
    logits: Tensor
    targets: Tensor


def masked_number(candidates: Tensor, share: float) -> Tensor:
    r"""Number of masked tokens of texts with n candidates, :math:`\lceil \text{share} \cdot n \rceil`, float64.

    Example:
        >>> masked_number(torch.tensor([1, 20]), 0.15)
        tensor([1., 3.], dtype=torch.float64)
    """
    # In double precision less a little, so that 0.15 of 20 is 3 and not 4.
    return (candidates.double() * share - 1e-9).ceil()


def draw_masked(candidates: Tensor, share: float, generator: torch.Generator | None = None) -> Tensor:
    r"""Chooses the tokens that are masked: :math:`\lceil \text{share} \cdot n \rceil` of the n candidates of each text.

    Every choice of so many is as probable as any other (Clark et al. 2020, section 2).

    Args:
        candidates: bool ``[B, T]``, True where a token may be masked.
        share: in (0, 1).
        generator: of the draws, on the device of ``candidates``; None for torch's own.

    Returns:
        Bool ``[B, T]``.

    Example:
        >>> draw_masked(torch.tensor([[False, True, True, True, False]]), 0.5).sum()
        tensor(2)
    """
    noise = torch.rand(candidates.shape, generator=generator, device=candidates.device)
    rank = noise.masked_fill(~candidates, torch.inf).argsort(dim=1).argsort(dim=1)
    # Of every count, on the CPU: Apple's MPS has no double precision.
    number = masked_number(torch.arange(candidates.shape[1] + 1), share).long().to(candidates.device)
    return candidates & (rank < number[candidates.sum(dim=1), None])


def draw_tokens(logits: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Categorical draws ``[...]`` from logits ``[..., V]``.

    On a CPU the first token whose cumulative probability exceeds U: a draw takes one random number, that of
    ``torch.multinomial`` one for each token and 20 times as long. Elsewhere that is fast, and sums may vary by run.
    """
    probabilities = logits.float().softmax(dim=-1)
    if logits.device.type != "cpu":
        return torch.multinomial(probabilities.flatten(0, -2), 1, generator=generator).view(logits.shape[:-1])
    below = probabilities.cumsum(dim=-1)
    total = below[..., -1:]
    uniform = torch.rand(total.shape, generator=generator, device=total.device)
    # Of a total a little above 1 the largest U may round to it, behind the last category.
    return torch.searchsorted(below, uniform * total, right=True).squeeze(-1).clamp_max(logits.shape[-1] - 1)


def corrupt(
    net: ElectraForMaskedLM,
    original_ids: Tensor,
    attention_mask: Tensor,
    masked: Tensor,
    mask_id: int,
    generator: torch.Generator | None = None,
) -> Corrupted:
    r"""Replaces masked tokens by draws from a generator, :math:`\hat x_t \sim p_G(x_t \mid x^{\text{masked}})`.

    The draws have no gradient; the logits have one. Only the masked places go through the head over the vocabulary.

    Args:
        net: the generator.
        original_ids: tokens, int64 ``[B, T]``.
        attention_mask: 1 at tokens, 0 at padding, ``[B, T]``.
        masked: bool ``[B, T]``, which tokens it sees as masked.
        mask_id: the token that stands for a masked one.
        generator: of the draws, on the device of the texts; None for torch's own.

    Returns:
        The texts, and the generator's logits.
    """
    count = masked.sum(dim=1)
    width = max(int(count.max()), 1)
    indices = masked.int().argsort(dim=1, descending=True, stable=True)[:, :width]  # [B, K]
    is_masked = torch.arange(width, device=masked.device) < count[:, None]
    hidden = net.electra(original_ids.masked_fill(masked, mask_id), attention_mask=attention_mask)[0]
    masked_states = hidden.gather(1, indices[..., None].expand(-1, -1, hidden.shape[-1]))
    logits = net.generator_lm_head(net.generator_predictions(masked_states))  # [B, K, V]
    with torch.no_grad():
        drawn = draw_tokens(logits, generator)
        originals = original_ids.gather(1, indices)
        input_ids = original_ids.scatter(1, indices, drawn.where(is_masked, originals))
    return Corrupted(
        input_ids, input_ids != original_ids, masked, logits, originals.masked_fill(~is_masked, IGNORED)
    )
