"""Declarations of the papers' tables and figures: recipes, rows and columns, measures, the papers' numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import Annotated, Any

import yaml
from pydantic import Field, model_validator

from probattn.report.record import Record
from probattn.reproduce.options import Size
from probattn.tasks.errors import RunError

LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast, where libyaml is there
Words = tuple[str, ...]
Figures = Mapping[str, Mapping[str, float | None]]


class Axis(Record):
    """A row or a column of a table: changes of the recipe, and the measure that is shown. Rows override columns.

    Attributes:
        title: heading of the row or column.
        recipe: recipe of its cells; None for that of the other axis or of the table.
        paper_recipe: recipe of its cells at the paper's size; None for ``recipe``.
        keys: overrides of the recipe's keys.
        small: overrides at the small size only.
        measure: name of the measure, a score of a run or of one of its sections (``heads.distance``), see
            :func:`~probattn.reproduce.records.figure`; None for that of the other axis.
        data: data set of the score; for several, separated by ", ", the mean over them is shown.
        model: model of the score; None for the run's network.
        scale: factor from the measure to the paper's unit, 100 for percent.
        without: reason why its cells are not run at the small size, nor at the paper's size without ``paper_recipe``;
            empty if they are run.
        missing: reason why data of its cells may not be available; the cells are run nevertheless. Empty otherwise.
        reference: for rows, the row over which gains are computed; None for the first.
        after: for columns, an earlier column; a cell's run starts from the network of that column's run with the same
            row and seed, and takes recipe and keys from its column only.
        agreement: runs with which ``agreement.NAME`` is measured, by option of `probattn agreement`, each with
            overrides of the recipe's keys; ``second`` has another seed. None if no agreement is measured.
    """

    title: str
    recipe: str | None = None
    paper_recipe: str | None = None
    keys: Words = ()
    small: Words = ()
    measure: str | None = None
    data: str | None = None
    model: str | None = None
    scale: float | None = None
    without: str = ""
    missing: str = ""
    reference: str | None = None
    after: str | None = None
    agreement: Mapping[str, Words] | None = None


class Cell(Record):
    """A cell of a table: its run, and the measure that it shows.

    Attributes:
        row: key of the row.
        column: key of the column.
        recipe: recipe of the run.
        keys: overrides of the recipe's keys.
        run: name of the run; cells with the same recipe and keys share a run.
        measure: name of the measure.
        data: data set of the score.
        model: model of the score; None for the run's network.
        scale: factor from the measure to the paper's unit.
        without: reason why the cell is not run; empty if it is run.
        missing: reason why its data may not be available; empty if they are.
        after: name of the run from whose network its run starts; empty for none.
        agreement: overrides of the runs with which the agreement of its run is measured, by option.
    """

    row: str
    column: str
    recipe: str
    keys: Words
    run: str
    measure: str
    data: str
    model: str | None
    scale: float
    without: str
    missing: str
    after: str
    agreement: Mapping[str, Words]


class Table(Axis):
    """A table or a figure of a paper; its fields as an axis are defaults of all rows and columns.

    Attributes:
        title: subject of the table.
        shows: one sentence about the table.
        rows: rows by key; empty if the table is not made of runs of recipes.
        columns: columns by key.
        paper: the paper's numbers by row and column.
        command: command that makes the table, if it is not made of runs of recipes.
        not_measured: reason why nothing is measured.
        claims: numbers of the claims to which the table is relevant.
        uncertain: cells, "row/column", whose number in the paper is hard to read.
        note: differences between these runs and the paper's.
    """

    shows: str
    rows: Mapping[str, Axis] = Field(default={})
    columns: Mapping[str, Axis] = Field(default={})
    paper: Figures = Field(default={})
    command: str = ""
    not_measured: str = ""
    claims: tuple[int, ...] = ()
    uncertain: Words = ()
    note: str = ""

    @model_validator(mode="after")
    def _whole(self) -> Table:
        kinds = [bool(self.rows and self.columns), bool(self.command), bool(self.not_measured)]
        if sum(kinds) != 1:
            raise ValueError("expected rows and columns, a command, or a reason for neither")
        unknown_rows = {axis.reference for axis in self.rows.values()} - {None, *self.rows}
        if unknown_rows:
            raise ValueError(f"reference: expected keys of rows, got {min(map(str, unknown_rows))!r}")
        for number, axis in enumerate(self.columns.values()):
            if axis.after not in (None, *list(self.columns)[:number]):
                raise ValueError(f"after: expected the key of a column before, got {axis.after!r}")
        if self.rows:
            for row, figures in self.paper.items():
                unknown = [row] if row not in self.rows else sorted(set(figures) - set(self.columns))
                if unknown:
                    raise ValueError(f"paper: expected keys of rows and columns, got {unknown[0]!r}")
        return self

    def figure(self, row: str, column: str) -> float | None:
        """The paper's number for a cell; None if it has none."""
        return self.paper.get(row, {}).get(column)

    def in_percent(self, column: str) -> bool:
        """Whether the numbers of a column are in percent."""
        return (self.columns[column].scale or self.scale or 1.0) == 100

    def cells(self, size: Size = "small") -> Iterator[Cell]:
        """The cells that a recipe can produce, row by row; cells with the same recipe and keys share a run.

        A cell that would show the same measure of the same run as an earlier one is not run.
        """
        names: dict[tuple[str, Words, str], str] = {}
        shown: dict[tuple[Any, ...], Cell] = {}
        for row, of_row in self.rows.items():
            runs: dict[str, Cell] = {}
            for column, of_column in self.columns.items():
                cell = self._cell(row, of_row, column, of_column, size)
                if cell is None:
                    continue
                if of_column.after:
                    first = runs[of_column.after]
                    without = cell.without or first.without
                    cell = cell.model_copy(update={"after": first.run, "without": without})
                if not cell.without:
                    run = names.setdefault((cell.recipe, cell.keys, cell.after), cell.run)
                    cell = cell.model_copy(update={"run": run})
                    first = shown.setdefault((run, cell.measure, cell.data, cell.model), cell)
                    if first is not cell:
                        reason = f"at this size it has no recipe that differs from that of {first.row}, {first.column}"
                        cell = cell.model_copy(update={"without": reason})
                runs[column] = cell
                yield cell

    def _cell(self, row: str, of_row: Axis, column: str, of_column: Axis, size: Size) -> Cell | None:
        axes: tuple[Axis, ...] = (self, of_column, of_row)
        changing = (of_column,) if of_column.after else axes

        def last(name: str, default: Any = None) -> Any:
            values = [getattr(axis, name) for axis in axes if getattr(axis, name) not in (None, "")]
            return values[-1] if values else default

        at_size = [(size == "paper" and axis.paper_recipe) or axis.recipe for axis in changing]
        recipe, measure = next((name for name in reversed(at_size) if name), None), last("measure")
        if recipe is None or measure is None:
            return None
        names = ("keys", "small") if size == "small" else ("keys",)
        keys = tuple(key for axis in changing for name in names for key in getattr(axis, name))
        apart = of_column.recipe or of_column.keys or of_column.small or of_column.after
        return Cell(
            row=row,
            column=column,
            recipe=recipe,
            keys=keys,
            run=f"{row}/{column}" if apart else row,
            measure=measure,
            data=last("data", "test"),
            model=last("model"),
            scale=last("scale", 1.0),
            without="; ".join(
                axis.without for axis in axes if axis.without and not (size == "paper" and axis.paper_recipe)
            ),
            missing=last("missing", ""),
            after="",
            agreement=last("agreement", {}),
        )


