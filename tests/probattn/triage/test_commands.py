"""``triage`` and ``predict --policy`` on a tiny run."""

import csv
import json
import math
import re
import shutil
from collections import Counter
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from probattn.data import TextDataset
from probattn.inference import Explanation, FeatureDistance, explain
from probattn.tasks import RunError, devices, run_task
from probattn.tasks.classification.task import Classification
from probattn.triage import Seen, TriageOptions, TriageResults, dataset_shift, read_policy, write_policy
from probattn.triage.calibration import error_curve
from probattn.triage.page import WORDS, triage_table
from probattn.triage.policy import score_of
from probattn.triage.running import judge, triage_run

pytestmark = pytest.mark.filterwarnings("ignore::probattn.data.DataWarning")


@pytest.fixture(scope="module")
def triaged(run, command, tmp_path_factory):
    """A run with a policy, and what the command said."""
    folder = tmp_path_factory.mktemp("triage") / "run"
    shutil.copytree(run, folder)
    done = command("triage", folder, "--error", "0.9", "--sets", "lac", "--num-samples", "3", "--quiet")
    assert done.exit_code == 0, done.output
    return folder, done


def test_a_policy_that_answers_other_inputs_says_what_leaves_them(triaged):
    results = TriageResults.model_validate_json((triaged[0] / "triage.json").read_bytes())
    words = "are answered too; with --novelty 0.05 the policy abstains from inputs far from"
    notes = triage_table(results).notes
    assert words in notes[1] and results.outcomes[2].title in notes[1]
    others = [item.model_copy(update={"answered": 0}) for item in results.outcomes[2:]]
    none = results.model_copy(update={"outcomes": (*results.outcomes[:2], *others)})
    assert not any(words in note for note in triage_table(none).notes)


def test_it_prints_what_can_be_answered_and_writes_a_policy_and_a_page(triaged):
    folder, done = triaged
    assert "by target error rate" in done.stdout and "not guaranteed" in done.stdout
    assert f"policy: {folder / 'policy.json'}" in done.stdout and "next: probattn predict" in done.stdout
    assert all(len(line) <= 200 for line in done.stdout.splitlines())
    results = TriageResults.model_validate_json((folder / "triage.json").read_bytes())
    policy = read_policy(folder)
    assert results.policy == policy and policy.classes == ("negative", "positive")
    first, shifted, other = results.outcomes
    assert (first.role, shifted.role, other.role) == ("in_domain", "shifted", "out_of_domain")
    assert first.answered == policy.limits[0].answered > 0 and first.size == policy.size
    assert other.errors is None and other.wrong is None
    assert (folder / "triage.json").read_bytes().startswith(b'{\n "kind": "triage",\n')
    lines = (folder / "held_out" / "validation.jsonl").read_text(encoding="utf-8").splitlines()[1:]
    validation = [json.loads(line) for line in lines]
    scores = [score_of(answer, policy.score) for answer in validation]
    assert results.pilot == dataset_shift(Seen.of(scores, [it["label"] for it in validation]), policy.held)
    assert not results.examples  # every input is answered
    page = (folder / "triage.html").read_text(encoding="utf-8")
    for words in (
        "What can be answered",
        "What the policy does",
        "By class",
        "What a decision costs",
        "Conformal sets",
    ):
        assert words in page
    assert "Undefined" not in page and "None" not in page


