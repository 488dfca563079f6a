"""Predictions for files: formats, columns, streams, and what is refused."""

import csv
import io
import json
import sys

import pytest
from runs import succeeds

from probattn.cli import rows
from probattn.cli.options import FileOptions
from probattn.cli.predicting import predict_file
from probattn.cli.rows import opened
from probattn.data import DataError
from probattn.data.tables import delimited_records
from probattn.options import DrawingOptions
from probattn.tasks import Answering, run_task

TEXTS = ["the film was good", 'a bad "plot", poor cast', "fine"]
ANSWER = ["label", "probability", "p_negative", "p_positive", "entropy", "mutual_information", "spread"]


def write(place, kind):
    """The texts with a number beside them."""
    if kind == "txt":
        place.write_text("".join(f"{text}\n" for text in TEXTS) + "\n", encoding="utf-8")
    elif kind == "jsonl":
        lines = [json.dumps({"number": number, "text": text}) for number, text in enumerate(TEXTS)]
        place.write_text("\n".join(lines), encoding="utf-8")
    else:
        with place.open("w", newline="", encoding="utf-8-sig") as file:
            table = csv.writer(file, delimiter={"csv": ",", "tsv": "\t", "semicolons.csv": ";"}[kind])
            table.writerows([["number", "text"], *enumerate(TEXTS)])
    return place


def read(place):
    """Rows of a file of predictions, each value as text."""
    text = place.read_text(encoding="utf-8")
    if place.suffix == ".jsonl":
        return [{name: str(value) for name, value in json.loads(line).items()} for line in text.splitlines()]
    return list(csv.DictReader(io.StringIO(text), delimiter="\t" if place.suffix == ".tsv" else ","))


@pytest.fixture(scope="module")
def expected(run, command):
    """Answers for texts of the command line."""
    lines = command("predict", run, *TEXTS, "--json").stdout.splitlines()
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize(
    ("kind", "written"),
    [("csv", "tsv"), ("tsv", "jsonl"), ("jsonl", "csv"), ("txt", "csv"), ("semicolons.csv", "jsonl")],
)
def test_rows_keep_their_columns_beside_the_answers(run, command, expected, tmp_path, kind, written):
    output = tmp_path / f"out.{written}"
    result = command("predict", run, "--input", write(tmp_path / f"in.{kind}", kind), "--output", output)
    assert result.exit_code == 0 and "3 rows" in result.output
    found = read(output)
    assert list(found[0]) == [*([] if kind == "txt" else ["number"]), "text", *ANSWER]
    assert [row["text"] for row in found] == TEXTS
    for row, answer in zip(found, expected, strict=True):
        assert row["label"] == answer["label"]
        assert float(row["p_positive"]) == pytest.approx(answer["probabilities"]["positive"], abs=1e-6)
        assert float(row["mutual_information"]) == pytest.approx(answer["mutual_information"], abs=1e-6)
        assert float(row["spread"]) == pytest.approx(answer["spread"], abs=1e-6)
    assert [item.name for item in tmp_path.iterdir() if item.name.startswith(".")] == []


@pytest.mark.parametrize(
    ("mark", "end", "delimiter"), [("", "\n", ","), ("\ufeff", "\r\n", ";"), ("\ufeff", "\n", "\t")]
)
def test_a_delimited_file_keeps_its_form(run, command, tmp_path, mark, end, delimiter):
    kind = "tsv" if delimiter == "\t" else "csv"
    lines = [delimiter.join(cells) for cells in (("number", "text"), ("1", "a café"), ("2", "fine"))]
    (tmp_path / f"in.{kind}").write_bytes((mark + "".join(line + end for line in lines)).encode())
    result = command("predict", run, "--input", tmp_path / f"in.{kind}", "--output", tmp_path / f"out.{kind}")
    assert result.exit_code == 0
    written = (tmp_path / f"out.{kind}").read_bytes().decode()
    assert written.startswith(f"{mark}number{delimiter}text{delimiter}label") and written.count(end) == 3
    assert written.count("\ufeff") == len(mark) and written.count("\r") == 3 * (end == "\r\n")
    assert f"{end}1{delimiter}a café{delimiter}" in written


def test_answers_are_those_of_the_texts_read_at_once(run):
    """Rows are read batch by batch, 32 here, and each batch has draws of its own."""
    task, texts = run_task(run), [f"the film was good {number}" for number in range(70)]
    asked = iter(texts)
    answers = task.answering.predict(run, asked, options=DrawingOptions(num_samples=3))
    first = next(answers)
    assert next(asked) == texts[32], "one batch is read, and no more"
    assert first == next(task.answering.predict(run, texts[:1], options=DrawingOptions(num_samples=3)))
    whole = list(task.answering.predict(run, texts, options=DrawingOptions(num_samples=3)))
    assert len(whole) == 70 and whole[0]["probabilities"] == pytest.approx(first["probabilities"], abs=1e-6)


