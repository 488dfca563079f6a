"""The tables and figures of the papers, from the records of `probattn reproduce`.

A part is a paper, a table, or `TABLE/gains`, which has the differences between the rows of a table.
"""

from collections.abc import Iterable, Iterator

from measured_tables.markdown import narrow as table
from probattn.metrics.functional import mean_interval
from probattn.reproduce import CellRecord, Table, TableRecord, measured, papers
from probattn.reproduce.sheets import interval_words

SOURCE = "probattn reproduce"
TABLES = [f"{name}/{key}" for name, paper in papers().items() for key in paper.tables]
PARTS = (*papers(), *TABLES, *(f"{key}/gains" for key in TABLES))


def load(part: str) -> str:
    """The key of the paper or the table, whose records come with the package."""
    return part


def tables(part: str) -> str:
    """A section for each measured table, then the others with reasons; for a single table its figures."""
    paper, _, one = part.removesuffix("/gains").partition("/")
    declared = papers()[paper].tables
    record = measured(f"{paper}/{one}") if one else None
    if record is not None and part.endswith("/gains"):
        return _gains(declared[one], record)
    if record is not None:
        return "\n\n".join(_section(declared[one], record))
    sections, others = [], []
    for key, item in declared.items():
        record = measured(f"{paper}/{key}")
        name = _name(key)
        if record is not None and record.measured:
            sections += [f"### {name}: {item.title}", *_section(item, record)]
        else:
            others.append(f"- **{name}** ({item.title}). {_reason(item)}")
    return "\n\n".join([*sections, "### Tables and figures without measurements", "\n".join(others)])


def _name(key: str) -> str:
    """The paper's name of a key: "Table 2a", "Section A.1", "Section B.1.2 (MMD)"; of other tables the key's words."""
    kind, *words = key.split("-")
    if kind not in ("table", "figure", "section"):
        return key.replace("-", " ").capitalize()
    number, *more = words
    number = number.upper() if kind == "section" else number
    return f"{kind.capitalize()} {number}{''.join(f' ({word.upper()})' for word in more)}"


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
    if numbers == {1}:
        cells = "one seed"
    else:
        seeds = f"{'up to ' * (len(numbers) > 1)}{record.seeds} seeds"
        cells = f"mean over {seeds}; in square brackets its 95% interval (Student's t)"
    if any(item.figure(row, column) is not None for row in record.cells for column in columns):
        cells += "; in parentheses the paper's figure"
    names = ", ".join(f"`{recipe}`" for recipe in recipes)
    yield f"*Each figure: {cells}. Recipe{'s' * (len(recipes) > 1)}: {names}.*"
    if sources := "; ".join(_sources(item, record)):
        yield f"*Computed differently than by `probattn reproduce`: {sources}.*"


def _sources(item: Table, record: TableRecord) -> Iterator[str]:
    """Figures that were not computed by the declared runs, with their rows and columns, and how they were."""
    cells = {
        (row, column): cell.source.partition("; 95% interval")[0]
        for row in item.rows
        for column, cell in record.cells.get(row, {}).items()
        if cell.values
    }
    for source in dict.fromkeys(filter(None, cells.values())):
        of_source = [key for key, value in cells.items() if value == source]
        rows, columns = {row for row, _ in of_source}, {column for _, column in of_source}
        others = [key for key, value in cells.items() if value != source]
        named = []
        if any(column in columns for _, column in others):
            named.append(_named(axis.title for row, axis in item.rows.items() if row in rows))
        if others and (not named or any(row in rows for row, _ in others)):
            named.append(_named(axis.title for key, axis in item.columns.items() if key in columns))
        yield f"{': '.join(named) or 'all figures'} ({source})"


def _named(titles: Iterable[str]) -> str:
    return ", ".join(f"“{title}”" for title in titles)


def _cell(item: Table, record: TableRecord, row: str, column: str) -> str:
    cell, figure = record.cells[row].get(column, CellRecord()), item.figure(row, column)
    paper = "" if figure is None else f" ({figure:g})"
    if not cell.values:
        return paper.strip()
    mean = mean_interval(cell.values.values())
    digits = 2 if item.in_percent(column) else 3
    interval = "" if mean.low is None else f" {interval_words(mean, digits - 1)}"
    return f"{mean.mean:.{digits}f}{interval}{paper}"


def _gains(item: Table, record: TableRecord) -> str:
    """Differences to the first row or to the row's `reference`, paired by seed, with their intervals."""
    cells, first = {}, next(iter(item.rows))
    for row, axis in item.rows.items():
        base = record.cells.get(axis.reference or first, {})
        for column, cell in record.cells.get(row, {}).items():
            less = base.get(column, CellRecord()).values
            pairs = [value - less[seed] for seed, value in cell.values.items() if seed in less]
            if row != (axis.reference or first) and len(pairs) > 1:
                mean, digits = mean_interval(pairs), 2 if item.in_percent(column) else 3
                interval = interval_words(mean, digits - 1, sign="+")
                cells[row, column] = f"{mean.mean:+.{digits}f} {interval}"
    columns = [key for key in item.columns if any(column == key for _, column in cells)]
    rows = [
        [axis.title, *(cells.get((row, column), "") for column in columns)]
        for row, axis in item.rows.items()
        if any((row, column) in cells for column in columns)
    ]
    return table(["difference", *(item.columns[column].title for column in columns)], rows)


def _reason(item: Table) -> str:
    if item.not_measured:
        return item.not_measured
    if not item.rows:
        return f"`{item.command}` produces it. {item.note}".strip()
    reasons = [{*filter(None, (cell.without, cell.missing))} for cell in item.cells()]
    runs = ["Not measured so far"] if not all(reasons) else []
    single = (text for cell in item.cells() for text in (*cell.without.split("; "), cell.missing) if text)
    return "".join(f"{text}. " for text in dict.fromkeys([*runs, *single])).strip()
