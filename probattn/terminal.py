"""Text and tables for a terminal, a pipe or a file: printable, no number ever cut."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from probattn.checks import optional

LONGEST_RULE = 120
"""Most columns of the line below the headings, of a table that has no terminal's width."""
FIRST, LONGEST = 10.0, 600.0
"""Seconds until the first line about a piece of work, and between two of them at most."""
GUTTER = "  "
"""Between columns."""


@dataclass(frozen=True)
class Group:
    """Rows of a table under a common title; an empty title is not printed."""

    title: str
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Sheet:
    """A table of plain text; markup in cells is not interpreted.

    If the columns do not fit, words are wrapped at spaces; if that does not suffice, every row is printed as a block
    with one line per cell. Numbers are neither cut nor wrapped.

    Attributes:
        headings: headings of the columns.
        groups: groups of rows, each row with a cell for every heading.
        words: number of columns, from the left, that hold words; the others hold numbers and are right-aligned.
        notes: paragraphs below the table.

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
        """The table as text, with lines of at most ``width`` characters; None for no limit.

        Raises:
            MissingPackageError: rich (extra ``cli``), which measures the width of characters, is not installed.
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


def printable(words: str) -> str:
    """Text with control characters replaced, and with balanced marks of writing direction.

    Embeddings, overrides and isolates (U+202A to U+202E, U+2066 to U+2069) that are open at the end are closed, and
    marks that close none of them are removed, so the text cannot reorder text around it (Unicode Standard Annex 9).

    Example:
        >>> printable("a" + chr(0) + "b")
        'a\N{REPLACEMENT CHARACTER}b'
        >>> [hex(ord(character)) for character in printable(chr(0x202E) + "a" + chr(0x2069))]
        ['0x202e', '0x61', '0x202c']
    """
    return _balanced("".join(_visible(character) for character in words))


def printable_lines(words: str) -> str:
    """:func:`printable` for text of several lines; line breaks remain."""
    return "\n".join(printable(line) for line in words.splitlines())


CLOSERS = dict.fromkeys("\u202a\u202b\u202d\u202e", "\u202c") | dict.fromkeys("\u2066\u2067\u2068", "\u2069")
"""The character that ends each embedding, override and isolate."""


def _balanced(words: str) -> str:
    balanced: list[str] = []
    pending: list[str] = []
    for character in words:
        if character in CLOSERS:
            pending.append(CLOSERS[character])
        elif character in CLOSERS.values():
            if character not in pending or (character == "\u202c" and pending[-1] != character):
                continue
            while pending[-1] != character:  # the end of an isolate ends the embeddings within it
                balanced.append(pending.pop())
            pending.pop()
        balanced.append(character)
    return "".join([*balanced, *reversed(pending)])


def _visible(character: str) -> str:
    if character in "\t\n\r":
        return " "
    code = ord(character)
    if code < 0x20 or 0x7F <= code < 0xA0 or 0xD800 <= code < 0xE000 or code in {0xFFFE, 0xFFFF}:
        return "\N{REPLACEMENT CHARACTER}"
    return character


def duration(seconds: float) -> str:
    """A time in words.

    Example:
        >>> duration(75), duration(1000), duration(10_000)
        ('75 seconds', '16.7 minutes', '2 h 47 min')
    """
    if seconds < 90:
        return f"{seconds:.0f} seconds"
    if seconds < 5400:
        return f"{seconds / 60:.1f} minutes"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min"


class LogProgress:
    """Progress in a log: a line with the time left after 10 seconds, after twice that, and so on; every ten minutes."""

    def __init__(
        self, title: str, total: int | None, write: Callable[[str], object], *, done: int = 0
    ) -> None:
        self._title, self._total, self._write = title, total, write
        self._first = self._done = done
        self._began, self._due = time.monotonic(), FIRST

    def step(self) -> None:
        """Counts one step."""
        self.show(self._done + 1)

    def show(self, done: int, words: Callable[[], str] = str) -> None:
        """Writes a line about the steps done where one is due, with words that are computed for it."""
        self._done, seconds = done, time.monotonic() - self._began
        if seconds < self._due or done == self._total:
            return
        self._due = seconds + min(seconds, LONGEST)
        line = f"{self._title}: {done:,}"
        if self._total is not None:
            left = seconds * (self._total - done) / (done - self._first)
            line += f" of {self._total:,}, {duration(left)} left"
        self._write("; ".join(filter(None, (line, words()))))
