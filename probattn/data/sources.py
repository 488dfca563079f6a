"""Sources of data in one notation: built-in sets, files of the user, the Hugging Face hub."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, cast, get_args

from probattn.data.builtin import BUILT_IN, BuiltIn
from probattn.data.dataset import TextDataset
from probattn.data.errors import DataError, suggestion
from probattn.data.identity import SPLITS, Split
from probattn.data.rows import Columns, LabelUse, unknown_label
from probattn.data.tables import PREFIX, SUFFIXES, is_table, other_format, read_hub, read_table
from probattn.options import Filled, Options

Role = Literal["train", "validation", "test", "shifted", "out_of_domain", "prediction"]
"""Role of data: a split of the task, the task under a shift, out-of-distribution texts, or inputs to predict."""

ROLES: tuple[Role, ...] = get_args(Role)[:-1]
"""Roles of the data of a task: all of ``Role`` except "prediction"."""


@dataclass(frozen=True)
class Source(Options):
    """A source of texts and the options of reading it.

    Args:
        source: name of a built-in data set (the page on data lists them), a file (.csv, .tsv, .tab, .xlsx, .jsonl or
            .ndjson; relative to the working directory), or ``hub:owner/name``.
        split: split of a built-in or hub data set; None for the split named like the role ("train", "validation",
            "test"); for other roles None takes the whole of a built-in data set, but the test split of a hub data set.
        configuration: configuration of a hub data set; None where it has only one.
        text: column with the texts, in a file or hub data set.
        label: column with the labels, in a file or hub data set.
        label_map: class name of each label in the data, such as ``{'0': 'negative'}``; labels with the same
            name become one class.
        quotes: whether double quotes may enclose fields of a .csv or .tsv file; False reads them as plain characters.
        text_pair: column with the second texts, in a file or hub data set of pairs of texts; None for single texts.

    Raises:
        ValueError: a value of another type, or an empty one.

    Example:
        >>> Source("rotten_tomatoes").kind, Source("my.tsv").kind, Source("hub:SetFit/sst5").kind
        ('built-in', 'file', 'hub')
    """

    source: Filled
    split: Filled | None = None
    configuration: Filled | None = None
    text: Filled = "text"
    label: Filled = "label"
    label_map: Mapping[str, str] = field(default_factory=dict)
    quotes: bool = True
    text_pair: Filled | None = None

    @property
    def kind(self) -> Literal["built-in", "file", "hub"]:
        """Kind of the source: "built-in", "file" or "hub".

        Raises:
            DataError: the source is none of these.
        """
        if self.source.startswith(PREFIX):
            return "hub"
        if self.source in BUILT_IN:
            return "built-in"
        if is_table(self.source):
            return "file"
        if Path(self.source).expanduser().is_file():
            raise other_format(self.source)
        raise DataError(
            f"unknown data set {self.source!r}: expected a file that ends in "
            f"{', '.join('.' + suffix for suffix in SUFFIXES)}, {PREFIX}owner/name, or a name "
            f"({', '.join(_names())}){suggestion(self.source, BUILT_IN)}"
        )

    @property
    def paired(self) -> bool:
        """Whether the source has pairs of texts, known without reading it."""
        return BUILT_IN[self.source].paired if self.kind == "built-in" else self.text_pair is not None

    def load(self, role: Role = "train", label_names: tuple[str, ...] | None = None) -> TextDataset:
        """Reads the data for a role.

        Args:
            role: "train" needs at least two classes; "validation", "test" and "shifted" need labels; "out_of_domain"
                ignores labels; "prediction" reads them if they exist.
            label_names: the classes of the training data, in order; leave it None to read the training data themselves.

        Returns:
            The data set; if it has labels, its classes are ``label_names``, if these are set.

        Raises:
            DataError: the data are invalid; the message is one line.
        """
        use: LabelUse = "required"
        if role in ("out_of_domain", "prediction"):
            use = "ignored" if role == "out_of_domain" else "optional"
        columns = Columns(self.text, self.label, use, label_names, self.label_map, self.text_pair)
        data = self._read(columns, role)
        return data.require_classes() if role == "train" else data

    def _read(self, columns: Columns, role: Role) -> TextDataset:
        kind = self.kind
        if kind == "file":
            if self.split is not None:
                raise DataError(
                    f"{self.source}: a file has no splits, got split {self.split!r}; leave it out"
                )
            return read_table(Path(self.source).expanduser(), columns, quotes=self.quotes)
        if kind == "hub":
            split = self.split or (role if role in SPLITS else "test")
            return read_hub(
                self.source.removeprefix(PREFIX), columns, split=split, configuration=self.configuration
            )
        return self._read_built_in(BUILT_IN[self.source], columns, role)

    def _read_built_in(self, built_in: BuiltIn, columns: Columns, role: Role) -> TextDataset:
        allowed = (*SPLITS, "all")
        split = self.split or (role if role in SPLITS else "all")
        if split not in allowed:
            raise DataError(
                f"{self.source}: expected a split {', '.join(allowed)}, got {split!r}{suggestion(split, allowed)}"
            )
        data = built_in.load(cast("Split | Literal['all']", split))
        if columns.use == "ignored":
            return replace(data, labels=None, label_names=())
        return _relabel(_renamed(data, columns.label_map), columns.label_names)


def _names() -> list[str]:
    """The names of built-in data sets, those of a family as one, by its first or a pattern."""
    families = ("banking77", "clinc150", "glue", "textfooler", "vader")
    names = [name for name in BUILT_IN if not name.startswith(families)]
    return [*names, *(family if family in BUILT_IN else f"{family}_*" for family in families)]


def _renamed(data: TextDataset, label_map: Mapping[str, str]) -> TextDataset:
    """Classes under other names; those with the same name become one."""
    names = [label_map.get(name, name) for name in data.label_names]
    distinct = tuple(dict.fromkeys(names))
    labels = None if data.labels is None else tuple(distinct.index(names[label]) for label in data.labels)
    return replace(data, labels=labels, label_names=distinct)


def _relabel(data: TextDataset, label_names: tuple[str, ...] | None) -> TextDataset:
    """The same labels as indices into ``label_names``."""
    if label_names is None or label_names == data.label_names:
        return data
    for name, count in data.counts().items():
        if count and name not in label_names:
            raise unknown_label(data.source, name, label_names)
    indices = {name: label_names.index(name) for name in data.label_names if name in label_names}
    labels = tuple(indices[data.label_names[label]] for label in data.labels or ())
    return replace(data, labels=labels, label_names=label_names)
