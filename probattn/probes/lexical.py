"""Single words: the output of a model that attends to one position alone, and their saliency for the prediction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from probattn.checks import check_choice
from probattn.probes.rows import check_targets, valid_positions

_LOGITS = 2**24  # logits that exist at once: 64 MiB in float32

SaliencyKind = Literal["norm", "erase", "replace"]
"""``"norm"``: Euclidean norm of the gradient. ``"erase"``: first-order fall of the score if the word's embedding is set
to 0. ``"replace"``: largest first-order fall of the score by exchanging the word."""
INDEPENDENT = "gradient_saliency: expected a score that depends on the embeddings, got "


def lexical_probe(
    output: Callable[[Tensor, Tensor], Tensor],
    states: Tensor,
    queries: Tensor,
    target: Tensor,
    mask: Tensor | None = None,
    *,
    log: bool = False,
) -> Tensor:
    r"""Probability of each output word if the model attended to one position alone.

    .. math:: \beta_{t,l} = N([h_l, s_t])_{y_t}

    (Snell et al. 2021, Eq. 4). Output words are processed a few at a time, because logits over the vocabulary for all
    pairs of positions seldom fit into memory.

    Args:
        output: N without its softmax: maps contexts ``[B, K, S, D]`` and queries ``[B, K, S, E]`` to logits
            ``[B, K, S, O]``, for any K, such as ``lambda context, query: head(torch.cat((context, query), -1))``.
        states: h, ``[B, S, D]``: what attention averages.
        queries: s, ``[B, T, E]``: the decoder's states.
        target: y, integers ``[B, T]`` in 0 .. O - 1, also at padding.
        mask: bool ``[B, S]``, True for an input position that counts.
        log: whether to return logarithms; they order positions as probabilities do, and still differ where these are 1.

    Returns:
        Probabilities or logarithms ``[B, T, S]`` in the dtype of the logits; 0 or -inf at masked positions. They have
        gradients unless gradients are disabled.

    Raises:
        TypeError: ``target`` is not of an integer type, or ``mask`` is not bool.
        ValueError: shapes do not fit, also that of the logits, or a target is out of range.

    Example:
        >>> head = torch.nn.Linear(8, 10)
        >>> states, queries, target = torch.randn(2, 5, 4), torch.randn(2, 3, 4), torch.zeros(2, 3).long()
        >>> lexical_probe(lambda c, s: head(torch.cat((c, s), -1)), states, queries, target).shape
        torch.Size([2, 3, 5])
    """
    alike = states.ndim == queries.ndim == 3 and target.shape == queries.shape[:2]
    if not alike or len(states) != len(target):
        raise ValueError(
            "lexical_probe: expected states [B, S, D], queries [B, T, E] and target [B, T], "
            f"got {list(states.shape)}, {list(queries.shape)} and {list(target.shape)}"
        )
    check_targets("lexical probe", target)
    (batch, length, _), steps = states.shape, target.shape[1]
    if not target.numel() or not length:
        return states.new_zeros(batch, steps, length)
    probes: list[Tensor] = []
    start, size = 0, 1  # the first call tells how many outputs there are
    while start < steps:
        chunk = queries[:, start : start + size]
        context = states.unsqueeze(1).expand(-1, chunk.shape[1], -1, -1)  # [B, K, S, D]
        logits = output(context, chunk.unsqueeze(2).expand(-1, -1, length, -1))
        _check_logits(logits, context.shape[:-1])
        probes.append(_target_logs(logits, target[:, start : start + size].unsqueeze(-1)))
        start += chunk.shape[1]
        size = max(1, _LOGITS // (batch * length * logits.shape[-1]))
    probe = torch.cat(probes, dim=1)  # [B, T, S]
    return _finished(probe, None if mask is None else mask.unsqueeze(1), log).to(logits.dtype)


def classifier_probe(
    output: Callable[[Tensor], Tensor],
    states: Tensor,
    target: Tensor,
    mask: Tensor | None = None,
    *,
    log: bool = False,
) -> Tensor:
    r"""Probability of the right class if the model attended to one position alone.

    .. math:: \beta_l = \sigma\bigl((2y - 1)\, W^T h_l\bigr)

    (Snell et al. 2021, Eq. 9), and :math:`\beta_l = \sigma(N(h_l))_y` for C classes. For a Hugging Face classifier
    ``output`` is its classification head, applied to each last hidden state as if that were the pooled one.

    Args:
        output: maps states ``[B, S, D]`` to logits: ``[B, S]`` or ``[B, S, 1]`` of class 1 of two classes, or
            ``[B, S, C]`` of C >= 2 classes.
        states: h, ``[B, S, D]``: what attention averages.
        target: y, integers ``[B]``: 0 or 1, or 0 .. C - 1.
        mask: bool ``[B, S]``, True for a position that counts.
        log: whether to return logarithms.

    Returns:
        Probabilities or logarithms ``[B, S]`` in the dtype of the logits; 0 or -inf at masked positions.

    Raises:
        TypeError: ``target`` is not of an integer type, or ``mask`` is not bool.
        ValueError: shapes do not fit, also that of the logits, or a target is out of range.

    Example:
        >>> states = torch.tensor([[[2.0, 0.0], [0.0, 1.0]]])
        >>> classifier_probe(lambda h: h @ torch.tensor([1.0, -1.0]), states, torch.tensor([1]))
        tensor([[0.8808, 0.2689]])
    """
    if states.ndim != 3 or target.shape != states.shape[:1]:
        raise ValueError(
            "classifier_probe: expected states [B, S, D] and target [B], "
            f"got {list(states.shape)} and {list(target.shape)}"
        )
    check_targets("lexical probe", target)
    logits = output(states)
    if logits.ndim == 2:
        logits = logits.unsqueeze(-1)
    _check_logits(logits, states.shape[:-1])
    if logits.shape[-1] == 1:
        logits = torch.cat((torch.zeros_like(logits), logits), dim=-1)  # softmax of (0, a) = sigmoid of a
    return _finished(_target_logs(logits, target.unsqueeze(-1)), mask, log).to(logits.dtype)


def _target_logs(logits: Tensor, target: Tensor) -> Tensor:
    """Log-probabilities [..., S] of targets [..., 1] under logits [..., S, O], in float32 at least."""
    advice = "; give padded positions any target in the range"
    check_targets("lexical probe", target, logits.shape[-1], advice)
    index = target.long().unsqueeze(-1).expand(*logits.shape[:-1], 1)
    precise = logits.to(torch.promote_types(logits.dtype, torch.float32))
    precise = precise - precise.detach().amax(dim=-1, keepdim=True)
    scores_of_targets = precise.gather(-1, index)
    other_scores = precise.scatter(-1, index, -torch.inf).logsumexp(dim=-1, keepdim=True)
    # log p = log sigmoid(own - m), with m the log-sum-exp of the others, is exact where p rounds to 1.
    return F.logsigmoid(scores_of_targets - other_scores).squeeze(-1)


def _finished(probe: Tensor, mask: Tensor | None, log: bool) -> Tensor:
    valid = valid_positions("lexical probe", mask, probe)
    return probe.masked_fill(~valid, -torch.inf) if log else probe.exp().masked_fill(~valid, 0)


def _check_logits(logits: Tensor, leading: torch.Size) -> None:
    if logits.shape[:-1] != leading:
        raise ValueError(
            f"lexical probe: expected the output map to give logits [{', '.join(map(str, leading))}, O], "
            f"got {list(logits.shape)}"
        )


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

    for the embedding e_l of word l and the score g, for instance the log-probability of the correct output. The last is
    HotFlip's estimate of how far the score can fall by exchanging one word (Ebrahimi et al. 2018, Eq. 5 to 7). Snell et
    al. 2021 cite HotFlip without saying which of these forms they use.

    On a GPU, cuDNN refuses the backward pass of a recurrent network in evaluation mode: call this function under
    ``torch.backends.cudnn.flags(enabled=False)`` there.

    Args:
        score: maps embeddings ``[B, S, D]`` to scores ``[B]``, or ``[B, T]`` for T output words; the score of an
            example may depend only on the embeddings of this example.
        embeddings: e, ``[B, S, D]``; their ``grad`` and that of the model's parameters remain unchanged.
        mask: bool ``[B, S]``, True for a position that counts.
        kind: which of the three equations.
        table: embeddings ``[V, D]`` of all words w, for ``"replace"`` only.

    Returns:
        Saliency ``[B, S]``, or ``[B, T, S]`` for scores ``[B, T]``, which takes T backward passes; without gradients; 0
        at masked positions.

    Raises:
        TypeError: ``mask`` is not bool.
        ValueError: shapes do not fit, ``kind`` is unknown, ``table`` is missing or superfluous, or the score does not
            depend on the embeddings.

    Example:
        >>> weight = torch.tensor([[3.0, 4.0], [0.0, 1.0]])
        >>> gradient_saliency(lambda e: (e * weight).sum((1, 2)), torch.zeros(1, 2, 2))
        tensor([[5., 1.]])
    """
    _check_table(embeddings, kind, table)
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
        why = "; torch.inference_mode() is on, which keeps none" if torch.is_inference_mode_enabled() else ""
        raise ValueError(f"{INDEPENDENT}one without a gradient{why}")


def _check_table(embeddings: Tensor, kind: str, table: Tensor | None) -> None:
    check_choice("gradient_saliency", "kind", kind, SaliencyKind)
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
