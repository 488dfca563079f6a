"""Results and predictions as tables for a terminal, a pipe or a file: plain text, no number ever cut."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from probattn.checks import optional
from probattn.report.findings import findings, headline
from probattn.report.measures import MODEL_LABELS, ROLE_TITLES
from probattn.report.record import ModelKey
from probattn.report.results import Results
from probattn.report.sites import EDGE_MEASURES
from probattn.report.svg import printable

LONGEST_RULE = 120
"""Most columns of the line below the headings, of a table that has no terminal's width."""
GUTTER = "  "
"""Between columns."""
RELIABLE = "*"
"""Marks a significant difference."""


@dataclass(frozen=True)
class Group:
    """Rows under a title of their own; without title they stand alone."""

    title: str
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Sheet:
    """A table whose cells are text and nothing else: what looks like markup in them is shown as it is.

    Where the columns do not fit, words are wrapped at spaces; where that does not suffice, every row is a block of
    lines, a line for each cell. Numbers are neither cut nor wrapped.

    Attributes:
        headings: of the columns.
        groups: rows, each with a cell for every heading; empty where there is nothing to show.
        words: columns, from the left, that hold words; the others hold numbers and stand on the right.
        notes: paragraphs below.

    Example:
        >>> sheet = Sheet(("measure", "value"), (Group("Test", (("Brier score", "0.125"),)),))
        >>> print(sheet.text(40))
        measure      value
        ------------------
        Test
        Brier score  0.125
        >>> print(sheet.text(14))
        measure  value
        --------------
        Test
        Brier    0.125
        score
    """

    headings: tuple[str, ...]
    groups: tuple[Group, ...]
    words: int = 1
    notes: tuple[str, ...] = ()

    def text(self, width: int | None) -> str:
        """The table in lines of at most ``width`` columns, or of as many as it takes.

        Raises:
            MissingPackageError: rich (extra ``cli``), which knows how wide a character is, is not installed.
        """
        headings = [printable(heading) for heading in self.headings]
        groups = [
            Group(printable(group.title), tuple(tuple(map(printable, row)) for row in group.rows))
            for group in self.groups
        ]
        columns = self._columns(headings, groups, width)
        if columns is None:
            lines, room = [], max(map(_columns_of, headings[1:]), default=0)
        else:
            full = sum(columns) + len(GUTTER) * (len(columns) - 1)
            lines = [*self._row(headings, columns), "-" * min(full, LONGEST_RULE)]
        for number, group in enumerate(groups):
            lines += [""] * bool(number) + _wrapped(group.title, width)
            for row in group.rows:
                lines += _stacked(headings, row, room, width) if columns is None else self._row(row, columns)
        for note in self.notes:
            lines += ["", *_wrapped(printable(note), width)]
        return "\n".join(line.rstrip() for line in lines)

    def _columns(self, headings: list[str], groups: list[Group], width: int | None) -> list[int] | None:
        """Widths of the columns; None where not even the words by themselves fit."""
        rows = [headings, *(row for group in groups for row in group.rows)]
        columns = [max(map(_columns_of, column)) for column in zip(*rows, strict=True)]
        if width is None:
            return columns
        narrowest = [max(_longest_word(cell) for cell in column) for column in zip(*rows, strict=True)]
        numbers = [
            max([_longest_word(headings[index]), *(_columns_of(row[index]) for row in rows[1:])])
            for index in range(len(headings))
        ]
        narrowest[self.words :] = numbers[self.words :]
        excess = sum(columns) + len(GUTTER) * (len(columns) - 1) - width
        while excess > 0:
            shrinkable = [index for index, size in enumerate(columns) if size > narrowest[index]]
            if not shrinkable:
                return None
            widest = max(shrinkable, key=lambda at: columns[at])
            columns[widest] -= 1
            excess -= 1
        return columns

    def _row(self, cells: Sequence[str], columns: list[int]) -> list[str]:
        blocks = [_wrapped(cell, size) for cell, size in zip(cells, columns, strict=True)]
        lines = []
        for texts in zip_longest(*blocks, fillvalue=""):
            padded = []
            for index, (text, size) in enumerate(zip(texts, columns, strict=True)):
                space = " " * (size - _columns_of(text))
                padded.append(text + space if index < self.words else space + text)
            lines.append(GUTTER.join(padded))
        return lines


