"""What is wrong with a file of labelled texts, in a table, before anybody trains on it."""

from __future__ import annotations

import json
import re
import shlex
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from probattn.checks import is_blank, shortened, shown
from probattn.cli.columns import Recognised, recognise
from probattn.cli.console import echo, fails_in_one_line, show
from probattn.cli.options import JsonOption, output_option
from probattn.cli.rows import ENDINGS, Format, format_of, opened, write_rows
from probattn.data import files
from probattn.data.checking import MAX_TOKENS, Damage, Rows, check_rows, first, long_texts, usual_spellings
from probattn.data.errors import DataError, DataWarning
from probattn.data.rows import Columns, as_text, class_names
from probattn.data.suspects import Suspect
from probattn.data.suspects import suspects as find_suspects
from probattn.data.tables import read_rows, read_table
from probattn.terminal import Group, Sheet

commands = typer.Typer()
LISTED = 12
"""Classes, or suspected labels, that are listed."""
NAME = 60
"""Characters of a name, or of a text, in a list."""
PIECES = 1.2
"""Tokens of a word or a mark, where no tokenizer counts them."""

TextColumn = Annotated[str | None, typer.Option(help="Column of the texts; recognised by default.")]
LabelColumn = Annotated[str | None, typer.Option(help="Column of the labels; recognised by default.")]
PairColumn = Annotated[
    str | None, typer.Option(help="Column of second texts, of pairs; usual names are recognised.")
]


