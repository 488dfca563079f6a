"""Networks with a label a token: classes of tokens, masked tokens, the next token, spans."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor, nn

from probattn.checks import check_number
from probattn.models.program import IGNORED, Batch, HeadProgram, check_classes, divided_by


class TokenClassifier(HeadProgram):
    r"""A network with one label per token: :math:`y_{it} \sim \mathrm{Categorical}(\mathrm{softmax}(f(x_i, S_i)_t))`.

    f gives the logits ``[B, T, C]`` and S are the attention weights. Labels are int64 ``[B, T]``, -100 for unlabelled
    tokens (padding, the later pieces of a word). The log density of the site ``"label"`` is ``[B]``, summed over the
    labelled tokens of a text.

    The library's training loops minimise a mean over texts, in nats per text. With ``mean_length`` all log densities
    (likelihood, KL, factors of methods) are divided by this number; if it is the mean number of labels per text, the
    objective is in nats per label. The optimal posterior does not depend on ``mean_length``.

    Args:
        net: a network whose output has ``logits`` ``[B, T, C]``, or is that tensor.
        num_data: size N of the training set, to which likelihood and KL of a batch are scaled. Default: the batch size.
        mean_length: mean number of labels of a training text, > 0; None for an objective in nats per text.
        label_name: key of the labels in a batch.

    Raises:
        ValueError: an argument out of its range; in a call, logits or labels of another shape, or labels out of range.

    Example:
        >>> from transformers import BertConfig, BertForTokenClassification
        >>> config = BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
        >>> model = TokenClassifier(BertForTokenClassification(config)).eval()
        >>> model({"input_ids": torch.ones(3, 4, dtype=torch.long)}).shape
        torch.Size([3, 4, 2])
    """

    shift: ClassVar[int] = 0
    """Number of positions between the logits and the later label that they predict; 1 in causal models."""
    dimensions: ClassVar[int] = 2
    advice: ClassVar[str] = "load it with AutoModelForTokenClassification"

    def __init__(
        self,
        net: nn.Module,
        *,
        num_data: int | None = None,
        mean_length: float | None = None,
        label_name: str = "labels",
    ) -> None:
        super().__init__(net, num_data=num_data, label_name=label_name)
        if mean_length is not None:
            check_number(type(self).__name__, "mean_length", mean_length, positive=True)
        self.mean_length = mean_length

    def forward(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Runs the network once and returns its logits ``[B, T, C]``; log densities are divided by ``mean_length``."""
        with divided_by(self.mean_length):
            prediction: Tensor = super().forward(batch)
        return prediction

    def observe(self, prediction: Tensor, labels: Batch | None, inputs: Batch) -> None:
        """Samples the site ``"label"`` with log density ``[B]``, observed if there are ``labels``."""
        label = None if labels is None else labels[self.label_name]
        logits, valid = prediction, _real_tokens(prediction, inputs)
        if label is not None:
            check_classes(self, "labels", label, prediction.shape[:2], prediction.shape[2], ignored=True)
            logits, label = self.aligned(prediction, label)
            valid = label != IGNORED
            label = label.where(valid, 0)
        law = dist.Categorical(logits=logits.float()).mask(valid).to_event(1)
        pyro.sample("label", law, obs=label, infer={"prediction": label is None})

    def aligned(self, prediction: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Returns logits without the last and labels without the first :attr:`shift` of T positions."""
        return prediction[:, : prediction.shape[1] - self.shift], labels[:, self.shift :]

    def _count(self, labels: Tensor) -> int:
        return int((self.aligned(labels, labels)[1] != IGNORED).sum())


class MaskedLanguageModel(TokenClassifier):
    r"""A network that predicts masked tokens.

    A :class:`TokenClassifier`, with the same arguments and errors, whose classes are the V tokens of the vocabulary:
    logits are ``[B, T, V]`` (AutoModelForMaskedLM), labels are the original tokens at masked positions, else -100.
    """

    advice: ClassVar[str] = "load it with AutoModelForMaskedLM"


class CausalLanguageModel(TokenClassifier):
    r"""A network that predicts the next token.

    .. math:: y_{i,t+1} \sim \mathrm{Categorical}(\mathrm{softmax}(f(y_{i,\le t}, S_i)_t))

    A :class:`TokenClassifier`, with the same arguments and errors, whose classes are the V tokens of the vocabulary:
    logits are ``[B, T, V]`` (AutoModelForCausalLM). Labels ``[B, T]`` are the input tokens, -100 at padding; as in
    transformers, each label is compared with the logits one position before.
    """

    shift: ClassVar[int] = 1
    advice: ClassVar[str] = "load it with AutoModelForCausalLM"


class SpanExtractor(HeadProgram):
    r"""A network that marks an answer in a text by the positions a of its first and b of its last token.

    .. math:: a_i \sim \mathrm{Categorical}(\mathrm{softmax}_t f(x_i, S_i)_{1t}), \quad
        b_i \sim \mathrm{Categorical}(\mathrm{softmax}_t f(x_i, S_i)_{2t})

    f gives the logits ``[B, 2, T]`` of the sites ``"start"`` and ``"end"``; S are the attention weights. Labels are the
    positions ``start_positions`` and ``end_positions``, int64 ``[B]``; both are 0, the first token, if the text does
    not contain an answer (Devlin et al. 2019, section 4.3).

    Args:
        net: a network whose output has ``start_logits`` and ``end_logits`` ``[B, T]`` (AutoModelForQuestionAnswering).
        num_data: size N of the training set, to which likelihood and KL of a batch are scaled. Default: the batch size.

    Raises:
        ValueError: ``num_data`` below 1; in a call, an output without these logits, or positions out of range.

    Example:
        >>> from transformers import BertConfig, BertForQuestionAnswering
        >>> config = BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
        >>> model = SpanExtractor(BertForQuestionAnswering(config)).eval()
        >>> model({"input_ids": torch.ones(3, 4, dtype=torch.long)}).shape
        torch.Size([3, 2, 4])
    """

    def __init__(self, net: nn.Module, *, num_data: int | None = None) -> None:
        super().__init__(net, num_data=num_data)

    @property
    def label_names(self) -> tuple[str, ...]:
        """Keys of the two positions in a batch: ``start_positions`` and ``end_positions``."""
        return ("start_positions", "end_positions")

    def _decoder_positions(self, batch: Batch) -> None:
        """None: the logits of padding are in the softmax, as in transformers, and a mask would change them."""

    def read(self, output: Any, inputs: Mapping[str, Tensor]) -> Tensor:
        """Returns the start and end logits in the network's output, ``[B, 2, T]``."""
        both = [getattr(output, name, None) for name in ("start_logits", "end_logits")]
        logits = [item for item in both if isinstance(item, Tensor) and item.dim() == 2]
        if len(logits) != 2 or logits[0].shape != logits[1].shape:
            raise ValueError(
                f"{type(self).__name__}: expected a network that returns start_logits and end_logits [B, T], got "
                f"{type(output).__name__}; load it with AutoModelForQuestionAnswering"
            )
        return torch.stack(logits, dim=1)

    def observe(self, prediction: Tensor, labels: Batch | None, inputs: Batch) -> None:
        """Samples the sites ``"start"`` and ``"end"``, observed if there are ``labels``."""
        for index, (site, name) in enumerate(zip(("start", "end"), self.label_names, strict=True)):
            label = None if labels is None else labels[name]
            if label is not None:
                check_classes(self, name, label, prediction.shape[:1], prediction.shape[2])
            law = dist.Categorical(logits=prediction[:, index].float())
            pyro.sample(site, law, obs=label, infer={"prediction": label is None})


def _real_tokens(prediction: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
    mask = inputs.get("attention_mask")
    if mask is None or mask.shape != prediction.shape[:2]:
        return prediction.new_ones(prediction.shape[:2], dtype=torch.bool)
    return mask.bool()
