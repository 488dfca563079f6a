"""Predictions for a file, row by row."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probattn.checks import is_blank
from probattn.cli.options import FileOptions
from probattn.cli.reviewing import has_reviews
from probattn.cli.rows import (
    STANDARD,
    Format,
    Row,
    Table,
    columns_of,
    format_of,
    is_given,
    opened,
    write_rows,
)
from probattn.data.rows import text_of
from probattn.options import DrawingOptions
from probattn.tasks import RunError
from probattn.tasks.answering import Answering
from probattn.tasks.progress import shown, tracked
from probattn.triage.queue import REVIEWED

if TYPE_CHECKING:
    from probattn.triage import AppliedPolicy


def check_texts(answering: Answering, run: Path, texts: Sequence[str], pairs: Sequence[str]) -> None:
    """Raises :class:`RunError` for a blank text of the command line, and for missing or surplus second texts."""
    for words, values in (("text", texts), ("--pair", pairs)):
        blank = [index for index, text in enumerate(values, 1) if is_blank(text)]
        if blank:
            raise RunError(f"{words} {blank[0]}: expected some words, got none")
    if answering.columns_read[1] is None:
        if pairs:
            raise RunError(f"{run}: its network reads single texts; expected no --pair, got {len(pairs)}")
    elif len(pairs) != len(texts):
        raise RunError(
            f"{run}: its network was trained on pairs of texts; expected one --pair for each of the {len(texts)} "
            f"texts, got {len(pairs)}"
        )


def predict_file(
    answering: Answering,
    run: Path,
    options: FileOptions,
    policy: AppliedPolicy | None = None,
    drawing: DrawingOptions | None = None,
    *,
    quiet: bool = False,
    as_json: bool = False,
) -> tuple[int, int]:
    """Writes a file's rows with their answers; how many have a text, and how many none, which need a policy."""
    assert options.input is not None
    if options.pair_column and answering.columns_read[1] is None:
        raise RunError(
            f"--pair-column {options.pair_column}: expected no such option, the network reads single texts"
        )
    kind, decides = format_of(options.input, options.format, "--format"), policy is not None
    output_format = _output_format(options, kind, decides=decides, as_json=as_json)
    column = options.text_column or answering.columns_read[0]
    form: Any = {"quotes": answering.quotes, "blank": decides, "escape": options.escape}
    reading = partial(opened, options.input, kind, column, **form)
    check = answering.check(run)
    if Path(options.input).is_file():  # a row that is refused is found before hours of work
        with reading() as table:
            columns_there = columns_of(table, options, answering.columns_read)
            queues: tuple[Any, Any] = (deque(maxlen=0), deque(maxlen=0))
            deque(_texts(answering, table, *columns_there, *queues, check, blank=decides), maxlen=0)
        check = None  # every text of the file has passed
    waiting: deque[tuple[Row, bool]] = deque()
    seconds: deque[Any] = deque()
    with reading() as table, shown(quiet=quiet or options.output is None):
        text, pair = columns_of(table, options, answering.columns_read)
        second_texts = None if pair is None else iter(lambda: seconds.popleft() if seconds else "", "")
        texts = _texts(answering, table, text, pair, waiting, seconds, check, blank=decides)
        answers = answering.predict(run, texts, second_texts, drawing)
        followed = tracked(answers, f"predictions of {table.name}")
        outputs = map(answering.columns, followed) if policy is None else policy.columns(followed)
        predicted = 0

        def rows() -> Iterator[tuple[Row, Mapping[str, Any]]]:
            nonlocal predicted
            for row, answer, has_text in _beside(waiting, outputs, policy.undecided if policy else {}):
                predicted += has_text
                words = [row[column] for column in (text, pair) if column is not None and has_text]
                yield row, policy.queued(row, answer, words) if policy else answer

        style = table.style if kind == output_format else None
        count = write_rows(rows(), output_format, options.output, style=style, escape=options.escape)
        return predicted, count - predicted


def _output_format(options: FileOptions, kind: Format, *, decides: bool, as_json: bool) -> Format:
    """The format of what is written; refuses a file that the rows of the input would replace."""
    if options.output is None:
        usual: Format = "jsonl" if as_json else kind
        return "tsv" if decides and usual == "txt" else usual
    output = options.output
    if output.is_dir():
        raise RunError(f"--output {output}: expected a file, got a folder")
    if options.input != STANDARD and output.resolve() == Path(str(options.input)).expanduser().resolve():
        raise RunError(f"--output {output}: expected another file than --input, whose rows it would replace")
    if not output.resolve().parent.is_dir():
        raise RunError(
            f"--output {output}: expected a file in a folder that exists, got the folder {output.parent}"
        )
    written = format_of(str(output))
    if decides and output.exists() and has_reviews(output):
        raise RunError(
            f"--output {output}: expected a new file, as this one has classes of people (column {REVIEWED!r}), which "
            "would be lost; take them back with `probattn review`, and give another --output"
        )
    if decides and written == "txt":
        raise RunError(
            f"--output {output}: expected .csv, .tsv, .xlsx or .jsonl beside a policy, got plain text"
        )
    return written


def _beside(
    waiting: deque[tuple[Row, bool]], answers: Iterator[Mapping[str, Any]], undecided: Mapping[str, Any]
) -> Iterator[tuple[Row, Mapping[str, Any], bool]]:
    """Rows with their answers, and whether they have a text; those without have ``undecided`` in the same columns."""
    answer: Mapping[str, Any] = {}
    for answer in answers:
        while not waiting[0][1]:
            yield waiting.popleft()[0], dict.fromkeys(answer) | dict(undecided), False
        yield waiting.popleft()[0], answer, True
    while waiting:
        yield waiting.popleft()[0], dict.fromkeys(answer) | dict(undecided), False


def _texts(
    answering: Answering,
    table: Table,
    text: str,
    pair: str | None,
    waiting: deque[tuple[Row, bool]],
    seconds: deque[Any],
    check: Callable[[str], object] | None,
    *,
    blank: bool,
) -> Iterator[str]:
    """The texts in a column; second texts, and rows with whether they have a text or may be blank, go into queues."""
    for location, row in table.rows:
        has_text = all(is_given(row, column) for column in (text, pair) if column is not None)
        waiting.append((row, has_text or not blank))
        if not has_text and blank:
            continue
        if pair is not None:
            seconds.append(answering.second_text(row, pair, location))
        content = text_of(row.get(text), text, location)
        if check is not None:
            try:
                check(content)
            except RunError as error:
                raise RunError(f"{location}: {error}") from error
        yield content
