"""A table's figures beside the paper's, and the list of all tables, for a terminal and for pages."""

from __future__ import annotations

from collections.abc import Iterator

from probattn.metrics.functional import MeanInterval, mean_interval
from probattn.report import Group, Sheet
from probattn.reproduce.declarations import Table, find_table, papers
from probattn.reproduce.records import CellRecord, TableRecord, measured

HEADINGS = ("", "paper", "here", "95%", "gain, paper", "gain", "95%")


def sheet(record: TableRecord) -> Sheet:
    """The rows of a table, a group a column: the paper's figure, the mean over seeds, and gains over the first row.

    Intervals are Student's t over seeds, of gains over the differences of the same seeds.
    """
    table = find_table(record.table)
    groups = tuple(
        Group(_title(table, record, column), tuple(_rows(table, record, column))) for column in table.columns
    )
    notes = [f"{record.table}: {table.shows}"]
    notes += [f"Size: {record.size}. {table.note}".strip()]
    return Sheet(HEADINGS, tuple(group for group in groups if group.rows), notes=tuple(notes))


def _title(table: Table, record: TableRecord, column: str) -> str:
    cells = [row[column] for row in record.cells.values() if column in row]
    recipes = list(dict.fromkeys(cell.recipe for cell in cells if cell.recipe))
    return f"{table.columns[column].title} ({', '.join(recipes)})" if recipes else table.columns[column].title


def _rows(table: Table, record: TableRecord, column: str) -> Iterator[tuple[str, ...]]:
    first, digits = next(iter(table.rows)), 2 if table.in_percent(column) else 3
    reference = record.cells.get(first, {}).get(column, CellRecord())
    for row, axis in table.rows.items():
        cell = record.cells.get(row, {}).get(column)
        if cell is None:
            continue
        figure, base = table.figure(row, column), table.figure(first, column)
        paper = "" if figure is None else _number(figure, digits)
        paper_gain = "" if row == first or figure is None or base is None else f"{figure - base:+.{digits}f}"
        if not cell.values:
            yield (axis.title, paper, "-", cell.reason[:40], paper_gain, "", "")
            continue
        mean = mean_interval(cell.values.values())
        pairs = [
            value - reference.values[seed] for seed, value in cell.values.items() if seed in reference.values
        ]
        gain = mean_interval(pairs) if pairs and row != first else None
        yield (
            axis.title,
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
    """The ends in brackets; "one seed" where there is no interval."""
    if mean.low is None or mean.high is None:
        return "one seed"
    return f"[{mean.low:{sign}.{digits}f}, {mean.high:{sign}.{digits}f}]"


def listing() -> Sheet:
    """All tables and figures of all papers, with what was measured of them and how long a run takes."""
    groups = []
    for name, paper in papers().items():
        rows = [
            (f"{name}/{key}", table.title, *_state(f"{name}/{key}", table))
            for key, table in paper.tables.items()
        ]
        groups.append(Group(f"{paper.paper.title}, {paper.paper.authors}", tuple(rows)))
    note = "probattn reproduce TABLE runs one at the small size; --size paper has the paper's recipes."
    return Sheet(("table", "about", "state", "minutes a run"), tuple(groups), words=3, notes=(note,))


def _state(key: str, table: Table) -> tuple[str, str]:
    """What was measured, or why not, and the minutes of a run."""
    if table.not_measured:
        return "nothing to run", ""
    if not table.rows:
        return "by a study of its own" if table.study else "by a command of its own", ""
    record, cells = measured(key), [cell for cell in table.cells() if not cell.without]
    if record is None:
        return f"0 of {len(cells)} cells", ""
    minutes = record.minutes.values()
    spent = f"{sum(minutes) / len(minutes):.0f}" if minutes else ""
    return f"{record.measured} of {len(cells)} cells, {record.seeds} seed{'s' * (record.seeds > 1)}", spent
