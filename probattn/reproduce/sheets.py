"""A table's figures beside the paper's, and the list of all tables, for a terminal and for pages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from probattn.terminal import Group, Sheet

if TYPE_CHECKING:
    from probattn.metrics.functional import MeanInterval
from probattn.reproduce.declarations import Table, find_table, papers
from probattn.reproduce.records import CellRecord, TableRecord, measured

HEADINGS = ("", "paper", "here", "95%", "gain, paper", "gain", "95%")


def sheet(record: TableRecord) -> Sheet:
    """The rows of a table, grouped by column: the paper's number, the mean over seeds, and gains over the first row.

    Rows with a ``reference`` have gains over that row. Intervals are those of Student's t; gains are paired by seed.
    """
    table = find_table(record.table)
    groups = tuple(
        Group(_title(table, record, column), tuple(_rows(table, record, column))) for column in table.columns
    )
    reasons: dict[str, list[str]] = {}
    for row, cells in record.cells.items():
        for column, cell in cells.items():
            if reason := cell.reason or ("" if cell.values else cell.diverged_words):
                reasons.setdefault(reason, []).append(f"{row}/{column}")
    named = any(axis.reference for axis in table.rows.values())
    gains = "the named row, or the first row" if named else "the first row"
    notes = [
        f"{record.table}: {table.shows}",
        f"Size: {record.size}. Gains are differences from {gains}, paired by seed.",
    ]
    notes += [table.note] if table.note and record.size == "small" else []
    notes += [f"Changed: {', '.join(record.set)}."] if record.set else []
    notes += [f"Not measured, {', '.join(names)}: {reason}" for reason, names in reasons.items()]
    return Sheet(HEADINGS, tuple(group for group in groups if group.rows), notes=tuple(notes))


def _title(table: Table, record: TableRecord, column: str) -> str:
    cells = [row[column] for row in record.cells.values() if column in row]
    recipes = list(dict.fromkeys(cell.recipe for cell in cells if cell.recipe))
    return f"{table.columns[column].title} ({', '.join(recipes)})" if recipes else table.columns[column].title


def _rows(table: Table, record: TableRecord, column: str) -> Iterator[tuple[str, ...]]:
    from probattn.metrics.functional import (
        mean_interval,
    )  # imports torch, which a list of tables does without

    digits = 2 if table.in_percent(column) else 3
    for row, axis in table.rows.items():
        cell, first = record.cells.get(row, {}).get(column), axis.reference or next(iter(table.rows))
        if cell is None or not cell.values:
            continue
        reference = record.cells.get(first, {}).get(column, CellRecord())
        figure, base = table.figure(row, column), table.figure(first, column)
        paper = "" if figure is None else _number(figure, digits)
        paper_gain = "" if row == first or figure is None or base is None else f"{figure - base:+.{digits}f}"
        mean = mean_interval(cell.values.values())
        pairs = [
            value - reference.values[seed] for seed, value in cell.values.items() if seed in reference.values
        ]
        gain = mean_interval(pairs) if pairs and row != first else None
        seeds = f"{len(cell.values)} seeds" if 1 < len(cell.values) < record.seeds else ""
        paired = (
            f"gain of {len(pairs)} seeds" if gain is not None and 1 < len(pairs) < len(cell.values) else ""
        )
        few = "".join(f" ({words})" for words in (cell.diverged_words or seeds, paired) if words)
        over = f", over {table.rows[first].title}" if axis.reference not in (None, row) else ""
        yield (
            f"{axis.title}{over}{few}",
            paper,
            _number(mean.mean, digits),
            interval_words(mean, digits - 1),
            paper_gain,
            "" if gain is None else f"{gain.mean:+.{digits}f}",
            "" if gain is None else interval_words(gain, digits - 1, sign="+"),
        )


def _number(value: float, digits: int) -> str:
    return f"{value:.{digits}f}" if abs(value) < 1000 else f"{value:,.0f}"


def interval_words(mean: MeanInterval, digits: int, *, sign: str = "") -> str:
    """The ends of an interval in brackets; "one seed" without interval."""
    if mean.low is None or mean.high is None:
        return "one seed"
    return f"[{mean.low:{sign}.{digits}f}, {mean.high:{sign}.{digits}f}]"


def listing() -> Sheet:
    """Table of all tables and figures of the papers, with what was measured of them and the time of a run."""
    groups = []
    for name, paper in papers().items():
        rows = [
            (f"{name}/{key}", table.title, *_state(f"{name}/{key}", table))
            for key, table in paper.tables.items()
        ]
        groups.append(Group(f"{paper.paper.title}, {paper.paper.authors}", tuple(rows)))
    note = "probattn reproduce TABLE runs one at the small size; --size paper has the paper's recipes."
    return Sheet(("table", "about", "state", "minutes per run"), tuple(groups), words=3, notes=(note,))


def _state(key: str, table: Table) -> tuple[str, str]:
    """What was measured, or why not, and the minutes of a run."""
    if table.not_measured:
        return "nothing to run", ""
    if not table.rows:
        return "a command", ""
    record = measured(key)
    cells = {(cell.row, cell.column) for cell in table.cells() if not (cell.without or cell.missing)}
    if record is None:
        return f"0 of {len(cells)} cells" if cells else "no copy of the data", ""
    cells |= {(row, column) for row, of in record.cells.items() for column, cell in of.items() if cell.values}
    minutes = record.minutes.values()
    spent = f"{sum(minutes) / len(minutes):.0f}" if minutes else ""
    number = len(cells) or record.measured  # a command makes those that no recipe does
    return f"{record.measured} of {number} cells, {record.seeds} seed{'s' * (record.seeds > 1)}", spent