@pytest.mark.slow
def test_predictions_of_an_evaluation_serve(run, command, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(run, folder, ignore=shutil.ignore_patterns("held_out"))
    assert command("evaluate", folder, "--num-samples", "3", "--quiet").exit_code == 0
    evaluated = {file.name: file.read_bytes() for file in (folder / "held_out").iterdir()}
    times = {file.name: file.stat().st_mtime_ns for file in (folder / "held_out").iterdir()}
    assert evaluated.keys() == {"test.jsonl", "shifted.jsonl", "out_of_domain.jsonl"}
    texts = {name: content.count(b"\n") - 1 for name, content in evaluated.items()}
    done = command("triage", folder, "--error", "0.9", "--num-samples", "3", "--quiet")
    assert done.exit_code == 0, done.output
    kept = {file.name: file.read_bytes() for file in (folder / "held_out").iterdir()}
    assert kept.pop("validation.jsonl") and kept == evaluated
    assert all((folder / "held_out" / name).stat().st_mtime_ns == time for name, time in times.items())
    with (folder / "predictions.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    expected = Counter(row["data"] for row in rows)
    assert {name.removesuffix(".jsonl"): size for name, size in texts.items()} == expected
    tests = [row for row in rows if row["data"] == "test"]
    for row, line in zip(tests, evaluated["test.jsonl"].decode().splitlines()[1:], strict=True):
        assert json.loads(line)["entropy"] == pytest.approx(float(row["entropy"]), abs=1e-6)
        assert json.loads(line)["label"] == row["label"]


def test_predictions_are_kept_for_the_network_and_the_recipe_that_made_them(run, command, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(run, folder, ignore=shutil.ignore_patterns("held_out"))
    options = ["triage", folder, "--error", "0.9", "--num-samples", "2", "--quiet"]

    def predicted_anew():
        before = {file: file.stat().st_mtime_ns for file in (folder / "held_out").iterdir()}
        assert command(*options).exit_code == 0
        return [file.stat().st_mtime_ns != time for file, time in before.items()]

    assert command(*options).exit_code == 0 and not any(predicted_anew())
    recipe = folder / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace("max_length: null", "max_length: 9", 1))
    assert all(predicted_anew())
    manifest = folder / "model" / "manifest.json"
    manifest.write_bytes(manifest.read_bytes() + b"\n")
    assert all(predicted_anew())
    assert command("evaluate", folder, "--limit", "2", "--num-samples", "2", "--quiet").exit_code == 0
    assert not any(predicted_anew())


def test_policies_are_those_of_predictions_that_are_kept(triaged, command):
    folder, _ = triaged
    kept = {file: file.stat().st_mtime_ns for file in (folder / "held_out").iterdir()}
    expected = {*("validation.jsonl", "test.jsonl", "shifted.jsonl", "out_of_domain.jsonl")}
    assert {file.name for file in kept} == expected
    options = ["--error", "0.8", "--num-samples", "3", "--quiet", "--output", folder / "other" / "mine.json"]
    assert command("triage", folder, *options).exit_code == 0
    assert {file: file.stat().st_mtime_ns for file in (folder / "held_out").iterdir()} == kept
    assert read_policy(folder / "other" / "mine.json").error == 0.8
    (folder / "held_out" / "test.jsonl").write_text("{damaged", encoding="utf-8")
    done = command("triage", folder, *options)
    assert done.exit_code == 0
    assert json.loads((folder / "held_out" / "test.jsonl").read_text().splitlines()[0])["num_samples"] == 3


def test_the_page_has_the_words_of_inputs_for_a_person(run, command, tmp_path):
    folder = shutil.copytree(run, tmp_path / "run")
    done = command("triage", folder, "--error", "0.001", "--num-samples", "3", "--quiet")
    assert done.exit_code == 0, done.output
    results = TriageResults.model_validate_json((folder / "triage.json").read_bytes())
    lines = (folder / "held_out" / "test.jsonl").read_text(encoding="utf-8").splitlines()[1:]
    entropies = [json.loads(line)["entropy"] for line in lines]
    texts = run_task(folder).texts.test.texts
    expected = sorted(zip(entropies, texts, strict=True), key=lambda item: -item[0])[:3]
    assert [(item.example.entropy, item.example.text) for item in results.examples] == expected
    assert all(item.explanation.texts == (item.example.text,) for item in results.examples)
    page = (folder / "triage.html").read_text(encoding="utf-8")
    assert "For human review: the most uncertain inputs, and their words" in page


def test_predictions_follow_the_policy(triaged, command, tmp_path, monkeypatch):
    """A threshold between the two texts: one is answered, the other goes to a person with the words behind it."""
    for method in (Explanation.words_for, Explanation.words_against, Explanation.causes_of_doubt):
        monkeypatch.setattr(method, "__defaults__", (3, 1e-12))  # a network of chance
    folder, _ = triaged
    texts = ["the film was good", "a bad plot"]
    plain = [
        json.loads(line)
        for line in command("predict", folder, *texts, "--json", "--num-samples", "3").stdout.splitlines()
    ]
    scores = [1 - each["probability"] for each in plain]
    policy = read_policy(folder)
    limit = policy.limits[0].model_copy(update={"threshold": sum(scores) / 2})
    place = tmp_path / "policy.json"
    place.write_text(policy.model_copy(update={"limits": (limit,)}).model_dump_json(), encoding="utf-8")
    done = command("predict", folder, *texts, "--json", "--policy", place)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    surer = scores.index(min(scores))
    assert answers[surer]["decision"] == "answer"
    unsure = answers[1 - surer]
    assert unsure["decision"] == "person" and unsure["set"][0] == unsure["label"]
    network = run_task(folder).network(folder)
    (explanation,) = explain(network.net, network.codec, texts[1 - surer])
    assert {name: unsure[name] for name in WORDS} == explanation.columns() and any(
        explanation.columns().values()
    )
    assert all(answers[surer][name] == [] for name in WORDS)
    shown = command("predict", folder, *texts, "--policy", place)
    assert "unsure about" in shown.stdout and "Guarantee: error of at most 90%" in shown.stdout

    (tmp_path / "new.csv").write_text("text\n" + "\n".join(texts) + "\n", encoding="utf-8")
    options = [
        "--input",
        tmp_path / "new.csv",
        "--output",
        tmp_path / "out.jsonl",
        "--policy",
        place,
        "--quiet",
    ]
    done = command("predict", folder, *options)
    assert done.exit_code == 0
    assert "decisions: 1 of 2 answered (50.0%; of the held-out inputs" in done.stdout
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [row["decision"] for row in rows] == [each["decision"] for each in answers]
    first = ["text", "decision", "why", "label", "probability", "reviewed", "likeliest", *WORDS]
    assert list(rows[0])[: len(first)] == first and not any(name.startswith("p_") for name in rows[0])
    assert [row["why"] for row in rows] == [["unsure"] if row["decision"] == "person" else [] for row in rows]
    assert rows[0]["likeliest"][0].startswith(rows[0]["label"]) and rows[0]["reviewed"] is None
    assert rows[1 - surer]["set"] == unsure["set"]
    shown = command("predict", folder, *options[:2], "--policy", place, "--quiet").stdout
    (row,) = [row for row in csv.DictReader(shown.splitlines()) if row["decision"] == "person"]
    assert all(row[name] == "; ".join(unsure[name]) for name in ("set", *WORDS))
    done = command("predict", folder, "a film", "--policy", place, "--num-samples", "5")
    assert done.exit_code == 2 and "--num-samples 5: expected no such option beside --policy" in done.output


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--error", "2"], "triage: --error: expected a number in (0, 1), got 2.0"),
        (["--cost", "-1"], "triage: --cost: expected a number > 0, got -1.0"),
        (["--cost", "5", "--sets", "lac"], "sets: expected a target error rate"),
        (["--data", "nowhere.csv"], "nowhere.csv"),
    ],
)
def test_bad_options_in_one_line(triaged, command, options, words):
    done = command("triage", triaged[0], *options)
    assert done.exit_code == 2 and words in done.output and "Traceback" not in done.output


