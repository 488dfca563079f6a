"""Examples of these tasks as networks read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedConfig

from probattn.tasks.fine_tuning.recipe import Examples

Answer = dict[str, Any]
"""What is predicted of one example, by name."""


class Encoded(NamedTuple):
    """An example, encoded for a network.

    Attributes:
        rows: one row, or one for each window of a long text.
        notes: what else the answer needs, such as the positions of tokens in the text.
    """

    rows: Sequence[Mapping[str, Any]]
    notes: Any = None


class Batch(NamedTuple):
    """Some examples with the tensors that a network reads.

    Attributes:
        examples: the examples.
        encoded: the encoded examples.
        tensors: the batch of all their rows, with labels if the examples have labels.
        config: configuration of the network.
    """

    examples: Examples
    encoded: Sequence[Encoded]
    tensors: Mapping[str, Tensor]
    config: PreTrainedConfig


def padded(codec: Any, rows: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
    """Rows of a tokenizer as a batch, padded behind; labels of tokens by -100, others are stacked."""
    inputs = [{name: row[name] for name in row if name in codec.model_input_names} for row in rows]
    batch = dict(codec.pad(inputs, padding_side="right", return_tensors="pt"))
    length = batch["input_ids"].shape[1]
    for name in rows[0].keys() - inputs[0].keys():
        values = [row[name] for row in rows]
        if all(isinstance(row[name], list) and len(row[name]) == len(row["input_ids"]) for row in rows):
            values = [[*value, *[-100] * (length - len(value))] for value in values]
        batch[name] = torch.tensor(values)
    return batch
