"""A classification network as a Pyro program."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro.poutine.runtime import am_i_wrapped
from torch import Tensor, nn

from probattn.checks import check_batch, check_integer
from probattn.models.program import Program


class Classifier(Program):
    r"""A host network with an observed label: :math:`y_i \sim \mathrm{Categorical}(\mathrm{softmax}(f(x_i, S_i)))`.

    A ``PyroModule``, so that ``pyro.infer.SVI`` finds the host's parameters too. One call announces the plate
    ``"data"``, the host's attention sites (if it was converted) and the site ``"label"``; without labels in the
    batch the label is a value to predict.

    Args:
        net: a network whose output has ``logits`` ``[B, C]`` (any Hugging Face sequence or image classifier), or is
            that tensor.
        num_data: size N of the training set; scales a batch's likelihood and KL to it. Default: the batch is the
            data.
        label_name: key of the labels in a batch.

    Raises:
        ValueError: ``num_data`` below 1.

    Example:
        >>> from transformers import BertConfig, BertForSequenceClassification
        >>> config = BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
        >>> model = Classifier(BertForSequenceClassification(config)).eval()
        >>> model({"input_ids": torch.ones(3, 4, dtype=torch.long)}).shape
        torch.Size([3, 2])
    """

    def __init__(self, net: nn.Module, *, num_data: int | None = None, label_name: str = "labels") -> None:
        super().__init__()
        if num_data is not None:
            check_integer("Classifier", "num_data", num_data, least=1)
        self.net = net
        self.num_data = num_data
        self.label_name = label_name

    def forward(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Runs the host once; outside Pyro's handlers it only answers, announcing nothing.

        Args:
            batch: inputs of the host by name, and labels int64 ``[B]`` under ``label_name``.

        Returns:
            Logits ``[B, C]``.

        Raises:
            TypeError: the batch is no mapping of tensors.
            ValueError: the host's output holds no logits ``[B, C]`` of two classes or more, or labels are no class
                numbers ``[B]`` in 0..C-1.
        """
        check_batch("Classifier", batch)
        inputs = {name: value for name, value in batch.items() if name != self.label_name}
        labels = batch.get(self.label_name)
        if not inputs:
            raise ValueError(f"Classifier: expected inputs in the batch, got {', '.join(batch) or 'nothing'}")
        rows = len(next(iter(inputs.values())))
        if not am_i_wrapped():
            return _logits(self.net(**inputs), rows)
        with pyro.plate("data", self.num_data or rows, subsample=_rows(self.num_data, rows, inputs)):
            logits = _logits(self.net(**inputs), rows)
            if labels is not None:
                _check_labels(labels, *logits.shape)
            pyro.sample(
                "label",
                dist.Categorical(logits=logits.float()),
                obs=labels,
                infer={"prediction": labels is None},
            )
        return logits


def _rows(num_data: int | None, rows: int, inputs: Mapping[str, Tensor]) -> Tensor | None:
    """Stand-in for the batch's place in the data; only its length matters."""
    if num_data is None:
        return None
    return torch.arange(rows, device=next(iter(inputs.values())).device)


def _logits(output: Any, rows: int) -> Tensor:
    logits = output if isinstance(output, Tensor) else getattr(output, "logits", None)
    if not isinstance(logits, Tensor) or logits.dim() != 2 or logits.shape[0] != rows:
        received = list(logits.shape) if isinstance(logits, Tensor) else type(output).__name__
        raise ValueError(
            f"Classifier: expected a network that returns logits [{rows}, C], got {received}; "
            "load it with AutoModelForSequenceClassification"
        )
    if logits.shape[1] < 2:
        raise ValueError(
            f"Classifier: expected a network of two classes or more, got logits {list(logits.shape)}: a single output "
            "is regression; load it with num_labels=2 or more"
        )
    return logits


def _check_labels(labels: Tensor, rows: int, num_labels: int) -> None:
    if labels.shape != (rows,) or labels.is_floating_point():
        raise ValueError(
            f"Classifier: expected class numbers int64 [{rows}] as labels, got {labels.dtype} {list(labels.shape)}; "
            "give one whole number a row"
        )
    if labels.numel() and (int(labels.min()) < 0 or int(labels.max()) >= num_labels):
        raise ValueError(
            f"Classifier: expected labels in 0..{num_labels - 1}, got {int(labels.min())}..{int(labels.max())}"
        )
