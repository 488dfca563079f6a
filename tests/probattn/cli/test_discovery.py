"""What there is, and what to start from: recipes, methods, init, devices, parts of an evaluation, the shell."""

from pathlib import Path

import pytest
import torch
from runs import succeeds

from probattn.cli.app import _recipe_names
from probattn.recipes import load_any_recipe, read_recipe, recipe_names
from probattn.report import read_results
from probattn.sites import METHODS
from probattn.tasks import Classification, RunError, devices, run_task
from probattn.tasks.classification import task as classification


def test_recipes_are_listed_with_what_they_are_for(command):
    shown = command("recipes").output
    for name in recipe_names():
        line = next(line for line in shown.splitlines() if line.startswith(f"{name} "))
        assert len(line.removeprefix(name).strip()) > 10 and line.endswith(".")
    assert "Classification\n" in shown and "Translation\n" in shown and "\nGraph text\n" in shown
    rules = [line for line in shown.splitlines() if line and not line.strip("-")]
    assert len(rules) == 1 and len(rules[0]) <= 120


def test_methods_are_listed_with_their_sections(command):
    shown = command("methods").output
    for method in METHODS:
        line = next(line for line in shown.splitlines() if line.startswith(f"{method.section} "))
        assert method.__name__ in line and line.endswith(".")


@pytest.mark.parametrize("name", ["demo", "cora_ct", "multi30k_lstm", "copying_heads", "mrpc_gan"])
def test_init_writes_a_recipe_that_says_the_same(command, tmp_path, name):
    file = tmp_path / "my.yaml"
    result = command("init", name, "--output", file)
    assert result.exit_code == 0 and f"next: probattn train {file}" in result.output
    assert load_any_recipe(file) == load_any_recipe(name)
    lines = file.read_text(encoding="utf-8").splitlines()
    keys = [number for number, line in enumerate(lines) if line.strip() and not line.lstrip().startswith("#")]
    explained = [number for number in keys if lines[number - 1].lstrip().startswith("#")]
    assert explained == keys or name == "copying_heads", "every key, but those of further conditions"
    assert max(map(len, lines)) < 260


def test_init_recognises_a_file_and_its_recipe_trains(command, network, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [
        f"{number};{number % 2};the film was {word}"
        for number, word in enumerate(["good", "bad", "fine"] * 20)
    ]
    (tmp_path / "tickets.csv").write_text(
        "id;queue;words of the customer\n" + "\n".join(rows), encoding="utf-8"
    )
    result = command("init", "tickets.csv")
    assert result.exit_code == 0, result.output
    assert "column 'words of the customer' of texts, column 'queue' of labels" in result.output
    assert "0 (30), 1 (30)" in result.output
    recipe = load_any_recipe("tickets.yaml")
    assert (recipe.data.train.text, recipe.data.train.label) == ("words of the customer", "queue")
    sets = ["training.steps=1", "data.max_length=null", f"network.name={network}", "report.baseline=false"]
    (tmp_path / "tickets.csv").write_text(
        "id;queue;words of the customer\n" + "\n".join(f"{row} {place}" for place, row in enumerate(rows)),
        encoding="utf-8",
    )
    trained = command(
        "train", "tickets.yaml", "--quiet", *(part for each in sets for part in ("--set", each))
    )
    assert trained.exit_code == 0, trained.output
    assert "classes: 0 " in trained.output
    following = "next: probattn triage runs/tickets --error 0.05, or probattn report runs/tickets"
    assert following in trained.output
    again = command("init", "tickets.csv")
    assert again.exit_code == 2 and "expected a new file, it is there already" in again.output


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        (
            "a.csv",
            "text,id\na film,1\nb film,2\nc film,3\nd film,4\n",
            ["--label-column", "'id' (4 different values)"],
        ),
        ("a.csv", "text\na film\n", ["expected a column of labels beside 'text'"]),
        ("a.txt", "a film\n", ["expected a file with a column of texts and one of labels"]),
        ("none.csv", None, ["none.csv: cannot be read"]),
    ],
)
def test_files_that_init_does_not_recognise(command, tmp_path, monkeypatch, name, content, words):
    monkeypatch.chdir(tmp_path)
    if content is not None:
        (tmp_path / name).write_text(content, encoding="utf-8")
    result = command("init", name)
    assert result.exit_code == 2 and not list(tmp_path.glob("*.yaml"))
    for word in words:
        assert word in result.output


