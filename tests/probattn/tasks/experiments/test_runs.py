"""Small experiments: records, measures, heads that a search found, interruptions, and what is refused."""

import json
import re
import shutil
from contextlib import suppress

import pytest
import torch
from runs import succeeds
from safetensors.torch import load_file

from probattn.inference.records import read_records
from probattn.models.copying import CopyingOptions, CopyingRuns, CopyTask, token_accuracy
from probattn.probes import agreement
from probattn.recipes import load_any_recipe
from probattn.tasks import Experiments, load_results, train
from probattn.tasks.experiments.conditions import Seeds, draw_heads, pools, search_seeds
from probattn.tasks.experiments.task import condition_stage, searched_heads

COPY = """
experiment:
  threshold: 0.3
  conditions:
    subsets: {types: 5, length: 4, title: 4 of 5}
    uniform: {types: 5, length: 4, attention: uniform}
    frozen: {types: 5, length: 4, attention: frozen_probe}
network: {width: 8}
training: {runs: 3, steps: 12, batch_size: 8, learning_rate: 0.02, evaluate_every: 4, test_sentences: 4,
  probe_sentences: 2, checkpoint_every: 5, device: cpu}
"""
HEADS = """
experiment:
  threshold: 0.45
  search: {models: 3, candidates: 8, steps: 10}
  conditions:
    bad: {types: 4, length: 4, heads: 2, starts: bad}
    one_good: {types: 4, length: 4, heads: 2, starts: one_good}
    random: {types: 4, length: 4, heads: 2}
network: {width: 8}
training: {runs: 5, steps: 4, batch_size: 8, learning_rate: 0.02, evaluate_every: 2, test_sentences: 4, device: cpu}
"""
KEYWORD = """
experiment: {task: keyword, conditions: {one: {types: 5, length: 4}, two: {types: 5, length: 4, bidirectional: true}}}
network: {width: 8}
training: {runs: 3, steps: 4, batch_size: 8, evaluate_every: 2, test_sentences: 40, device: cpu}
"""


