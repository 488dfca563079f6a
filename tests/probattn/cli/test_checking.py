"""``probattn check``: damaged files, of which every damage is named with its rows and lines, and nothing else."""

import csv
import io
import json
import random
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from runs import refused, succeeds

from probattn.checks import MissingPackageError
from probattn.cli import app
from probattn.cli.columns import recognise
from probattn.data import DataError, checking
from probattn.data.suspects import suspects

PAGE = Path(__file__).resolve().parents[3] / "docs" / "use" / "own_data.md"
SYLLABLES = ("ba", "ko", "ri", "mu", "te", "sol", "van", "dip", "gur", "len", "fex", "who")
CLASSES = ("billing", "delivery", "account")
TEXT, LABEL = "rows without text in 'text'", "rows without a label in 'label'"
COPIES, NEAR = "copies of the text and label of an earlier row", "nearly the text of an earlier row"
CONTRADICTIONS = "texts with different labels in different rows"
VARIANTS, BLANKS = "classes that differ in case, blanks, _ or - alone", "labels with blanks around them"
LONG, NUMBERS = "texts of more than 128 tokens (of minilm)", "labels that are numbers"
ONE, FEW = "classes of one row", "classes of 2 to 9 rows"
ENCODING, MARKUP = "characters of a wrong encoding", "tags or entities of HTML"
LEAK = "texts that hold the name of their class"

Rows = list[list[str]]
Damages = dict[str, list[int]]
"""Lines by kind of damage."""


def clean(count: int = 60) -> Rows:
    """Texts of random words and their classes, without any damage; the first is in line 2."""
    draw = random.Random(0)
    words = ["".join(draw.choices(SYLLABLES, k=3)) for _ in range(300)]
    return [[" ".join(draw.sample(words, 9)), CLASSES[row % len(CLASSES)]] for row in range(count)]


def empty() -> tuple[Rows, Damages]:
    rows = clean()
    rows[3][0], rows[10][0], rows[11][0], rows[20][1], rows[21][1] = "", "  ", "", "", " "
    return rows, {TEXT: [5, 12, 13], LABEL: [22, 23]}


def copied() -> tuple[Rows, Damages]:
    rows = clean()
    return [*rows, rows[4], rows[4], rows[8]], {COPIES: [62, 63, 64]}


def contradicting() -> tuple[Rows, Damages]:
    rows = clean()
    rows[30], rows[45] = [rows[0][0], "account"], [f"{rows[7][0].upper()} !", "billing"]
    return rows, {CONTRADICTIONS: [2, 9, 32, 47]}


def varied() -> tuple[Rows, Damages]:
    rows = clean()
    rows[0][1], rows[3][1], rows[6][1], rows[1][1] = "Billing", "BILLING ", "billing ", " delivery"
    return rows, {BLANKS: [3, 5, 8], VARIANTS: [2, 5]}


def rare() -> tuple[Rows, Damages]:
    rows = clean()
    rows[12][1] = "refund"
    for row in (20, 30, 40, 50):
        rows[row][1] = "complaint"
    return rows, {ONE: [14], FEW: [22, 32, 42, 52]}


def near() -> tuple[Rows, Damages]:
    rows = clean()
    text, label = rows[5]
    rows += [
        [f"{text}.", label],
        [text[:20] + text[21:], label],
        [f"{text} now", label],
        [text.title(), label],
    ]
    numbers = [
        [f"the parcel with the number {n} has not come to our house", "delivery"] for n in (7, 812, 9000)
    ]
    short = [[f"order {n}", "delivery"] for n in range(5)]
    return [*rows, *numbers, *short], {NEAR: [62, 63, 64, 65, 67, 68]}


def long() -> tuple[Rows, Damages]:
    rows = clean()
    draw = random.Random(1)
    for row in (2, 40):
        rows[row][0] = " ".join("".join(draw.choices(SYLLABLES, k=2)) for _ in range(140))
    return rows, {LONG: [4, 42]}