def test_own_held_out_data(triaged, command, reviews, tmp_path):
    place, own = tmp_path / "policy.json", tmp_path / "own_reviews.csv"
    header, *lines = reviews.read_text().splitlines()
    own.write_text("\n".join([header, *(f"indeed {line}" for line in lines)]) + "\n")
    options = ["--data", own, "--cost", "3", "--num-samples", "3", "--output", place, "--quiet"]
    done = command("triage", triaged[0], *options)
    assert done.exit_code == 0, done.output
    policy = read_policy(place)
    assert policy.size == 120 and policy.error is None and policy.cost == 3
    assert "if a wrong answer costs 3 times a human review" in done.stdout and "reviews" in policy.data
    page = (tmp_path / "triage.html").read_text()
    assert f"probattn triage NEW_FOLDER --cost 3.0 --num-samples 3 --data {own}" in page
    known = run_task(triaged[0]).texts.train
    rows = [
        f"{text},{known.label_names[label]}" for text, label in zip(known.texts, known.labels, strict=True)
    ]
    (tmp_path / "known.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    options = ["--data", tmp_path / "known.csv", "--quiet", "--output", tmp_path / "none.json"]
    done = command("triage", triaged[0], *options)
    assert done.exit_code == 2 and "expected inputs that the run was not trained on" in done.output
    kept = own.read_bytes()
    done = command("triage", triaged[0], "--quiet", "--output", own)
    assert done.exit_code == 2 and "is there and is no policy; give another --output" in done.output
    assert own.read_bytes() == kept
    done = command("triage", triaged[0], "--error", "0.9", "--output", place, "--num-samples", "3")
    assert f"{place} is replaced (guarantee: none; the least cost" in done.stderr


@pytest.mark.slow
def test_the_closed_form_is_predicted_by_as_it_was_calibrated(triaged, command, tmp_path):
    place = tmp_path / "policy.json"
    options = [
        "--uncertainty",
        "moments",
        "--error",
        "0.9",
        "--num-samples",
        "3",
        "--output",
        place,
        "--quiet",
    ]
    assert command("triage", triaged[0], *options).exit_code == 0
    assert read_policy(place).uncertainty == "moments"
    given, draws = ["a bad plot", "--json"], ["--num-samples", "3"]
    plain = json.loads(command("predict", triaged[0], *given, *draws, "--uncertainty", "moments").stdout)
    decided = json.loads(command("predict", triaged[0], *given, "--policy", place).stdout)
    assert decided["probability"] == plain["probability"]
    drawn = json.loads(command("predict", triaged[0], *given, *draws).stdout)
    assert drawn["probability"] != plain["probability"]


def test_a_policy_belongs_to_its_network(triaged, command, tmp_path):
    folder, _ = triaged
    policy = read_policy(folder)
    assert policy.network is not None
    other = tmp_path / "policy.json"
    write_policy(policy.model_copy(update={"network": "another"}), other)
    done = command("predict", folder, "a film", "--policy", other)
    assert done.exit_code == 2 and "got one for another, or for longer or shorter inputs" in done.output
    write_policy(policy.model_copy(update={"network": None}), other)  # of Python's calibrate
    done = command("predict", folder, "a film", "--policy", other)
    assert done.exit_code == 2 and "got one that names no network" in done.output
    copy = shutil.copytree(folder, tmp_path / "copy")
    assert command("predict", copy, "a film", "--policy", folder).exit_code == 0
    recipe = copy / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace("max_length: null", "max_length: 4"))
    assert "got one for another, or" in command("predict", copy, "a film", "--policy", folder).output


