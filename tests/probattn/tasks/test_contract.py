"""What holds for every task: those of the library, and the one that the page on adding a task writes."""

from __future__ import annotations

import json
import re
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from runs import folders_in, refused, started, succeeds
from sklearn.metrics import roc_auc_score

from probattn import tasks
from probattn.recipes import RecipeError, load_any_recipe
from probattn.report import ResultsFileError
from probattn.tasks.classification import networks
from probattn.tasks.fine_tuning.predictor import Predictor

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "extending.md"
HEADS = ("choices", "images", "labels", "language", "regression", "sequences", "spans", "tokens")
NAMES = (
    *("texts", "graph", "translation", "graph_text", "visual_questions", "pretraining", "copying", "numbers"),
    *HEADS,
)
QUICK = ("texts", "regression", "copying", "numbers")
"""``make test`` tests what takes a run on these; on the others, which have tests of their own, ``make test-slow``."""
WITHOUT_CHOICE = ("graph", "copying")
"""Those that take no other run as a baseline."""
WITH_BASELINE = tuple(name for name in NAMES if name != "copying")
ANSWERS = {
    "texts": "label",
    "translation": "translation",
    "pretraining": "tokens",
    "tokens": "spans",
    "labels": "labels",
    "regression": "prediction",
    "sequences": "prediction",
    "language": "masks",  # one of its words is the token for masks
}
FORMS = {
    "numbers": "six whole numbers",
    "graph_text": "4 columns with tabs between them",
    "visual_questions": "the path or the number of an image, a tab and a question",
    "choices": "one --pair for each",
    "images": "the path of an image",
    "spans": "one --pair for each",
}
"""What a text must be, of tasks that answer others than any."""
SECTIONS = {
    "graph": "graph",
    "translation": "translation",
    "graph_text": "graph_text",
    "visual_questions": "visual_questions",
    "pretraining": "pretraining",
    "copying": "experiment",
    "numbers": "numbers",
    **{name: name for name in HEADS},
}

pytestmark = pytest.mark.filterwarnings("ignore::probattn.data.DataWarning")


@pytest.fixture(scope="module", autouse=True)
def _numbers() -> Iterator[None]:
    """The page's task, registered while this module runs."""
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    code = "".join(blocks[: next(n for n, block in enumerate(blocks) if "TASKS.insert" in block) + 1])
    before = list(tasks.TASKS)
    exec(compile(code, str(PAGE), "exec", dont_inherit=True), {"__name__": "__main__"})
    yield
    tasks.TASKS[:] = before


def weights(place: Path) -> dict[str, dict[str, torch.Tensor]]:
    """All tensors that a run keeps, by file."""
    from safetensors.torch import load_file

    return {file.relative_to(place).as_posix(): load_file(file) for file in place.rglob("*.safetensors")}


def same(first: Path, second: Path) -> None:
    one, other = weights(first), weights(second)
    shared = one.keys() & other.keys()
    assert shared
    for name in shared:
        assert all(torch.equal(value, other[name][key]) for key, value in one[name].items()), name


@pytest.mark.slow_but(*QUICK)
@pytest.mark.parametrize("name", NAMES)
def test_it_leaves_a_recipe_that_loads_as_the_same(name: str, recipe_of, finished) -> None:
    place = finished(name)
    loaded = load_any_recipe(place / "recipe.yaml")
    assert loaded == load_any_recipe(recipe_of(name)).model_copy(update={"output": loaded.output})
    assert Path(loaded.output).samefile(place)
    assert type(tasks.task_of(loaded)) is type(tasks.run_task(place))


@pytest.mark.slow_but(*QUICK)
@pytest.mark.parametrize("name", WITH_BASELINE)
def test_another_seed_gives_other_weights(name: str, finished) -> None:
    """The same one gives the same: a run that is killed, below."""
    first, second = (tasks.load_network(finished(name, seed)).net.state_dict() for seed in (0, 1))
    assert any(not torch.equal(value, second[key]) for key, value in first.items())


