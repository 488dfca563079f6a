"""Policies of heads whose answers are right or wrong as a whole, by the command line."""

import csv
import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from runs import refused, succeeds
from scipy import stats

from probattn.metrics.functional import conformal_quantile
from probattn.tasks import RunError, load_task, run_task
from probattn.tasks.held_out import HeldOut
from probattn.triage import Policy, TriageOptions, TriageResults, read_policy, triage_run, write_policy

OPTIONS = ("--error", "0.9", "--num-samples", "3", "--quiet")
TOLERANCE = 2.5
HEADS = {
    "tokens": ("the good film", "a plot"),
    "spans": ("the good film", "--pair", "what film"),
    "labels": ("the good film", "a plot"),
    "regression": ("the good film", "a plot"),
}
KEPT = {
    "tokens": {"tags", "probability", "entropy", "mutual_information"},
    "spans": {"answer", "probability", "entropy", "mutual_information"},
    "labels": {"labels", "probability", "entropy", "mutual_information"},
    "regression": {"prediction", "lower_80", "upper_80"},
}


def options_of(name: str) -> tuple[str, ...]:
    further = ("--tolerance", str(TOLERANCE), "--sets", "interval") if name == "regression" else ()
    return (*OPTIONS, *further)


def uncertainty(name: str, answer: dict) -> float:
    """As the page on policies has it."""
    if name == "tokens":
        return 1 - min(answer["probability"])
    if name == "labels":
        return 1 - min(max(p, 1 - p) for p in answer["probability"].values())
    if name == "spans":
        return 1 - answer["probability"]
    deviation = (answer["upper_80"] - answer["lower_80"]) / (2 * stats.norm.ppf(0.9))
    return 2 * stats.norm.sf(TOLERANCE / deviation)


def wrong(name: str, answer: dict, example: dict) -> bool:
    """By the examples, whose only answers, spans and labels are known."""
    if name == "tokens":
        return answer["tags"] != example["tags"]  # all spans are of one word
    if name == "labels":
        return answer["labels"] != "; ".join(example["target"])
    if name == "spans":
        return answer["answer"].lower() not in [text.lower() for text, _ in example["answers"]]
    return abs(answer["prediction"] - example["target"]) > TOLERANCE


@pytest.fixture(params=HEADS)
def triaged(request, reported, tmp_path) -> tuple[str, Path, str]:
    """A head, a run of it with a policy, and what the command said."""
    name = request.param
    place = shutil.copytree(reported(name), tmp_path / name)
    return name, place, succeeds("triage", place, *options_of(name))


@pytest.mark.slow_but("labels")
def test_a_policy_counts_answers_that_are_wrong_as_a_whole(triaged) -> None:
    name, place, shown = triaged
    policy, task = read_policy(place), run_task(place)
    results = TriageResults.model_validate_json((place / "triage.json").read_bytes())
    held_out = task.deciding.held_out()
    rows = [json.loads(line) for line in (place / "held_out" / "test.jsonl").read_text().splitlines()[1:]]
    assert all(row.keys() == KEPT[name] for row in rows) and len(rows) == len(task.examples["test"])
    new = held_out["test"].unseen
    errors = [wrong(name, rows[row], task.examples["test"][row]) for row in new]
    scores = [uncertainty(name, rows[row]) for row in new]
    assert policy.size == len(new) and policy.classes == () and policy.held.predicted == {"": len(new)}
    assert policy.held.scores == pytest.approx(sorted(scores), abs=1e-6)
    assert results.outcomes[0].wrong == sum(errors)
    (limit,) = policy.limits
    answered = [limit.threshold is not None and score <= limit.threshold for score in scores]
    assert limit.answered == sum(answered)
    assert limit.errors == sum(error for error, kept in zip(errors, answered, strict=True) if kept)
    assert results.classes == results.confused == results.examples == () and results.pilot.classes is None
    assert f"An answer is wrong where {policy.wrong_when}." in " ".join(shown.split())
    page = (place / "triage.html").read_text(encoding="utf-8")
    assert policy.wrong_when.replace("'", "&#39;") in page and "By class" not in page
    assert "What a decision costs" in page and "None" not in page and "Undefined" not in page