@pytest.mark.slow
def test_a_network_without_a_manifest_is_known_by_its_files(triaged, command, tmp_path):
    """Deleting the manifest is the advice for a folder that was changed on purpose: it is another network then."""
    folders = [shutil.copytree(triaged[0], tmp_path / name) for name in ("one", "other")]
    for folder in folders:
        (folder / "model" / "manifest.json").unlink()
        assert command("predict", folder, "a film", "--policy", triaged[0]).exit_code == 0
    one, other = folders
    weights = load_file(other / "model" / "model.safetensors")
    weights["classifier.weight"] *= -1
    save_file(weights, other / "model" / "model.safetensors", metadata={"format": "pt"})
    options = ("--error", "0.9", "--num-samples", "3", "--quiet")
    assert command("triage", one, *options).exit_code == 0
    assert command("predict", one, "a film", "--policy", one).exit_code == 0
    for policy in (one / "policy.json", _without_network(one, tmp_path)):
        done = command("predict", other, "a film", "--policy", policy)
        assert done.exit_code == 2 and "expected a policy for the network in" in done.output
    shutil.copytree(one / "held_out", other / "held_out", dirs_exist_ok=True)
    assert command("triage", other, *options).exit_code == 0
    names = ("test", "validation", "shifted", "out_of_domain")
    contents = [(folder / "held_out" / f"{name}.jsonl").read_bytes() for folder in folders for name in names]
    assert len(set(contents)) == 8


def _without_network(folder, new):
    return write_policy(read_policy(folder).model_copy(update={"network": None}), new / "none.json")


def test_a_deterministic_network_has_draws_and_no_mutual_information(triaged, monkeypatch, tmp_path):
    folder = shutil.copytree(triaged[0], tmp_path / "run")
    task = run_task(folder)
    network = replace(task.network(folder), key="deterministic")
    monkeypatch.setattr(type(task), "network", lambda *_: network)
    message = r"mutual_information: .* is deterministic, and its mutual information is 0"
    with pytest.raises(RunError, match=message):
        triage_run(task, folder, TriageOptions(score="mutual_information"), output=tmp_path / "policy.json")
    options = TriageOptions(error=0.9, num_samples=3, uncertainty="moments")
    file, results = triage_run(task, folder, options, output=tmp_path / "policy.json")
    assert read_policy(file).uncertainty == results.policy.uncertainty == "draws"


