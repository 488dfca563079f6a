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
    r"""A host network with a label a token: :math:`y_{it} \sim \mathrm{Categorical}(\mathrm{softmax}(f(x_i, S_i)_t))`.

    Labels are int64 ``[B, T]``, -100 where there is none (padding, the later pieces of a word), predictions logits
    ``[B, T, C]``. The site ``"label"`` is one event a row: the sum over its labelled tokens.

    The objective of a driver is a mean over the rows of the plate: nats per text. Given ``mean_length``, the whole
    program (likelihood, KL and factors alike) is divided by it, so that with the mean number of labels of a training
    text the objective is in nats per label. The posterior is the same either way.

    Args:
        net: a network whose output has ``logits`` ``[B, T, C]``, or is that tensor.
        num_data: size N of the training set. Default: the batch is the data.
        mean_length: mean number of labels of a training text, > 0, or None for nats per text.
        label_name: key of the labels in a batch.

    Raises:
        ValueError: an argument out of its range; of a call, logits or labels of another shape, or labels out of range.

    Example:
        >>> from transformers import BertConfig, BertForTokenClassification
        >>> config = BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
        >>> model = TokenClassifier(BertForTokenClassification(config)).eval()
        >>> model({"input_ids": torch.ones(3, 4, dtype=torch.long)}).shape
        torch.Size([3, 4, 2])
    """

    shift: ClassVar[int] = 0
    """Number of positions by which a label stands after the logits that predict it."""
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
        """Runs the host once, as :meth:`HeadProgram.forward`, in nats per ``mean_length`` labels."""
        with divided_by(self.mean_length):
            prediction: Tensor = super().forward(batch)
        return prediction

    def observe(self, prediction: Tensor, labels: Batch | None, inputs: Batch) -> None:
        """The site ``"label"``, one event a row."""
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
        """Logits ``[B, T, C]`` without the last and labels ``[B, T]`` without the first :attr:`shift` positions."""
        return prediction[:, : prediction.shape[1] - self.shift], labels[:, self.shift :]

    def _count(self, labels: Tensor) -> int:
        return int((self.aligned(labels, labels)[1] != IGNORED).sum())


class MaskedLanguageModel(TokenClassifier):
    r"""A network that fills in masked tokens.

    As :class:`TokenClassifier`, with its arguments and errors, over the vocabulary: logits are ``[B, T, V]``
    (AutoModelForMaskedLM), labels the tokens that were masked, -100 elsewhere.
    """

    advice: ClassVar[str] = "load it with AutoModelForMaskedLM"


class CausalLanguageModel(TokenClassifier):
    r"""A network that goes on: :math:`y_{i,t+1} \sim \mathrm{Categorical}(\mathrm{softmax}(f(y_{i,\le t}, S_i)_t))`.

    As :class:`TokenClassifier`, with its arguments and errors, over the vocabulary: logits are ``[B, T, V]``
    (AutoModelForCausalLM), labels ``[B, T]`` the inputs, -100 at padding, which are compared with the logits one
    position before them, as transformers does.
    """

    shift: ClassVar[int] = 1
    advice: ClassVar[str] = "load it with AutoModelForCausalLM"


class SpanExtractor(HeadProgram):
    r"""A network that marks an answer in a text by its first and its last token.

    .. math:: a_i \sim \mathrm{Categorical}(\mathrm{softmax}_t f(x_i, S_i)_{1t}), \quad
        b_i \sim \mathrm{Categorical}(\mathrm{softmax}_t f(x_i, S_i)_{2t})

    Labels are int64 ``[B]`` positions ``start_positions`` and ``end_positions``; both 0, the first token, where the
    text holds no answer (Devlin et al. 2019, section 4.3). Predictions are logits ``[B, 2, T]`` of the two sites
    ``"start"`` and ``"end"``.

    Args:
        net: a network whose output has ``start_logits`` and ``end_logits`` ``[B, T]`` (AutoModelForQuestionAnswering).
        num_data: size N of the training set. Default: the batch is the data.

    Raises:
        ValueError: ``num_data`` below 1; of a call, an output without these logits, or positions out of range.

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
        """Keys of the two positions in a batch."""
        return ("start_positions", "end_positions")

    def read(self, output: Any, inputs: Mapping[str, Tensor]) -> Tensor:
        """Logits ``[B, 2, T]``."""
        both = [getattr(output, name, None) for name in ("start_logits", "end_logits")]
        logits = [item for item in both if isinstance(item, Tensor) and item.dim() == 2]
        if len(logits) != 2 or logits[0].shape != logits[1].shape:
            raise ValueError(
                f"{type(self).__name__}: expected a network that returns start_logits and end_logits [B, T], got "
                f"{type(output).__name__}; load it with AutoModelForQuestionAnswering"
            )
        return torch.stack(logits, dim=1)

    def observe(self, prediction: Tensor, labels: Batch | None, inputs: Batch) -> None:
        """The sites ``"start"`` and ``"end"``."""
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