def test_the_page_s_task_trains_to_the_same_weights_again(recipe_of, finished, tmp_path) -> None:
    succeeds("train", recipe_of("numbers"), "-o", tmp_path / "again", "--quiet")
    same(finished("numbers"), tmp_path / "again")


@pytest.mark.slow_but(*QUICK)
@pytest.mark.parametrize("name", NAMES)
def test_a_run_without_its_last_checkpoint_is_resumed_bit_for_bit(name, recipe_of, finished, copied) -> None:
    place = copied(name)
    removed = 0
    for checkpoints in list(place.rglob("checkpoints")):
        last = max(checkpoints.glob("step-*"))
        if len(list(checkpoints.glob("step-*"))) > 1:
            shutil.rmtree(last)
            removed += 1
    for model in list(place.rglob("model")):
        shutil.rmtree(model)
    if not removed:  # parts that keep one checkpoint each
        shutil.rmtree(max(place.glob("*/checkpoints"), key=lambda part: part.stat().st_mtime).parent)
    succeeds("train", recipe_of(name), "-o", place, "--quiet", "--resume")
    same(finished(name), place)
    for file in finished(name).rglob("metrics.jsonl"):
        assert steps(place / file.relative_to(finished(name))) == steps(file)


def steps(file: Path) -> list[tuple[Any, Any]]:
    records = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return [(record.get("kind"), record["step"]) for record in records]


@pytest.mark.slow_but(*QUICK)
@pytest.mark.parametrize("name", NAMES)
def test_folders_that_do_not_fit_are_refused_before_anything_is_written(name, recipe_of, finished, tmp_path):
    used = finished(name)
    before = {file: file.stat().st_mtime_ns for file in used.rglob("*") if file.is_file()}
    assert "expected a new folder, it holds files" in refused("train", recipe_of(name), "-o", used, "--quiet")
    other = ("--set", "training.seed=9")
    expected = refused("train", recipe_of(name), "-o", used, "--resume", "--quiet", *other)
    assert "its recipe differs" in expected
    values = refused("train", recipe_of(name), "-o", tmp_path / "none", "--resume", "--quiet")
    assert "nothing to resume" in values
    assert {file: file.stat().st_mtime_ns for file in used.rglob("*") if file.is_file()} == before
    assert not (tmp_path / "none").exists()


@pytest.mark.slow_but(*QUICK)
@pytest.mark.parametrize("name", NAMES)
def test_it_is_evaluated_and_reported(name: str, reported) -> None:
    place = reported(name)
    table, said = json.loads((place / "said.json").read_text(encoding="utf-8"))
    *lines, results, following = table.splitlines()
    assert len(lines) > 1 and results == f"results: {place / 'metrics.json'}"
    assert following == f"next: probattn report {place}"
    results, summary, task = tasks.load_results(place), json.loads(said), tasks.run_task(place)
    assert summary["headline"] == task.view.headline(results)
    assert Path(summary["report"]) == place / "report.html"
    page = (place / "report.html").read_text(encoding="utf-8")
    assert page == task.view.page(results) and page.count("<h1>") == 1
    assert task.view.headline(results)[:20] in page


@pytest.mark.slow_but(*QUICK)
@pytest.mark.parametrize("name", NAMES)
def test_a_damaged_evaluation_is_refused_in_one_line_and_made_anew(name: str, reported, copied) -> None:
    place, before = copied(name), json.loads((reported(name) / "metrics.json").read_text(encoding="utf-8"))
    (place / "metrics.json").write_text('{"schema_version": 4}', encoding="utf-8")
    with pytest.raises(ResultsFileError):
        tasks.load_results(place)
    assert "metrics.json" in refused("report", place)
    again = json.loads(succeeds("evaluate", place, "--json"))
    for key in ("kind", "scores", "differences", "conditions"):
        assert again.get(key) == before.get(key)


