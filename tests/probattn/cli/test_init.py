"""``probattn init`` with files of any name, and what it says of their labels."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from runs import succeeds

from probattn.cli.console import wrapped
from probattn.recipes import load_any_recipe
from probattn.tasks import ProgramTask, load_task
from probattn.tasks.sections.base import RunRecipe, run_name

NAMES = (
    "Tickets Q3 (export)",
    "tickets (1)",
    "q3&q4",
    "_t",
    "tickets, final",
    "[x]",
    "äö",
    "a+b",
    "données",
    "TICKETS",
    "'; rm *",
    "hub:x",
)


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def write(name, header, rows):
    """A file with semicolons."""
    lines = [header, *(";".join(map(str, row)) for row in rows)]
    Path(name).write_text("\n".join(lines) + "\n", encoding="utf-8")


@given(st.text())
def test_any_text_gives_a_name_of_a_run(stem):
    assert RunRecipe(name=run_name(stem)).name == run_name(stem)


@given(st.from_regex(r"\A[A-Za-z0-9][A-Za-z0-9_ .-]*[A-Za-z0-9_]\Z"))
def test_a_usual_name_stays(stem):
    assert run_name(stem) == stem


@pytest.mark.parametrize("name", NAMES)
def test_a_file_of_any_name_is_a_recipe_that_finds_it(command, name):
    write(f"{name}.csv", "text;label", [(f"text {n}", "ab"[n % 2]) for n in range(40)])
    result = command("init", f"{name}.csv")
    assert result.exit_code == 0, result.output
    (file,) = Path().glob("*.yaml")
    recipe = load_any_recipe(file)
    assert Path(recipe.data.train.source) == Path(f"{name}.csv").absolute()
    assert recipe.data.train.build().load("train").counts() == {"a": 20, "b": 20}
    assert recipe.output == f"runs/{recipe.name}"


def test_a_recipe_without_a_name_has_that_of_its_file():
    Path("tickets (2).yaml").write_text("data: {train: my.csv}\n", encoding="utf-8")
    assert load_any_recipe("tickets (2).yaml").output == "runs/tickets-2"


def test_a_recipe_of_ones_file_is_written_anew_with_every_key(command):
    Path("short.yaml").write_text("# Mine.\ndata: {train: my.csv}\n", encoding="utf-8")
    assert command("init", "short.yaml", "-o", "long.yaml").exit_code == 0
    assert Path("long.yaml").read_text(encoding="utf-8").startswith("# Mine.\n")


def test_spellings_of_a_class_are_joined_by_the_recipe(command):
    labels = [
        "card_arrival",
        "card_arrival",
        "Card arrival",
        "refund: no",
        "Refund: no",
        "refund: no",
        "other",
    ]
    write("t.csv", "text;label", [(f"words number {n}", labels[n % 7]) for n in range(70)])
    shown = succeeds("init", "t.csv")
    assert "labels with card_arrival (30), other (10), refund: no (30) in 70 rows" in shown
    for options in ((), ("--full",)):
        succeeds("init", "t.csv", "-o", f"u{len(options)}.yaml", *options)
        train = load_task(f"u{len(options)}.yaml").recipe.data.train
        assert train.label_map == {"Card arrival": "card_arrival", "Refund: no": "refund: no"}
    assert "    label_map:                      # other spellings" in Path("u0.yaml").read_text("utf-8")


def test_other_columns_that_may_be_the_labels_are_named(command):
    rows = [(f"words number {n}", "ab"[n % 2], f"kind {n % 30}", n % 6 / 2 + 0.5, n) for n in range(120)]
    write("t.csv", "text;channel;gold kind;stars;id", rows)
    shown = succeeds("init", "t.csv")
    assert (
        "column 'channel' of labels with a (60), b (60) in 120 rows" in shown
        or "'gold kind' of labels" in shown
    )
    result = "other columns that may be the labels: 'channel' (2 values), 'stars' (6 numbers, 0.5 to 3.0)"
    assert result in shown
    assert "30 classes, kind 0 (4)" in shown and "and 24 more, in 120 rows" in shown
    assert "choose one with --label-column" in shown and "'id'" not in shown
    named = succeeds("init", "t.csv", "--label-column", "channel", "-o", "u.yaml")
    assert "a (60), b (60) in 120 rows" in named and "other columns" not in named


@pytest.mark.parametrize(
    ("labels", "words", "trained"),
    [
        (
            ["x"] * 30,
            "training refuses these labels: t.csv: expected at least two classes to train on, got one",
            False,
        ),
        ([n % 6 / 2 for n in range(30)], "numbers between whole ones are targets of regression", False),
        (list(range(30)), "30 of 30 classes, '0', '1', '2', '3', '4', ...", True),
        ([*["a"] * 29, "b"], "1 of 2 classes, 'b'", True),
        (
            [n % 5 + 1 for n in range(30)],
            "labels that are numbers (all)",
            True,
        ),
        (
            ["Refund", "refund", "card"] * 10,
            "classes that differ in case, blanks, _ or - alone (line 3, 6, 9, 12, 15, ...)",
            True,
        ),
        (["refund ", "card"] * 15, "labels with blanks around them (line 2, 4, 6, 8, 10, ...)", True),
    ],
)
def test_labels_that_cannot_be_meant_are_remarked(command, labels, words, trained):
    write("t.csv", "text;label", [(f"words number {n}", label) for n, label in enumerate(labels)])
    result = command("init", "t.csv")
    assert result.exit_code == 0 and words in result.output
    assert ("next: probattn train t.yaml" in result.output) == trained


def test_enormous_names_are_shortened_on_the_terminal_and_in_the_recipe(command):
    label, column = "l" * 50_000, "c" * 50_000
    write("t.csv", f"text;{column}", [(f"words number {n}", label if n == 7 else n % 2) for n in range(30)])
    shown = command("init", "t.csv").output
    assert "0 (15), 1 (14), lll" in shown and "1 of 3 classes, 'lll" in shown
    assert "column 'ccc" in shown and len(shown) < 2000
    recipe = Path("t.yaml").read_text(encoding="utf-8")
    assert "lll" in recipe and recipe.count("c" * 50_000) == 1 and "l" * 100 not in recipe


def test_the_classes_of_a_training_are_shortened():
    task = SimpleNamespace(sizes=dict, unit="texts", classes=lambda: {"l" * 50_000: 3, "b": 2})
    (line,) = ProgramTask.data_summary(task)
    assert line.startswith("classes: lll") and line.endswith("l 3, b 2 (training)") and len(line) < 100
    task.classes = lambda: {f"c{n}": 7 * n % 13 + 1 for n in range(13)}
    (line,) = ProgramTask.data_summary(task)
    assert line == "classes: 13, of which c0 1, c2 2, c4 3, ..., c7 11, c9 12, c11 13 (training)"


@pytest.mark.parametrize("terminal", [False, True])
def test_lines_break_between_words_on_a_terminal(monkeypatch, terminal):
    monkeypatch.setenv("COLUMNS", "40")
    stream = SimpleNamespace(isatty=lambda: terminal)
    text = f"warning: {'without a word ' * 9}{'x' * 50} out-of-domain\nshort"
    lines = wrapped(text, stream).splitlines()
    assert " ".join(lines).split() == text.split() and lines[-1] == "short"
    if terminal:
        assert all(len(line) <= 40 or line == "x" * 50 for line in lines)
    else:
        assert "\n".join(lines) == text


def test_contradictory_labels_are_told_by_init_and_by_train(command, network):
    rows = [(f"the film was good {n % 100}", "ab"[n // 100]) for n in range(110)]
    write("t.csv", "text;label", rows)
    words = "texts with different labels in different rows"
    assert f"    20  {words} (line 2, 3, 4, 5, 6, ...)" in command("init", "t.csv").output
    words = f"t.csv: {words}: 20 ('a' in line 2 and 'b' in line 102;"
    sets = ["training.steps=1", f"network.name={network}", "report.baseline=false", "data.max_length=null"]
    trained = command("train", "t.yaml", "--quiet", *(part for item in sets for part in ("--set", item)))
    assert trained.exit_code == 0 and words in trained.output


def test_the_recipe_of_a_run_names_its_folder(command, network):
    write("t.csv", "text;label", [(f"the film was good {n}", "ab"[n % 2]) for n in range(110)])
    text = f"data: {{train: t.csv, max_length: null}}\nnetwork: {{name: {network}}}\ntraining: {{steps: 1}}\n"
    Path("t.yaml").write_text(text + "report: {baseline: false}\n", encoding="utf-8")
    succeeds("train", "t.yaml", "-o", "runs/other", "--quiet")
    assert load_any_recipe("runs/other/recipe.yaml").output == "runs/other"
    for recipe in ("t.yaml", "runs/other/recipe.yaml"):
        assert command("train", recipe, "-o", "runs/other", "--resume", "--quiet").exit_code == 0