def test_standard_input_and_output(run, monkeypatch, expected):
    class Standard:
        buffer = io.BytesIO("".join(f"{text}\n" for text in TEXTS).encode())

    monkeypatch.setattr(rows.sys, "stdin", Standard())
    with rows.opened("-", "txt") as table:
        assert [row["text"] for _, row in table.rows] == TEXTS
    assert rows.sys is sys


def test_a_column_of_the_input_is_not_replaced(run, reviews, tmp_path):
    output = tmp_path / "out.csv"
    succeeds("predict", run, "-i", reviews, "-o", output, "--quiet")
    found = read(output)
    assert len(found) == 120 and list(found[0])[:3] == ["text", "label", "predicted_label"]


@pytest.mark.parametrize(
    ("content", "options", "words"),
    [
        ("message,x\na,b\n", (), ["expected a column 'text', got 'message', 'x'", "--text-column"]),
        ("Text,x\na,b\n", (), ["did you mean 'Text'?"]),
        ("text,x\na\n", (), ["in.csv line 2", "expected 2 columns"]),
        ("text,text\na,b\n", (), ["expected columns of different names"]),
        ("text,x\na film,1\n ,2\n", (), ["in.csv line 3", "expected text in 'text'"]),
        ("text,x\n", (), ["expected rows, got none"]),
        ("", (), ["expected rows, got none"]),
        ("text\ncaf\xe9\n", (), ["expected UTF-8 text, got the byte 0xe9", "iconv -f WINDOWS-1252"]),
        ("\xff\xfet\x00", (), ["expected UTF-8 text, got the byte 0xff", "iconv -f UTF-16"]),
        ("text\na film\n", ("--pair-column", "text"), ["--pair-column", "the network reads single texts"]),
        ("text\na film\n", ("--pair", "b"), ["--pair: expected no such option beside --input"]),
        ("text\na film\n", ("another text",), ["expected texts, or a file of them with --input, got both"]),
        ("a film\n\na plot\n", ("--format", "txt"), ["line 2: expected a text in every line"]),
        ('{"text": 3}\n', ("--format", "jsonl"), ["expected text in 'text', got 3"]),
        (
            '{"text": "\\uD83D\\ude00"}\n{"text": "a \\ude00"}\n',
            ("--format", "jsonl"),
            ["in.csv line 2: expected text in 'text', got half of a surrogate pair, U+DE00, at character 3"],
        ),
        ("text\na\n", ("--format", "xml"), ["--format xml", "csv, tsv, xlsx, jsonl, txt"]),
        ("text\na\n", ("--format", "xlsx"), ["in.csv: expected a workbook of Excel"]),
        ("text\na\n", ("--text-column", "texts"), ["expected a column 'texts'", "did you mean 'text'?"]),
    ],
)
def test_what_cannot_be_read_is_one_line_and_leaves_the_output(
    run, command, tmp_path, content, options, words
):
    (tmp_path / "in.csv").write_bytes(content.encode("latin-1"))
    output = tmp_path / "out.csv"
    output.write_text("old", encoding="utf-8")
    result = command("predict", run, "--input", tmp_path / "in.csv", "--output", output, "--quiet", *options)
    assert result.exit_code == 2 and result.output.count("error: ") == 1
    for word in words:
        assert word in result.output
    assert output.read_text(encoding="utf-8") == "old"
    assert sorted(item.name for item in tmp_path.iterdir()) == ["in.csv", "out.csv"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), "expected texts, or a file of them with --input, got neither"),
        (("a film", "--output", "out.csv"), "--output: expected --input with it"),
        (("a film", "--pair-column", "b"), "--pair-column: expected --input with it"),
        (("--input", "none.csv"), "none.csv: cannot be read"),
        (("--input", "-"), "expected a file that ends in .csv"),
    ],
)
def test_options_that_do_not_fit(run, command, options, words):
    result = command("predict", run, *options)
    assert result.exit_code == 2 and words in result.output


def test_a_row_without_a_text_is_found_before_anything_is_predicted(run, tmp_path, monkeypatch):
    file = tmp_path / "in.csv"
    file.write_text("text\n" + "a film\n" * 300 + '" "\n', encoding="utf-8")
    task = run_task(run)
    monkeypatch.setattr(Answering, "predict", lambda *_, **__: pytest.fail("predicted"))
    with pytest.raises(DataError, match="line 302: expected text in 'text'"):
        predict_file(task.answering, run, FileOptions(str(file)))


