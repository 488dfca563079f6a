"""The commands on a tiny network, and what they say to mistakes."""

import gc
import json
import sys

import pytest

import probattn
import probattn.tasks
from probattn.cli.console import kept_imports
from probattn.data import split_of
from probattn.inference.records import read_records


def test_train_leaves_a_whole_run(run):
    records = read_records(run / "metrics.jsonl")
    trained = [record for record in records if record["kind"] == "train"]
    assert [record["step"] for record in trained] == [2, 4, 6]
    assert trained[-1]["sites"].keys() == {f"bert.encoder.layer.{layer}.attention.self" for layer in range(2)}
    assert all(record["kl_nats"] > 0 for record in trained)
    assert read_records(run / "baseline" / "metrics.jsonl")[-1]["kl_nats"] == 0


def test_predict(run, command):
    shown = command("predict", run, "the film was good", "a bad plot", "--num-samples", 5)
    assert shown.exit_code == 0 and "probability" in shown.output
    lines = command("predict", run, "the film was good", "--json").output.strip().splitlines()
    found = json.loads(lines[-1])
    assert found["label"] in {"positive", "negative"}
    assert 0.5 <= found["probability"] <= 1
    assert found["spread"] >= 0
    assert lines == command("predict", run, "the film was good", "--json").output.strip().splitlines()


def test_predict_in_closed_form_agrees_with_many_draws(run, command):
    def found(*options):
        return json.loads(
            command("predict", run, "the film was good", "--json", *options).output.splitlines()[-1]
        )

    moments, drawn = found("--uncertainty", "moments"), found("--num-samples", 300)
    assert moments == found("--uncertainty", "moments", "--seed", 5)
    for name, tolerance in (("entropy", 0.03), ("spread", 0.3), ("mutual_information", 0.6)):
        assert moments[name] == pytest.approx(drawn[name], rel=tolerance)
    assert command("predict", run, "x", "--uncertainty", "mean").exit_code == 2


def test_what_a_command_imports_is_left_out_of_collections_once(monkeypatch):
    def seen():
        gc.unfreeze()
        with kept_imports():
            inside = gc.isenabled()
        found = inside, gc.isenabled(), gc.get_freeze_count() > 0
        gc.unfreeze()
        return found

    assert seen() == (True, True, False)  # all is imported
    with monkeypatch.context() as patched:
        patched.setattr(sys, "modules", {})
        first = seen()
        gc.disable()
        without = seen()
        gc.enable()
    gc.freeze()  # as before
    assert first == (False, True, True)
    assert without == (False, False, False)  # as it was
    gc.freeze()  # as the tests of this folder have it


def test_inspect_and_version(network, command):
    listed = command("inspect", network, "--layers", "0")
    assert listed.exit_code == 0 and "bert.encoder.layer.0.attention.self" in listed.output
    assert "layer.1" not in listed.output
    assert probattn.__version__ in command("--version").output


def bad(tmp_path, recipe, *lines):
    file = tmp_path / "bad.yaml"
    text = recipe.read_text(encoding="utf-8")
    for old, new in lines:
        assert old in text
        text = text.replace(old, new)
    file.write_text(text, encoding="utf-8")
    return file