@pytest.mark.slow_but(*QUICK)
@pytest.mark.parametrize("name", WITH_BASELINE)
def test_the_trained_network_comes_back_with_its_weights(name: str, finished) -> None:
    first, second = (tasks.load_network(finished(name)) for _ in range(2))
    assert not first.program.training
    assert all(
        torch.equal(value, second.net.state_dict()[key]) for key, value in first.net.state_dict().items()
    )
    plain = tasks.load_network(finished(name) / "baseline")
    assert plain.key == "deterministic" and first.key != "deterministic"


@pytest.mark.parametrize("name", [*WITH_BASELINE, "probed"])  # which begins with random weights
def test_the_baseline_is_the_same_network_without_methods(name: str, recipe_of) -> None:
    task = tasks.load_task(recipe_of(name))
    plain, own = (task.program(baseline=baseline).state_dict() for baseline in (True, False))
    shared = plain.keys() & own.keys()
    assert len(shared) == len(plain) <= len(own)
    assert all(torch.equal(plain[key], own[key]) for key in shared)


@pytest.mark.slow_but(*QUICK)
@pytest.mark.parametrize("name", NAMES)
def test_a_wrong_baseline_is_refused(name: str, finished) -> None:
    place, other = finished(name), finished("texts" if name != "texts" else "numbers")
    message = (
        "expected no --baseline" if name in WITHOUT_CHOICE else "expected a deterministic run as baseline"
    )
    said = refused("evaluate", place, "--baseline", other)
    assert "expected a baseline of the task of" in said and "got a run of another task" in said
    assert message in refused("report", place, "--baseline", place)
    assert not (place / "metrics.json").exists()


@pytest.mark.slow_but(*QUICK)
@pytest.mark.parametrize("name", NAMES)
def test_predictions_of_texts_are_made_or_refused_in_one_line(name: str, finished) -> None:
    words = ("predict", finished(name), "the film was good", "--json")
    if name in ANSWERS:
        (answer,) = map(json.loads, succeeds(*words).splitlines())
        assert answer["text"] == "the film was good" and ANSWERS[name] in answer
    else:
        assert f"expected {FORMS.get(name, 'a run that answers texts')}" in refused(*words)


@pytest.mark.slow_but(*QUICK)
@pytest.mark.parametrize("name", NAMES)
def test_several_runs_are_compared_over_seeds_or_refused_in_one_line(name: str, reported, tmp_path) -> None:
    first = shutil.copytree(reported(name), tmp_path / "first")
    task = tasks.run_task(first)
    if task.view.no_seeds is not None:
        for command in ("report", "evaluate"):
            assert task.view.no_seeds in refused(command, first, first)
        assert not (first / "seeds.json").exists()
        return
    second = shutil.copytree(reported(name, 1), tmp_path / "second")
    assert "another training.seed" in refused("report", first, first)
    summary = json.loads(succeeds("report", first, second, "--json"))
    assert summary["seeds"] == [0, 1] and (first / "seeds.html").exists()
    assert (second / "report.html").exists()


@pytest.mark.parametrize(("name", "section"), SECTIONS.items())
def test_recipes_of_another_task_are_said_to_be_of_it(name: str, section: str, recipe_of) -> None:
    from probattn.recipes import load_recipe

    with pytest.raises(RecipeError, match=f"expected a recipe of texts, got one with a section '{section}'"):
        load_recipe(recipe_of(name))


@pytest.mark.slow
@pytest.mark.fork
@pytest.mark.parametrize(
    "name", [name for name in NAMES if name == "labels" or name not in ("numbers", *HEADS)]
)
def test_a_killed_run_is_continued_to_the_same_end(name: str, recipe_of, finished, tmp_path) -> None:
    """One of the heads, which train by the same code; a resumed run of all of them is above."""
    place = tmp_path / "run"
    words = ("train", recipe_of(name), "-o", place, "--quiet")
    process = started(*words)
    while process.is_alive() and not any(name.startswith("step-") for name in folders_in(place)):
        time.sleep(0.01)
    process.kill()
    process.join()
    assert process.exitcode in (0, -signal.SIGKILL)
    succeeds(*words, "--resume")
    same(finished(name), place)


