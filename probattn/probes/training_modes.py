"""Attention of the two LSTM models, and the two ways of training them that take attention and probe apart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from probattn.probes.rows import valid_positions

AttentionMode = Literal["learned", "uniform"]
"""``"learned"``: the softmax of the scores. ``"uniform"``: 1 / L, whatever the scores; none of them gets a gradient."""


def luong_scores(query: Tensor, key: Tensor, weight: Tensor) -> Tensor:
    r"""Scores of dot attention, :math:`a_{t,l} = s_t^T W h_l` (Luong et al. 2015; Snell et al. 2021, Eq. 1).

    Args:
        query: s, ``[..., T, E]``.
        key: h, ``[..., S, D]``.
        weight: W, ``[E, D]``.

    Returns:
        ``[..., T, S]``.

    Example:
        >>> luong_scores(torch.ones(1, 2), torch.tensor([[1.0], [3.0]]), torch.tensor([[1.0], [0.5]]))
        tensor([[1.5000, 4.5000]])
    """
    return torch.matmul(torch.matmul(query, weight), key.mT)


def additive_scores(key: Tensor, hidden: Tensor, vector: Tensor) -> Tensor:
    r"""Scores of additive attention without a query, :math:`a_l = v^T \mathrm{ReLU}(Q h_l)` (Snell et al. 2021, Eq. 7).

    Args:
        key: h, ``[..., S, D]``.
        hidden: Q, ``[E, D]``.
        vector: v, ``[E]``.

    Returns:
        ``[..., S]``.

    Example:
        >>> additive_scores(torch.tensor([[1.0], [-1.0]]), torch.tensor([[2.0], [-1.0]]), torch.tensor([1.0, 10.0]))
        tensor([ 2., 10.])
    """
    return torch.matmul(torch.matmul(key, hidden.mT).relu(), vector)


def attention_weights(scores: Tensor, mask: Tensor | None = None, mode: AttentionMode = "learned") -> Tensor:
    r"""Weights over the positions that count: the softmax of the scores, or all the same.

    A model trained under ``"uniform"`` has the probe :math:`\beta^{\mathrm{uf}}`: what can be learned about single
    words while attention is not (Snell et al. 2021, section 3.2).

    Args:
        scores: ``[..., S]``.
        mask: bool ``[..., S]``, True for a position that counts.
        mode: which weights.

    Returns:
        ``[..., S]``; 0 at masked positions and in a row without any that counts.

    Raises:
        TypeError: the scores are not floating-point, or ``mask`` is not bool.
        ValueError: ``mask`` does not fit, or ``mode`` is unknown.

    Example:
        >>> mask = torch.tensor([True, True, False])
        >>> attention_weights(torch.tensor([0.0, 1.0, 2.0]), mask)
        tensor([0.2689, 0.7311, 0.0000])
        >>> attention_weights(torch.tensor([0.0, 1.0, 2.0]), mask, "uniform")
        tensor([0.5000, 0.5000, 0.0000])
    """
    if mode not in get_args(AttentionMode):
        raise ValueError(f"attention_weights: expected mode in {get_args(AttentionMode)}, got {mode!r}")
    if not scores.is_floating_point():
        raise TypeError(f"attention_weights: expected floating-point scores, got {scores.dtype}")
    valid = valid_positions("attention_weights", mask, scores)
    if mode == "uniform":
        return valid.to(scores.dtype) / valid.sum(dim=-1, keepdim=True).clamp(min=1)
    lowest = torch.finfo(scores.dtype).min
    return scores.masked_fill(~valid, lowest).softmax(dim=-1).masked_fill(~valid, 0)


@contextmanager
def frozen_probe(
    model: nn.Module, attention: Sequence[nn.Module | nn.Parameter]
) -> Iterator[list[nn.Parameter]]:
    """Lets nothing but the attention learn, so that the lexical probe of every word stays what it was at the start.

    Attention that could be learned without knowing words would resemble normal attention; it does not (Snell et al.
    2021, section A.6).

    Args:
        model: the model; every parameter of it that is not of ``attention`` gets no gradient inside the block.
        attention: the parameters, or the modules that hold them, that make the attention scores.

    Yields:
        The parameters that learn: hand them to the optimiser. Afterwards every parameter requires a gradient as it
        did before.

    Raises:
        TypeError: ``attention`` is no sequence.
        ValueError: ``attention`` holds no parameter, or one that is not the model's.

    Example:
        >>> model = nn.ModuleDict({"scores": nn.Linear(4, 1), "head": nn.Linear(4, 2)})
        >>> with frozen_probe(model, [model["scores"]]) as learning:
        ...     print(len(learning), model["head"].weight.requires_grad)
        2 False
        >>> model["head"].weight.requires_grad
        True
    """
    if isinstance(attention, (nn.Module, Tensor)):
        raise TypeError(
            f"frozen_probe: expected a list of attention, got one {type(attention).__name__}; put it in []"
        )
    selected: dict[int, nn.Parameter] = {}
    for item in attention:
        for parameter in item.parameters() if isinstance(item, nn.Module) else (item,):
            selected[id(parameter)] = parameter
    before = {id(parameter): (parameter, parameter.requires_grad) for parameter in model.parameters()}
    if not selected:
        raise ValueError("frozen_probe: expected attention with parameters, got none: nothing would learn")
    if unknown := [value for number, value in selected.items() if number not in before]:
        raise ValueError(
            f"frozen_probe: expected parameters of the model, got {len(unknown)} that are not, "
            f"the first of shape {list(unknown[0].shape)}"
        )
    try:
        for number, (parameter, _) in before.items():
            parameter.requires_grad_(number in selected)
        yield list(selected.values())
    finally:
        for parameter, required in before.values():
            parameter.requires_grad_(required)