@pytest.mark.slow_but("labels")
def test_decisions_stand_before_the_usual_columns(triaged, tmp_path) -> None:
    """A threshold between two answers, or below those that are as uncertain; words are left out."""
    name, place, _ = triaged
    words = HEADS[name]
    plain = [
        json.loads(line)
        for line in succeeds("predict", place, *words, "--json", "--num-samples", "3", "--quiet").splitlines()
    ]
    scores = [uncertainty(name, answer) for answer in plain]
    middle = (min(scores) + (max(scores) if max(scores) > min(scores) else 0)) / 2
    policy = read_policy(place)
    limit = policy.limits[0].model_copy(update={"threshold": middle, "bound": 0.5})
    write_policy(policy.model_copy(update={"limits": (limit,)}), place / "policy.json")
    answers = [
        json.loads(line)
        for line in succeeds("predict", place, *words, "--policy", place, "--json", "--quiet").splitlines()
    ]
    expected = ["answer" if score <= middle else "person" for score in scores]
    assert [answer.pop("decision") for answer in answers] == expected and "person" in expected
    assert [answer.pop("why") for answer in answers] == [["unsure"] * (name == "person") for name in expected]
    if name == "regression":
        for answer in answers:
            deviation = (answer["upper_80"] - answer["lower_80"]) / (2 * stats.norm.ppf(0.9))
            low, high = answer.pop("low"), answer.pop("high")
            assert (high - low) / 2 == pytest.approx(policy.sets.threshold * deviation)
            assert (high + low) / 2 == pytest.approx(answer["prediction"])
    assert answers == plain
    table = succeeds("predict", place, *words, "--policy", place, "--quiet")
    assert table.splitlines()[0].split()[0] == "decision" and "An answer is wrong where" in table
    assert [line.split()[0] for line in table.splitlines()[2 : 2 + len(plain)]] == expected
    task = run_task(place)
    column, second = task.answering.columns_read
    out = tmp_path / "out.csv"
    given = tmp_path / "given.jsonl"
    row = {column: words[0], **({second: words[2]} if second else {})}
    given.write_text(json.dumps(row) + "\n" + json.dumps({**row, column: ""}) + "\n", encoding="utf-8")
    succeeds("predict", place, "--input", given, "--output", out, "--policy", place, "--quiet")
    with out.open(newline="", encoding="utf-8") as file:
        first, blank = csv.DictReader(file)
    names = list(first)
    assert names[: len(row) + 2] == [*row, "decision", "why"] and not {"words_for", "reviewed"} & set(names)
    assert first["decision"] == expected[0] and blank["decision"] == "person"


@pytest.mark.slow_but("labels")
def test_options_of_classes_are_refused(triaged) -> None:
    name, place, _ = triaged
    before = (place / "policy.json").read_bytes()
    for options, message in (
        (("--by-class",), "by_class: expected predictions of one class for each input"),
        (("--sets", "aps"), "sets aps: expected predictions of one class for each input"),
        (
            ("--novelty", "0.3"),
            f"--novelty: expected a run that gives one class to each input, got one of {name}",
        ),
    ):
        tolerance = ("--tolerance", str(TOLERANCE)) if name == "regression" else ()
        assert message in refused("triage", place, *OPTIONS, *tolerance, *options)
    if name == "regression":
        assert "--tolerance: expected how far from the true number" in refused("triage", place, *OPTIONS)
        score = ("--tolerance", "1", "--score", "predictive_entropy")
        message = refused("triage", place, *OPTIONS, *score)
        assert "expected answers with entropy and mutual_information, got prediction" in message
    else:
        message = refused("triage", place, *OPTIONS, "--tolerance", "1")
        assert "--tolerance 1: expected a run of numbers with it; leave it out" in message
        assert "sets interval: expected predictions of numbers" in refused(
            "triage", place, *OPTIONS, "--sets", "interval"
        )
    assert (place / "policy.json").read_bytes() == before


def test_damaged_predictions_are_made_anew(triaged) -> None:
    name, place, _ = triaged
    file = place / "held_out" / "test.jsonl"
    whole, policy = file.read_bytes(), read_policy(place)
    lines = file.read_text(encoding="utf-8").splitlines()
    field = "prediction" if name == "regression" else "probability"
    lines[2] = lines[2].replace(f'"{field}"', '"other"', 1)
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    succeeds("triage", place, *options_of(name))
    assert file.read_bytes() == whole and read_policy(place) == policy


def test_other_scores_are_entropies(reported, tmp_path) -> None:
    place = shutil.copytree(reported("labels"), tmp_path / "labels")
    succeeds("triage", place, *OPTIONS, "--score", "expected_entropy")
    policy = read_policy(place)
    rows = [json.loads(line) for line in (place / "held_out" / "test.jsonl").read_text().splitlines()[1:]]
    unseen = run_task(place).deciding.held_out()["test"].unseen
    expected = sorted(rows[row]["entropy"] - rows[row]["mutual_information"] for row in unseen)
    assert policy.held.scores == pytest.approx(expected)