@pytest.fixture(scope="module")
def recipe_file(tmp_path_factory):
    file = tmp_path_factory.mktemp("recipe") / "copy.yaml"
    file.write_text(COPY, encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def copy_run(recipe_file, command, tmp_path_factory):
    place = tmp_path_factory.mktemp("runs") / "copy"
    result = command("train", recipe_file, "--output", place, "--quiet")
    assert result.exit_code == 0, result.output
    assert "subsets: 12 steps" in result.output and "frozen: 12 steps" in result.output
    return place


def plain(file):
    return [{k: v for k, v in record.items() if k != "seconds"} for record in read_records(file)]


def test_interrupted_and_resumed_equals_uninterrupted(recipe_file, copy_run, tmp_path, monkeypatch):
    recipe, place, draw = load_any_recipe(recipe_file), tmp_path / "run", CopyTask.draw
    count = iter(range(1000))

    def interrupted(self, seeds, step, batch_size, split="train"):
        if (
            split == "train" and next(count) == 12 + 7
        ):  # the first condition is done, the second has a checkpoint
            raise KeyboardInterrupt
        return draw(self, seeds, step, batch_size, split)

    monkeypatch.setattr(CopyTask, "draw", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train(Experiments(recipe), place, resume=False, quiet=True)
    monkeypatch.setattr(CopyTask, "draw", draw)
    train(Experiments(recipe), place, resume=True, quiet=True)
    for name in ("subsets", "uniform", "frozen"):
        assert plain(place / name / "metrics.jsonl") == plain(copy_run / name / "metrics.jsonl"), name
        weights = [
            torch.load(folder / name / "checkpoints/step-000012/model.pt", weights_only=True)
            for folder in (place, copy_run)
        ]
        assert all(torch.equal(value, weights[1][key]) for key, value in weights[0].items())


def test_records_are_those_of_the_models(copy_run):
    records = plain(copy_run / "subsets" / "metrics.jsonl")
    assert [record["step"] for record in records] == [0, 4, 8, 12]
    weights = torch.load(copy_run / "subsets/checkpoints/step-000012/model.pt", weights_only=True)
    model = CopyingRuns(CopyingOptions(5, 8), range(3))
    model.load_state_dict(weights)
    task, seeds = CopyTask(5, 4), range(3)
    fresh, panel = task.draw(seeds, 13, 4, "test"), task.draw(seeds, 0, 2, "test")
    with torch.no_grad():
        accuracy = token_accuracy(model(fresh.source, fresh.target).logits, fresh.target)
        weights = model(panel.source, panel.target).weights.sum(1)
    assert records[-1]["accuracy"] == accuracy.tolist()
    kept = [
        load_file(copy_run / f"uniform/probes/step-{step:06d}.safetensors")["probe"] for step in (0, 4, 8, 12)
    ]
    best = torch.stack([agreement(weights, probe).mean((1, 2)) for probe in kept]).amax(0)
    assert records[-1]["agreement_uniform"] == best.tolist()
    assert "attention" not in plain(copy_run / "uniform" / "metrics.jsonl")[0]


def test_frozen_probe_learns_attention_alone(copy_run):
    weights = torch.load(copy_run / "frozen/checkpoints/step-000012/model.pt", weights_only=True)
    fresh = CopyingRuns(CopyingOptions(5, 8), range(3)).state_dict()
    assert {name for name in fresh if not torch.equal(fresh[name], weights[name])} == {"attention"}


def test_an_evaluation_is_of_the_records(copy_run, command, tmp_path):
    place = tmp_path / "copied"
    shutil.copytree(copy_run, place)
    result = command("evaluate", place)
    assert result.exit_code == 0, result.output
    assert "4 of 5" in result.output and "Fisher p" in result.output
    results = load_results(place)
    assert [item.key for item in results.conditions] == ["subsets", "uniform", "frozen"]
    values = [("uniform", "subsets"), ("frozen", "subsets")]
    assert [(test.condition, test.against) for test in results.tests] == values
    first = results.conditions[0]
    accuracy = [record["accuracy"] for record in plain(place / "subsets" / "metrics.jsonl")]
    expected = [
        next((s for s, row in zip((0, 4, 8, 12), accuracy, strict=True) if row[r] >= 0.3), None)
        for r in range(3)
    ]
    assert list(first.first_steps) == expected and first.chance == 0.25


def test_keyword_experiment(tmp_path):
    file, place = tmp_path / "keyword.yaml", tmp_path / "run"
    file.write_text(KEYWORD, encoding="utf-8")
    succeeds("train", file, "--output", place, "--quiet")
    succeeds("report", place)
    results = json.loads((place / "metrics.json").read_text(encoding="utf-8"))
    assert list(results["conditions"][1]["measures"]) == ["accuracy", "keyword", "next_word", "mean", "last"]
    assert "Which word determines the prediction?" in (place / "report.html").read_text(encoding="utf-8")


def test_heads_are_those_that_the_search_found(tmp_path):
    file, place = tmp_path / "heads.yaml", tmp_path / "run"
    file.write_text(HEADS, encoding="utf-8")
    recipe = load_any_recipe(file)
    results = train(Experiments(recipe), place, resume=False, quiet=True)
    assert list(results) == ["search", "bad", "one_good", "random"]
    found = searched_heads(recipe, place)
    accuracy = [record["accuracy"] for record in plain(place / "search" / "metrics.jsonl")]
    seeds = search_seeds(recipe, recipe.experiment.search)
    assert seeds.data == seeds.models and len(set(seeds.heads)) == len(seeds.heads)
    learned = {head for run, (head,) in enumerate(seeds.heads) if any(row[run] >= 0.45 for row in accuracy)}
    assert learned == {head for good, _ in found.values() for head in good}
    goods = {}
    for name in ("bad", "one_good", "random"):
        stage = condition_stage(recipe, place, name, found)
        goods[name] = [sum(head in learned for head in heads) for heads in stage.seeds.heads]
        for model, heads in zip(stage.seeds.models, stage.seeds.heads, strict=True):
            tried = {head for each in found[model] for head in each}
            assert (set(heads) <= tried) == (name != "random") and len(set(heads)) == 2
        assert stage.seeds.data == stage.seeds.models
    assert goods == {"bad": [0] * 5, "one_good": [1] * 5, "random": [0] * 5}


def test_heads_of_several_trials_are_good_or_bad_in_each(tmp_path):
    file, place = tmp_path / "heads.yaml", tmp_path / "run"
    text = HEADS.replace("steps: 10}", "steps: 10, trials: 2, bad_below: 0.42}")
    file.write_text(text.replace("{width: 8}", "{width: 8, form: release}"), encoding="utf-8")
    recipe = load_any_recipe(file)
    seeds = search_seeds(recipe, recipe.experiment.search)
    assert len(set(seeds.heads)) == 24 and len(set(zip(seeds.heads, seeds.data, strict=True))) == 48
    assert all(data % 10**6 == model for data, model in zip(seeds.data, seeds.models, strict=True))
    with suppress(ValueError):  # heads may not suffice for the conditions
        train(Experiments(recipe), place, resume=False, quiet=True)
    accuracy = [record["accuracy"] for record in plain(place / "search" / "metrics.jsonl")]
    good = [any(row[run] >= 0.45 for row in accuracy) for run in range(48)]
    bad = [not learned and accuracy[-1][run] < 0.42 for run, learned in enumerate(good)]
    expected = [
        {seeds.heads[2 * head][0] for head in range(24) if states[2 * head] and states[2 * head + 1]}
        for states in (good, bad)
    ]
    found = searched_heads(recipe, place)
    assert [{head for pair in found.values() for head in pair[number]} for number in (0, 1)] == expected
    assert 0 < len(expected[0]) + len(expected[1]) < 24


def test_a_search_without_good_heads_is_refused(tmp_path):
    file = tmp_path / "heads.yaml"
    file.write_text(HEADS, encoding="utf-8")
    recipe = load_any_recipe(file)
    found = pools(Seeds((0, 0, 1), (0, 1, 2), ((0,), (1,), (2,))), [True, False, True], [False, True, False])
    message = r"a good head and 2 bad ones, got 1 good and 1 bad, 1 good and 0 bad; try more"
    with pytest.raises(ValueError, match=message):
        draw_heads(recipe, recipe.experiment.conditions["bad"], found)


def test_an_experiment_whose_conditions_are_not_all_trained_is_not_reported(copy_run, command, tmp_path):
    place = shutil.copytree(copy_run, tmp_path / "part")
    shutil.rmtree(place / "frozen")
    result = command("report", place)
    words = "expected condition 'frozen' trained to step 12, found nothing; continue with"
    assert result.exit_code == 2 and words in " ".join(result.output.split())


@pytest.mark.parametrize(
    ("place", "changes", "words"),
    [
        ("subsets", {"accuracy": 0.5}, "expected 3 values of 'accuracy'"),
        ("subsets", {"accuracy": [0.5]}, "expected 3 values of 'accuracy'"),
        ("subsets", {"accuracy": [None] * 3}, "expected accuracies at step 12"),
        ("subsets", {"accuracy": None, "kind": "train"}, "at every evaluated step|trained to step"),
        ("subsets", {"another": [0.5] * 3}, "the same measures at every evaluated step"),
        ("subsets", {"step": None}, "expected a record"),
    ],
)
def test_damaged_records_of_a_condition_are_one_line(copy_run, command, tmp_path, place, changes, words):
    run = shutil.copytree(copy_run, tmp_path / "run")
    file = run / place / "metrics.jsonl"
    *before, last = file.read_text().splitlines()
    file.write_text("\n".join([*before, json.dumps(json.loads(last) | changes)]) + "\n")
    result = command("report", run, "--again")
    assert result.exit_code == 2, result.output
    assert re.search(words, result.stderr.splitlines()[-1]), result.stderr
