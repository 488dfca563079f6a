"""Runs of every task of a head, from the recipe to answers, by the command line."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import runs
import torch
from runs import refused, succeeds
from torch import Tensor

from probattn.inference import FeatureDistance, last_layer
from probattn.report import Results, read_results
from probattn.tasks import Drawing, RunError, load_task, run_task
from probattn.tasks.fine_tuning.choices import ChoicesSection
from probattn.tasks.fine_tuning.images import Images
from probattn.tasks.fine_tuning.predictor import Predictor
from probattn.tasks.held_out import HeldOut
from probattn.triage import read_policy

ANSWERS = {
    "tokens": (("the good film",), {"text", "spans", "tags", "probability", "entropy", "mutual_information"}),
    "regression": (("the good film",), {"text", "prediction", "lower_80", "upper_80", "std"}),
    "choices": (
        ("the film", "--pair", "was good | was bad"),
        {
            "text",
            "endings",
            "choice",
            "label",
            "probability",
            "probabilities",
            "entropy",
            "mutual_information",
        },
    ),
    "images": (
        ("{image}",),
        {"image", "label", "probability", "probabilities", "entropy", "mutual_information"},
    ),
}


@pytest.fixture(scope="session")
def folder(shared: Path) -> Path:
    """Data and recipes of every head."""
    pytest.importorskip("PIL.Image", reason="needs pillow")
    return shared


IN_CLOSED_FORM = ("regression", "choices", "images")
"""Tasks with a single prediction a row; for many tokens a row draws cost less."""


def test_parts_of_images_follow_from_their_contents(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "images", tmp_path / "moved")
    shutil.copy(tmp_path / "moved" / "dark" / "1.png", tmp_path / "moved" / "light" / "copy.png")
    recipe = (folder / "images.yaml").read_text(encoding="utf-8")
    (tmp_path / "moved.yaml").write_text(recipe.replace(f"{folder}/images", f"{tmp_path}/moved"))
    old, new = (load_task(file).examples for file in (folder / "images.yaml", tmp_path / "moved.yaml"))
    for part, examples in old.items():
        names = [Path(each["name"]).relative_to(folder / "images") for each in examples]
        moved = [Path(each["name"]).relative_to(tmp_path / "moved") for each in new[part]]
        twice = Path("light/copy.png") in moved
        assert twice == (Path("dark/1.png") in moved)
        assert [name for name in moved if name.name != "copy.png"] == names


@pytest.mark.parametrize("name", ANSWERS)
def test_what_is_measured(name: str, folder: Path, reported) -> None:
    results = read_results(reported(name) / "metrics.json", Results)
    task = load_task(folder / f"{name}.yaml")
    assert [score.model for score in results.scores] == [
        "deterministic",
        "bayesian_mean",
        "bayesian_expectation",
        *(["bayesian_moments"] if name in IN_CLOSED_FORM else []),
    ]
    values = results.scores[1].values
    assert set(task.measures) <= set(values)
    expected = set(task.measures)
    assert {item.measure for item in results.differences if item.model == "bayesian_mean"} <= expected
    assert results.data[0].size == task.sizes()["test"]
    assert results.health and results.curves and results.kind == name
    page = (reported(name) / "report.html").read_text(encoding="utf-8")
    defined = [measure for key, measure in task.measures.items() if values[key] is not None]
    assert len(defined) >= len(task.measures) - 2 and all(measure.title in page for measure in defined)
    assert "The most uncertain" in page and "Has the posterior collapsed?" in page


@pytest.mark.parametrize("name", ANSWERS)
def test_the_predictions_of_an_evaluation_are_in_a_table(name: str, reported) -> None:
    place = reported(name)
    with (place / "predictions.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    task = run_task(place)
    assert [row["true"] for row in rows] == [task.truth(example) for example in task.examples["test"]]
    answered = next(
        iter(task.answering.of_examples(place, task.examples["test"][:1], Drawing(num_samples=3)))
    )
    expected = {"data", "true", *(answered.keys() & {*task.inputs}), *task.answering.columns(answered)}
    assert rows[0].keys() == expected
    assert all(np.isfinite(float(row[task.ranked_by])) for row in rows)
    if name == "images":
        values = read_results(place / "metrics.json", Results).scores[1].values
        right = [row["label"] == row["true"] for row in rows]
        assert np.mean(right) == pytest.approx(values["accuracy"])
        assert json.loads(rows[0]["probabilities"]).keys() == {"dark", "light"}


@pytest.mark.parametrize("name", ANSWERS)
def test_answers(name: str, folder: Path, reported) -> None:
    arguments, fields = ANSWERS[name]
    image = next((folder / "images").rglob("*.png"))
    words = [word.format(image=image) for word in arguments]
    answer = json.loads(
        succeeds("predict", reported(name), *words, "--json", "--num-samples", "3", "--quiet")
    )
    assert set(answer) == fields
    assert succeeds("predict", reported(name), *words, "--quiet").splitlines()[1].startswith("---")
    again = json.loads(succeeds("predict", reported(name), *words, "--json", "--num-samples", "3", "--quiet"))
    assert again == answer


@pytest.mark.parametrize("name", ["choices", "images"])
def test_one_class_each_can_be_decided(name: str, folder: Path, reported, tmp_path: Path) -> None:
    place = shutil.copytree(reported(name), tmp_path / name)
    shown = succeeds("triage", place, "--error", "0.99", "--num-samples", "3", "--sets", "lac", "--quiet")
    assert "10%" in shown and "next: probattn predict" in shown
    policy = read_policy(place)
    task = load_task(folder / f"{name}.yaml")
    names = ("0", "1") if name == "choices" else ("dark", "light")
    assert policy.classes == names and policy.size == task.sizes()["test"]
    file = Path(task.section_of_examples.train).name
    asked = [f"{file} (test)", f"{file} (validation)"]
    assert file in {"choices.jsonl", "images"}
    assert [task.deciding.held_out()[part].title for part in ("test", "validation")] == asked

    words = [word.format(image=next((folder / "images").rglob("*.png"))) for word in ANSWERS[name][0]]
    table = succeeds("predict", place, *words, "--policy", place, "--quiet")
    answer = json.loads(succeeds("predict", place, *words, "--policy", place, "--json", "--quiet"))
    assert table.splitlines()[0].split()[0] == name.removesuffix("s").replace("choice", "text")
    threshold = policy.limits[0].threshold
    certain = threshold is not None and 1 - answer["probability"] <= threshold
    assert (answer["decision"] == "answer") == certain
    assert set(answer["set"]) <= set(names)
    other = folder / ("images" if name == "images" else "choices.jsonl")
    held = task.deciding.held_out(str(other))["test"]
    identity = task.section_of_examples.identity
    known = {identity(each) for part in ("train", "validation") for each in task.examples[part]}
    assert len(held.seen) == sum(identity(each) in known for each in held.examples) > 0
    succeeds("triage", place, "--error", "0.9", "--num-samples", "3", "--data", other, "--quiet")
    assert read_policy(place).size == 48 - len(held.seen)
    assert str(other) in (place / "triage.html").read_text(encoding="utf-8")


def test_far_images_go_to_a_person_and_choices_have_no_distance(folder, reported, tmp_path) -> None:
    place = shutil.copytree(reported("images"), tmp_path / "images")
    succeeds("triage", place, "--error", "0.99", "--novelty", "0.4", "--num-samples", "2", "--quiet")
    image = next((folder / "images").rglob("*.png"))
    answer = json.loads(succeeds("predict", place, str(image), "--policy", place, "--json", "--quiet"))
    task = run_task(place)
    read = task.deciding.features(place)
    assert isinstance(task, Images)
    network = task.network(place)
    training = task.examples["train"]
    batch = Predictor(task, network).batches(training)
    seen: list[Tensor] = []
    hook = last_layer(network.net, 2).register_forward_pre_hook(
        lambda _, given: seen.append(given[0].detach())
    )
    with torch.no_grad():
        for each in batch:
            network.program(each.tensors)
    hook.remove()
    fitted = read(None)
    torch.testing.assert_close(fitted.inputs, torch.cat(seen).double())
    distance = FeatureDistance.fit(fitted)
    one = HeldOut("", "", "", [str(image)], None, None)
    limit = read_policy(place).novelty
    assert limit is not None
    assert answer["novelty"] == pytest.approx(distance(read(one).inputs).item() / limit.threshold, abs=2e-3)
    third = tmp_path / "three"
    shutil.copytree(folder / "images", third)
    shutil.copytree(third / "dark", third / "grey")
    recipe = place / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace(str(folder / "images"), str(third)))
    assert str(third) in recipe.read_text()
    again = json.loads(succeeds("predict", place, str(image), "--policy", place, "--json", "--quiet"))
    assert again["novelty"] == answer["novelty"]  # the training data have changed, the network has not
    with pytest.raises(RunError, match="expected training images of the 2 classes that its network learned"):
        run_task(place).deciding.features(place)(None)
    message = refused("triage", reported("choices"), "--error", "0.9", "--novelty", "0.4", "--quiet")
    assert "expected a run that gives a class to each text or image, got one of choices" in message


def test_changed_endings_are_predicted_anew(tmp_path: Path) -> None:
    def held(ending: str) -> HeldOut:
        example = {"text": "a film", "endings": ["good", ending], "label": 0}
        return HeldOut("t", "in_domain", "s", ("a film",), None, ("0",), examples=(example,))

    answer = {"label": "0", "probabilities": {"0": 1.0}, "entropy": 0.0, "mutual_information": 0.0}
    held("bad").store(tmp_path, "test", Drawing(seed=0), [answer])
    assert held("bad").stored(tmp_path, "test", Drawing(seed=0)) == [answer]
    assert held("worse").stored(tmp_path, "test", Drawing(seed=0)) is None
    assert held("bad").stored(tmp_path, "test", Drawing(seed=1)) is None


def test_heads_without_right_and_wrong_answers_say_so(finished) -> None:
    message = refused("triage", finished("language"), "--error", "0.1", "--quiet")
    assert (
        "expected a run of classes, choices, images, labels, numbers, spans or tokens, got one of" in message
    )


def test_files_are_answered(folder: Path, reported, tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    succeeds("predict", reported("regression"), "-i", folder / "regression.jsonl", "-o", out, "--quiet")
    with out.open(encoding="utf-8", newline="") as file:
        rows = [
            {name: float(row[name]) for name in ("lower_80", "prediction", "upper_80")}
            for row in csv.DictReader(file)
        ]
    assert len(rows) == 48 and all(list(row.values()) == sorted(row.values()) for row in rows)


def test_several_seeds(reported, tmp_path: Path) -> None:
    folders = [shutil.copytree(reported("tokens", seed), tmp_path / str(seed)) for seed in (0, 1)]
    succeeds("report", *folders, "--quiet")
    combined = read_results(folders[0] / "seeds.json", Results)
    single = [read_results(place / "metrics.json", Results) for place in folders]
    values = [results.difference("nll", "bayesian_mean", "test").value for results in single]
    assert combined.seeds == (0, 1)
    assert combined.difference("nll", "bayesian_mean", "test").value == pytest.approx(np.mean(values))
    assert "The single runs" in (folders[0] / "seeds.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ("tokens: {train: FOLDER/missing.csv}", "no such file"),
        ("tokens: {train: nothing}", "expected a file that ends in"),
        ("tokens: {train: FOLDER/regression.jsonl}", "expected a column 'tokens', got text, label"),
        ("tokens: {train: TEMPORARY/bad.conll}", "bad.conll line 2: expected a word and its tag, got 'film'"),
        (
            "regression: {train: TEMPORARY/bad.csv}",
            "bad.csv line 3: expected a number in 'label', got 'many'",
        ),
        (
            "choices: {train: TEMPORARY/bad.jsonl}",
            "bad.jsonl line 1: expected a number in 0..1 in 'label', got 2",
        ),
        ("images: {train: FOLDER/encoder}", "expected a folder for each class with images"),
        ("images: {train: digits}\ntraining: {length_pool: 2}", "length_pool: expected null, images"),
        (
            "regression: {train: FOLDER/regression.jsonl}\nnetwork: {name: self_attentive}",
            "expected a pretrained network",
        ),
    ],
)
def test_bad_input(section: str, message: str, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.conll").write_text("the O\nfilm\n", encoding="utf-8")
    (tmp_path / "bad.csv").write_text("text,label\nthe film,3\na plot,many\n", encoding="utf-8")
    row = {"text": "the film", "endings": ["good", "bad"], "label": 2}
    (tmp_path / "bad.jsonl").write_text(json.dumps(row) + "\n", encoding="utf-8")
    file = tmp_path / "wrong.yaml"
    text = section.replace("FOLDER", str(folder)).replace("TEMPORARY", str(tmp_path))
    network = "" if "network" in section else f"network: {{name: {folder}/encoder}}\n"
    training = f"training: {{{runs.TRAINING}}}\n" if "training" not in section else ""
    file.write_text(f"{text}\n{network}{training}", encoding="utf-8")
    assert message in refused("train", file, "-o", tmp_path / "run", "--quiet")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_shifted_data_are_measured_beside_the_others(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.csv"
    other.write_text(
        "text,label\n" + "".join(f"good film {row},{row}\n" for row in range(12)), encoding="utf-8"
    )
    recipe = tmp_path / "shifted.yaml"
    recipe.write_text(
        f"regression: {{train: {folder}/regression.jsonl, shifted: {other}, limits: {{test: 10}}}}\n"
        f"network: {{name: {folder}/encoder}}\nattention: {{method: babn}}\n"
        f"training: {{{runs.TRAINING}}}\nprediction: {{num_samples: 3}}\nreport: {{resamples: 100}}\n",
        encoding="utf-8",
    )
    succeeds("train", recipe, "--output", tmp_path / "run", "--quiet")
    succeeds("report", tmp_path / "run")
    results = Results.model_validate_json((tmp_path / "run" / "metrics.json").read_text(encoding="utf-8"))
    expected = [("test", "in_domain", "regression.jsonl (test)"), ("shifted", "shifted", "other.csv (test)")]
    assert [(data.key, data.role, data.title) for data in results.data] == expected
    assert results.data[1].size == 10  # the limit is that of the test set
    home, away = (results.score("deterministic", data.key) for data in results.data)
    assert home is not None and away is not None and home.values["rmse"] != away.values["rmse"]
    assert {difference.data for difference in results.differences} == {"test", "shifted"}
    assert "other.csv (test)" in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")


SWAG = "startphrase,sent1,sent2,ending0,ending1,ending2,ending3,label\n"


def test_swag_and_hellaswag_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROBATTN_DATA", str(tmp_path))
    for name in ("swag", "hellaswag"):
        (tmp_path / name).mkdir()
    for file, rows in (("train", 40), ("val", 3)):
        lines = [f'x,"Someone, {row} and",He,sits.,runs.,falls.,flies.,{row % 4}\n' for row in range(rows)]
        (tmp_path / "swag" / f"{file}.csv").write_text(SWAG + "".join(lines), encoding="utf-8")
        objects = [
            {
                "ctx_a": f"A man {row}.",
                "ctx_b": "he" if row % 2 else "",
                "endings": list("abcd"),
                "label": row % 4,
            }
            for row in range(rows)
        ]
        text = "".join(json.dumps(each) + "\n" for each in objects)
        (tmp_path / "hellaswag" / f"hellaswag_{file}.jsonl").write_text(text, encoding="utf-8")
    parts = ChoicesSection(train="swag", shifted="hellaswag").load()
    assert [len(parts[name]) for name in ("test", "shifted")] == [3, 3]
    assert len(parts["train"]) + len(parts["validation"]) == 40 and parts["validation"]
    assert parts["test"][1] == {
        "text": "Someone, 1 and",
        "endings": ["He sits.", "He runs.", "He falls.", "He flies."],
        "label": 1,
    }
    assert parts["shifted"][1]["endings"][0] == "he a" and parts["shifted"][0]["endings"][0] == "a"
