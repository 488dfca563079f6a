"""What is wrong with a file of labelled texts, in a table, before anybody trains on it."""

from __future__ import annotations

import functools
import json
import shlex
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from probattn.cli.console import echo, fails_in_one_line, show
from probattn.cli.options import JsonOption, output_option

if TYPE_CHECKING:
    from probattn.cli.columns import Recognised
    from probattn.data.checking import Damage, Rows
    from probattn.data.suspects import Suspect
    from probattn.terminal import Sheet

commands = typer.Typer()
LISTED = 12
"""Classes, or suspected labels, that are listed."""
NAME = 60
"""Characters of a class's name in a list."""
PIECES = 1.2
"""Tokens of a word or a mark, where no tokenizer counts them."""

TextColumn = Annotated[str | None, typer.Option(help="Column of the texts; recognised by default.")]
LabelColumn = Annotated[str | None, typer.Option(help="Column of the labels; recognised by default.")]
PairColumn = Annotated[
    str | None, typer.Option(help="Column of second texts, of pairs; usual names are recognised.")
]


class Checked(NamedTuple):
    """A file, its columns and rows, what is wrong with them, and whether training refuses them."""

    source: str
    columns: Recognised
    rows: Rows
    counts: Mapping[str, int]
    damages: list[Damage]
    refused: bool

    @property
    def description(self) -> str:
        """Columns and classes in words."""
        from probattn.checks import shown

        text, pair, label, _ = self.columns
        texts = f"column {shown(text)} of texts"
        if pair is not None:
            texts = f"columns {shown(text)} and {shown(pair)} of pairs of texts"
        size = f"{sum(self.counts.values()):,} rows"
        return f"{texts}, column {shown(label)} of labels with {_counted(self.counts)} in {size}"

    def tell(self) -> None:
        """Prints what was recognised, and what is wrong in a table."""
        echo(f"recognised: {self.description}")
        if self.columns.others:
            from probattn.data.checking import first

            others = first(self.columns.others, LISTED // 2, ", ")
            echo(f"note: other columns that may be the labels: {others}; choose one with --label-column")
        if self.damages:
            echo("")
            show(self.table())
            echo("")

    def table(self) -> Sheet:
        """The damages, a row each."""
        from probattn.terminal import Group, Sheet

        rows: list[tuple[str, str]] = []
        for damage in self.damages:
            whole = len(damage.rows) == len(self.rows.fields)
            lines = damage.first(self.rows.lines).replace(" line", "")  # "line 2, 3"
            rows += [
                (f"{len(damage.rows):>6,}", f"{damage.kind} ({'all' if whole else lines})"),
                *([("", damage.examples)] if damage.examples else []),
                ("", f"-> {damage.advice}"),
            ]
        return Sheet(("  rows", "what is wrong, and what to do"), (Group("", tuple(rows)),), words=2)


def check_file(source: str, columns: Recognised) -> Checked:
    """What is wrong with a file of texts and labels; ``DataError`` for one that cannot be read."""
    from probattn.checks import shortened
    from probattn.data import Columns, DataError, DataWarning
    from probattn.data.checking import Damage, check_rows
    from probattn.data.rows import class_names
    from probattn.data.tables import read_rows, read_table

    named = Columns(columns.text, columns.label, text_pair=columns.pair)
    rows = read_rows(source, named)
    labels = Counter(row["label"].strip() for row in rows.fields if all(map(str.strip, row.values())))
    damages = check_rows(rows, named.names(labelled=True))
    refusal = None
    with warnings.catch_warnings(action="ignore", category=DataWarning):
        try:
            counts = read_table(source, named).require_classes().counts()
        except DataError as error:
            counts = {name: labels[name] for name in class_names(labels)}
            refusal = f"training refuses these labels: {shortened(str(error))}"
    damages += _long(rows)
    if refusal is not None:
        advice = "correct the file, or name another column with --label-column"
        damages.insert(0, Damage(refusal, range(len(rows.fields)), advice))
    return Checked(source, columns, rows, counts, damages, refusal is not None)


def _counted(counts: Mapping[str, int]) -> str:
    """Classes with their rows, in order; of many the largest."""
    from probattn.checks import shortened

    if len(counts) <= LISTED:
        return ", ".join(f"{shortened(name, NAME)} ({number:,})" for name, number in counts.items())
    largest = sorted(counts, key=lambda name: -counts[name])[: LISTED // 2]
    listed = ", ".join(f"{shortened(name, NAME)} ({counts[name]:,})" for name in largest)
    return f"{len(counts):,} classes, {listed} and {len(counts) - len(largest):,} more,"


def _long(rows: Rows) -> Iterator[Damage]:
    """Texts of more tokens than a new recipe takes, counted by the tokenizer of its network, or estimated."""
    import re

    from probattn.data import DataError
    from probattn.data.checking import MAX_TOKENS, long_texts
    from probattn.data.files import minilm_file

    texts = {row: text for row, text in enumerate(rows.texts()) if len(text) > MAX_TOKENS - 2}
    lengths = [0] * len(rows.fields)
    try:
        file = minilm_file("model/tokenizer.json")
    except DataError:
        unit = "tokens (estimated from words)"
        for row, text in texts.items():
            lengths[row] = round(2 + PIECES * len(re.findall(r"\w+|[^\w\s]", text)))
    else:
        from tokenizers import Tokenizer

        unit, tokenizer = "tokens (of minilm)", Tokenizer.from_file(str(file))
        tokenizer.no_truncation()
        tokenizer.no_padding()
        for row, encoded in zip(texts, tokenizer.encode_batch(list(texts.values())), strict=True):
            lengths[row] = len(encoded.ids)
    yield from long_texts(rows, lengths, MAX_TOKENS, unit)


@commands.command()
@functools.partial(fails_in_one_line, light=True)
def check(
    file: Annotated[str, typer.Argument(help="A .csv, .tsv or .jsonl file of texts and labels.")],
    text_column: TextColumn = None,
    label_column: LabelColumn = None,
    pair_column: PairColumn = None,
    suspects: Annotated[
        bool,
        typer.Option(
            "--suspects", help="Rows whose label is probably wrong, too, by cleanlab (extra labels)."
        ),
    ] = False,
    output: Annotated[
        Path | None, output_option("A .csv, .tsv or .jsonl file for all rows that are flagged.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Say what is wrong with a file of labelled texts: columns, labels, copies, classes, encoding, lengths."""
    from probattn.cli.columns import recognise
    from probattn.cli.rows import ENDINGS, write_rows
    from probattn.data import DataError
    from probattn.data.suspects import suspects as find_suspects

    kind = None if output is None else ENDINGS.get(output.suffix.lower(), "txt")
    if kind == "txt":
        raise DataError(f"--output {output}: expected a file that ends in .csv, .tsv or .jsonl")
    checked = check_file(file, recognise(file, text_column, label_column, pair_column, asks=not as_json))
    suspected, accuracy, compared = find_suspects(checked.rows) if suspects else ([], 0.0, 0)
    if output is not None and kind is not None:
        write_rows(((row, {}) for row in _flagged(checked, suspected)), kind, output)
    if as_json:
        typer.echo(json.dumps(_as_json(checked, suspected, accuracy if suspects else None)))
        return
    checked.tell()
    if not checked.damages:
        echo(f"nothing wrong in {len(checked.rows.fields):,} rows")
    if suspects:
        show(_suspects_table(checked.rows, suspected, accuracy, compared))
    if output is not None:
        echo(f"flagged rows: {output}")
    echo(f"next: probattn init {shlex.quote(file)}")


def _suspects_table(rows: Rows, suspected: list[Suspect], accuracy: float, compared: int) -> Sheet:
    """The labels that are most probably wrong."""
    from probattn.checks import shortened
    from probattn.terminal import Group, Sheet

    listed = tuple(
        (
            rows.lines[item.row].removeprefix("line "),
            shortened(item.label, NAME),
            shortened(item.suggestion, NAME),
            shortened(rows.fields[item.row]["text"], NAME),
            f"{item.suggestion_probability:.0%}",
        )
        for item in suspected[:LISTED]
    )
    note = (
        f"{len(suspected):,} of {compared:,} labels are probably wrong, the likeliest first; look at them before they "
        f"are changed. A classifier of words predicts {accuracy:.0%} of the labels from the other rows."
    )
    headings = ("line", "label", "suggestion", "text", "probability")
    return Sheet(headings, (Group("", listed),) if listed else (), words=4, notes=(note,))


def _line(rows: Rows, row: int) -> int:
    return int(rows.lines[row].removeprefix("line "))


def _flagged(checked: Checked, suspected: list[Suspect]) -> Iterator[dict[str, Any]]:
    """Every row that is flagged, with its problem; what concerns the whole file is left out."""
    rows = checked.rows
    problems = [
        (row, damage.kind, None)
        for damage in checked.damages
        if len(damage.rows) < len(rows.fields)
        for row in damage.rows
    ]
    for row, kind, item in (*problems, *((item.row, "label probably wrong", item) for item in suspected)):
        answer = {"line": _line(rows, row), "problem": kind, **rows.fields[row]}
        yield answer | {
            "suggestion": None if item is None else item.suggestion,
            "probability": None if item is None else round(item.suggestion_probability, 4),
        }


def _as_json(checked: Checked, suspected: list[Suspect], accuracy: float | None) -> dict[str, Any]:
    rows = checked.rows
    damages = [
        {**damage._asdict(), "rows": len(damage.rows), "lines": [_line(rows, row) for row in damage.rows]}
        for damage in checked.damages
    ]
    found = [{"line": _line(rows, item.row), **item._asdict()} for item in suspected]
    for entry in (*damages, *found):
        entry.pop("repeats", None)
    return {
        "file": checked.source,
        "rows": len(rows.fields),
        **checked.columns._asdict(),
        "classes": dict(checked.counts),
        "damages": damages,
        **({} if accuracy is None else {"suspects": found, "accuracy": accuracy}),
    }