DEFAULTS = ("--error", "0.9", "--sets", "lac", "--num-samples", "3")


@pytest.fixture(scope="module")
def predicted(triaged, command, tmp_path_factory):
    """A run with predictions of its held-out data that serve the options :data:`DEFAULTS`."""
    folder = shutil.copytree(triaged[0], tmp_path_factory.mktemp("predicted") / "run")
    assert command("triage", folder, *DEFAULTS, "--quiet").exit_code == 0
    return folder


@pytest.mark.parametrize(
    ("line", "old", "new", "words"),
    [
        (0, '"data"', '"data', "line 1: expected JSON, got"),
        (
            3,
            '"label": "',
            '"label": "x',
            "line 4: at the whole: expected a label among its classes negative, positive, got 'x",
        ),
        (
            2,
            '"negative": 0.',
            '"negative": -0.',
            "line 3: at the whole: expected probabilities >= 0 that sum to 1",
        ),
        (
            4,
            '"negative": 0.',
            '"negative": 1.',
            "line 5: at the whole: expected probabilities >= 0 that sum to 1",
        ),
        (5, '"entropy": ', '"entropy": NaN, "x": ', "line 6: at entropy: Input should be a finite number"),
        (6, "{", "[", "line 7: expected JSON, got"),
        (7, '"entropy": 0.', '"entropy": 1.', "jsonl: expected the lines that were written, got others"),
    ],
)
def test_damaged_predictions_are_named_and_made_anew(predicted, command, tmp_path, line, old, new, words):
    folder = shutil.copytree(predicted, tmp_path / "run")
    file = folder / "held_out" / "test.jsonl"
    whole, policy = file.read_bytes(), read_policy(folder)
    lines = file.read_text(encoding="utf-8").splitlines()
    assert old in lines[line]
    lines[line] = lines[line].replace(old, new, 1)
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    done = command("triage", folder, *DEFAULTS)
    assert done.exit_code == 0 and words in " ".join(done.stderr.split())
    assert file.read_bytes() == whole and read_policy(folder) == policy


def _limits(policy, *changes):
    return policy["limits"].__setitem__(
        slice(None), [{**policy["limits"][0], **change} for change in changes]
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda it: _limits(it, {"answered": 10**6}), "limits.0: expected errors <= answered <= size"),
        (lambda it: _limits(it, {"errors": it["size"] + 1}), "expected errors <= answered <= size"),
        (lambda it: _limits(it, {"threshold": None}), "expected no answers and no bound without a threshold"),
        (lambda it: _limits(it, {}, {"label": "negative"}), "expected one for all inputs, or one for each"),
        (
            lambda it: _limits(it, {"label": "negative"}, {"label": "negative"}),
            "or one for each of the classes",
        ),
        (lambda it: _limits(it, {"label": "negative"}), "or one for each of the classes negative, positive"),
        (lambda it: _limits(it, {"label": "nosuch"}), "or one for each of the classes negative, positive"),
        (lambda it: _limits(it, {"size": it["size"] + 1}), "limits: expected as many inputs as size"),
        (lambda it: it.update(classes=it["classes"] * 2), "classes: expected different names"),
        (lambda it: it.update(size=10**9), "at size: Input should be less than or equal to 100000000"),
        (lambda it: it.update(num_samples=10**9), "at num_samples: Input should be less than"),
        (lambda it: it["held"].update(scores=[]), "at held: expected"),
        (lambda it: it["held"].update(distances=[1.0]), "at held: expected"),
        (lambda it: it["held"].update(predicted={"negative": 2**40}), "at held: expected"),
        (
            lambda it: it["held"].update(predicted={"x": it["size"]}),
            "expected the classes of the policy, got 'x'",
        ),
    ],
)
def test_a_policy_is_read_as_a_whole(predicted, command, tmp_path, change, words):
    """What does not belong together is refused before anything is written."""
    folder = predicted
    content = json.loads((folder / "policy.json").read_text(encoding="utf-8"))
    change(content)
    (tmp_path / "policy.json").write_text(json.dumps(content), encoding="utf-8")
    (tmp_path / "in.csv").write_text("text\na film\n", encoding="utf-8")
    output = tmp_path / "out.csv"
    done = command(
        "predict", folder, "--policy", tmp_path, "--input", tmp_path / "in.csv", "--output", output
    )
    assert done.exit_code == 2 and words in done.stderr and len(done.stderr.splitlines()) == 1, done.output
    assert not output.exists()


