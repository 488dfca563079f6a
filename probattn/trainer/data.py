"""What the data sets of a trainer tell: labels of a row, how many rows there are, and names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from probattn.checks import shown

LABELS = ("labels", "label", "label_ids")
"""Keys of the labels in a row, as transformers' collators know them."""
FILES = ("arrow", "csv", "json", "pandas", "parquet", "text")
"""Names that datasets gives to what was read from the user's files."""


def some_labels(*data: Any) -> Tensor | None:
    """Labels of a row, which tell several classes from several labels; ``ValueError`` where they are no numbers."""
    rows: Any = next((row for row in data if hasattr(row, "__len__") and not isinstance(row, dict)), ())
    row = rows[0] if len(rows) else None
    named = row if isinstance(row, Mapping) else {}
    labels = next((named[name] for name in LABELS if name in named), None)
    try:
        return None if labels is None else torch.as_tensor(labels)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(
            f"ProbabilisticTrainer: expected numbers as labels, got {shown(labels)} in the first row; number the "
            "classes, with the names in config.label2id"
        ) from error


def size_for_particles(data: Any) -> int:
    """Number of rows of the training data; ``ValueError`` where it is not known."""
    if data is None or not hasattr(data, "__len__"):
        raise ValueError(
            "ProbabilisticTrainer: repulsive heads need the size of the training data, which has no length; give "
            "num_data"
        )
    return len(data)


def name_of(data: Any) -> str:
    """Name and part of a data set of datasets, such as "glue (sst2, validation)"; empty for others."""
    info = getattr(data, "info", None)
    name = getattr(info, "dataset_name", None) or getattr(info, "builder_name", None)
    if not isinstance(name, str) or name in FILES:
        return ""
    config, split = getattr(info, "config_name", None), getattr(data, "split", None)
    details = [str(detail) for detail in (config, split) if detail is not None and detail != "default"]
    return f"{name} ({', '.join(details)})" if details else name
