import csv
import errno
import io
import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probattn.checks import is_blank
from probattn.data import Columns, DataError, DataWarning, read_table

CHARACTERS = st.characters(codec="utf-8", exclude_characters="\x00")
TEXTS = st.text(CHARACTERS, min_size=1, max_size=40).filter(lambda text: not is_blank(text))
DECIMAL = re.compile(r"(?!-?\d+$)[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)
"""Numbers that are no plain whole ones: as labels they are read by their value, or refused."""
LABELS = (
    st.text(CHARACTERS, min_size=1, max_size=8)
    .map(str.strip)
    .filter(lambda label: not is_blank(label) and not DECIMAL.fullmatch(label))
)
TABLES = st.lists(st.tuples(TEXTS, LABELS), min_size=1, max_size=8)
OPTIONAL = Columns(use="optional")


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def error(path: Path, columns: Columns | None = None, quotes: bool = True) -> str:
    with pytest.raises(DataError) as caught:
        read_table(path, columns, quotes=quotes)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(str(path))
    return message.removeprefix(str(path))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tables")


@pytest.mark.filterwarnings("ignore::probattn.data.DataWarning")
@given(table=TABLES, suffix=st.sampled_from(["csv", "tsv", "tab"]), bom=st.booleans())
def test_what_the_csv_module_writes_is_read(folder, table, suffix, bom) -> None:
    stream = io.StringIO(newline="")
    writer = csv.writer(stream, delimiter="," if suffix == "csv" else "\t")
    writer.writerows([("id", "label", "text"), *((n, label, text) for n, (text, label) in enumerate(table))])
    path = write(folder / f"table.{suffix}", "\ufeff" * bom + stream.getvalue())
    data = read_table(path)
    assert data.texts == tuple(text for text, _ in table)
    assert data.labels is not None
    assert [data.label_names[label] for label in data.labels] == [label for _, label in table]
    assert len(set(data.label_names)) == len({label for _, label in table})


@pytest.mark.filterwarnings("ignore::probattn.data.DataWarning")
@given(table=TABLES, ascii_only=st.booleans(), blank=st.sampled_from(["", "\n", "  \r\n"]))
def test_what_the_json_module_writes_is_read(folder, table, ascii_only, blank) -> None:
    lines = [json.dumps({"text": text, "label": label}, ensure_ascii=ascii_only) for text, label in table]
    path = write(folder / "table.jsonl", blank + "\n".join(lines) + "\n" + blank)
    data = read_table(path)
    assert data.texts == tuple(text for text, _ in table)
    assert data.labels is not None
    assert [data.label_names[label] for label in data.labels] == [label for _, label in table]


@given(content=st.binary(max_size=60), suffix=st.sampled_from(["csv", "tsv", "jsonl"]))
def test_any_bytes_are_read_or_refused_in_one_line(folder: Path, content: bytes, suffix: str) -> None:
    path = write(folder / f"bytes.{suffix}", b"text,label\n" * (suffix == "csv") + content)
    said = str(path)
    try:
        read_table(path, OPTIONAL)
    except DataError as refused:
        said = str(refused)
    assert str(path) in said and "\n" not in said


@pytest.mark.filterwarnings(
    "ignore:.*copies of the text and label of an earlier row:probattn.data.DataWarning"
)
def test_whole_numbers_are_classes_in_order_of_value(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.jsonl", "\n".join(f'{{"text": "t{n}", "label": {n}}}' for n in (10, 9, -1, 10))
    )
    assert read_table(path).label_names == ("-1", "9", "10")
    path = write(tmp_path / "b.jsonl", '{"text": "t", "label": true}\n{"text": "u", "label": false}\n')
    assert read_table(path).label_names == ("false", "true")


def test_columns_names_and_mapping(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "review,stars,id\nfine,1,a\ndull,0,b\n")
    mapping = {"0": "negative", "1": "positive"}
    data = read_table(path, Columns("review", "stars", "required", ("negative", "positive"), mapping))
    assert (data.texts, data.labels, data.label_names) == (("fine", "dull"), (1, 0), ("negative", "positive"))
    assert (data.source, data.licence) == (str(path), "the file owner's")


def test_labels_may_be_missing_for_prediction_and_are_ignored_out_of_domain(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "text\nfine\ndull\n")
    assert read_table(path, OPTIONAL).labels is None
    path = write(tmp_path / "b.csv", "text,label\nfine,\ndull,x\n")
    ignored = read_table(path, Columns(use="ignored", label_names=("y", "z")))
    assert (ignored.labels, ignored.label_names) == (None, ())


def test_a_long_field_is_read_and_the_limit_left_as_it_was(tmp_path: Path) -> None:
    before = csv.field_size_limit()
    text = "long " * 50_000
    data = read_table(write(tmp_path / "a.csv", f"text,label\n{text},x\nshort,y\n"))
    assert data.texts == (text, "short")
    assert csv.field_size_limit() == before


def test_plain_quotes(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", 'text\tlabel\n"so called" fun\tx\n5" disk\ty\n')
    assert "'quotes: false'" in error(path)
    assert read_table(path, quotes=False).texts == ('"so called" fun', '5" disk')


CSV_ERRORS = {
    "empty": ("", None, ": expected text, got an empty file"),
    "blank": (" \n\n", None, ": expected text, got an empty file"),
    "header only": ("text,label\n", None, ": expected rows, got none"),
    "near column": (
        "txet,label\na,b\n",
        None,
        (
            " line 1: expected a column 'text', got 'txet', 'label'; did you mean 'txet'? name the column "
            "of the texts with 'text: txet'"
        ),
    ),
    "far column": (
        "review,label\na,b\n",
        None,
        " line 1: expected a column 'text', got 'review', 'label'; name the column of the texts with 'text: NAME'",
    ),
    "no label": (
        "text,Labels\na,b\n",
        None,
        (
            " line 1: expected a column 'label', got 'text', 'Labels'; did you mean 'Labels'? "
            "name the column of the labels with 'label: Labels'"
        ),
    ),
    "twice": ("text,text,label\na,b,c\n", None, " line 1: expected one column 'text', got 2"),
    "ragged": (
        'text,label\n"a\nb",x\nOne, two,y\n',
        None,
        (
            " line 4: expected 2 columns ('text', 'label'), got 3; put a text that holds the separator, a quote or "
            "a line break in double quotes"
        ),
    ),
    "unclosed": (
        'text,label\na,x\n"b,y\nc,x\n',
        None,
        (
            " line 3: malformed record (unexpected end of data); double the quotes inside a quoted text, or set "
            "'quotes: false' if quotes are plain characters in this file"
        ),
    ),
    "empty text": (
        "text,label\na,x\n  ,y\n",
        OPTIONAL,
        " line 3: expected text in 'text', got an empty one; remove the row",
    ),
    "empty label": (
        "text,label\na,\n",
        OPTIONAL,
        " line 2: expected a label in 'label', got an empty one; remove the row or give a label",
    ),
    "all skipped": (
        "text,label\na,\n,\n",
        None,
        (
            ": expected rows, got none but rows without text in 'text': 1 (line 3), rows without a label in 'label': 1 "
            "(line 2)"
        ),
    ),
    "regression": (
        "text,label\na,1.0\nb,-2.5e-1\n",
        None,
        (
            " line 3: expected a label (text or a whole number) in 'label', got -2.5e-1; numbers between whole ones "
            "are targets of regression: sort them into classes first, or name each as a class with 'label_map'"
        ),
    ),
    "another separator, another column": (
        "review;label\na;b\n",
        None,
        " line 1: expected a column 'text', got 'review', 'label'; name the column of the texts with 'text: NAME'",
    ),
    "unknown label": (
        "text,label\na,good\nb,godo\n",
        Columns(label_names=("bad", "good")),
        (
            " line 3: expected a label of the training data ('bad', 'good'), got 'godo'; did you mean 'good'? "
            "correct it, or rename it with 'label_map'"
        ),
    ),
    "not UTF-8": (
        b"text,label\na,x\ncaf\xe9,y\n",
        None,
        (
            " line 3: expected UTF-8 text, got the byte 0xe9 (offset 18); save the file as UTF-8, for instance: "
            "iconv -f WINDOWS-1252 -t UTF-8 data.csv"
        ),
    ),
}


@pytest.mark.parametrize("case", CSV_ERRORS)
def test_a_bad_csv_file_gets_its_line(case: str, tmp_path: Path) -> None:
    content, columns, message = CSV_ERRORS[case]
    assert error(write(tmp_path / "data.csv", content), columns) == message


JSON_ERRORS = {
    "malformed": (
        '{"text": "a", "label": "x"}\n{"text": "b" "label": "y"}\n',
        (
            " line 2: malformed JSON at column 14 (Expecting ',' delimiter); expected one object a line, like "
            '{"text": "...", "label": "..."}'
        ),
    ),
    "no object": (
        '["a", "x"]\n',
        """ line 1: expected a JSON object, like {"text": "...", "label": "..."}, got ['a', 'x']""",
    ),
    "wrong field": (
        '{"txt": "a", "label": "x"}\n',
        (
            " line 1: expected a column 'text', got 'txt', 'label'; did you mean 'txt'? name the column "
            "of the texts with 'text: txt'"
        ),
    ),
    "field missing later": (
        '{"text": "a", "label": "x"}\n\n{"text": "b", "lable": "x"}\n',
        " line 3: expected a field 'label', got none; did you mean 'lable'?",
    ),
    "no text": (
        '{"text": null, "label": "x"}\n',
        ": expected rows, got none but rows without text in 'text': 1 (line 1)",
    ),
    "text of another kind": ('{"text": 5, "label": "x"}\n', " line 1: expected text in 'text', got 5"),
    "label of another kind": (
        '{"text": "a", "label": ["x"]}\n',
        " line 1: expected a label (text or a whole number) in 'label', got ['x']",
    ),
    "regression": (
        '{"text": "a", "label": 0.5}\n',
        (
            " line 1: expected a label (text or a whole number) in 'label', got 0.5; numbers between whole ones are "
            "targets of regression: sort them into classes first, or name each as a class with 'label_map'"
        ),
    ),
    "surrogate": (
        '{"text": "ab\\ud800", "label": "x"}\n',
        " line 1: expected text in 'text', got half of a surrogate pair, U+D800, at character 3; remove it",
    ),
}


@pytest.mark.parametrize("case", JSON_ERRORS)
def test_a_bad_json_file_gets_its_line(case: str, tmp_path: Path) -> None:
    content, message = JSON_ERRORS[case]
    assert error(write(tmp_path / "data.jsonl", content)) == message


def test_files_that_are_none(tmp_path: Path) -> None:
    write(tmp_path / "reviews.csv", "text,label\na,b\n")
    assert error(tmp_path / "revews.csv") == ": no such file; did you mean 'reviews.csv'?"
    expected = f": no such file; there is no folder {tmp_path / 'nowhere'}"
    assert error(tmp_path / "nowhere" / "a.csv") == expected
    (tmp_path / "folder.csv").mkdir()
    assert error(tmp_path / "folder.csv") == ": expected a file, got a folder"
    assert error(write(tmp_path / "a.docx", "text")) == (
        ": expected a file that ends in .csv, .tsv, .tab, .xlsx, .jsonl, .ndjson, got .docx; export it as one of these"
    )


def test_a_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> bytes:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_bytes", refuse)
    assert error(tmp_path / "a.csv") == (
        ": cannot be read (Permission denied); expected a file that this user may read: check its path and its "
        "permissions"
    )


def test_rows_without_text_or_label_are_skipped_and_counted_once(tmp_path: Path) -> None:
    lines = ["text,label", "fine,x", ",", "  ,y", "dull,", "so-so,y", "   ", *["lost,"] * 6, ""]
    path = write(tmp_path / "a.csv", "\n".join(lines))
    with pytest.warns(DataWarning) as caught:
        data = read_table(path)
    assert (data.texts, data.labels) == (("fine", "so-so"), (0, 1))
    advice = "they are skipped: fill these in, or remove the rows"
    text, label = (str(warning.message).removeprefix(f"{path}: rows without ") for warning in caught)
    assert text == f"text in 'text': 3 (line 3, line 4, line 7); {advice}"
    assert label == f"a label in 'label': 7 (line 5, line 8, line 9, line 10, line 11, ...); {advice}"
    path = write(
        tmp_path / "a.jsonl",
        '{"text": null, "label": 1.0}\n{"text": "b", "label": NaN}\n{"text": "c", "label": 2}',
    )
    with pytest.warns(DataWarning, match=r"rows without (text|a label) in .*: 1 \(line [12]\)"):
        assert read_table(path).label_names == ("2",)


@pytest.mark.filterwarnings("ignore::probattn.data.DataWarning")
@given(
    table=TABLES,
    separator=st.sampled_from(",;\t"),
    suffix=st.sampled_from(["csv", "tsv"]),
    quoted=st.booleans(),
)
def test_the_separator_is_the_one_under_which_the_header_has_the_columns(
    folder: Path, table: list[tuple[str, str]], separator: str, suffix: str, quoted: bool
) -> None:
    stream = io.StringIO(newline="")
    writer = csv.writer(stream, delimiter=separator, quoting=csv.QUOTE_ALL if quoted else csv.QUOTE_MINIMAL)
    writer.writerows([("id", "label", "text"), *((n, label, text) for n, (text, label) in enumerate(table))])
    data = read_table(write(folder / f"other.{suffix}", stream.getvalue()))
    assert data.texts == tuple(text for text, _ in table)


def test_the_usual_separator_comes_first(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "text,label,x;text;label\none;two;three,a,b\n")
    assert read_table(path).texts == ("one;two;three",)


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        (("1.0", "0.0", "10.0", "9."), ("0", "1", "9", "10")),
        (("1", "0.0", "1e0"), ("0", "1")),
        (("+1", "-1"), ("+1", "-1")),
        (("1.5", "beta"), ("1.5", "beta")),
        (("12345678901234567890", "12345678901234567891"), ("12345678901234567890", "12345678901234567891")),
    ],
)
def test_whole_numbers_written_with_decimals_are_classes(labels, names, tmp_path) -> None:
    path = write(
        tmp_path / "a.csv", "text,label\n" + "".join(f"t{n},{label}\n" for n, label in enumerate(labels))
    )
    assert read_table(path).label_names == names


def test_numbers_that_are_named_are_classes(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "text,label\na,0.5\nb,1.0\n")
    assert read_table(path, Columns(label_map={"0.5": "half", "1": "whole"})).label_names == ("half", "whole")
    assert read_table(path, Columns(label_names=("0.5", "1"))).labels == (0, 1)
    rows = write(tmp_path / "a.jsonl", '{"text": "a", "label": 0.5}\n{"text": "b", "label": 1.0}\n')
    for whole in ("1", "1.0"):
        named = Columns(label_map={"0.5": "half", whole: "whole"})
        assert read_table(rows, named).label_names == ("half", "whole")
    assert read_table(rows, Columns(label_names=("0.5", "1"))).labels == (0, 1)


def test_text_and_label_are_two_columns() -> None:
    with pytest.raises(DataError, match="expected two different ones, got 'text' for both"):
        Columns(label="text")