def numbered() -> tuple[Rows, Damages]:
    rows = [[text, str(row % 5 + 1)] for row, (text, _) in enumerate(clean())]
    return rows, {NUMBERS: list(range(2, 62))}


def garbled() -> tuple[Rows, Damages]:
    rows = clean()
    rows[1][0] = "Das Päckchen für Zoë ist schön – „très cher“ für 5 €, Łódź, Привет, 你好"
    rows[3][0] += " Das PÃ¤ckchen"
    rows[4][0] += " itâ€™s"
    rows[9][0] += " caf\ufffd"
    rows[15][0] = f"<b>{rows[15][0]}</b>"
    rows[16][0] += " R&amp;D"
    rows[17][0] += " R&D, a < b, AT&T; x<y>z"
    return rows, {ENCODING: [5, 6, 11], MARKUP: [17, 18]}


def leaking() -> tuple[Rows, Damages]:
    rows = [[f"{text} [{label.title()}]", label] for text, label in clean()]
    rows[7][0] = rows[7][0].partition(" [")[0]
    return rows, {LEAK: [row for row in range(2, 62) if row != 9]}


def several() -> tuple[Rows, Damages]:
    rows = clean()
    rows[2][0], rows[5][1], rows[6][1], rows[9][1] = "", "", "Billing", "refund"
    rows += [rows[20], [rows[21][0], "delivery"], [f"{rows[22][0]} <br/>", "delivery"]]
    return rows, {
        TEXT: [4],
        LABEL: [7],
        VARIANTS: [8],
        CONTRADICTIONS: [23, 63],
        COPIES: [62],
        NEAR: [64],
        ONE: [11],
        MARKUP: [64],
    }


FILES: dict[str, Callable[[], tuple[Rows, Damages]]] = {
    "clean.csv": lambda: (clean(), {}),
    "empty.csv": empty,
    "copied.tsv": copied,
    "contradicting.jsonl": contradicting,
    "varied;.csv": varied,
    "rare.csv": rare,
    "near.jsonl": near,
    "long.csv": long,
    "numbered.tsv": numbered,
    "garbled.csv": garbled,
    "leaking.csv": leaking,
    "several.csv": several,
}


def write(path: Path, rows: Rows) -> None:
    """A file of the format that its name has; JSON Lines begin with an empty line in place of a header."""
    if path.suffix == ".jsonl":
        lines = ["", *(json.dumps({"text": text, "label": label}) for text, label in rows)]
        path.write_text("\n".join(lines), encoding="utf-8")
        return
    separator = ";" if ";" in path.name else {".csv": ",", ".tsv": "\t"}[path.suffix]
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, delimiter=separator).writerows([["text", "label"], *rows])


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", FILES)
def test_every_damage_is_named_with_its_rows_and_nothing_else(command, name):
    rows, damages = FILES[name]()
    write(Path(name), rows)
    checked = json.loads(succeeds("check", name, "--json"))
    assert {item["kind"]: item["lines"] for item in checked["damages"]} == damages
    assert [item["rows"] for item in checked["damages"]] == [
        len(item["lines"]) for item in checked["damages"]
    ]
    assert (checked["rows"], checked["text"], checked["label"]) == (len(rows), "text", "label")
    shown = succeeds("check", name)
    for kind, lines in damages.items():
        assert f"{len(lines):>6}  {kind} (" in shown
    assert ("nothing wrong in 60 rows" in shown) == (not damages)


