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
INLINE = 240
"""Number of characters from which changed keys are a list that opens on a click."""
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
            others.append(f"- **{name}** ({item.title}). {_reason(key, item)}")
    return "\n\n".join([*sections, "### Other tables and figures", "\n".join(others)])


def _name(key: str) -> str:
    """The paper's name of a key: "Table 2a", "Section A.1", "Section B.1.2 (MMD)"; of other tables the key's words."""
    kind, *words = key.split("-")
    if kind not in ("table", "figure", "section"):
        return key.replace("-", " ").capitalize()
    number, *more = words
    number = number.upper() if kind == "section" else number
    more = [word.upper() for word in more] if kind == "section" else more
    return f"{kind.capitalize()} {number}{''.join(f' ({word})' for word in more)}"


def _section(item: Table, record: TableRecord) -> Iterator[str]:
    columns = [key for key in item.columns if any(key in row for row in record.cells.values())]
    rows = [
        [axis.title, *(_cell(item, record, row, column) for column in columns)]
        for row, axis in item.rows.items()
        if row in record.cells
    ]
    yield f"{item.shows} {item.note}".strip()
    if missing := "; ".join(_missing(item, record, columns)):
        yield f"*Not measured: {missing}.*"
    yield table(["", *(item.columns[column].title for column in columns)], rows)
    numbers = {len(cell.values) for row in record.cells.values() for cell in row.values() if cell.values}
    if numbers == {1}:
        cells = "one seed"
    else:
        seeds = f"{'up to ' * (len(numbers) > 1)}{record.seeds} seeds"
        cells = f"mean over {seeds}; in square brackets its 95% interval (Student's t)"
        cells += "; a single measurement has no interval" * (1 in numbers)
    if any(item.figure(row, column) is not None for row in record.cells for column in columns):
        cells += "; in parentheses the paper's number"
    missing = {
        item.figure(row, column) is None
        for row in record.cells
        for column in columns
        if not record.cells[row].get(column, CellRecord()).values
    }
    cells += ". Empty cells were not measured" * (True in missing)
    cells += ". Cells with only a number in parentheses were not measured in this project" * (
        False in missing
    )
    recipes, changed = _recipes(item, record)
    listed = "; ".join(f"{subject} with {keys}" for subject, keys in changed.items())
    cells = f"{cells}. Recipe{'s' * (len(recipes) > 1)}"
    if len(listed) <= INLINE:
        others = ", ".join(recipe for recipe in recipes if not any(recipe in subject for subject in changed))
        yield f"*Each number: {cells}: {'; '.join(filter(None, (others, listed)))}.*"
    else:
        yield f"*Each number: {cells}: {', '.join(recipes)}, with changed keys.*"
        yield "\n".join(['??? info "Changed keys"', *(f"    - {of}: {keys}" for of, keys in changed.items())])
    if sources := "; ".join(_sources(item, record)):
        yield f"*Computed differently than by `probattn reproduce`: {sources}.*"


def _recipes(item: Table, record: TableRecord) -> tuple[list[str], dict[str, str]]:
    """The recipes of the numbers, and keys that all numbers of some recipes, rows or columns change, by their names."""
    cells = [
        (row, column, cell)
        for row, of_row in record.cells.items()
        for column, cell in of_row.items()
        if cell.values
    ]
    common: dict[str, tuple[str, ...]] = {}
    for _, _, cell in cells:
        keys = common.get(cell.recipe, cell.keys)
        common[cell.recipe] = tuple(key for key in keys if key in cell.keys)
    changed = {f"`{recipe}`": keys for recipe, keys in common.items()}
    for place, axes in enumerate((item.rows, item.columns)):
        for name, axis in axes.items():
            of_axis = [cell for *names, cell in cells if names[place] == name]
            own = {key for cell in of_axis for key in cell.keys if key not in common[cell.recipe]}
            changed[f"“{axis.title}”"] = tuple(key for key in (*axis.keys, *axis.small) if key in own)
    subjects: dict[str, list[str]] = {}
    for subject, keys in changed.items():
        last = {key.partition("=")[0]: key for key in keys}  # a later one of the same name counts
        subjects.setdefault(", ".join(f"`{key}`" for key in last.values()), []).append(subject)
    return [f"`{recipe}`" for recipe in common], {
        ", ".join(of): keys for keys, of in subjects.items() if keys
    }


def _missing(item: Table, record: TableRecord, columns: list[str]) -> Iterator[str]:
    """Rows and columns that the table leaves out, by reason."""
    reasons: dict[str, list[str]] = {}
    for axes, shown in ((item.rows, record.cells), (item.columns, columns)):
        for key, axis in axes.items():
            if key not in shown:
                reasons.setdefault(axis.without or axis.missing, []).append(axis.title)
    for reason, titles in reasons.items():
        yield _named(titles) + (f" ({_lower(reason)})" if reason else "")


def _lower(reason: str) -> str:
    return reason[:1].lower() + reason[1:]


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
        yield f"{': '.join(named) or 'all numbers'} ({source})"


def _named(titles: Iterable[str]) -> str:
    return ", ".join(f"“{title}”" for title in titles)


def _cell(item: Table, record: TableRecord, row: str, column: str) -> str:
    cell, figure = record.cells[row].get(column, CellRecord()), item.figure(row, column)
    paper = "" if figure is None else f" ({figure:g})"
    if not cell.values:
        return f"{cell.diverged_words}{paper}".strip()
    mean = mean_interval(cell.values.values())
    digits = 2 if item.in_percent(column) else 3
    interval = "" if mean.low is None else f" {interval_words(mean, digits - 1)}"
    diverged = f"; {cell.diverged_words}" if cell.diverged else ""
    return f"{mean.mean:.{digits}f}{interval}{diverged}{paper}"


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


def _reason(key: str, item: Table) -> str:
    if item.not_measured:
        return item.not_measured
    if not item.rows:
        kind = "figure" if key.startswith("figure") else "table"
        return f"`{item.command}` makes a {kind} of this kind. {item.note}".strip()
    reasons = [{*filter(None, (cell.without, cell.missing))} for cell in item.cells()]
    single = (text for cell in item.cells() for text in (*cell.without.split("; "), cell.missing) if text)
    if all(reasons):
        return "".join(f"{text}. " for text in dict.fromkeys(single)).strip()
    words = "; ".join(map(_lower, dict.fromkeys(single)))
    return f"Not measured so far{f'; some cells cannot be measured: {words}' if words else ''}."