def test_two_policies_in_a_folder_have_pages_of_their_own(triaged, command, tmp_path):
    for name in ("policy", "urgent"):
        place = tmp_path / f"{name}.json"
        done = command("triage", triaged[0], "--error", "0.9", "--num-samples", "3", "-o", place, "--quiet")
        assert done.exit_code == 0, done.output
    assert f"report: {tmp_path / 'urgent.triage.html'}" in done.stdout
    names = {
        "policy.json",
        "triage.html",
        "triage.json",
        "urgent.json",
        "urgent.triage.html",
        "urgent.triage.json",
    }
    assert {file.name for file in tmp_path.iterdir()} == names


def test_a_policy_needs_columns(triaged, command, tmp_path):
    given = tmp_path / "new.txt"
    given.write_text("a film\n", encoding="utf-8")
    options = ["predict", triaged[0], "--input", given, "--policy", triaged[0], "--quiet"]
    done = command(*options, "--output", tmp_path / "out.txt")
    assert done.exit_code == 2 and "beside a policy, got plain text" in done.output
    shown = command(*options)
    assert shown.exit_code == 0, shown.output
    header, row = (line.split("\t") for line in shown.stdout.splitlines()[:2])
    assert header[:2] == ["text", "decision"] and row[0] == "a film" and "label" in header


def test_rows_without_a_text_go_to_a_person(triaged, command, tmp_path):
    folder, _ = triaged
    place, out = tmp_path / "new.csv", tmp_path / "out.jsonl"
    given = {"1": " ", "2": "the film was good", "3": "", "4": "a bad plot", "5": ""}
    place.write_text("id,text\n" + "".join(f'{name},"{text}"\n' for name, text in given.items()))
    done = command("predict", folder, "--input", place, "--policy", folder, "--output", out, "--quiet")
    assert done.exit_code == 0, done.output
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert {row["id"]: row["text"] for row in rows} == given
    whole = [
        json.loads(command("predict", folder, given[each], "--policy", folder, "--json").stdout)
        for each in "24"
    ]
    for row, answer in zip((rows[1], rows[3]), whole, strict=True):
        assert row["label"] == answer["label"] and row["decision"] == answer["decision"]
    for row in (rows[0], rows[2], rows[4]):
        assert row["decision"] == "person" and row.keys() == rows[1].keys()
        told = {name for name, value in row.items() if value is not None}
        assert (
            told == {"id", "text", "decision", "why", *WORDS}
            and row["why"] == ["no text"]
            and not any(row[name] for name in WORDS)
        )
    assert f"predictions: {out} (5 rows)" in done.stdout and "of 2 answered" in done.stdout
    assert "; 3 rows without a text, too" in done.stdout
    assert command("predict", folder, "--input", place, "--quiet").exit_code == 2  # without a policy

    lines = tmp_path / "lines.txt"
    lines.write_text("\nthe film was good\n\na bad plot\n\n")
    done = command("predict", folder, "--input", lines, "--policy", folder, "--quiet")
    table = list(csv.DictReader(done.stdout.splitlines(), delimiter="\t"))
    assert [row["text"] for row in table] == ["", "the film was good", "", "a bad plot"]
    assert [row["decision"] for row in table][::2] == ["person"] * 2
    place.write_text('text\n" "\n')
    done = command("predict", folder, "--input", place, "--policy", folder, "--quiet")
    assert done.exit_code == 0 and done.stdout.split() == [
        "text,decision,why,words_for,words_against,unsure_about",
        ",person,no",
        "text,,,",
    ]