class Checked(NamedTuple):
    """A file, its columns and rows, its classes, their other spellings, what is wrong, and whether training refuses."""

    source: str
    columns: Recognised
    rows: Rows
    counts: Mapping[str, int]
    spellings: dict[str, str]
    damages: list[Damage]
    refused: bool

    @property
    def description(self) -> str:
        """Columns and classes in words; of many classes the largest."""
        text, pair, label, _ = self.columns
        texts = f"column {shown(text)} of texts"
        if pair is not None:
            texts = f"columns {shown(text)} and {shown(pair)} of pairs of texts"
        names, count = list(self.counts), len(self.counts)
        if count > LISTED:
            names = sorted(names, key=lambda name: -self.counts[name])[: LISTED // 2]
        classes = ", ".join(f"{shortened(name, NAME)} ({self.counts[name]:,})" for name in names)
        if count > LISTED:
            spelled = f" in {count + len(self.spellings):,} spellings" if self.spellings else ""
            classes = f"{count:,} classes{spelled}, {classes} and {count - len(names):,} more,"
        size = f"{sum(self.counts.values()):,} rows"
        return f"{texts}, column {shown(label)} of labels with {classes} in {size}"

    def tell(self) -> None:
        """Prints what was recognised, and what is wrong in a table."""
        echo(f"recognised: {self.description}")
        if self.columns.others:
            others = first(self.columns.others, LISTED // 2, ", ")
            echo(f"note: other columns that may be the labels: {others}; choose one with --label-column")
        rows: list[tuple[str, str]] = []
        for damage in self.damages:
            whole = len(damage.rows) == len(self.rows.fields)
            lines = "all" if whole else damage.first(self.rows.lines).replace(", line", ",")
            details = [damage.examples] * bool(damage.examples) + [f"-> {damage.advice}"]
            rows += [
                (f"{len(damage.rows):>6,}", f"{damage.kind} ({lines})"),
                *(("", line) for line in details),
            ]
        if rows:
            echo("")
            show(Sheet(("  rows", "what is wrong, and what to do"), (Group("", tuple(rows)),), words=2))
            echo("")

    def next(self, file: object, **columns: str | None) -> str:
        """The command to go on with for a file of these rows, with the columns that were named or are in doubt."""
        if self.refused:
            return "correct the file, or name other columns with --text-column and --label-column"
        if self.columns.others:
            columns["label"] = self.columns.label
        options = [f" --{name}-column {shlex.quote(value)}" for name, value in columns.items() if value]
        return f"probattn init {shlex.quote(str(file))}{''.join(options)}"

    def write_clean(self, output: Path, kind: Format) -> str:
        """Writes the rows that are neither empty nor copies, labels in their usual spelling; says what was changed."""
        removed = {self.line(row) for damage in self.damages if damage.removable for row in damage.rows}
        label, usual, changed = self.columns.label, self.spellings, 0
        with opened(self.source, form := format_of(self.source), label) as table:

            def rows() -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
                nonlocal changed
                for where, row in table.rows:
                    if int(where.rpartition(" ")[2]) not in removed:
                        name = as_text(row[label]).strip()
                        changed += name in usual
                        text = name in usual or isinstance(row[label], str)
                        yield row | ({label: usual.get(name, name)} if text else {}), {}

            style = table.style if kind == form else None
            count = write_rows(rows(), kind, output, style=style)
        total = len(self.rows.fields)
        return (
            f"{count:,} of {total:,} rows, {changed:,} of them with a label in another spelling than before"
        )

    def line(self, row: int) -> int:
        """The number of a row's line."""
        return int(self.rows.lines[row].removeprefix("line "))

    def flagged(self, suspected: list[Suspect]) -> Iterator[dict[str, Any]]:
        """Every row that is flagged, with its problem; what concerns the whole file is left out."""
        some = (damage for damage in self.damages if len(damage.rows) < len(self.rows.fields))
        problems = [(row, damage.kind, None, None) for damage in some for row in damage.rows]
        wrong = [(row, "suspected label", name, round(p, 4)) for row, _, _, name, p in suspected]
        for row, problem, name, probability in (*problems, *wrong):
            answer = {"line": self.line(row), "problem": problem, **self.rows.fields[row]}
            yield {**answer, "suggestion": name, "probability": probability}


def check_file(source: str, columns: Recognised) -> Checked:
    """What is wrong with a file of texts and labels; ``DataError`` for one that cannot be read."""
    named = Columns(columns.text, columns.label, text_pair=columns.pair)
    rows = read_rows(source, named)
    damages = [*check_rows(rows, named.names(labelled=True)), *_long(rows)]
    labels = Counter(row["label"].strip() for row in rows.fields if not any(map(is_blank, row.values())))
    usual = usual_spellings(labels)
    with warnings.catch_warnings(action="ignore", category=DataWarning):
        try:
            counts = read_table(source, replace(named, label_map=usual)).require_classes().counts()
        except DataError as error:
            refusal = f"training refuses these labels: {shortened(str(error))}"
            advice = "correct the file, or name another column with --label-column"
            damages.insert(0, Damage(refusal, range(len(rows.fields)), advice))
            joined = Counter(usual.get(name, name) for name in labels.elements())
            counts = {name: joined[name] for name in class_names(joined)}
            return Checked(source, columns, rows, counts, usual, damages, refused=True)
    return Checked(source, columns, rows, counts, usual, damages, refused=False)


def _long(rows: Rows) -> Iterator[Damage]:
    """Texts of more tokens than a new recipe takes, counted by the tokenizer of its network, or estimated."""
    texts = {row: text for row, text in enumerate(rows.texts()) if len(text) > MAX_TOKENS - 2}
    try:
        file = files.minilm_file("model/tokenizer.json")
    except DataError:
        unit = "tokens (estimated from words)"
        counted = [round(2 + PIECES * len(re.findall(r"\w+|[^\w\s]", text))) for text in texts.values()]
    else:
        from tokenizers import Tokenizer

        unit, tokenizer = "tokens (of minilm)", Tokenizer.from_file(str(file))
        tokenizer.no_truncation()
        tokenizer.no_padding()
        counted = [len(encoded.ids) for encoded in tokenizer.encode_batch(list(texts.values()))]
    lengths = dict(zip(texts, counted, strict=True))
    yield from long_texts(rows, [lengths.get(row, 0) for row in range(len(rows.fields))], MAX_TOKENS, unit)


@commands.command()
@fails_in_one_line
def check(
    file: Annotated[str, typer.Argument(help="A .csv, .tsv, .xlsx or .jsonl file of texts and labels.")],
    text_column: TextColumn = None,
    label_column: LabelColumn = None,
    pair_column: PairColumn = None,
    suspects: Annotated[
        bool, typer.Option("--suspects", help="Labels that may be wrong, too, by cleanlab (extra labels).")
    ] = False,
    output: Annotated[
        Path | None, output_option("A .csv, .tsv or .jsonl file for all rows that are flagged.")
    ] = None,
    clean: Annotated[
        Path | None,
        output_option(
            "A file for the rows without empty ones and exact copies, a class in one spelling.", "--clean"
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Say what is wrong with a file of labelled texts: columns, labels, copies, classes, encoding, lengths."""
    kind, clean_kind = (
        _table_format(path, option, file) for path, option in ((output, "output"), (clean, "clean"))
    )
    if output is not None and clean is not None and output.resolve() == clean.resolve():
        raise DataError(f"--clean {clean}: expected another file than --output")
    checked = check_file(file, recognise(file, text_column, label_column, pair_column, asks=not as_json))
    suspected, accuracy, compared = find_suspects(checked.rows) if suspects else ([], None, 0)
    if output is not None and kind is not None:
        write_rows(((row, {}) for row in checked.flagged(suspected)), kind, output)
    if clean is not None and clean_kind is not None:
        written = checked.write_clean(clean, clean_kind)
    if as_json:
        further = {} if clean is None else {"clean": str(clean)}
        typer.echo(json.dumps({**_as_json(checked, suspected, accuracy), **further}))
        return
    checked.tell()
    if not checked.damages:
        echo(f"nothing wrong in {len(checked.rows.fields):,} rows")
    if accuracy is not None:
        show(_suspects_table(checked, suspected, accuracy, compared))
    if output is not None:
        echo(f"flagged rows: {output}")
    if clean is not None:
        echo(f"clean rows: {clean}, {written}")
    echo(f"next: {checked.next(clean or file, text=text_column, label=label_column, pair=pair_column)}")


def _table_format(path: Path | None, option: str, source: str) -> Format | None:
    """The format of a table that is written; refuses plain text, and the file itself."""
    if path is None:
        return None
    kind = ENDINGS.get(path.suffix.lower(), "txt")
    if kind == "txt":
        raise DataError(f"--{option} {path}: expected a file that ends in .csv, .tsv, .xlsx or .jsonl")
    if path.is_dir():
        raise DataError(f"--{option} {path}: expected a file, got a folder")
    if path.resolve() == Path(source).expanduser().resolve():
        raise DataError(f"--{option} {path}: expected another file than the one that is checked")
    return kind


def _suspects_table(checked: Checked, suspected: list[Suspect], accuracy: float, compared: int) -> Sheet:
    """The labels that are most suspect."""
    listed = tuple(
        (
            str(checked.line(item.row)),
            *(shortened(words, NAME) for words in (item.label, item.suggestion)),
            shortened(checked.rows.fields[item.row]["text"], NAME),
            f"{item.suggestion_probability:.0%}",
        )
        for item in suspected[:LISTED]
    )
    note = (
        f"{len(suspected):,} of {compared:,} labels are suspect, the likeliest first; look at them before they "
        f"are changed. A classifier of words predicts {accuracy:.0%} of the labels from the other rows."
    )
    headings = ("line", "label", "suggestion", "text", "probability")
    return Sheet(headings, (Group("", listed),) if listed else (), words=4, notes=(note,))


def _as_json(checked: Checked, suspected: list[Suspect], accuracy: float | None) -> dict[str, Any]:
    damages = [
        {**item._asdict(), "rows": len(item.rows), "lines": list(map(checked.line, item.rows))}
        for item in checked.damages
    ]
    wrong = [{"line": checked.line(item.row), **item._asdict()} for item in suspected]
    return {
        "file": checked.source,
        "rows": len(checked.rows.fields),
        **checked.columns._asdict(),
        "classes": dict(checked.counts),
        "damages": damages,
        **({} if accuracy is None else {"suspects": wrong, "accuracy": accuracy}),
    }
