"""Effects of tokens and words through attention, as shap's plots take them and as captum's methods are called."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from probattn.checks import optional
from probattn.inference import Explanation, attention_effects
from probattn.inference.effects import Method

if TYPE_CHECKING:
    import shap


def to_shap(explanations: Sequence[Explanation]) -> shap.Explanation:
    r"""Converts effects of words on the probability of the answer, or on the predicted number, for shap's plots.

    The value of word j is :math:`\varphi_j = p - p_{-j}`, the probability p of the answer with the word minus that
    without it (:attr:`probattn.inference.Word.change`). It is not a Shapley value. The base value
    :math:`p - \sum_j \varphi_j` only makes plots end at p; it is not a prediction of the network.

    Args:
        explanations: explanations of B texts by ``explain(..., method="knockout")``.

    Returns:
        An object with B rows: all for ``shap.plots.text``, one row for ``shap.plots.bar`` and ``waterfall``.

    Raises:
        ImportError: shap is not installed.
        ValueError: no explanation, or words that were not masked, as with the method "screened".
    """
    package = optional("to_shap", "shap", "shap")
    if not explanations:
        raise ValueError("to_shap: expected explanations, got none")
    columns = np.empty((3, len(explanations)), dtype=object)  # rows of different lengths
    for row, explanation in enumerate(explanations):
        changes = [word.change for word in explanation.words]
        if missing := changes.count(None):
            raise ValueError(
                f"to_shap: text {row + 1}: expected a knock-out of every word, got none of {missing} of {len(changes)} "
                "words; explain(..., method='knockout')"
            )
        pieces, values = map(np.array, zip(*_pieces(explanation), strict=True))
        end = explanation.number if explanation.probability is None else explanation.probability
        columns[:, row] = values, end - values.sum(), pieces
    return package.Explanation(columns[0], columns[1].astype(float), columns[2], feature_names=columns[2])


def _pieces(explanation: Explanation) -> Iterator[tuple[str, float]]:
    """The words, with what stands between them and the next, and their values."""
    for number, text in enumerate(explanation.texts):
        words = [word for word in explanation.words if word.text == number]
        if number and words:
            yield " | ", 0.0
        for word, after in zip(words, [*words[1:], None], strict=True):
            yield text[word.start : word.end if after is None else after.start], word.change or 0.0


class AttentionAttribution:
    """:func:`probattn.inference.attention_effects` of tokens with the interface of captum's attribution methods.

    Args:
        model: a network of transformers that takes tokens, converted or not; not a function that calls it.
        method: "slope", "knockout" or "screened", as in ``attention_effects``.

    Example:
        >>> from transformers import BertConfig, BertForSequenceClassification
        >>> config = BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
        >>> net = BertForSequenceClassification(config).eval()
        >>> AttentionAttribution(net).attribute(torch.arange(8).view(2, 4), target=1).shape
        torch.Size([2, 4])
    """

    def __init__(self, model: nn.Module, method: Method = "knockout") -> None:
        self.model, self.method = model, method

    def attribute(self, inputs: Tensor, target: Any = None, additional_forward_args: Any = None) -> Tensor:
        """Effects ``[B, S]`` of the S tokens of B rows on the log-odds of a class, the logit of a label, or a number.

        Args:
            inputs: token ids, int64 ``[B, S]``, or embeddings ``[B, S, E]``.
            target: number of a class, label or output; for a network that classifies tokens a pair (token, class); or
                a list of such targets, one per row. Default: the most probable class of each row.
            additional_forward_args: further arguments of the network's ``forward`` after the first one, such as the
                attention mask, in order: one or a tuple, with None for arguments to leave out.

        Raises:
            TypeError: ``inputs`` is not a tensor, or there are more arguments than ``forward`` has.
            ValueError: a target of another form, or an error of :func:`probattn.inference.attention_effects`.
        """
        if not isinstance(inputs, Tensor):
            got = type(inputs).__name__
            raise TypeError(f"AttentionAttribution: expected tokens or embeddings as one tensor, got {got}")
        args = (
            tuple(additional_forward_args)
            if isinstance(additional_forward_args, tuple | list)
            else (additional_forward_args,)
        )
        batch = inspect.signature(self.model.forward).bind(inputs, *args).arguments
        if inputs.is_floating_point():
            batch["inputs_embeds"] = batch.pop(next(iter(batch)))
        batch = {name: item for name, item in batch.items() if item is not None}
        position, answer = _indices(target)
        effects = attention_effects(self.model, batch, target=answer, position=position, method=self.method)
        return effects.effect


def _indices(target: Any) -> tuple[Any, Any]:
    """Position and class, one or one for each row, of what captum calls a target."""
    if target is None:
        return None, "answer"
    position, answer = None, torch.as_tensor(target)
    if isinstance(target, tuple) or answer.dim() == 2:
        if answer.shape[-1] != 2:
            raise ValueError(f"AttentionAttribution: expected a class or a pair (token, class), got {target}")
        position, answer = answer[..., 0].tolist(), answer[..., 1]
    return position, int(answer) if answer.numel() == 1 else answer
