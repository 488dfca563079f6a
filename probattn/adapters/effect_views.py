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

BETWEEN = " | "
"""What is drawn between the texts of a pair."""


def to_shap(explanations: Sequence[Explanation]) -> shap.Explanation:
    r"""Effects of words on the probability of the answer, or on the number, as shap's plots take them.

    The value of word j is :math:`\varphi_j = p - p_{-j}`, the change of the probability p of the answer by the word's
    presence (:attr:`probattn.inference.Word.change`): the effect of a single word, no Shapley value. The base value is
    :math:`p - \sum_j \varphi_j`, with which a plot ends at p; it is no prediction of the network.

    Args:
        explanations: of B texts, by ``explain(..., method="knockout")``.

    Returns:
        B rows for ``shap.plots.text``, of which a single one is for ``shap.plots.bar`` and ``waterfall``. The data of a
        row are the pieces of its text.

    Raises:
        ImportError: shap is not installed.
        ValueError: no explanation, or words without a knock-out, which screened effects have.
    """
    package = optional("to_shap", "shap", "shap")
    if not explanations:
        raise ValueError("to_shap: expected explanations, got none")
    rows = []
    for number, explanation in enumerate(explanations, 1):
        missing = sum(word.change is None for word in explanation.words)
        if missing:
            raise ValueError(
                f"to_shap: text {number}: expected a knock-out of every word, got none of {missing} of "
                f"{len(explanation.words)} words; explain(..., method='knockout')"
            )
        pieces, values = map(np.array, zip(*_pieces(explanation), strict=True))
        end = explanation.number if explanation.probability is None else explanation.probability
        rows.append((values, end - values.sum(), pieces))
    columns = np.empty((3, len(rows)), dtype=object)  # rows of different lengths
    for number, row in enumerate(rows):
        columns[:, number] = row
    return package.Explanation(columns[0], columns[1].astype(float), columns[2], feature_names=columns[2])


def _pieces(explanation: Explanation) -> Iterator[tuple[str, float]]:
    """The words with the blanks after them and their values, and what else the texts have, with 0."""
    for number, text in enumerate(explanation.texts):
        words = [word for word in explanation.words if word.text == number]
        starts = [*(word.start for word in words), len(text)]
        if before := BETWEEN * (number > 0) + text[: starts[0]]:
            yield before, 0.0
        for word, end in zip(words, starts[1:], strict=True):
            rest = text[word.end : end].lstrip()  # which is not read
            yield text[word.start : end - len(rest)], word.change or 0.0
            if rest:
                yield rest, 0.0


class AttentionAttribution:
    """Effects of tokens by :func:`probattn.inference.attention_effects`, called as the methods of captum are.

    Args:
        model: a network of transformers that takes tokens, converted or not; itself, and no function that calls it.
        method: "slope", "knockout" or "screened".

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
        """Effects of the tokens on the log-odds of a class, the logit of a label, or a number.

        Args:
            inputs: int64 ``[B, S]``, tokens, or their embeddings ``[B, S, E]``.
            target: a class, label or number; of a network that classifies tokens a pair (token, class); or a list of
                them, one for each row. Default: the most probable class of each row.
            additional_forward_args: one, or a tuple: what the network's ``forward`` takes after its first argument, in
                its order, such as the attention mask; None for what is left out.

        Returns:
            Effects ``[B, S]``; of embeddings too, since a token is attended to as a whole.

        Raises:
            TypeError: inputs that are no tensor, or more arguments than ``forward`` has.
            ValueError: a target of another form, and as :func:`probattn.inference.attention_effects`.
        """
        if not isinstance(inputs, Tensor):
            got = type(inputs).__name__
            raise TypeError(f"AttentionAttribution: expected tokens or embeddings as one tensor, got {got}")
        args = (
            additional_forward_args
            if isinstance(additional_forward_args, tuple)
            else (additional_forward_args,)
        )
        arguments = inspect.signature(self.model.forward).bind(inputs, *args).arguments
        if inputs.is_floating_point():
            arguments["inputs_embeds"] = arguments.pop(next(iter(arguments)))
        batch = {name: item for name, item in arguments.items() if item is not None}
        position, answer = _indices(target)
        return attention_effects(
            self.model, batch, target=answer, position=position, method=self.method
        ).effect


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
