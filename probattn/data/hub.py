"""Data sets of the Hugging Face hub, through the optional package ``datasets``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from probattn.data.dataset import TextDataset
from probattn.data.errors import DataError, suggestion
from probattn.data.rows import Columns, Row, build

PREFIX = "hub:"


def read_hub(
    name: str, columns: Columns | None = None, *, split: str = "train", configuration: str | None = None
) -> TextDataset:
    """Reads a split of a data set of the hub, or of a local folder that ``datasets`` can read.

    Args:
        name: ``owner/name``, without ``hub:``.
        columns: which columns to read; by default "text" and "label", both required.
        split: the split, as the data set calls it.
        configuration: which of its configurations, where there are several.

    Returns:
        The rows in the split's order. Classes are named as the data set names them; -1 means unlabelled there.

    Raises:
        DataError: ``datasets`` is not installed, the data set cannot be loaded (also: no network and no copy in the
            cache), has no such split or column, or holds an empty text or an unknown label.
    """
    columns = columns or Columns()
    source = f"{PREFIX}{name} ({split})"
    table = load_hub(name, split, configuration, source)
    labelled = columns.find(list(table.column_names), source)
    names = getattr(table.features[columns.label], "names", None) if labelled else None
    if names and columns.label_names is None:
        label_names = tuple(columns.label_map.get(item, item) for item in names)
        columns = replace(columns, label_names=label_names)

    def rows() -> Iterator[Row]:
        texts = table[columns.text]
        nothing = [None] * len(table)
        labels = table[columns.label] if labelled else nothing
        pairs = nothing if columns.text_pair is None else table[columns.text_pair]
        for number, (text, label, pair) in enumerate(zip(texts, labels, pairs, strict=True), start=1):
            where = f"{source} row {number}"
            yield Row(where, text, _named(label, names, where) if names else label, pair)

    licence = table.info.license or "see its page on the hub"
    return build(rows(), columns, labelled, source=source, licence=str(licence))


def load_hub(name: str, split: str, configuration: str | None, source: str) -> Any:
    """A split of a data set of the hub as ``datasets`` gives it; ``DataError`` as for :func:`read_hub`."""
    try:
        import datasets
    except ImportError:
        raise DataError(
            f"{source}: expected the package datasets, got no such package; install it: pip install 'probattn[data]'"
        ) from None
    try:
        splits = datasets.load_dataset(name, configuration)
    except Exception as error:
        raise DataError(
            f"{source}: cannot be loaded ({type(error).__name__}: {error}); check the name and the network, "
            "or fetch it once where there is one"
        ) from error
    if split not in splits:
        listed = ", ".join(map(repr, splits))
        raise DataError(f"{source}: expected a split {split!r}, got {listed}{suggestion(split, splits)}")
    return splits[split]


def _named(label: Any, names: list[str], where: str) -> str:
    if not isinstance(label, int) or not 0 <= label < len(names):
        raise DataError(
            f"{where}: expected a label in 0..{len(names) - 1}, got {label} (-1 marks rows without label); "
            "choose a split with labels"
        )
    return names[label]