@pytest.mark.parametrize(
    ("content", "columns"),
    [
        ("text,label,,\na film,good,,\n", ("text", "label", "column 3", "column 4")),  # of a spreadsheet
        ('text,"note; a; b; c"\na film,x\n', ("text", "note; a; b; c")),
        ("text;label\na film;good\n", ("text", "label")),
    ],
)
def test_columns_of_usual_files(tmp_path, content, columns):
    file = tmp_path / "in.csv"
    file.write_text(content, encoding="utf-8")
    with opened(str(file), "csv", "text") as table:
        assert table.columns == columns
        assert [row["text"] for _, row in table.rows] == ["a film"]


def test_quotes_are_plain_characters_where_the_recipe_says_so(tmp_path, monkeypatch, run):
    task = run_task(run)
    place = tmp_path / "in.tsv"
    place.write_text('text\tnumber\n"Alien" is fine\t1\n2" of rain\t2\n', encoding="utf-8")
    with pytest.raises(DataError, match="line 2: malformed record"):
        predict_file(task.answering, run, FileOptions(str(place)))
    source = task.recipe.data.train.model_copy(update={"quotes": False})
    data = task.recipe.data.model_copy(update={"train": source})
    plain = type(task)(task.recipe.model_copy(update={"data": data}))
    asked = []
    monkeypatch.setattr(Answering, "predict", lambda *words: map(asked.append, words[2]))
    monkeypatch.setattr(type(plain.answering), "columns", lambda *_: {})
    assert predict_file(plain.answering, run, FileOptions(str(place))) == (2, 0)
    assert asked == ['"Alien" is fine', '2" of rain']


def test_an_unknown_ending_of_the_output(run, command, tmp_path):
    result = command(
        "predict", run, "--input", write(tmp_path / "in.csv", "csv"), "--output", tmp_path / "a.docx"
    )
    assert result.exit_code == 2 and "a.docx: expected a file that ends in .csv" in result.output


@pytest.mark.parametrize("option", ["--num-samples", "--seed"])
def test_answers_without_draws_take_no_option_of_draws(translation_run, command, option):
    result = command("predict", translation_run, "ein hund", option, "5")
    assert result.exit_code == 2 and f"{option} 5: expected no such option, translations are" in result.output


def test_translations_of_a_file(translation_run, command, tmp_path):
    (tmp_path / "in.txt").write_text("a dog runs .\na cat .\n", encoding="utf-8")
    for name in ("out.txt", "out.csv"):
        succeeds("predict", translation_run, "-i", tmp_path / "in.txt", "-o", tmp_path / name)
    plain = command("predict", translation_run, "a dog runs .", "a cat .").stdout.splitlines()
    assert (tmp_path / "out.txt").read_text(encoding="utf-8").splitlines() == plain
    assert [row["translation"] for row in read(tmp_path / "out.csv")] == plain


