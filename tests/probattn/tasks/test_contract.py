"""What holds for every task: those of the library, and the one that the page on adding a task writes."""

from __future__ import annotations

import json
import re
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import runs
import torch
from runs import folders_in, refused, started, succeeds

from probattn import tasks
from probattn.recipes import RecipeError, load_any_recipe
from probattn.report import ResultsFileError
from probattn.tasks.classification import networks

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "extending.md"
NUMBERS = """
numbers: {rows: 48}
training: {steps: 6, batch_size: 8, log_every: 2, checkpoint_every: 3, learning_rate: 1e-2, device: cpu}
prediction: {num_samples: 3}
report: {resamples: 100}
"""
HEADS = ("choices", "images", "labels", "language", "regression", "sequences", "spans", "tokens")
NAMES = (
    *("texts", "graph", "translation", "graph_text", "visual_questions", "pretraining", "copying", "numbers"),
    *HEADS,
)
NEEDS = {
    "graph": "torch_geometric",
    "translation": "sentencepiece",
    "graph_text": "nltk",
    "images": "PIL",
    "sequences": "sacrebleu",
}
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


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("contract")


@pytest.fixture(scope="module")
def recipe(folder: Path) -> Callable[[str], Path]:
    """The file of a tiny recipe of a task."""
    rest = f"training: {{{runs.TRAINING}}}\nprediction: {{num_samples: 3}}\nreport: {{resamples: 100}}\n"
    texts = runs.recipes(folder) | {"numbers": NUMBERS} | runs.head_recipes(folder, rest)

    def write(name: str) -> Path:
        if name in NEEDS:
            pytest.importorskip(NEEDS[name], reason=f"needs {NEEDS[name]}, of an extra")
        file = folder / f"{name}.yaml"
        if not file.exists():
            file.write_text(texts[name], encoding="utf-8")
        return file

    return write


@pytest.fixture(scope="module")
def finished(recipe: Callable[[str], Path], folder: Path) -> Callable[[str], Path]:
    """The folder of a finished run, trained once; tests that change something take a copy."""

    def make(name: str, seed: int = 0) -> Path:
        place = folder / "runs" / (f"{name}-{seed}" if seed else name)
        if not place.exists():
            key = ("--set", f"training.seed={seed}") if seed else ()
            succeeds("train", recipe(name), "-o", place, "--quiet", *key)
        return place

    return make


@pytest.fixture
def copied(finished: Callable[[str], Path], tmp_path: Path) -> Callable[[str], Path]:
    """A finished run's folder to write in."""

    def make(name: str, seed: int = 0) -> Path:
        return shutil.copytree(finished(name, seed), tmp_path / f"{name}-{seed}")

    return make


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


@pytest.mark.parametrize("name", NAMES)
def test_it_leaves_a_recipe_that_loads_as_the_same(name: str, recipe, finished) -> None:
    place = finished(name)
    loaded = load_any_recipe(place / "recipe.yaml")
    assert loaded == load_any_recipe(recipe(name)).model_copy(update={"output": loaded.output})
    assert Path(loaded.output).samefile(place)
    assert type(tasks.task_of(loaded)) is type(tasks.run_task(place))


@pytest.mark.parametrize("name", WITH_BASELINE)
def test_another_seed_gives_other_weights(name: str, finished) -> None:
    """The same one gives the same: a run that is killed, below."""
    first, second = (tasks.load_network(finished(name, seed)).net.state_dict() for seed in (0, 1))
    assert any(not torch.equal(value, second[key]) for key, value in first.items())


def test_the_page_s_task_trains_to_the_same_weights_again(recipe, finished, tmp_path) -> None:
    succeeds("train", recipe("numbers"), "-o", tmp_path / "again", "--quiet")
    same(finished("numbers"), tmp_path / "again")


@pytest.mark.parametrize("name", NAMES)
def test_a_run_without_its_last_checkpoint_is_resumed_bit_for_bit(
    name: str, recipe, finished, copied
) -> None:
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
    succeeds("train", recipe(name), "-o", place, "--quiet", "--resume")
    same(finished(name), place)
    for file in finished(name).rglob("metrics.jsonl"):
        assert steps(place / file.relative_to(finished(name))) == steps(file)


def steps(file: Path) -> list[tuple[Any, Any]]:
    records = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return [(record.get("kind"), record["step"]) for record in records]


@pytest.mark.parametrize("name", NAMES)
def test_folders_that_do_not_fit_are_refused_before_anything_is_written(
    name: str, recipe, finished, tmp_path
) -> None:
    used = finished(name)
    before = {file: file.stat().st_mtime_ns for file in used.rglob("*") if file.is_file()}
    assert "expected a new folder, it holds files" in refused("train", recipe(name), "-o", used, "--quiet")
    other = ("--set", "training.seed=9")
    assert "its recipe differs" in refused("train", recipe(name), "-o", used, "--resume", "--quiet", *other)
    assert "nothing to resume" in refused(
        "train", recipe(name), "-o", tmp_path / "none", "--resume", "--quiet"
    )
    assert {file: file.stat().st_mtime_ns for file in used.rglob("*") if file.is_file()} == before
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("name", NAMES)
def test_it_is_evaluated_and_reported(name: str, copied) -> None:
    place = copied(name)
    table = succeeds("evaluate", place)
    *lines, results, following = table.splitlines()
    assert len(lines) > 1 and results == f"results: {place / 'metrics.json'}"
    assert following == f"next: probattn report {place}"
    results = tasks.load_results(place)
    task = tasks.run_task(place)
    summary = json.loads(succeeds("report", place, "--json"))
    assert (
        summary["headline"] == task.view.headline(results)
        and Path(summary["report"]) == place / "report.html"
    )
    page = (place / "report.html").read_text(encoding="utf-8")
    assert (
        page == task.view.page(results)
        and page.count("<h1>") == 1
        and task.view.headline(results)[:20] in page
    )
    again = json.loads(succeeds("evaluate", place, "--json"))
    for key in ("kind", "scores", "differences", "conditions"):
        assert again.get(key) == json.loads(results.model_dump_json()).get(key)


