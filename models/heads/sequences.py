"""A translation network as a Pyro program."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pyro
from torch import Tensor, nn

from probattn.checks import check_share
from probattn.distributions import SmoothedCategorical
from probattn.models.heads.tokens import TokenClassifier
from probattn.models.layers import valid_positions
from probattn.models.program import IGNORED, Batch, check_classes, read_logits


class Translator(TokenClassifier):
    r"""An encoder-decoder as a model of target sentences.

    With x the source, y the target of T tokens, f the logits over V tokens and S the attention weights,

    .. math:: y_t \sim \mathrm{Categorical}(\mathrm{softmax}(f(x, y_{<t}, S)_t)), \quad t = 1, \dots, T

    As a ``PyroModule``, the program makes the network's parameters known to ``pyro.infer.SVI``. Under Pyro's handlers a
    call contains the plate ``"data"`` over B sentence pairs, in it the attention sites of a converted network and the
    site ``"target"``, whose log density ``[B]`` is summed over the real tokens of a pair. With label smoothing, the
    distribution of a token is :class:`probattn.distributions.SmoothedCategorical`.

    The library's training loops minimise a mean over sentence pairs, in nats per pair. With ``mean_length`` all log
    densities (likelihood, KL and factors) are divided by this number; if it is the mean number of target tokens of a
    training pair, the objective is in nats per token, like the usual cross-entropy; the defaults of gradient clipping
    and of repulsive heads are meant for this unit. The optimal posterior does not depend on ``mean_length``.

    Args:
        net: a network whose output has ``logits`` ``[B, T, V]`` (any Hugging Face encoder-decoder with a language
            modelling head), or is that tensor.
        num_data: number N of training pairs, to which likelihood and KL of a batch are scaled. Default: the batch size.
        label_smoothing: :math:`\epsilon` in [0, 1).
        mean_length: mean number of target tokens of a training pair, > 0; None for an objective in nats per pair.
        label_name: key of the target tokens in a batch, int64 ``[B, T]``, -100 at padding. If the batch has no
            ``decoder_input_ids``, they are the labels shifted by one, as in transformers' encoder-decoders.

    Raises:
        ValueError: an argument outside its range; in a call, neither decoder inputs nor labels, an output without
            logits ``[B, T, V]``, or labels of another shape or outside 0..V-1.

    Example:
        >>> import torch
        >>> from probattn.models.translation import TransformerSize, build_transformer
        >>> size = TransformerSize(width=8, layers=1, heads=2, feed_forward=8)
        >>> model = Translator(build_transformer(size, vocabulary=9)).eval()
        >>> source, target = torch.tensor([[4, 5, 3]]), torch.tensor([[2, 6]])
        >>> model({"input_ids": source, "decoder_input_ids": target}).shape
        torch.Size([1, 2, 9])
    """

    # A cache would serve the next token of a search; here all of them are seen at once.
    arguments: ClassVar[Mapping[str, Any]] = {"use_cache": False}

    def __init__(
        self,
        net: nn.Module,
        *,
        num_data: int | None = None,
        label_smoothing: float = 0.0,
        mean_length: float | None = None,
        label_name: str = "labels",
    ) -> None:
        super().__init__(net, num_data=num_data, mean_length=mean_length, label_name=label_name)
        check_share("Translator", "label_smoothing", label_smoothing, one=False)
        self.label_smoothing = label_smoothing

    def inputs(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns the network's inputs in a batch by name, with ``decoder_input_ids``, and a mask of their padding.

        Raises:
            ValueError: neither decoder inputs nor labels, no source or target tokens, or their batch sizes differ.
        """
        inputs = super().inputs(batch)
        shift = getattr(self.net, "prepare_decoder_input_ids_from_labels", None)
        if shift is not None and "decoder_input_ids" not in inputs and self.label_name in batch:
            inputs["decoder_input_ids"] = shift(labels=batch[self.label_name])
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
        return inputs

    def _decoder_positions(self, batch: Batch) -> Tensor | None:
        """Those that have a label."""
        labels = batch.get(self.label_name)
        if labels is None or labels.shape != batch.get("decoder_input_ids", labels).shape:
            return None
        return labels != IGNORED

    def read(self, output: Any, inputs: Mapping[str, Tensor]) -> Tensor:
        """Returns the logits ``[B, T, V]`` in the network's output."""
        shape = (*inputs["decoder_input_ids"].shape, None)
        return read_logits(self, output, shape, "use an encoder-decoder with a language modelling head")

    def observe(self, prediction: Tensor, labels: Batch | None, inputs: Batch) -> None:
        """Samples the site ``"target"`` with log density ``[B]``, observed if there are ``labels``."""
        label = None if labels is None else labels[self.label_name]
        valid = valid_positions(inputs.get("decoder_attention_mask"), prediction)
        if label is not None:
            check_classes(self, "labels", label, prediction.shape[:2], prediction.shape[2], ignored=True)
            valid = label != IGNORED
            label = label.where(valid, 0)
        tokens = SmoothedCategorical(prediction.float(), self.label_smoothing)
        pyro.sample("target", tokens.mask(valid).to_event(1), obs=label, infer={"prediction": label is None})


def token_measures(logits: Tensor, labels: Tensor) -> dict[str, Tensor]:
    r"""Sums per sentence pair from which perplexity and token accuracy follow, with teacher forcing.

    Over a data set the perplexity is :math:`\exp(\sum_i \text{nll}_i / \sum_i \text{tokens}_i)` and the token accuracy
    :math:`\sum_i \text{correct}_i / \sum_i \text{tokens}_i`; means over pairs instead of sums give the same ratios.

    Args:
        logits: scores of V tokens at each of T positions, ``[B, T, V]``.
        labels: target tokens, int64 ``[B, T]``, -100 at padding.

    Returns:
        Floats ``[B]`` by name: ``nll`` (negative log-likelihood in nats, without label smoothing), ``tokens`` (number
            of target tokens) and ``correct`` (number of them with the largest logit).

    Raises:
        ValueError: shapes or labels that do not fit.

    Example:
        >>> import torch
        >>> token_measures(torch.tensor([[[2.0, 0.0], [0.0, 0.0]]]), torch.tensor([[0, -100]]))
        {'nll': tensor([0.1269]), 'tokens': tensor([1.]), 'correct': tensor([1.])}
    """
    check_classes("token_measures", "labels", labels, logits.shape[:-1], logits.shape[-1], ignored=True)
    valid = labels != IGNORED
    tokens = labels.where(valid, 0)
    nll = -SmoothedCategorical(logits.float(), validate_args=False).log_prob(tokens)
    correct = logits.argmax(dim=-1) == tokens
    return {
        "nll": (nll * valid).sum(dim=-1),
        "tokens": valid.sum(dim=-1).float(),
        "correct": (correct & valid).sum(dim=-1).float(),
    }
