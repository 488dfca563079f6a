"""Files of people's decisions, and labels for the next training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from probattn.checks import is_blank
from probattn.cli.rows import format_of, opened, write_rows
from probattn.data import DataError
from probattn.data.tables import is_table
from probattn.files.spreadsheets import unescaped
from probattn.tasks import RunError, required
from probattn.triage.queue import REVIEWED
from probattn.triage.review import column_of, exported_rows, person_of


def rows_of(file: Path, column: str | None = None) -> list[dict[str, Any]]:
    """The rows of a file of predictions, or of an export of Label Studio; classes have no apostrophe."""
    if file.suffix.lower() == ".json":
        return exported_rows(file)
    kind = format_of(str(file))
    with opened(str(file), kind, "decision") as table:
        rows = [row for _, row in table.rows]
    if kind not in ("csv", "tsv"):
        return rows
    names = {column_of(rows[0], name) for name in ("label", "likeliest", column or REVIEWED)} & rows[0].keys()
    return [row | {name: unescaped(row[name]) for name in names} for row in rows]


def has_reviews(file: Path) -> bool:
    """Whether a file has a class that a person decided; False for one that is no file of decisions."""
    try:
        return any(person_of(row, column_of(row, REVIEWED)) for row in rows_of(file))
    except (DataError, RunError):
        return False


def write_labels(
    task: Any,
    run: Path,
    rows: Sequence[Mapping[str, Any]],
    output: Path,
    columns: Mapping[str, str | None],
    classes: Sequence[str],
    *,
    with_training: bool,
    new_classes: bool,
) -> int:
    """Writes reviewed rows that have a text, after the training file's if these are asked for; their number."""
    train, column = task.recipe.data.train, columns["label"] or column_of(rows[0], REVIEWED)
    kind = format_of(str(output))
    if kind == "txt":
        raise RunError(f"--output {output}: expected .csv, .tsv, .xlsx or .jsonl, got plain text")
    text, pair = required(task.answering, run).columns_read
    names = {"text": text, "pair": pair, "label": train.label or "label"}

    decided = list(rows[0])[list(rows[0]).index(column_of(rows[0], "decision")) :]

    def labelled() -> Iterator[dict[str, Any]]:
        for row in rows:
            label = person_of(row, column, classes)
            if label and (new_classes or label in classes):
                texts = {
                    name: row.get(columns.get(tag) or name, row.get(tag))
                    for tag, name in (("text", text), ("pair", pair))
                    if name
                }
                lacking = next((name for name, value in texts.items() if value is None), None)
                if lacking is not None:
                    raise RunError(
                        f"{output}: expected a column {lacking!r} in the reviewed rows, as in the training data, got "
                        f"{', '.join(row)}; name the column of the texts with --text-column"
                    )
                if not any(is_blank(str(value)) for value in texts.values()):
                    free = {name: "" if name in decided else row.get(name, "") for name in others}
                    yield free | {**texts, names["label"]: label}

    before: list[dict[str, Any]] = []
    others: tuple[str, ...] = ()
    style = None
    if with_training:
        if not is_table(train.source):
            raise RunError(f"--with-training: expected a run of a file, got one of {train.source}")
        form = format_of(train.source)
        with opened(train.source, form, text, quotes=train.quotes) as table:
            before, others = [row for _, row in table.rows], table.columns
            style = table.style if kind == form else None
    return write_rows(((row, {}) for row in chain(before, labelled())), kind, output, style=style)