def test_near_copies_are_those_of_a_comparison_of_all_pairs(monkeypatch):
    draw = random.Random(3)
    words = ["".join(draw.choices(SYLLABLES, k=2)) for _ in range(60)]
    texts = [" ".join(draw.choices(words, k=8)) for _ in range(150)]
    for text in texts[:80]:
        changed = text.split()
        changed[draw.randrange(8)] = draw.choice(words)
        texts.append(" ".join(changed) if draw.random() < 0.5 else text.replace(changed[0][:2], "", 1))
    rows = checking.Rows([{"text": text, "label": "a"} for text in texts], [f"line {n}" for n in range(230)])
    sets = [{key[at : at + 4] for at in range(len(key) - 3)} for key in rows.identities()]
    leaders: list[int] = []
    near = []
    for row, members in enumerate(sets):
        if any(len(members & sets[other]) >= 0.8 * len(members | sets[other]) for other in leaders):
            near.append(row)
        else:
            leaders.append(row)
    for probes, share in ((12, 0.9), (1000, 1)):
        monkeypatch.setattr(checking, "PROBES", probes)
        damages = {
            item.kind: set(item.rows) for item in checking.check_rows(rows, {"text": "t", "label": "l"})
        }
        flagged = damages[NEAR] | damages[COPIES]
        assert 20 < len(near) < 80 and flagged <= set(near) and len(flagged) >= share * len(near)


def test_pairs_are_near_where_both_texts_are(command):
    texts = [text for text, _ in clean(12)]
    rows = [f"{texts[n]},{texts[n + 4]},{'ab'[n % 2]}" for n in range(4)]
    rows += [
        f"{texts[0]},{texts[9]},a",
        f"{texts[0]}.,{texts[4]} now,a",
        f"{texts[1]},{texts[5]},b",
        f"x,{texts[0]},b",
    ]
    Path("pairs.csv").write_text("\n".join(["premise,hypothesis,label", *rows]), encoding="utf-8")
    checked = json.loads(succeeds("check", "pairs.csv", "--json"))
    assert (checked["text"], checked["pair"]) == ("premise", "hypothesis")
    assert {item["kind"]: item["lines"] for item in checked["damages"] if item["kind"] != FEW} == {
        COPIES: [8],
        NEAR: [7],
    }


def test_what_training_refuses_comes_first_and_the_rest_is_checked(command):
    rows = [[text, str(row % 4 / 2)] for row, (text, _) in enumerate(clean())]
    write(Path("a.csv"), [*rows, rows[0]])
    checked = json.loads(succeeds("check", "a.csv", "--json"))
    assert (
        "training refuses these labels" in checked["damages"][0]["kind"]
        and checked["damages"][0]["rows"] == 61
    )
    assert COPIES in [item["kind"] for item in checked["damages"]]
    cells = [
        {"text": 5, "label": True},
        {"text": None, "label": "x"},
        {"text": "words", "label": float("nan")},
    ]
    Path("b.jsonl").write_text("\n".join(json.dumps(cell) for cell in cells), encoding="utf-8")
    checked = json.loads(succeeds("check", "b.jsonl", "--label-column", "label", "--json"))
    assert checked["damages"][0]["kind"].startswith("training refuses") and checked["classes"] == {"true": 1}
    assert [item["lines"] for item in checked["damages"][1:3]] == [[2], [3]]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.txt", b"a film\n", "expected a file with a column of texts and one of labels"),
        ("none.csv", None, "none.csv: cannot be read"),
        ("a.csv", "text,label\ngrün,a\n".encode("latin-1"), "expected UTF-8 text"),
        ("a.csv", b"text,label\na,b,c\n", "a.csv line 2: expected 2 columns"),
        ("a.jsonl", b"{oh\n", "a.jsonl line 1: malformed JSON"),
        ("a.csv", b"text\na\n", "expected a column of labels beside 'text'"),
    ],
)
def test_what_cannot_be_read_is_one_line(name, content, words):
    if content is not None:
        Path(name).write_bytes(content)
    assert words in refused("check", name)


def test_lengths_are_estimated_without_the_tokenizer_and_said_to_be(command, monkeypatch):
    def missing(_: str) -> Path:
        raise DataError("no such package")

    rows, _ = long()
    write(Path("a.csv"), rows)
    monkeypatch.setattr("probattn.data.files.minilm_file", missing)
    (damage,) = json.loads(succeeds("check", "a.csv", "--json"))["damages"]
    assert damage["kind"] == "texts of more than 128 tokens (estimated from words)"
    assert damage["lines"] == [4, 42] and "line 4: 170" in damage["examples"]