@pytest.mark.parametrize("name", NAMES)
def test_a_damaged_evaluation_is_refused_in_one_line_and_made_anew(name: str, copied) -> None:
    place = copied(name)
    (place / "metrics.json").write_text('{"schema_version": 3}', encoding="utf-8")
    with pytest.raises(ResultsFileError):
        tasks.load_results(place)
    assert "metrics.json" in refused("report", place)
    succeeds("report", place, "--again")


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
def test_the_baseline_is_the_same_network_without_methods(name: str, recipe) -> None:
    task = tasks.load_task(recipe(name))
    plain, own = (task.program(baseline=baseline).state_dict() for baseline in (True, False))
    shared = plain.keys() & own.keys()
    assert len(shared) == len(plain) <= len(own)
    assert all(torch.equal(plain[key], own[key]) for key in shared)


@pytest.mark.parametrize("name", NAMES)
def test_a_wrong_baseline_is_refused(name: str, finished, copied) -> None:
    other = finished("texts" if name != "texts" else "numbers")
    place = copied(name)
    own = "expected no --baseline" if name in WITHOUT_CHOICE else "expected a deterministic run as baseline"
    for command in ("evaluate", "report"):
        said = refused(command, place, "--baseline", other)
        assert "expected a baseline of the same kind as" in said and "got another kind of run" in said
        assert own in refused(command, place, "--baseline", place)
    assert not (place / "metrics.json").exists()


@pytest.mark.parametrize("name", NAMES)
def test_predictions_of_texts_are_made_or_refused_in_one_line(name: str, finished) -> None:
    words = ("predict", finished(name), "the film was good", "--json")
    if name in ANSWERS:
        (answer,) = map(json.loads, succeeds(*words).splitlines())
        assert answer["text"] == "the film was good" and ANSWERS[name] in answer
    else:
        assert f"expected {FORMS.get(name, 'a run that answers texts')}" in refused(*words)


@pytest.mark.parametrize("name", NAMES)
def test_several_runs_are_compared_over_seeds_or_refused_in_one_line(name: str, copied) -> None:
    first = copied(name)
    task = tasks.run_task(first)
    if task.view.no_seeds is not None:
        for command in ("report", "evaluate"):
            assert task.view.no_seeds in refused(command, first, first)
        assert not (first / "seeds.json").exists()
        return
    second = copied(name, 1)
    assert "another training.seed" in refused("report", first, first)
    summary = json.loads(succeeds("report", first, second, "--json"))
    assert summary["seeds"] == [0, 1] and (first / "seeds.html").exists()
    assert (second / "report.html").exists()


@pytest.mark.parametrize(("name", "section"), SECTIONS.items())
def test_recipes_of_another_task_are_said_to_be_of_it(name: str, section: str, recipe) -> None:
    from probattn.recipes import load_recipe

    with pytest.raises(RecipeError, match=f"expected a recipe of texts, got one with a section '{section}'"):
        load_recipe(recipe(name))


@pytest.mark.slow
@pytest.mark.fork
@pytest.mark.parametrize("name", [name for name in NAMES if name != "numbers"])
def test_a_killed_run_is_continued_to_the_same_end(name: str, recipe, finished, tmp_path) -> None:
    place = tmp_path / "run"
    words = ("train", recipe(name), "-o", place, "--quiet")
    process = started(*words)
    while process.is_alive() and not any(name.startswith("step-") for name in folders_in(place)):
        time.sleep(0.01)
    process.kill()
    process.join()
    assert process.exitcode in (0, -signal.SIGKILL)
    succeeds(*words, "--resume")
    same(finished(name), place)


def test_a_run_loads_its_network_once_a_model_and_a_baseline_is_not_warned_of_being_deterministic(
    recipe, tmp_path, monkeypatch, caplog
) -> None:
    opened = []
    plain = networks.open_pretrained
    monkeypatch.setattr(
        networks,
        "open_pretrained",
        lambda cls, *words, **options: opened.append(cls) or plain(cls, *words, **options),
    )
    succeeds("train", recipe("texts"), "-o", tmp_path / "run", "--quiet")
    assert [cls.__name__ for cls in opened].count(
        "AutoModelForSequenceClassification"
    ) == 2  # and its baseline
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


def test_a_network_that_cannot_be_saved_is_refused_before_training(recipe, tmp_path) -> None:
    numbers = type(tasks.load_task(recipe("numbers")))
    forgetful = type("Forgetful", (numbers,), {"save": tasks.ProgramTask.save})
    # The author of the task forgot to write a method; it is no fault of the run.
    with pytest.raises(NotImplementedError, match="override save and network"):
        tasks.train(forgetful(load_any_recipe(recipe("numbers"))), tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


def test_a_baseline_begins_with_the_weights_of_the_network(recipe, tmp_path) -> None:
    """Also where a task draws them anew."""
    numbers = type(tasks.load_task(recipe("numbers")))
    made = {}

    def program(self, *, baseline=False):
        made[baseline] = numbers.program(self, baseline=baseline)
        for parameter in made[baseline].parameters():
            torch.nn.init.normal_(parameter)
        return made[baseline]

    other = type("Other", (numbers,), {"program": program})
    other(load_any_recipe(recipe("numbers"))).parts(tmp_path)
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