def test_intervals_are_those_of_the_quantile(reported, tmp_path) -> None:
    place = shutil.copytree(reported("regression"), tmp_path / "regression")
    shown = succeeds("triage", place, *options_of("regression"))
    assert "Intervals, low to high, hold the true number with a probability of at least 10%" in " ".join(
        shown.split()
    )
    task = run_task(place)
    rows = [json.loads(line) for line in (place / "held_out" / "test.jsonl").read_text().splitlines()[1:]]
    misses = []
    for row in task.deciding.held_out()["test"].unseen:
        deviation = (rows[row]["upper_80"] - rows[row]["lower_80"]) / (2 * stats.norm.ppf(0.9))
        misses.append(abs(rows[row]["prediction"] - task.examples["test"][row]["target"]) / deviation)
    rule = read_policy(place).sets
    assert rule is not None and rule.score == "interval"
    assert rule.threshold == pytest.approx(conformal_quantile(torch.tensor(misses).double(), error=0.9))
    answer = {"prediction": 1.0, "scale": 0.5, "uncertainty": 0.0}
    policy = read_policy(place)
    assert policy.interval_of(answer) == (1 - rule.threshold / 2, 1 + rule.threshold / 2)
    few = policy.model_copy(update={"sets": rule.model_copy(update={"threshold": None})})
    assert Policy.model_validate(few.model_dump()).decide(answer).interval is None


def test_a_network_without_draws_has_no_uncertain_numbers(reported, monkeypatch) -> None:
    place = reported("regression")
    task = run_task(place)
    network = replace(task.network(place), key="deterministic")
    monkeypatch.setattr(type(task), "network", lambda *_: network)
    with pytest.raises(RunError, match="is deterministic, and all its intervals are as wide"):
        triage_run(task, place, TriageOptions(error=0.9, tolerance=TOLERANCE))


def test_questions_about_one_text_are_told() -> None:
    texts = ["one", "two", "one", "three"]
    inputs = HeldOut("t", "in_domain", "s.json", texts, None, None, about="texts", seen=(3,))
    _, doubt = inputs.doubts()
    assert doubt.startswith(
        "s.json: its 3 inputs are about 2 texts; the guarantee counts them as independent"
    )
    assert not list(HeldOut("t", "in_domain", "s", texts[1:], None, None, about="texts").doubts())


@pytest.mark.parametrize(
    ("name", "answer", "truth", "expected"),
    [
        ("tokens", {"tags": ["B-x", "I-x", "O"]}, ["B-x", "I-x", "O"], False),
        ("tokens", {"tags": ["I-x", "I-x", "O"]}, ["B-x", "I-x", "O"], False),  # the same span
        ("tokens", {"tags": ["B-x", "O", "O"]}, ["B-x", "I-x", "O"], True),
        ("tokens", {"tags": ["B-y", "I-y", "O"]}, ["B-x", "I-x", "O"], True),
        ("spans", {"answer": "The Film"}, (("film", 0), ("plot", 3)), False),
        ("spans", {"answer": "a good film"}, (("film", 0),), True),
        ("spans", {"answer": ""}, (), False),
        ("spans", {"answer": "film"}, (), True),
        ("labels", {"probability": {"a": 0.9, "b": 0.6}}, ["a", "b"], False),
        ("labels", {"probability": {"a": 0.1, "b": 0.5}}, [], False),
        ("labels", {"probability": {"a": 0.9, "b": 0.4}}, ["a", "b"], True),
        ("regression", {"prediction": 1.0}, 1.0 + TOLERANCE, False),
        ("regression", {"prediction": 1.0}, 1.0 - TOLERANCE - 1e-9, True),
    ],
)
def test_what_is_wrong(name, answer, truth, expected, recipe_of) -> None:
    deciding = load_task(recipe_of(name)).deciding
    assert deciding.within(TOLERANCE if name == "regression" else None).wrong(answer, truth) is expected


def test_the_least_confident_decision_counts(recipe_of) -> None:
    tokens, labels = (load_task(recipe_of(name)).deciding for name in ("tokens", "labels"))
    assert tokens.read({"probability": [0.9, 0.6, 0.7]})["uncertainty"] == pytest.approx(0.4)
    assert tokens.read({"probability": []})["uncertainty"] == 1
    assert labels.read({"probability": {"a": 0.9, "b": 0.3}})["uncertainty"] == pytest.approx(0.3)
    numbers = load_task(recipe_of("regression")).deciding.within(1.0)
    wide = numbers.read({"prediction": 0.0, "lower_80": -1.0, "upper_80": 1.0})
    scale = 1 / stats.norm.ppf(0.9)
    assert wide["scale"] == pytest.approx(scale)
    assert wide["uncertainty"] == pytest.approx(2 * stats.norm.sf(1 / scale)) == pytest.approx(0.2)
    point = numbers.read({"prediction": 0.0, "lower_80": 0.0, "upper_80": 0.0})
    assert point["uncertainty"] == 0 and math.isfinite(point["scale"]) and point["scale"] > 0