def _columns_of(text: str) -> int:
    """Columns that a text takes on a terminal."""
    width: int = optional("Sheet.text", "rich.cells", "cli").cell_len(text)
    return width


def _stacked(headings: list[str], row: Sequence[str], room: int, width: int | None) -> list[str]:
    """A block of lines for a row: its first cell, and the others under it with their headings."""
    first, *cells = row
    below = [
        f"{GUTTER}{heading}{' ' * (room - _columns_of(heading))}{GUTTER}{cell}"
        for heading, cell in zip(headings[1:], cells, strict=True)
        if cell
    ]
    return [*_wrapped(first, width), *below]


def _longest_word(cell: str) -> int:
    return max(map(_columns_of, cell.split()), default=0)


def _wrapped(words: str, width: int | None) -> list[str]:
    """Words in lines of at most ``width`` columns, broken at spaces only, each printable; none for no words."""
    if width is None or _columns_of(words) <= width:
        return [words] if words else []
    lines = [""]
    for word in words.split():
        longer = f"{lines[-1]} {word}" if lines[-1] else word
        if lines[-1] and _columns_of(longer) > width:
            lines.append(word)
        else:
            lines[-1] = longer
    return list(map(printable, lines))


def results_table(results: Results) -> Sheet:
    """Deterministic against the run's own network, measure by measure, with the difference and its interval."""
    compared = results.compared
    measured = {score.model for score in results.scores}
    models = [key for key in dict.fromkeys(("deterministic", compared)) if key in measured]
    headings = ["measure", *(MODEL_LABELS[key] for key in models)]
    if results.differences:
        headings += ["difference", f"{results.differences[0].level:.0%} interval"]
    groups = []
    for data in results.data:
        rows = []
        for name, text in results.measures.items():
            values = [results.value(name, key, data.key) for key in models]
            if any(value is not None for value in values):
                cells = ["" if value is None else f"{value:.3f}" for value in values]
                rows.append((text.title, *cells, *_gap(results, name, data.key)))
        if rows:
            groups.append(
                Group(f"{data.title} ({ROLE_TITLES[data.role]}, {data.size:,} {data.unit})", tuple(rows))
            )
    groups += _edges(results, models, len(headings))
    return Sheet(tuple(headings), tuple(groups), notes=_notes(results))


def _notes(results: Results) -> tuple[str, ...]:
    """The headline, and how the intervals are read."""
    if not results.differences:
        return (f"{headline(results)}.",) if results.scores else ()
    legend = (
        f"Intervals: {results.intervals}, each of its comparison alone. {RELIABLE} marks what holds among all "
        f"{len(findings(results))} comparisons (Holm's method), is large enough and rests on enough examples."
    )
    return f"{headline(results)}.", legend


def _edges(results: Results, compared: list[ModelKey], width: int) -> Iterator[Group]:
    """Attention over the edges of a graph, layer by layer; latent weights are measured at their expectation."""
    records = {(record.site, record.model): record for record in results.edges}
    keys = ["bayesian_expectation" if key == "bayesian_mean" else key for key in compared]
    for site in dict.fromkeys(record.site for record in results.edges):
        measured = [records.get((site, key)) for key in keys]
        rows = []
        for name, words in EDGE_MEASURES.items():
            cells = ["" if record is None else f"{getattr(record, name):.3f}" for record in measured]
            rows.append((words, *cells, *[""] * (width - 1 - len(cells))))
        yield Group(site, tuple(rows))


def _gap(results: Results, measure: str, data: str) -> tuple[str, ...]:
    if not results.differences:
        return ()
    difference = results.difference(measure, results.compared, data)
    if difference is None:
        return "", ""
    mark = " " if results.verdict(difference) == "unclear" else RELIABLE
    return f"{difference.value:+.3f}", f"[{difference.low:+.3f}, {difference.high:+.3f}]{mark}"


def comparisons(results: Results) -> list[dict[str, Any]]:
    """Every comparison with its verdict, for programs."""
    return [
        {**finding.difference.model_dump(exclude={"seeds", "resamples"}), "verdict": finding.verdict}
        for finding in findings(results)
    ]
