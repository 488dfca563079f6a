"""The command line on files as people have them: nothing is replaced that is read, and what is written can be read."""

import csv
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from runs import invoke, refused, succeeds

from probattn.cli.rows import with_answer
from probattn.data.checking import usual_spellings
from probattn.tasks import load_task
from probattn.tasks.sections.yaml_nodes import one_line_yaml
from probattn.triage.review import column_of, exported_rows

DECISIONS = "text,decision,why,label,probability,reviewed,likeliest\na,person,unsure,x,0.6,y,x 60%\n"


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def labelled(names, name="t.csv"):
    """A file of texts with these labels."""
    file = io.StringIO(newline="")
    csv.writer(file).writerows(
        [("text", "label"), *((f"words {n} of it", label) for n, label in enumerate(names))]
    )
    Path(name).write_text(file.getvalue(), encoding="utf-8", newline="")


def test_predictions_are_not_taken_for_labels(command, run):
    Path("decided.csv").write_text(DECISIONS, encoding="utf-8")
    words = (
        "decided.csv: expected true labels, got decisions of `predict --policy`, whose labels are predictions"
    )
    assert words in refused("check", "decided.csv")
    assert words in refused("triage", run, "--data", "decided.csv")
    assert "decided.csv" not in refused("check", "decided.csv", "--label-column", "nope").replace(
        "decided.csv:", ""
    )


@pytest.mark.parametrize("columns", [[], ["label"], ["predicted_label"], ["label", "predicted_label"]])
def test_columns_of_an_answer_are_known_in_any_order(columns):
    row = with_answer(dict.fromkeys(["text", *columns], "input"), {"label": "answer", "why": ""})
    assert list(row)[: len(columns) + 1] == ["text", *columns] and len(row) == len(columns) + 3
    assert row[column_of(row, "label")] == row[column_of(dict(reversed(row.items())), "label")] == "answer"
    assert column_of({"my_label": 1, "text": 2}, "label") == "label"


def test_no_file_is_replaced_that_is_read_or_written_at_once(command, run):
    labelled("abab" * 5)
    assert "--clean c.csv: expected another file than --output" in refused(
        "check", "t.csv", "--clean", "c.csv", "--output", "./c.csv"
    )
    Path("d.csv").mkdir()
    assert "--clean d.csv: expected a file, got a folder" in refused("check", "t.csv", "--clean", "d.csv")
    assert "--output d.csv: expected a file, got a folder" in refused(
        "predict", run, "--input", "t.csv", "--output", "d.csv"
    )
    Path("p.json").write_text("{}", encoding="utf-8")
    options = ["--policy", "p.json", "--input", "t.csv", "--output", "o.csv", "--label-studio", "p.json"]
    assert "--label-studio p.json: expected another file than --policy" in refused("predict", run, *options)
    assert Path("p.json").read_text(encoding="utf-8") == "{}"


def test_two_spellings_of_the_only_class_leave_nothing_to_train_on():
    labelled(["Spam", "spam"] * 12)
    shown = succeeds("check", "t.csv")
    assert "training refuses these labels: t.csv: expected at least two classes" in shown
    assert "next: correct the file" in shown and "probattn init t.csv" not in shown


def test_spellings_have_one_form_in_unicode():
    names = ["caf\u00e9", "cafe\u0301", "refund", "\uff52efund", "refund\u200b", "\ufeffrefund"]
    usual = usual_spellings(dict(zip(names, (5, 1, 5, 1, 1, 1), strict=True)))
    assert usual == {"cafe\u0301": "caf\u00e9"} | dict.fromkeys(names[3:], "refund")


def test_the_next_command_names_the_columns_that_may_be_others():
    lines = [f"words {n} of it,{'abc'[n % 3]},{n % 5}" for n in range(60)]
    Path("t.csv").write_text("message,part_a,part_b\n" + "\n".join(lines) + "\n", encoding="utf-8")
    assert "next: probattn init t.csv --label-column part_a\n" in succeeds("check", "t.csv")
    options = ["--label-column", "part_b", "--text-column", "message", "--clean", "c d.csv"]
    shown = succeeds("check", "t.csv", *options)
    assert "next: probattn init 'c d.csv' --text-column message --label-column part_b\n" in shown


def test_columns_of_other_names_are_the_labels_last():
    lines = [f"{n},words {n} of it,{'abc'[n % 3]},{n % 9} kinds" for n in range(60)]
    Path("t.csv").write_text("no,message,channel,Thema (Team)\n" + "\n".join(lines) + "\n", encoding="utf-8")
    assert "column 'Thema (Team)' of labels" in succeeds("check", "t.csv")


@pytest.mark.parametrize(
    ("content", "options", "words"),
    [
        (
            "text,label\na b c,x\nd e f,y\n",
            ["--label-column", "labels"],
            "did you mean 'label'? name the column with",
        ),
        ("text,label,team\na b,,x\nc d,,y\ne f,,x\ng h,,y\n", [], "column 'team' of labels"),
        (
            "text,label\na b c,x\nd e f,y\n",
            ["--text-column", "text", "--label-column", "text"],
            "expected different",
        ),
        ("text,label\na b c,x\nd e f,y\n", ["--text-column", ""], "expected the name of a column, got ''"),
        ("text,label\n,\n,\n", [], "expected"),
        (
            '"Text of\nticket";Team\nwords a;x\nwords b;y\nwords c;x\nwords d;y\n',
            [],
            "'Text of\\nticket' of texts",
        ),
    ],
)
def test_odd_columns_are_told_in_a_line(command, content, options, words):
    Path("t.csv").write_text(content, encoding="utf-8")
    done = command("check", "t.csv", *options)
    assert done.exit_code in (0, 2) and words in done.output and "Traceback" not in done.output