def test_a_run_loads_its_network_once_a_model_and_a_baseline_is_not_warned_of_being_deterministic(
    recipe_of, tmp_path, monkeypatch, caplog
) -> None:
    opened = []
    plain = networks.open_pretrained
    monkeypatch.setattr(
        networks,
        "open_pretrained",
        lambda cls, *words, **options: opened.append(cls) or plain(cls, *words, **options),
    )
    succeeds("train", recipe_of("texts"), "-o", tmp_path / "run", "--quiet")
    expected = 2
    assert [cls.__name__ for cls in opened].count("AutoModelForSequenceClassification") == expected
    assert len(opened) == 4  # configuration and tokenizer
    assert (tmp_path / "run" / "baseline").exists()
    assert not [record for record in caplog.records if "nothing is latent" in record.getMessage()]


@pytest.mark.parametrize(
    ("section", "words"), [("report", r"which \w+ has"), ("absent", "expected a key of Recipe")]
)
def test_a_section_that_tells_no_recipes_apart_is_refused(monkeypatch, section, words):
    other = type("Other", (tasks.Classification,), {"section": section})
    monkeypatch.setattr(tasks.registry, "TASKS", [other, *tasks.TASKS])
    with pytest.raises(TypeError, match=rf"Other\.section: .*{words}"):
        tasks.load_task("cora_ct")


LIMITED = tuple(name for name in NAMES if name not in WITHOUT_CHOICE)


@pytest.mark.slow_but(*QUICK)
@pytest.mark.parametrize("name", NAMES)
def test_an_evaluation_is_limited_and_says_so_or_refuses_it_in_one_line(name: str, copied) -> None:
    place = copied(name)
    if name not in LIMITED:
        assert "--limit 3: expected no such option" in refused("evaluate", place, "--limit", "3", "--quiet")
        return
    succeeds("evaluate", place, "--limit", "3", "--quiet")
    content = json.loads((place / "metrics.json").read_text(encoding="utf-8"))
    sizes = [data["size"] for data in content.get("data", [content.get("test")])]
    assert max(sizes) == 3 and content["run"]["restricted"] == "--limit 3"
    if tasks.run_task(place).limits.draws is None:
        succeeds("evaluate", place, "--limit", "3", "--num-samples", "1", "--quiet")


def test_the_pages_task_answers_rows_of_numbers(finished) -> None:
    shown = succeeds("predict", finished("numbers"), "9 1 2 3 4 5", "1 1 1 1 1 9", "--json")
    answers = [json.loads(line) for line in shown.splitlines()]
    assert [answer["text"] for answer in answers] == ["9 1 2 3 4 5", "1 1 1 1 1 9"]
    assert all(0 <= answer["second half"] <= 1 for answer in answers)