def refused(result, tmp_path, *words):
    """Exit status 2, one line that says it all, and nothing written."""
    assert result.exit_code == 2, result.output
    lines = [line for line in result.output.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1
    for word in words:
        assert word in lines[0]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("learning_rate: 1e-3", "lerning_rate: 1e-3", ["lerning_rate", "learning_rate", "line"]),
        ("reviews.csv, shifted", "missing.csv, shifted", ["missing.csv"]),
        ("max_length: null", "max_length: 4000", ["max_length", "16"]),
        ("max_length: null", "max_length: 5, on_long: refuse", ["longer than 5 tokens"]),
        ("method: babn", "method: babn, layers: [7]", ["layers", "7"]),
    ],
    ids=["unknown key", "missing file", "limit", "long text", "layer"],
)
@pytest.mark.filterwarnings("ignore::probattn.data.DataWarning")
def test_bad_recipes_are_one_line(recipe, command, tmp_path, old, new, words):
    file = bad(tmp_path, recipe, (old, new))
    refused(command("train", file, "--output", tmp_path / "out", "--quiet"), tmp_path, *words)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"words,label\na,b\nc,d\n", ["text", "words"]),
        (b"text,label\na good film,x\na bad film,x\n", ["at least two classes"]),
        (b"text,label\ncaf\xe9,x\nfilm,y\n", ["UTF-8"]),
    ],
    ids=["column", "one class", "encoding"],
)
def test_bad_data_are_one_line(recipe, command, tmp_path, reviews, content, words):
    data = tmp_path / "bad.csv"
    data.write_bytes(content)
    file = bad(tmp_path, recipe, (str(reviews), str(data)))
    refused(command("train", file, "--output", tmp_path / "out", "--quiet"), tmp_path, *words)


def test_places_that_cannot_be_written_are_one_line(recipe, command, tmp_path):
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "run"):
        result = command("train", recipe, "--output", place, "--quiet")
        refused(
            result, tmp_path, f"{place}: Not a directory; expected a path that this user may read and write"
        )
        assert "Errno" not in result.output


def test_label_outside_the_training_set(recipe, command, tmp_path, reviews):
    data = tmp_path / "other.csv"
    data.write_text("text,label\na film,mixed\n", encoding="utf-8")
    file = bad(tmp_path, recipe, (f"shifted: {reviews}", f"shifted: {data}"))
    refused(command("train", file, "--output", tmp_path / "out", "--quiet"), tmp_path, "mixed")


@pytest.mark.filterwarnings("ignore::probattn.data.DataWarning")
def test_a_class_that_only_held_out_texts_have_is_told(recipe, tmp_path, reviews):
    held = next(text for text in map("film number {}".format, range(99)) if split_of(text) == "test")
    data = tmp_path / "own.csv"
    data.write_text(reviews.read_text(encoding="utf-8") + f"{held},rare\n", encoding="utf-8")
    file = bad(tmp_path, recipe, (str(reviews), str(data)))
    usual = ["training.learning_rate=5e-5"]
    notes = list(probattn.tasks.load_task(file, usual).notes())
    assert notes == ["no training text has the class rare, which cannot be learned"]


@pytest.mark.filterwarnings("ignore::probattn.data.DataWarning")
@pytest.mark.parametrize(
    ("encoder", "rate", "told"), [("bert", 3e-4, 1), ("bert", 1e-4, 0), ("minilm", 3e-4, 0)]
)
def test_a_learning_rate_for_small_encoders_is_told_of_others(recipe, encoder, rate, told):
    keys = [f"network.name={encoder}", f"training.learning_rate={rate}"]
    notes = [note for note in probattn.tasks.load_task(recipe, keys).notes() if "learning_rate" in note]
    assert len(notes) == told
    assert all("those of BERT's size take 2e-5 to 5e-5" in note for note in notes)


def test_folders_that_do_not_fit(run, command, tmp_path):
    for arguments in (("evaluate", tmp_path), ("predict", tmp_path, "x"), ("report", tmp_path / "none")):
        result = command(*arguments)
        assert result.exit_code == 2 and result.output.startswith("error: ")
    assert command("inspect", tmp_path / "nothing").exit_code == 2
    assert command("predict", run, " ").exit_code == 2


def test_help_is_in_groups_the_decision_first(command):
    shown = command("--help").output
    from probattn.cli.app import PANELS

    titles = [shown.index(f"─ {title} ─") for title in PANELS]
    names = [name for names in PANELS.values() for name in names.split()]
    assert titles == sorted(titles) and "─ Commands ─" not in shown  # every command is in a group
    assert [shown.index(f"│ {name} ") for name in names] == sorted(
        shown.index(f"│ {name} ") for name in names
    )