def test_names_that_no_file_has_are_told_in_a_line():
    assert "a path that begins with ~" in refused("init", "~nouser/x.csv")
    assert "got one that ends in .gz; unpack it first: gunzip" in refused("check", "x.csv.gz")
    assert "got no ending" in refused("check", "x")


@pytest.mark.parametrize("result", [[5], [{"from_name": "reviewed", "value": None}]])
def test_annotations_that_are_not_of_the_queue_are_passed_over(result):
    task = {"data": {"text": "x"}, "annotations": [{"result": result}]}
    Path("export.json").write_text(json.dumps([task]), encoding="utf-8")
    assert exported_rows(Path("export.json")) == [{"text": "x", "reviewed": None}]


@pytest.mark.parametrize(
    "names",
    [
        ("re\nfund", "Re\nfund"),
        ("a\u2028b", "A\u2028b"),
        ("a\x85b", "A\x85b"),
        ("x" * 1100, "X" * 1100),
        ("bell\x07", "Bell\x07"),
        ("yes", "Yes"),
        ("a: b #c", "A: b #c"),
        ("- {a", "- {A"),
        ("\U0001f600 ok", "\U0001f600 OK"),
    ],
)
@pytest.mark.parametrize("full", [(), ("--full",)])
def test_a_recipe_has_the_spellings_of_any_name(names, full):
    labelled([*names[:1] * 2, names[1], "other"] * 5)
    succeeds("init", "t.csv", *full)
    assert load_task("t.yaml").recipe.data.train.label_map == {names[1]: names[0]}


@pytest.mark.parametrize(
    "value", ["a #4.csv", "a: b", "[x]", "{a}", "*a", "&a", "!a", "%a", "@a", '"q"', "1e3", "a.csv"]
)
def test_a_value_in_one_line_is_read_as_it_was(value):
    keys = ["data.train.source=t.csv", f"data.train.text={one_line_yaml(value)}"]
    assert load_task("sentiment_babn", keys).recipe.data.train.text == value


def test_a_clean_file_is_clean():
    labelled(["a b", " a_b ", "A b", "a b", "c", " c", "c", "c"] * 5)
    lines = Path("t.csv").read_text(encoding="utf-8") + "words 0 of it,A_B\n"
    Path("t.csv").write_text(lines, encoding="utf-8")
    succeeds("check", "t.csv", "--clean", "c.csv")
    assert json.loads(succeeds("check", "c.csv", "--json"))["damages"] == []
    assert json.loads(succeeds("check", "t.csv", "--clean", "c.csv", "--json"))["clean"] == "c.csv"


def test_a_reader_that_has_enough_is_no_error():
    labelled([f"class {n % 20}" for n in range(400)])
    command = f"{sys.executable} -m probattn check t.csv | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (
        done.stdout.startswith("recognised") and "error" not in done.stderr and "Traceback" not in done.stderr
    )


def test_rows_of_a_workbook_have_its_numbers():
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    for row in [("text", "label"), ("a b", "x"), (None, None), ("c d", "y"), ("", "x"), ("e f", "y")]:
        book.active.append(row)
    book.save("b.xlsx")
    assert "sheet" not in invoke("check", "b.xlsx").stderr
    book.create_sheet("Other")
    book.save("b.xlsx")
    assert "b.xlsx: the first sheet, 'Sheet', is read, 1 other not" in invoke("check", "b.xlsx").stderr
    damages = json.loads(succeeds("check", "b.xlsx", "--json"))["damages"]
    assert [item["lines"] for item in damages if item["kind"].startswith("rows without text")] == [[5]]


def test_explain_reads_the_columns_of_the_run(command, run):
    column = load_task(str(Path(run) / "recipe.yaml")).recipe.data.train.text
    Path("new.csv").write_text(f"id,{column}\n1,a good film\n", encoding="utf-8")
    shown = json.loads(succeeds("explain", run, "--input", "new.csv", "--json"))
    assert shown["texts"] == ["a good film"]


def test_signs_of_no_width_are_no_text(command, run):
    Path("t.csv").write_text("text,label\na b,x\n\u200b,x\nc d,y\n\ufeff \u2060,y\n", encoding="utf-8")
    damages = json.loads(succeeds("check", "t.csv", "--json"))["damages"]
    assert [item["lines"] for item in damages if item["kind"].startswith("rows without text")] == [[3, 5]]
    assert "text 1: expected some words, got none" in refused("predict", run, "\u200b")


def test_json_has_standard_output_alone(command, run):
    column = load_task(str(Path(run) / "recipe.yaml")).recipe.data.train.text
    Path("new.csv").write_text(f"{column}\na good film\n", encoding="utf-8")
    options = ("predict", run, "--input", "new.csv", "--output", "o.csv")
    assert "predictions: o.csv (1 rows)" in succeeds(*options)
    assert succeeds(*options, "--json") == ""


def test_a_recipe_that_is_there_is_refused_first():
    labelled(["x", "y"] * 5)
    Path("t.yaml").write_text("", encoding="utf-8")
    assert "t.yaml: expected a new file" in refused("init", "t.csv")