class Source(Record):
    """A paper: title, authors with year and venue, address."""

    title: str
    authors: str
    url: str


class Paper(Record):
    """A paper with its tables and figures.

    Attributes:
        paper: the paper.
        tables: tables and figures by key, in the paper's order.
    """

    paper: Source
    tables: Annotated[Mapping[str, Table], Field(min_length=1)]


@cache
def papers() -> Mapping[str, Paper]:
    """The papers by key; "more" holds further tables of this project.

    Example:
        >>> list(papers())
        ['babn', 'aa', 'rma', 'ktiw', 'more']
    """
    folder = files("probattn.reproduce") / "papers"
    names = ("babn", "aa", "rma", "ktiw", "more")
    return {
        name: Paper.model_validate(yaml.load((folder / f"{name}.yaml").read_bytes(), LOADER), strict=False)
        for name in names
    }


def find_table(key: str) -> Table:
    """The table or figure with a key such as "babn/table-5".

    Raises:
        RunError: there is no such table.

    Example:
        >>> find_table("babn/table-5").title
        'VQA-v2 with MCAN'
    """
    paper, _, name = key.partition("/")
    declared = papers()
    if paper not in declared:
        raise RunError(
            f"{key}: expected PAPER/TABLE with one of the papers {', '.join(declared)}; see probattn reproduce"
        )
    if name not in declared[paper].tables:
        listed = ", ".join(declared[paper].tables)
        raise RunError(f"{key}: expected one of the tables and figures of {paper}: {listed}")
    return declared[paper].tables[name]