def test_flagged_rows_are_written(command):
    write(Path("a.csv"), several()[0])
    assert "flagged rows: flagged.csv" in succeeds("check", "a.csv", "-o", "flagged.csv")
    written = list(csv.DictReader(io.StringIO(Path("flagged.csv").read_text(encoding="utf-8"))))
    expected = sorted((str(line), kind) for kind, lines in several()[1].items() for line in lines)
    assert sorted((row["line"], row["problem"]) for row in written) == expected
    assert next(row for row in written if row["line"] == "8")["label"] == "Billing"
    for option, name in (("--output", "a.txt"), ("--clean", "a.log")):
        words = f"{option} {name}: expected a file that ends in .csv, .tsv, .xlsx or .jsonl"
        assert words in refused("check", "a.csv", option, name)
    assert "--clean a.csv: expected another file than the one that is checked" in refused(
        "check", "a.csv", "--clean", "a.csv"
    )


def test_clean_rows_keep_columns_and_form_of_the_file(command):
    head = 'no;message;label\r\n1;"it; never\r\ncame";card_arrival\r\n2;a €;refund\r\n'
    rows = "3;where is it;Card arrival\r\n4;;refund\r\n5;{}; \r\n6;a €;refund\r\n7;my card;card_arrival\r\n;;\r\n"
    Path("a.csv").write_bytes((head + rows.format("text")).encode("utf-8-sig"))
    shown = succeeds("check", "a.csv", "--clean", "b.csv")
    assert "clean rows: b.csv, 4 of 8 rows, 1 of them with a label in another spelling" in shown
    assert "next: probattn init b.csv" in shown
    left = "3;where is it;card_arrival\r\n7;my card;card_arrival\r\n"
    assert Path("b.csv").read_bytes() == (head + left).encode("utf-8-sig")
    succeeds("check", "a.csv", "--clean", "b.jsonl", "--json")
    assert [json.loads(line)["no"] for line in Path("b.jsonl").read_text().splitlines()] == [
        "1",
        "2",
        "3",
        "7",
    ]
    kinds = [item["kind"] for item in json.loads(succeeds("check", "b.csv", "--json"))["damages"]]
    assert kinds == ["classes of one row", "classes of 2 to 9 rows"]


def test_doubtful_columns_are_asked_for_on_terminals_alone(command, monkeypatch):
    lines = [f"{text},{row % 4},{'ab'[row % 2]},{text} end" for row, (text, _) in enumerate(clean())]
    Path("a.csv").write_text("\n".join(["words,level,side,reply", *lines]), encoding="utf-8")
    answers: Iterator[str] = iter(())
    monkeypatch.setattr("typer.prompt", lambda *_, **__: next(answers))
    terminal = SimpleNamespace(isatty=lambda: True)
    assert recognise("a.csv", None, None, None)[:3] == ("reply", None, "side")
    monkeypatch.setattr("probattn.cli.columns.sys", SimpleNamespace(stdin=terminal, stdout=terminal))
    cases = {("words", "2"): ("words", None, "level"), ("7", "1", "side"): ("reply", None, "side")}
    for given, columns in cases.items():
        answers = iter(given)
        assert recognise("a.csv", None, None, None)[:3] == columns
    assert recognise("a.csv", "words", "level", None)[:3] == ("words", None, "level")
    assert recognise("a.csv", None, None, None, asks=False)[:3] == ("reply", None, "side")


def test_the_page_shows_what_the_command_prints_in_eighty_columns(monkeypatch, capsys):
    page = PAGE.read_text(encoding="utf-8").partition("## Check a file first")[2]
    code, shown = re.search(r"```python\n(.*?)```\n\n```console\n(.*?)```", page, re.DOTALL).groups()
    exec(code, {})
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    app(["check", "export.csv"], standalone_mode=False)
    assert capsys.readouterr().out == shown.removeprefix("$ probattn check export.csv\n")


