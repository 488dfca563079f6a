"""The tables and figures of the papers, from the records of `probattn reproduce`; a part a paper, or a table."""

from collections.abc import Iterator

from measured_tables.markdown import table
from probattn.metrics.functional import mean_interval
from probattn.reproduce import CellRecord, Table, TableRecord, measured, papers
from probattn.reproduce.sheets import interval_words

SOURCE = "probattn reproduce"
PARTS = (*papers(), *(f"{name}/{key}" for name, paper in papers().items() for key in paper.tables))


def load(part: str) -> str:
    """The key of the paper or the table, whose records come with the package."""
    return part


def tables(part: str) -> str:
    """A section a table that was measured, then what was not, with reasons; of one table what was measured."""
    paper, _, one = part.partition("/")
    declared = papers()[paper].tables
    record = measured(part) if one else None
    if record is not None:
        return "\n\n".join(_section(declared[one], record))
    sections, others = [], []
    for key, item in declared.items():
        record = measured(f"{paper}/{key}")
        title = f"{key.replace('-', ' ')}: {item.title}"
        if record is not None and record.measured:
            sections += [f"### {title[0].upper()}{title[1:]}", *_section(item, record)]
        else:
            others.append(f"- **{key.replace('-', ' ')}**, {item.title}: {_reason(item)}")
    return "\n\n".join([*sections, "### Others", "\n".join(others)])


def _section(item: Table, record: TableRecord) -> Iterator[str]:
    columns = [key for key in item.columns if any(key in row for row in record.cells.values())]
    rows = [
        [axis.title, *(_cell(item, record, row, column) for column in columns)]
        for row, axis in item.rows.items()
        if row in record.cells
    ]
    yield f"{item.shows} {item.note}".strip()
    yield table(["", *(item.columns[column].title for column in columns)], rows)
    recipes = dict.fromkeys(
        cell.recipe for row in record.cells.values() for cell in row.values() if cell.values
    )
    numbers = {len(cell.values) for row in record.cells.values() for cell in row.values() if cell.values}
    seeds = "One seed" if numbers == {1} else f"{'Up to ' * (len(numbers) > 1)}{record.seeds} seeds"
    names = ", ".join(f"`{recipe}`" for recipe in recipes)
    yield f"*In brackets the paper's figure. {seeds}; {names}.*"


def _cell(item: Table, record: TableRecord, row: str, column: str) -> str:
    cell, figure = record.cells[row].get(column, CellRecord()), item.figure(row, column)
    paper = "" if figure is None else f" ({figure:g})"
    if not cell.values:
        return paper.strip()
    mean = mean_interval(cell.values.values())
    digits = 2 if item.in_percent(column) else 3
    interval = "" if mean.low is None else f" {interval_words(mean, digits - 1)}"
    return f"{mean.mean:.{digits}f}{interval}{paper}"


def _reason(item: Table) -> str:
    if item.not_measured:
        return item.not_measured
    if item.rows:
        reasons = dict.fromkeys(
            cell.without or cell.missing for cell in item.cells() if cell.without or cell.missing
        )
        return "; ".join(reasons) or "not measured yet."
    return f"by `{item.command}`." if item.command else f"by `python tests/benchmarks/study.py {item.study}`."
