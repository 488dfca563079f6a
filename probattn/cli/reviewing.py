"""Files of people's decisions, and labels for the next training."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from probattn.cli.rows import format_of, opened, write_rows
from probattn.data.tables import is_table
from probattn.tasks import RunError, required
from probattn.triage.review import exported_rows, person_of


def rows_of(file: Path) -> list[dict[str, Any]]:
    """The rows of a file of predictions, or of an export of Label Studio."""
    if file.suffix.lower() == ".json":
        return exported_rows(file)
    with opened(str(file), format_of(str(file), None, "FILE, expected"), "decision") as table:
        return [row for _, row in table.rows]


def write_labels(
    task: Any, run: Path, rows: Sequence[Mapping[str, Any]], output: Path, column: str, *, with_training: bool
) -> int:
    """Writes reviewed rows with the columns of the training data; returns their number."""
    train = task.recipe.data.train
    text, pair = required(task.answering, run).columns_read
    names = {"text": text, "pair": pair, "label": train.label or "label"}

    def labelled() -> Iterator[dict[str, Any]]:
        for row in rows:
            if label := person_of(row, column):
                texts = {
                    name: row.get(name, row.get(tag))
                    for tag, name in (("text", text), ("pair", pair))
                    if name
                }
                if any(value is None for value in texts.values()):
                    raise RunError(
                        f"{output}: expected columns {', '.join(texts)} in the reviewed rows, got none"
                    )
                yield {**texts, names["label"]: label}

    before: Iterable[dict[str, Any]] = ()
    if with_training:
        if not is_table(train.source):
            raise RunError(f"--with-training: expected a run of a file, got one of {train.source}")
        with opened(train.source, format_of(train.source, None, "data.train.source"), text) as table:
            before = [{name: row[name] for name in names.values() if name} for _, row in table.rows]
    written: Iterator[tuple[dict[str, Any], dict[str, Any]]] = (
        (row, {}) for row in chain(before, labelled())
    )
    return write_rows(written, format_of(str(output), None, "--output, expected"), output)