def test_rows_with_other_fields_go_into_json_lines_alone(tmp_path):
    found = [({"text": "a"}, {"label": "x"}), ({"text": "b", "more": [1]}, {"label": "y"})]
    assert rows.write_rows(found, "jsonl", tmp_path / "out.jsonl") == 2
    assert json.loads((tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()[1])["more"] == [1]
    with pytest.raises(DataError, match=r"differs in 'more'; write to a file that ends in \.jsonl"):
        rows.write_rows(found, "csv", tmp_path / "out.csv")
    assert not (tmp_path / "out.csv").exists()


def test_half_a_character_in_another_column_is_passed_on(run, command, tmp_path):
    place, written = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    place.write_text('{"text": "fine", "x": "\\ude00"}\n', encoding="utf-8")
    assert command("predict", run, "--input", place, "--output", written).exit_code == 0
    assert json.loads(written.read_text(encoding="utf-8"))["x"] == "\ude00"


def test_an_interruption_leaves_nothing(tmp_path):
    def endless():
        yield {"text": "a"}, {"label": "x"}
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        rows.write_rows(endless(), "csv", tmp_path / "out.csv")
    assert list(tmp_path.iterdir()) == []


def test_truncated_texts_are_counted_once_over_all_batches(run, command, tmp_path):
    texts = [*TEXTS, "good " * 200, *TEXTS * 20, "bad " * 300]
    (tmp_path / "in.txt").write_text("\n".join(texts), encoding="utf-8")
    result = command("predict", run, "--input", tmp_path / "in.txt", "--output", tmp_path / "out.csv")
    told = [line for line in result.output.splitlines() if "they are truncated" in line]
    assert len(told) == 1 and "texts given: 2 of 65 are longer than" in told[0]
    assert "(the longest has 302)" in told[0]


FORMULAS = [
    "=1+1 the film was good",
    "+ good",
    "- a bad plot",
    "@SUM(A1) film",
    "'=already",
    "'quoted' film",
    "good",
]


def test_words_of_predictions_are_no_formulas(tmp_path):
    """What predictions add is escaped in tables, not the input's cells, and no numbers."""
    answer = {"label": "=cmd", "probability": -0.5, "unsure_about": ["+", "good"], "spread": -1}
    for escape, cells in (
        ("words", ["=x", "-3", "'=cmd", "-0.5", "'+; good", "-1"]),
        ("all", ["'=x", "-3", "'=cmd", "-0.5", "'+; good", "-1"]),
        ("none", ["=x", "-3", "=cmd", "-0.5", "+; good", "-1"]),
    ):
        for kind, mark in (("csv", ","), ("tsv", "\t")):
            file = tmp_path / f"out.{kind}"
            rows.write_rows([({"text": "=x", "note": "-3"}, answer)], kind, file, escape=escape)
            assert file.read_text(encoding="utf-8").splitlines()[1].split(mark) == cells
    file = tmp_path / "out.jsonl"
    rows.write_rows([({"text": "=x"}, answer)], "jsonl", file, escape="all")
    assert json.loads(file.read_text(encoding="utf-8")) == {"text": "=x", **answer}


@pytest.mark.parametrize(("kind", "escape"), [("csv", "words"), ("tsv", "all"), ("csv", "none")])
def test_a_file_that_is_predicted_again_keeps_its_texts(run, tmp_path, kind, escape):
    file, once, twice = (tmp_path / f"{name}.{kind}" for name in ("in", "once", "twice"))
    source = [{"=text": text, "text": text} for text in FORMULAS]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in source), encoding="utf-8")
    arguments = ("predict", run, "--quiet", "--escape", escape)
    succeeds(*arguments, "--input", tmp_path / "in.jsonl", "--output", once)
    succeeds(*arguments, "--input", once, "--output", twice)
    back = tmp_path / "back.jsonl"
    succeeds(*arguments, "--input", twice, "--output", back)
    answers = [json.loads(line) for line in back.read_text(encoding="utf-8").splitlines()]
    assert [(row["=text"], row["text"]) for row in answers] == [(text, text) for text in FORMULAS]
    assert all(row["label"] == row["predicted_label"] == row["predicted_predicted_label"] for row in answers)
    cells = [next(iter(row.values())) for row in read(twice)]
    assert [cell[0] in "=+-@" for cell in cells].count(True) == (0 if escape == "all" else 4)
    assert not file.exists()


@pytest.mark.parametrize("kind", ["csv", "tsv"])
def test_line_breaks_in_cells_come_back(tmp_path, kind):
    texts = ["one\rtwo", "\rone", "one\ntwo", "one\r\ntwo", "one,\ttwo", 'one "two"']
    file = tmp_path / f"out.{kind}"
    rows.write_rows([({"text": text}, {"label": "a"}) for text in texts], kind, file)
    with opened(str(file), kind, "text") as table:
        assert [row["text"] for _, row in table.rows] == texts


def test_an_output_that_is_a_link_or_the_input(run, command, tmp_path):
    file, link, target = write(tmp_path / "in.csv", "csv"), tmp_path / "link.csv", tmp_path / "target.csv"
    link.symlink_to(target.name)
    succeeds("predict", run, "--input", file, "--output", link, "--quiet")
    assert link.is_symlink() and len(read(target)) == 3
    before = file.read_bytes()
    link.unlink()
    link.symlink_to(file.name)
    for output in (file, link, tmp_path / "x" / ".." / "in.csv"):
        done = command("predict", run, "--input", file, "--output", output, "--quiet")
        assert done.exit_code == 2 and "expected another file than --input" in done.stderr
    assert file.read_bytes() == before


def test_columns_are_compared_in_linear_time(tmp_path, monkeypatch):
    """Each name is hashed once or twice; a name compared with all others would be called a million times."""
    number = 1000
    names = ["text", *(f"c{column}" for column in range(number))]
    file = tmp_path / "wide.csv"
    file.write_text(",".join(names) + "\n" + ",".join("x" for _ in names) + "\n", encoding="utf-8")
    compared = 0

    class Name(str):
        __slots__ = ()

        def strip(self, *_):
            return self

        def __eq__(self, other):
            nonlocal compared
            compared += 1
            return str.__eq__(self, other)

        __hash__ = str.__hash__

    def records(*arguments, **options):
        for line, fields in delimited_records(*arguments, **options):
            yield line, [Name(field) for field in fields]

    monkeypatch.setattr(rows.tables, "delimited_records", records)
    with opened(str(file), "csv", "text") as table:
        assert table.columns == tuple(names)
    assert compared < 10 * number
    file.write_text("text,a,b,a,b,b\n1,2,3,4,5,6\n", encoding="utf-8")
    with (
        pytest.raises(DataError, match="expected columns of different names, got 3 'b'"),
        opened(str(file), "csv") as table,
    ):
        pass