def test_copies_and_texts_that_chose_the_network_are_told(run, command, tmp_path):
    folder = shutil.copytree(run, tmp_path / "run")
    texts = run_task(folder).texts
    rows = [(texts.validation.texts[0], texts.label_names[0])] * 3
    rows += [(f"a film {number % 4}", texts.label_names[1]) for number in range(5)]
    own = tmp_path / "own.csv"
    lines = [",".join(f'"{field}"' for field in row) for row in [("text", "label"), *rows]]
    own.write_text("\n".join(lines) + "\n", encoding="utf-8")
    done = command("triage", folder, "--data", own, "--error", "0.9", "--num-samples", "2", "--quiet")
    said = " ".join(done.output.split())
    for words in (
        "3 of its 8 inputs are in the training or validation data too and are left out.",
        "1 of its 5 inputs are copies of others",
    ):
        assert words in said and words in (folder / "triage.html").read_text()
    assert read_policy(folder).size == 5


def test_a_run_without_classes_is_refused(translation_run, command):
    done = command("triage", translation_run)
    assert done.exit_code == 2
    assert (
        "expected a run of classes, choices, images, labels, numbers, spans or tokens, got one of translation"
        in done.output
    )
    done = command("predict", translation_run, "ein haus", "--policy", translation_run)
    assert done.exit_code == 2 and "`probattn triage RUN` makes one" in done.output


def test_a_shifted_file_is_warned_of(triaged, command, tmp_path):
    """The held-out texts themselves are alike; thirty copies of one text are not."""
    folder, _ = triaged
    policy = read_policy(folder)
    held = [json.loads(line) for line in (folder / "held_out" / "test.jsonl").read_text().splitlines()[1:]]
    assert policy.held.predicted == Counter(each["label"] for each in held) and policy.held.size == len(held)
    task = run_task(folder)
    for name, texts, unlike in (("same", task.texts.test.texts, False), ("other", ["a bad plot"] * 30, True)):
        file = tmp_path / f"{name}.txt"
        file.write_text("\n".join(texts), encoding="utf-8")
        options = ["--input", file, "--policy", folder, "--quiet"]
        done = command("predict", folder, *options, "--output", tmp_path / f"{name}.csv")
        assert done.exit_code == 0 and f" of {len(texts)} answered" in done.stdout
        assert ("warning: distribution shift: these inputs differ" in done.stderr) is unlike
        done = command("predict", folder, *options)
        assert "answered" not in done.stdout and "decisions: " in done.stderr  # standard output has the rows


@pytest.fixture(scope="module")
def by_distance(run, command, tmp_path_factory):
    """A run with a policy that leaves far inputs to a person, and what the command said."""
    folder = tmp_path_factory.mktemp("novelty") / "run"
    shutil.copytree(run, folder)
    options = ["--error", "0.9", "--novelty", "0.2", "--num-samples", "3", "--quiet"]
    done = command("triage", folder, *options)
    assert done.exit_code == 0, done.output
    return folder, done


def test_far_inputs_go_to_a_person(by_distance, command, tmp_path):
    """Distances are those of the features of the network, and the files, the table and the page say so."""
    folder, done = by_distance
    said, heading = " ".join(done.stdout.split()), done.stdout.splitlines()[0]
    assert "20% of in-domain inputs or fewer, on average" in said
    results = TriageResults.model_validate_json((folder / "triage.json").read_bytes())
    policy = results.policy
    assert policy == read_policy(folder) and policy.novelty.share == 0.2 and heading.endswith("far")
    (own,) = (each.limit for each in results.promises if each.error == policy.error)
    assert own == policy.limits[0]
    assert results.outcomes[0].far == policy.size - (math.ceil((policy.size + 1) * 0.8) - 1)
    page = (folder / "triage.html").read_text(encoding="utf-8")
    assert "by the features of the last layer" in page and ">Far<" in page and "--novelty 0.2" in page

    task = run_task(folder)
    network = run_task(folder).network(folder)
    distance = FeatureDistance.fit(task.features(network, task.texts.train))
    given = task.deciding.held_out()["test"]
    held = judge(task.deciding, folder, "test", given, task.answering.drawing(policy.drawing))
    held = held.at_distances(distance(task.features(network, given.as_texts()).inputs)).rows(given.unseen)
    assert results.curve == error_curve(held.near(policy.novelty), policy.score)
    assert results.curve != error_curve(held, policy.score)
    texts = ["the film was good", "a bad plot", "plot plot plot plot plot plot", "a film"]
    given = TextDataset(tuple(texts), None, (), "given")
    expected = distance(task.features(network, given).inputs) / policy.novelty.threshold
    answers = [
        json.loads(line)
        for line in command("predict", folder, *texts, "--json", "--policy", folder).stdout.splitlines()
    ]
    assert [each["novelty"] for each in answers] == pytest.approx(expected.tolist(), abs=2e-3)
    assert "distance" not in answers[0]
    for each in answers:
        assert each["novelty"] < 1 or each["decision"] == "person"
    shown = command("predict", folder, *texts, "--policy", folder).stdout
    assert re.search(r"^.* novelty\n(.|\n)*their\s+novelty\s+is\s+1\s+or\s+more", shown)

    place, out = tmp_path / "new.csv", tmp_path / "out.csv"
    place.write_text("text\n" + "\n".join([*texts[:2], '""', *texts[2:]] * 20) + "\n")
    options = ["--input", place, "--output", out, "--policy", folder, "--quiet"]
    done = command("predict", folder, *options)
    assert done.exit_code == 0, done.output
    with out.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    told = [row["novelty"] for row in rows[:5]]
    assert told.pop(2) == "" and list(map(float, told)) == pytest.approx(expected.tolist(), abs=2e-3)
    far = 20 * sum(each["novelty"] >= 1 for each in answers)
    assert f"for human review, {far} of them far from the training data" in done.stdout