ERRORS = """\
train a.csv; train nothing; train nothing.yaml; compare nothing.yaml -o folder; init nothing.csv; init nothing
predict run; predict run --input nothing.csv; predict run x --num-samples 0; predict nothing x; evaluate nothing
report nothing; triage nothing --error 0.1; triage run --error 2; review nothing a.csv; check nothing.csv
review run a.csv --with-training; train --no
explain x --input a.csv; attack nothing; agreement nothing; inspect minilm --layers x; nothing"""
"""Commands that fail before a network is needed."""


def imported(*commands: str) -> tuple[list[int], set[str]]:
    """The exit codes of commands in one new process, and what it has imported then."""
    code = (
        "import json, sys; from typer.testing import CliRunner; from probattn.cli import app\n"
        "codes = [CliRunner().invoke(app, command.split()).exit_code for command in sys.argv[1:]]\n"
        "print(json.dumps([codes, list(sys.modules)]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *commands], capture_output=True, text=True, check=True, timeout=100
    )
    codes, modules = json.loads(done.stdout)
    return codes, set(modules)


def test_checks_help_lists_and_errors_import_no_torch():
    write(Path("a.csv"), several()[0])
    Path("run").mkdir()
    Path("run/recipe.yaml").write_text("data: {train: a.csv}\n", encoding="utf-8")
    failing = re.split(r"; |\n", ERRORS)
    codes, modules = imported("check a.csv", "--help", "train --help", "recipes", "reproduce", *failing)
    assert codes == [*[0] * 5, *[2] * len(failing)]
    assert not modules & {"torch", "transformers", "scipy", "probattn.tasks.registry"}


@pytest.mark.slow
def test_recipes_for_files_and_methods_need_no_network():
    write(Path("a.csv"), several()[0])
    codes, modules = imported("init a.csv", "methods")
    assert codes == [0, 0]
    assert "torch" in modules
    assert not modules & {"transformers", "torch._dynamo", "sympy", "scipy.optimize", "torchmetrics"}


def test_suspects_name_the_extra_where_it_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "cleanlab", None)
    monkeypatch.setitem(sys.modules, "cleanlab.filter", None)
    rows = checking.Rows([{"text": "a", "label": "b"}], ["line 2"])
    with pytest.raises(MissingPackageError, match=r"pip install 'probattn\[labels\]'"):
        suspects(rows)


def test_wrong_labels_are_suspected(command):
    pytest.importorskip(
        "cleanlab", reason="needs the extra `labels`, which the environment of the tests leaves out"
    )
    draw = random.Random(0)
    words = {name: ["".join(draw.choices(SYLLABLES, k=3)) for _ in range(8)] for name in CLASSES}
    common = ["".join(draw.choices(SYLLABLES, k=2)) for _ in range(100)]
    texts = [
        (" ".join([*draw.sample(words[name], 3), *draw.sample(common, 5)]), name) for name in CLASSES * 100
    ]
    wrong = set(draw.sample(range(300), 15))
    rows = [[text, CLASSES[(CLASSES.index(name) + (n in wrong)) % 3]] for n, (text, name) in enumerate(texts)]
    write(Path("a.csv"), [*rows, ["alone", "few"], ["", "billing"]])
    checked = json.loads(succeeds("check", "a.csv", "--suspects", "--json", "-o", "flagged.jsonl"))
    lines = {item["line"]: item for item in checked["suspects"]}
    planted = {row + 2 for row in wrong} & set(lines)
    assert len(planted) >= 10 and len(planted) >= 0.6 * len(lines)
    assert all(texts[line - 2][1] == lines[line]["suggestion"] for line in planted)
    assert checked["accuracy"] > 0.85
    written = [json.loads(line) for line in Path("flagged.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [row["line"] for row in written if row["problem"] == "suspected label"] == list(lines)
    shown = succeeds("check", "a.csv", "--suspects")
    assert f"{len(lines)} of 300 labels are suspect" in shown
    write(Path("b.csv"), rows[:9])
    assert "classes of 5 rows, got 0 such" in refused("check", "b.csv", "--suspects")


if __name__ == "__main__":
    for name, damaged in FILES.items():
        write(Path(sys.argv[1], name), damaged()[0])