def test_init_recognises_pairs(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [f"{number},a man sleeps {number},a person rests,{number % 2}" for number in range(6)]
    Path("nli.csv").write_text("\n".join(["id,Premise,Hypothesis,gold", *rows]), encoding="utf-8")
    for arguments, columns in (
        ((), ("Premise", "Hypothesis")),
        (("--text-column", "Hypothesis"), ("Hypothesis", None)),
        (("--text-column", "Hypothesis", "--pair-column", "Premise"), ("Hypothesis", "Premise")),
    ):
        assert command("init", "nli.csv", "-o", "my.yaml", *arguments).exit_code == 0
        train = load_any_recipe("my.yaml").data.train
        assert (train.text, train.text_pair, train.label) == (*columns, "gold")
        Path("my.yaml").unlink()
    unknown = command("init", "nli.csv", "--pair-column", "hyp")
    assert unknown.exit_code == 2 and "name the column with --pair-column" in unknown.output


def test_init_names_what_it_does_not_know(command, tmp_path):
    assert "did you mean 'demo'?" in command("init", "demos").output
    assert "ends in .yaml" in command("init", "demo", "-o", tmp_path / "a.txt").output
    unknown = command("init", "demo", "-o", tmp_path / "none" / "a.yaml")
    assert unknown.exit_code == 2 and "error: " in unknown.output


def test_devices(command, run, recipe, tmp_path):
    assert devices.checked("cpu") == torch.device("cpu") and devices.checked("auto") is None
    with devices.on("cpu"):
        assert devices.current_device() == torch.device("cpu")
    with pytest.raises(RunError, match=r"--device: expected a device of this machine \(auto, cpu.*'tpu'"):
        devices.checked("tpu")
    assert devices.override("cpu") == ["training.device=cpu"]
    refused = command("evaluate", run, "--device", "cuda:99")
    assert refused.exit_code == 2 and "expected a device of this machine" in refused.output
    refused = command("train", recipe, "--output", tmp_path / "out", "--device", "cuda:99")
    assert refused.exit_code == 2 and not (tmp_path / "out").exists()
    succeeds("predict", run, "a film", "--device", "cpu")


@pytest.mark.cuda
def test_devices_of_this_machine():
    with devices.on("cuda:0"):
        assert devices.current_device() == torch.device("cuda:0") and torch.cuda.current_device() == 0


@pytest.mark.slow
def test_a_part_of_an_evaluation_says_so(run, command, tmp_path):
    whole = read_results(run / "metrics.json") if (run / "metrics.json").exists() else None
    result = command("evaluate", run, "--limit", 5, "--num-samples", 2)
    assert result.exit_code == 0, result.output
    assert "note: measured in part (--limit 5 --num-samples 2)" in result.output
    assert "Bayesian attention: predictions of" in result.stderr
    results = read_results(run / "metrics.json")
    assert [data.size for data in results.data] == [5, 5, 5] and results.run.num_samples == 2
    assert results.run.restricted == "--limit 5 --num-samples 2"
    shown = command("report", run)
    assert "measured in part (--limit 5 --num-samples 2)" in shown.output
    assert "<dt>Measured</dt><dd>in part: " in (run / "report.html").read_text(encoding="utf-8")
    again = command("report", run, "--again", "--quiet")
    assert "measured in part" not in again.output and "predictions of" not in again.output
    results = read_results(run / "metrics.json")
    assert results.run.restricted == "" and results.run.num_samples == 3
    assert whole is None or results.scores == whole.scores


def test_tasks_without_such_options_refuse_them(translation_run, command):
    result = command("evaluate", translation_run, "--num-samples", 3)
    assert result.exit_code == 2 and "--num-samples 3: expected no such option, translations" in result.output


def test_names_for_the_shell():
    assert tuple(_recipe_names()) == recipe_names()


@pytest.mark.filterwarnings("ignore::probattn.data.DataWarning")
def test_built_in_texts_of_another_domain_are_capped(run, monkeypatch):
    def capped(source, limit="null"):
        data = f"{{train: imdb, out_of_domain: {source}, limits: {{out_of_domain: {limit}}}}}"
        return Classification(read_recipe(f"data: {data}")).is_capped

    assert capped("bbc_news") and not capped("bbc_news", 9000) and not capped("my.csv") and not capped("null")
    task = run_task(run)
    assert len(task.measured()["out_of_domain"]) == 120 and task.cap_note is None
    monkeypatch.setattr(classification, "OUT_OF_DOMAIN_LIMIT", 7)
    monkeypatch.setattr(Classification, "is_capped", True)
    chosen = task.measured()
    assert chosen["out_of_domain"].texts == task.texts.roles()["out_of_domain"].take(7).texts
    assert len(chosen["shifted"]) == 120
    assert "7 of 120 texts are measured, a fixed choice" in str(task.cap_note)