def test_a_network_that_cannot_be_saved_is_refused_before_training(recipe_of, tmp_path) -> None:
    numbers = type(tasks.load_task(recipe_of("numbers")))
    forgetful = type("Forgetful", (numbers,), {"save": tasks.ProgramTask.save})
    # The author of the task forgot to write a method; it is no fault of the run.
    with pytest.raises(NotImplementedError, match="override save and network"):
        tasks.train(forgetful(load_any_recipe(recipe_of("numbers"))), tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


def test_a_baseline_begins_with_the_weights_of_the_network(recipe_of, tmp_path) -> None:
    """Also where a task draws them anew."""
    numbers = type(tasks.load_task(recipe_of("numbers")))
    made = {}

    def program(self, *, baseline=False):
        made[baseline] = numbers.program(self, baseline=baseline)
        for parameter in made[baseline].parameters():
            torch.nn.init.normal_(parameter)
        return made[baseline]

    other = type("Other", (numbers,), {"program": program})
    other(load_any_recipe(recipe_of("numbers"))).parts(tmp_path)
    weights = made[False].state_dict()
    shared = made[True].state_dict().keys() & weights.keys()
    assert "net.embed.weight" in shared
    for name in shared:
        assert torch.equal(made[True].state_dict()[name], weights[name])


@pytest.mark.parametrize(
    "name", ["labels_babn", "stsb_babn", "choices_babn", "spans_babn", "slots_babn", "sequences_t5"]
)
def test_inputs_are_quoted_as_the_training_data_are(name: str) -> None:
    section = tasks.load_task(name).section
    for quotes in (True, False):
        assert tasks.load_task(name, (f"{section}.quotes={str(quotes).lower()}",)).answering.quotes is quotes


TRUTHS = ("label", "target", "targets", "tags", "answers")
OUTSIDE = {
    "choices": lambda text: {"text": text, "endings": ["film", "the film was"]},
    "labels": lambda text: {"text": text},
    "language": lambda text: {"text": f"{text} {text} {text}"},  # so that some token is masked
    "regression": lambda text: {"text": text},
    "sequences": lambda text: {"source": text},
    "spans": lambda text: {"question": "who?", "context": text},
    "tokens": lambda text: {"tokens": text.split()},
}
"""Rows of inputs outside the domain, without labels."""


@pytest.mark.slow_but(*QUICK)
@pytest.mark.parametrize("name", HEADS)
def test_uncertainty_detects_inputs_outside_the_domain(name: str, copied, tmp_path) -> None:
    place, source = copied(name), tmp_path / "outside.jsonl"
    if name in OUTSIDE:
        rows = [json.dumps(OUTSIDE[name](f"film was the good {row}")) + "\n" for row in range(9)]
        source.write_text("".join(rows), encoding="utf-8")
    else:
        from PIL import Image

        source = tmp_path / "noise"
        source.mkdir()
        for row in range(9):
            Image.new("RGB", (8, 8), (250, 20 * row, 9)).save(source / f"{row}.png")
    keys = yaml.safe_load((place / "recipe.yaml").read_text(encoding="utf-8"))
    keys[name]["out_of_domain"] = str(source)
    (place / "recipe.yaml").write_text(yaml.safe_dump(keys), encoding="utf-8")
    succeeds("report", place, "--quiet")
    results, task = tasks.load_results(place), tasks.run_task(place)
    (data,) = (item for item in results.data if item.key == "out_of_domain")
    assert not data.labelled and data.size == len(task.examples["out_of_domain"]) == 9
    assert "OOD" in (place / "report.html").read_text(encoding="utf-8")
    for score in (score for score in results.scores if score.data == "out_of_domain"):
        assert score.values.keys() - {"mutual_information"} == {"auroc", "fpr95"}
        assert score.entropy is None if name == "regression" else score.entropy.mean > 0
    compared = {item.measure for item in results.differences if item.data == "out_of_domain"}
    assert compared == {"auroc", "fpr95"} and compared <= results.measures.keys()
    by = "standard deviation of draws" if name == "regression" else "entropy"
    assert f"higher {by} than" in results.measures["auroc"].meaning
    predictor, answers = Predictor(task, task.network(place / "baseline")), {}
    for key in ("test", "out_of_domain"):
        inputs = [{name: row[name] for name in row if name not in TRUTHS} for row in task.examples[key]]
        answers[key] = [
            answer[task.ranked_by]
            for batch in predictor.completed(inputs)
            for answer in task.answer(predictor.expected(batch), batch)
        ]
    truth = [0] * len(answers["test"]) + [1] * 9
    expected = roc_auc_score(truth, answers["test"] + answers["out_of_domain"])
    values = pytest.approx(expected, abs=1e-6)
    assert results.score("deterministic", "out_of_domain").values["auroc"] == values