def test_everything_far_is_left_to_a_person_and_told(by_distance, command, tmp_path):
    folder, _ = by_distance
    policy = read_policy(folder)
    near = policy.novelty.model_copy(update={"threshold": 1e-9})
    write_policy(policy.model_copy(update={"novelty": near}), tmp_path / "policy.json")
    shutil.copy(folder / "triage.features.safetensors", tmp_path)
    given = ["the film was good", "--policy", tmp_path, "--json"]
    answer = json.loads(command("predict", folder, *given).stdout)
    assert answer["decision"] == "person" and answer["novelty"] > 1


@pytest.mark.slow
def test_features_belong_to_their_policy(by_distance, command, tmp_path):
    folder, _ = by_distance
    copy = shutil.copytree(folder, tmp_path / "copy")
    features = copy / "triage.features.safetensors"
    content = features.read_bytes()
    for change, got in (
        (lambda: features.write_bytes(content + b" "), "others"),
        (features.unlink, "no such file"),
    ):
        change()
        done = command("predict", copy, "a film", "--policy", copy)
        assert done.exit_code == 2
        assert f"got {got}; keep it beside the policy" in " ".join(done.output.split())
    assert "--novelty 0.2" in done.output
    options = ["--error", "0.9", "--num-samples", "3", "--quiet"]
    shutil.rmtree(copy / "held_out")
    done = command("triage", copy, *options, "--novelty", "0.001")
    assert done.exit_code == 2 and "expected 999 held-out inputs or more" in done.output
    assert read_policy(copy).novelty.share == 0.2  # the policy of before is kept
    assert not (copy / "held_out").exists()  # refused before anything is predicted
    assert command("triage", copy, *options, "--novelty", "0.2", "-o", copy / "far.json").exit_code == 0
    assert (copy / "far.triage.features.safetensors").read_bytes() == content
    assert command("predict", copy, "a film", "--policy", copy / "far.json").exit_code == 0
    moved = shutil.copytree(copy, tmp_path / "moved")
    recipe = moved / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace("reviews.csv", "gone.csv"))
    assert command("triage", moved, *options).exit_code == 2  # the data are not there
    assert command("predict", moved, "a film", "--policy", moved / "far.json").exit_code == 0
    assert command("triage", copy, *options).exit_code == 0
    assert not features.exists() and (copy / "far.triage.features.safetensors").exists()


def test_a_device_is_that_of_the_network_that_measures_distances_too(by_distance, command, monkeypatch):
    folder, _ = by_distance
    own, seen = Classification.network, []

    def network(task, run):
        seen.append(devices._CHOSEN.get())
        return own(task, run)

    monkeypatch.setattr(Classification, "network", network)
    assert command("predict", folder, "a film", "--policy", folder, "--device", "cpu").exit_code == 0
    assert len(seen) > 2 and set(seen) == {torch.device("cpu")}
