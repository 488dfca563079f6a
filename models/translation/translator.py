"""A translation network as a Pyro program."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyro
import torch
from pyro import poutine
from pyro.poutine.runtime import am_i_wrapped
from torch import Tensor, nn

from probattn.distributions import SmoothedCategorical
from probattn.models.program import Program

IGNORED = -100
"""Label of a position that is padding; transformers' own convention."""


class Translator(Program):
    r"""An encoder-decoder with observed target tokens.

    With x the source, y the target of T tokens and S the attention weights,

    .. math:: y_t \sim \mathrm{Categorical}(\mathrm{softmax}(f(x, y_{<t}, S)_t)), \quad t = 1, \dots, T

    A ``PyroModule``, so that ``pyro.infer.SVI`` finds the host's parameters too. One call announces the plate
    ``"data"`` over sentence pairs, the host's attention sites (if it was converted) and the site ``"target"``, one
    event a pair: the sum over its tokens, padding masked. With label smoothing the log density of a token is
    :class:`probattn.distributions.SmoothedCategorical`'s.

    The objective of a driver is a mean over the rows of the plate: nats per sentence pair. Given ``mean_length``, the
    whole program (likelihood, KL and factors alike) is divided by it, so that with the mean number of target tokens of
    the training data the objective is in nats per token, the scale of the cross-entropy that others report, and the one
    that clipping and the repulsion of heads are tuned for. The posterior is the same either way.

    Args:
        net: a network whose output has ``logits`` ``[B, T, V]`` (any Hugging Face encoder-decoder with a language
            modelling head), or is that tensor.
        num_data: N, number of training pairs; scales a batch's likelihood and KL to it. Default: the batch is the data.
        label_smoothing: :math:`\epsilon` in [0, 1).
        mean_length: mean number of target tokens of a training pair, > 0, or None for nats per pair.
        label_name: key of the target tokens in a batch.

    Raises:
        ValueError: an argument outside its range.

    Example:
        >>> from probattn.models.translation import TransformerSize, build_transformer
        >>> size = TransformerSize(width=8, layers=1, heads=2, feed_forward=8)
        >>> model = Translator(build_transformer(size, vocabulary=9)).eval()
        >>> source, target = torch.tensor([[4, 5, 3]]), torch.tensor([[2, 6]])
        >>> model({"input_ids": source, "decoder_input_ids": target}).shape
        torch.Size([1, 2, 9])
    """

    def __init__(
        self,
        net: nn.Module,
        *,
        num_data: int | None = None,
        label_smoothing: float = 0.0,
        mean_length: float | None = None,
        label_name: str = "labels",
    ) -> None:
        super().__init__()
        if num_data is not None and num_data < 1:
            raise ValueError(f"Translator.num_data: expected an integer >= 1, got {num_data}")
        if not 0 <= label_smoothing < 1:
            raise ValueError(
                f"Translator.label_smoothing: expected a number in [0, 1), got {label_smoothing}"
            )
        if mean_length is not None and not mean_length > 0:
            raise ValueError(f"Translator.mean_length: expected a number > 0 or None, got {mean_length}")
        self.net = net
        self.num_data = num_data
        self.label_smoothing = label_smoothing
        self.mean_length = mean_length
        self.label_name = label_name

    def forward(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Runs the host once; outside Pyro's handlers it only answers, announcing nothing.

        Args:
            batch: inputs of the host by name, ``decoder_input_ids`` ``[B, T]`` among them, and target tokens int64
                ``[B, T]`` under ``label_name``, :data:`IGNORED` at padding.

        Returns:
            Logits ``[B, T, V]``.

        Raises:
            ValueError: no decoder input; an output without logits ``[B, T, V]``; labels of another shape or outside
                0..V-1.
        """
        inputs, decoder = self.inputs(batch)
        labels = batch.get(self.label_name)
        if not am_i_wrapped():
            return self._logits(inputs, decoder.shape)
        rows = len(decoder)
        subsample = None if self.num_data is None else torch.arange(rows, device=decoder.device)
        with (
            poutine.scale(scale=1.0 if self.mean_length is None else 1 / self.mean_length),
            pyro.plate("data", self.num_data or rows, subsample=subsample),
        ):
            logits = self._logits(inputs, decoder.shape)
            self._observe(logits, labels, batch.get("decoder_attention_mask"))
        return logits

    def inputs(self, batch: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], Tensor]:
        """Inputs of the host for a batch, the decoder's among them.

        Raises:
            ValueError: no decoder input, or sources and targets that are empty or of different number.
        """
        inputs = {name: value for name, value in batch.items() if name != self.label_name}
        decoder = inputs.get("decoder_input_ids")
        if decoder is None:
            raise ValueError(
                "Translator: expected decoder_input_ids in the batch, the target tokens shifted by one; "
                f"got {', '.join(sorted(batch)) or 'nothing'}"
            )
        source, target = inputs.get("input_ids", decoder).shape, decoder.shape
        if len(target) != 2 or len(source) != 2 or source[0] != target[0] or 0 in (*source, *target):
            raise ValueError(
                "Translator: expected sources [B, S] and decoder_input_ids [B, T], neither empty, got "
                f"{list(source)} and {list(target)}"
            )
        return inputs, decoder

    def _logits(self, inputs: Mapping[str, Tensor], shape: torch.Size) -> Tensor:
        # A cache would serve the next token of a search; here all of them are seen at once.
        output: Any = self.net(**inputs, use_cache=False)
        logits = output if isinstance(output, Tensor) else getattr(output, "logits", None)
        if not isinstance(logits, Tensor) or logits.shape[:-1] != shape:
            received = list(logits.shape) if isinstance(logits, Tensor) else type(output).__name__
            raise ValueError(
                f"Translator: expected a network that returns logits {[*shape, 'V']}, got {received}; use an "
                "encoder-decoder with a language modelling head"
            )
        return logits

    def _observe(self, logits: Tensor, labels: Tensor | None, mask: Tensor | None) -> None:
        """The site of the target tokens; without labels they are values to predict."""
        valid = torch.ones(logits.shape[:-1], dtype=torch.bool, device=logits.device)
        if labels is not None:
            check_labels(labels, logits.shape[:-1], logits.shape[-1])
            valid = labels != IGNORED
            labels = labels.where(valid, 0)
        elif mask is not None:
            valid = mask.bool()
        tokens = SmoothedCategorical(logits.float(), self.label_smoothing)
        pyro.sample(
            "target", tokens.mask(valid).to_event(1), obs=labels, infer={"prediction": labels is None}
        )


def check_labels(labels: Tensor, shape: torch.Size, classes: int) -> None:
    """Raises ``ValueError`` unless labels are whole numbers of ``shape``, each a token in 0..V-1 or padding."""
    if labels.shape != shape:
        raise ValueError(
            f"Translator: expected labels {list(shape)}, one for each decoder input, got {list(labels.shape)}"
        )
    if labels.dtype != torch.int64:
        raise ValueError(f"Translator: expected labels of dtype torch.int64, got {labels.dtype}")
    tokens = labels[labels != IGNORED]
    if tokens.numel() and (int(tokens.min()) < 0 or int(tokens.max()) >= classes):
        raise ValueError(
            f"Translator: expected labels in 0..{classes - 1}, or {IGNORED} at padding, got "
            f"{int(tokens.min())}..{int(tokens.max())}"
        )


def token_measures(logits: Tensor, labels: Tensor) -> dict[str, Tensor]:
    r"""Contribution of each sentence pair to perplexity and token accuracy, teacher-forced, without label smoothing.

    Over a data set the perplexity is :math:`\exp(\sum_i \text{nll}_i / \sum_i \text{tokens}_i)` and the accuracy of
    tokens :math:`\sum_i \text{correct}_i / \sum_i \text{tokens}_i`; ratios of means are the same.

    Args:
        logits: ``[B, T, V]``.
        labels: int64 ``[B, T]``, :data:`IGNORED` at padding.

    Returns:
        Per pair, float ``[B]``: ``nll`` (negative log-likelihood, nats), ``tokens`` and ``correct`` (their numbers).

    Raises:
        ValueError: shapes or labels that do not fit.

    Example:
        >>> token_measures(torch.tensor([[[2.0, 0.0], [0.0, 0.0]]]), torch.tensor([[0, -100]]))
        {'nll': tensor([0.1269]), 'tokens': tensor([1.]), 'correct': tensor([1.])}
    """
    check_labels(labels, logits.shape[:-1], logits.shape[-1])
    valid = labels != IGNORED
    tokens = labels.where(valid, 0)
    nll = -SmoothedCategorical(logits.float(), validate_args=False).log_prob(tokens)
    correct = logits.argmax(dim=-1) == tokens
    return {
        "nll": (nll * valid).sum(dim=-1),
        "tokens": valid.sum(dim=-1).float(),
        "correct": (correct & valid).sum(dim=-1).float(),
    }
