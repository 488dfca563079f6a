"""Recipes of pretrained networks with a head: what they share, and where their examples come from."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self, cast

from pydantic import Field, field_validator

from probattn.checks import shown
from probattn.data import DataError
from probattn.data.identity import SPLITS, Split, order, split_of
from probattn.data.rows import text_of
from probattn.data.tables import PREFIX, Table, is_table, load_hub, long_fields, open_table, other_format
from probattn.options import Count, Filled
from probattn.tasks.classification.recipe import NEW_NETWORKS, PredictionRecipe, PretrainedRecipe
from probattn.tasks.errors import RunError
from probattn.tasks.sections.base import LimitsSection, Section, TopicsReportSection, absolute, key
from probattn.tasks.sections.methods import (
    Alignment,
    AttentionRecipe,
    Disagreement,
    MethodRecipe,
    Particles,
    Repulsion,
)
from probattn.tasks.sections.training import TrainingRecipe

INTRODUCTION = """# Keys of recipes of other heads

A recipe with one of the sections below fine-tunes a pretrained network with the task head of that section; see
[Tokens, spans, numbers, images](heads.md). It also has `name`, `output`, `attention`, `alignment`, `repulsion`,
`disagreement`, `particles`, `training` and `prediction`, whose keys are those of [recipes of texts](reference.md). As
there, unknown keys are errors, and `--set` replaces single keys.
"""

Examples = Sequence[Mapping[str, Any]]
"""Examples of a task, each with the fields that the task reads."""

Rows = Iterator[tuple[str, Mapping[str, Any]]]
"""Place, for messages, and fields of each row of a source."""


class ExampleLimits(LimitsSection):
    """Maximum numbers of examples, a fixed pseudo-random subset of each role; null for all."""

    test: Count | None = key(
        None, "Maximum number of test, shifted and out-of-domain examples; null for all."
    )


class ExamplesSection(Section):
    """Base class of recipe sections that describe the examples of a task.

    A subclass names its columns and makes an example from a row (:meth:`example`). If an example is not a text or a
    pair of texts, it also overrides :meth:`identity` and :meth:`unlabelled`.

    Attributes:
        named: built-in data sets by name: functions that read the rows of a split.
        unlabelled_named: names of further built-in data sets, of inputs without labels.
        suffixes: extensions, without the dot, of files that the subclass reads itself.
        input_keys: keys whose values are the names of the columns of inputs and of second texts.
        answer_keys: keys whose values are the names of the columns of labels.
    """

    named: ClassVar[Mapping[str, Callable[[Split], Rows]]] = {}
    unlabelled_named: ClassVar[Collection[str]] = ()
    suffixes: ClassVar[tuple[str, ...]] = ()
    input_keys: ClassVar[tuple[str, ...]] = ("text",)
    answer_keys: ClassVar[tuple[str, ...]] = ()

    train: str = Field(
        min_length=1,
        description="Training data: a built-in data set, a file (.csv, .tsv, .jsonl), or `hub:owner/name`.",
    )
    validation: Filled | None = key(
        None, "Validation data; null for the validation split or a share of `train`."
    )
    test: Filled | None = key(None, "Test data; null for the test split or a share of `train`.")
    shifted: Filled | None = key(
        None,
        "Shifted test data of the same task: a whole file, or another source's test split; null for none.",
    )
    out_of_domain: Filled | None = key(
        None,
        "Inputs outside the task, to measure how well uncertainty detects them, without labels; null for none.",
    )
    quotes: bool = key(
        True,
        "Whether double quotes may enclose fields of a .csv or .tsv file; false reads them as plain characters.",
    )
    validation_fraction: float = key(
        0.1, "Share of `train` for validation, if there are no other validation data.", gt=0, lt=1
    )
    test_fraction: float = key(
        0.1, "Share of `train` for testing, if there are no other test data.", gt=0, lt=1
    )
    limits: ExampleLimits = key(ExampleLimits(), "Maximum numbers of examples.")

    def columns(self) -> Collection[str]:
        """Names of the required columns."""
        names = (getattr(self, name) for name in (*self.input_keys, *self.answer_keys))
        return [name for name in names if name is not None]

    @abstractmethod
    def example(self, fields: Mapping[str, Any], where: str) -> Mapping[str, Any]:
        """Makes an example from a row; ``DataError`` names the position of an invalid one."""

    @property
    def columns_read(self) -> tuple[str, str | None]:
        """Columns of the inputs, and of the second texts if the task is about pairs, else None."""
        names = [getattr(self, name) for name in self.input_keys]
        return names[0], names[1] if len(names) > 1 else None

    def unlabelled(self, text: str, pair: str | None) -> Mapping[str, Any]:
        """Makes an example without label from the input of a user; ``RunError`` if it is invalid."""
        return {"text": text} if pair is None else {"text": text, "pair": pair}

    def unlabelled_columns(self) -> Collection[str]:
        """Names of the columns that data without labels must have."""
        return [name for name in self.columns_read if name is not None]

    def unlabelled_row(self, fields: Mapping[str, Any], where: str) -> Mapping[str, Any]:
        """Makes an example without label from a row; ``DataError`` names the position of an invalid one."""
        first, second = self.columns_read
        text = text_of(fields.get(first), first, where)
        pair = None if second is None else self.second_text(fields, second, where)
        try:
            return self.unlabelled(text, pair)
        except RunError as error:
            raise DataError(f"{where}: {error}") from None

    def second_text(self, fields: Mapping[str, Any], name: str, where: str) -> Any:
        """The second text of a row, from the column ``name``, in the form that :meth:`unlabelled` accepts."""
        return text_of(fields.get(name), name, where)

    def identity(self, example: Mapping[str, Any]) -> str:
        """Text by which an example is assigned to a split: examples with equal texts are in the same split."""
        return "\n".join(example[name] for name in ("text", "pair") if name in example)

    def fingerprint(self, example: Mapping[str, Any]) -> str:
        """Text that identifies an example, to check that a resumed run has the same data."""
        return repr(sorted(example.items()))

    def read_file(self, path: Path) -> Rows:
        """Rows of a file with one of the extensions :attr:`suffixes`."""
        # Not abstract: load calls it only for files with one of the suffixes, of which most sections have none.
        raise NotImplementedError(f"{type(self).__name__}: a section with suffixes overrides this")

    def load(self) -> dict[str, list[Mapping[str, Any]]]:
        """All examples by split, including "shifted" and "out_of_domain" if the recipe has such data.

        Raises:
            DataError: the data are invalid; the message is one line.
        """
        sources: dict[Split, str | None] = {split: getattr(self, split) for split in SPLITS}
        if self.train in self.named:
            sources = {split: source or self.train for split, source in sources.items()}
        whole = {split: self.read_examples(source, split) for split, source in sources.items() if source}
        whole |= self._held_out(whole)
        examples: dict[str, list[Mapping[str, Any]]] = {
            split: self._taken(split, whole[split]) for split in SPLITS
        }
        if self.shifted is not None:
            examples["shifted"] = self._taken("test", self.read_examples(self.shifted, "test"))
        if self.out_of_domain is not None:
            inputs = self.read_examples(self.out_of_domain, "test", labelled=False)
            examples["out_of_domain"] = self._taken("test", inputs)
        return examples

    def read_examples(self, source: str, split: Split, *, labelled: bool = True) -> list[Mapping[str, Any]]:
        """The examples of one source; ``DataError`` if they are invalid."""
        read = self.example if labelled else self.unlabelled_row
        columns = self.columns() if labelled else self.unlabelled_columns()
        with long_fields():
            examples = [read(fields, where) for where, fields in self.rows(source, split, columns)]
        if not examples:
            raise DataError(f"{source}: expected examples, got none")
        return examples

    def rows(self, source: str, split: Split, columns: Collection[str]) -> Rows:
        """Rows of a source, which must have the ``columns``."""
        if source in self.named:
            return self.named[source](split)
        if source.startswith(PREFIX):
            return self._hub(source, split, columns)
        path = Path(source).expanduser()
        if path.suffix.removeprefix(".").lower() in self.suffixes or (path.is_dir() and "" in self.suffixes):
            return self.read_file(path)
        if not is_table(source):
            error = other_format(path)
            also = f", or one of {', '.join(self.named)}" if self.named else ""
            raise DataError(f"{error}{also}, or {PREFIX}owner/name")
        return self._table(open_table(path, columns, quotes=self.quotes), columns)

    def _table(self, table: Table, columns: Collection[str]) -> Rows:
        _check(columns, table.names, table.header)
        for where, fields in table.rows:
            if fields is not None:
                yield where, fields

    def _hub(self, source: str, split: Split, columns: Collection[str]) -> Rows:
        title = f"{source} ({split})"
        table = load_hub(source.removeprefix(PREFIX), split, None, title)
        _check(columns, table.column_names, title)
        for number, fields in enumerate(table, start=1):
            named = {name: _names_of(value, table.features[name]) for name, value in fields.items()}
            yield f"{title} row {number}", named

    def _held_out(self, whole: Mapping[Split, Examples]) -> dict[Split, list[Mapping[str, Any]]]:
        shares = {
            "validation": 0.0 if "validation" in whole else self.validation_fraction,
            "test": 0.0 if "test" in whole else self.test_fraction,
        }
        cut: dict[Split, list[Mapping[str, Any]]] = {
            split: [] for split in SPLITS if split not in whole or split == "train"
        }
        for example in whole["train"]:
            cut[split_of(self.identity(example), shares["validation"], shares["test"])].append(example)
        empty = next((split for split, examples in cut.items() if not examples), None)
        if empty is not None:
            raise DataError(
                f"{self.train}: {len(whole['train'])} examples are too few to set some aside for {empty}; give a "
                f"source for {empty}, or more examples"
            )
        return cut

    def _taken(self, split: Split, examples: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        limit = cast("int | None", getattr(self.limits, split))
        if limit is None or limit >= len(examples):
            return examples
        ranked = sorted(range(len(examples)), key=lambda row: (order(self.identity(examples[row])), row))
        return [examples[row] for row in sorted(ranked[:limit])]

    def resolved(self) -> Self:
        """The same section with absolute paths of files."""
        paths: dict[str, str] = {}
        for split in (*SPLITS, "shifted", "out_of_domain"):
            source = getattr(self, split)
            named = source in self.named or (split == "out_of_domain" and source in self.unlabelled_named)
            if source and not named and not source.startswith(PREFIX):
                paths[split] = absolute(source)
        return self.model_copy(update=paths)


def refuse_written_list(text: str, name: str, where: str) -> None:
    """Raises ``DataError`` for the text of a list in Python or JSON, as pandas writes lists to .csv files."""
    if re.fullmatch(r"""\[(['"].*['"])?\]""", text.strip(), re.DOTALL):
        raise DataError(
            f"{where}: expected no brackets and quotes in {name!r}, got the text of a list, {shown(text)}; write the "
            "lists to a .jsonl file, with pandas by to_json(orient='records', lines=True)"
        )


def _check(columns: Collection[str], names: Sequence[str], where: str) -> None:
    missing = [name for name in columns if name not in names]
    if missing:
        raise DataError(
            f"{where}: expected a column {missing[0]!r}, got {', '.join(names[:12])}; name it in the recipe"
        )
    for name in columns:
        if names.count(name) > 1:
            raise DataError(
                f"{where}: expected one column {name!r}, got {names.count(name)}; rename the others"
            )


def _names_of(value: Any, feature: Any) -> Any:
    """Names for the numbers of classes in a field, also where it is a list of them."""
    inner = getattr(feature, "feature", None)
    if isinstance(value, list) and inner is not None:
        return [_names_of(item, inner) for item in value]
    names = getattr(feature, "names", None)
    return names[value] if names and isinstance(value, int) and 0 <= value < len(names) else value


class HeadNetworkRecipe(PretrainedRecipe):
    """The pretrained network; its task head is new unless the network has one that fits."""

    @field_validator("name")
    @classmethod
    def _pretrained(cls, value: str) -> str:
        if value in NEW_NETWORKS:
            raise ValueError(f"expected a pretrained network, {value!r} has another head")
        return value


class HeadReportRecipe(TopicsReportSection):
    """Contents of the report."""

    bins: int = key(10, "Bins of the calibration errors.", ge=2, le=100)
    uncertain: int = key(8, "Number of the most uncertain test examples that are listed.", ge=0, le=100)


class HeadRecipe(MethodRecipe):
    """Base class of the recipes of these tasks; each adds the section that identifies its task."""

    introduction = INTRODUCTION

    network: HeadNetworkRecipe = key(HeadNetworkRecipe(), "The network to start from.")
    attention: AttentionRecipe = key(AttentionRecipe(), "The attention method.")
    alignment: Alignment
    repulsion: Repulsion
    disagreement: Disagreement
    particles: Particles
    training: TrainingRecipe = key(TrainingRecipe(), "How to train.")
    prediction: PredictionRecipe = key(PredictionRecipe(), "How to predict.")
    report: HeadReportRecipe = key(HeadReportRecipe(), "What to report.")

    def examples(self) -> tuple[str, ExamplesSection]:
        """Name and value of the section that describes the examples."""
        return next(
            (name, value)
            for name in type(self).model_fields
            if isinstance(value := getattr(self, name), ExamplesSection)
        )
