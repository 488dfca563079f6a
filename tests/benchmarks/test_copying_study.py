"""The study of synthetic tasks, on recipes of a few steps."""

import json
import statistics

import copying_study
import pytest
import typer

from probattn.inference.records import read_records
from probattn.models.copying import CopyTask
from probattn.recipes import load_any_recipe

HEADS = """
name: copying_few_reduced
experiment:
  threshold: 0.45
  search: {models: 3, candidates: 8, steps: 10}
  conditions:
    bad: {types: 4, length: 4, heads: 2, starts: bad, title: all bad}
    random: {types: 4, length: 4, heads: 2}
network: {width: 8}
training: {runs: 5, steps: 4, batch_size: 8, learning_rate: 0.02, evaluate_every: 2, test_sentences: 4, device: cpu}
"""
KEYWORD = """
name: places
experiment: {task: keyword, conditions: {one: {types: 5, length: 4}, two: {types: 5, length: 4, bidirectional: true}}}
network: {width: 8}
training: {runs: 3, steps: 4, batch_size: 8, evaluate_every: 2, test_sentences: 40, device: cpu}
"""


@pytest.fixture
def study(tmp_path):
    """Runs the study on recipes by their text; gives what the file then holds."""

    def run(*texts, set_=None):
        files = []
        for number, text in enumerate(texts):
            files.append(tmp_path / f"{number}.yaml")
            files[-1].write_text(text, encoding="utf-8")
        output = tmp_path / "copying.json"
        options = {"recipes": ",".join(map(str, files)), "output": output, "set_": set_}
        copying_study.STUDY(folder=tmp_path / "runs", **options).main()
        return json.loads(output.read_text(encoding="utf-8"))

    return run


def test_experiments_are_collected_from_their_records(study, tmp_path):
    found = study(HEADS, KEYWORD)
    assert list(found) == ["few", "places"]
    few = found["few"]
    assert sum(each["good"] + each["bad"] for each in few["search"]) == 24
    assert few["setting"]["recipe"] == "copying_few_reduced" and few["setting"]["search_steps"] == 10
    assert few["setting"]["training"]["learning_rate"] == 0.02 and few["setting"]["by_step"] == 4
    bad, drawn = few["conditions"]["bad"], few["conditions"]["random"]
    assert bad["title"] == "all bad" and bad["recipe"]["starts"] == "bad" and bad["seeds"] == 5
    assert bad["fisher"] is None and 0 < drawn["fisher"] <= 1
    records = read_records(tmp_path / "runs/copying_few_reduced/random/metrics.jsonl")
    assert drawn["steps"] == [record["step"] for record in records] == [0, 2, 4]
    for name in ("accuracy", "probe", "attention", "agreement"):
        expected = [statistics.fmean(record[name]) for record in records]
        assert drawn["mean"][name] == pytest.approx(expected, abs=1e-4)
    for run in range(5):
        own = [record["accuracy"][run] for record in records]
        assert drawn["accuracy"][run] == pytest.approx(own, abs=1e-4)
        assert drawn["first_steps"][run] == next(
            (step for step, value in zip((0, 2, 4), own, strict=True) if value >= 0.45), None
        )
    assert drawn["end"]["lowest"] == pytest.approx(min(records[-1]["accuracy"]), abs=1e-4)
    assert drawn["reached"] == sum(step is not None for step in drawn["first_steps"])


def test_log_odds_are_averaged_and_compared_run_by_run(study, tmp_path):
    two = study(KEYWORD)["places"]["conditions"]["two"]
    records = read_records(tmp_path / "runs/places/two/metrics.jsonl")
    for name in ("keyword", "next_word", "mean", "last"):
        there = [[value for value in record[name] if value is not None] for record in records]
        assert two["mean"][name] == pytest.approx([statistics.fmean(row) for row in there], abs=1e-4)
    last = [
        sum(record["last"][run] > max(record["keyword"][run], record["next_word"][run]) for run in range(3))
        for record in records
    ]
    assert two["largest"]["last"] == last
    assert two["fisher"] is None and two["seeds"] == 3


def test_what_is_there_is_read_and_what_was_interrupted_is_resumed(study, tmp_path, monkeypatch):
    draw, drawn = CopyTask.draw, []

    def counted(self, seeds, step, batch_size, split="train"):
        if split == "train":
            drawn.append(step)
            if len(drawn) == 12:  # the search is done, the first condition has begun
                raise KeyboardInterrupt
        return draw(self, seeds, step, batch_size, split)

    monkeypatch.setattr(CopyTask, "draw", counted)
    with pytest.raises(KeyboardInterrupt):
        study(HEADS)
    assert not (tmp_path / "copying.json").exists()
    study(KEYWORD)
    first = study(HEADS)
    assert list(first) == ["places", "few"], "an experiment of another recipe stays"
    assert len(drawn) < 12 + 10 + 4 + 4, "the search was not run again"
    count = len(drawn)
    assert study(HEADS) == first and len(drawn) == count


def test_a_list_of_numbers_takes_one_line(study, tmp_path):
    found = study(KEYWORD)["places"]["conditions"]["one"]
    lines = [line.strip() for line in (tmp_path / "copying.json").read_text(encoding="utf-8").splitlines()]
    assert f'"steps": {found["steps"]},' in lines
    assert all(f"{run}" in [line.rstrip(",") for line in lines] for run in found["accuracy"])


def test_what_it_cannot_run_is_refused(study):
    with pytest.raises(typer.BadParameter, match=r"recipes: expected those of experiments, cora_ct is none"):
        copying_study.load("cora_ct", [])
    with pytest.raises(typer.BadParameter, match=r"expected one size of each experiment, got few, few"):
        study(HEADS, HEADS.replace("_reduced", ""))
    study(KEYWORD)
    with pytest.raises(
        typer.BadParameter, match=r"expected runs of places as it is now, .*places has another"
    ):
        study(KEYWORD, set_=["training.steps=5"])


def test_its_recipes_are_those_of_the_page():
    recipes = [load_any_recipe(name) for name in copying_study.RECIPES]
    keys = [copying_study.key_of(recipe) for recipe in recipes]
    assert keys == ["permutations", "heads", "probe", "locality"]
    assert keys == [copying_study.key_of(load_any_recipe(f"copying_{key}")) for key in keys]
