"""Commands on several runs of one recipe, what programs get to read, and the time a run took."""

import json
import shutil

import pytest
import torch
from runs import succeeds

from probattn.inference.records import read_records
from probattn.report import read_results
from probattn.tasks.networks import share_weights
from probattn.tasks.run import spent
from probattn.tasks.view import ResultsView

HOSTILE = "[/x] [bold]fine[/bold] <b>&"


@pytest.fixture(scope="module")
def seeds(recipe, tmp_path_factory):
    """Three runs, a seed each; the first with a name that looks like markup."""
    place = tmp_path_factory.mktemp("seeds")
    folders = [place / name for name in ("[bold]0 <b>", "1", "2")]
    for seed, folder in enumerate(folders):
        succeeds(
            "train",
            recipe,
            "-o",
            folder,
            "--quiet",
            "--set",
            f"training.seed={seed}",
            "--set",
            f"name=run {seed}",
        )
    return folders


@pytest.mark.slow
def test_a_report_of_several_runs_is_one_over_their_seeds(seeds, command):
    result = command("report", *seeds)
    assert result.exit_code == 0, result.output
    assert result.stdout == f"report: {seeds[0] / 'seeds.html'}\n"
    found = read_results(seeds[0] / "seeds.json")
    assert found.seeds == (0, 1, 2) and [run.folder for run in found.runs] == [".", "../1", "../2"]
    page = (seeds[0] / "seeds.html").read_text(encoding="utf-8")
    assert "<h1>No significant difference between Bayesian and deterministic attention (3 seeds, " in page
    assert 'href="../2/report.html"' in page
    single = [read_results(folder / "metrics.json") for folder in seeds]
    for item in found.differences:
        values = [each.difference(item.measure, item.model, item.data).value for each in single]
        assert item.seeds == pytest.approx(values) and item.value == pytest.approx(sum(values) / 3)
    assert all((folder / "report.html").exists() for folder in seeds)


@pytest.mark.slow
def test_evaluate_prints_a_table_or_json_and_nothing_else(seeds, command):
    shown = command("evaluate", *seeds[1:])
    assert shown.exit_code == 0, shown.output
    assert "No significant difference between Bayesian and deterministic attention (2 seeds, " in shown.stdout
    assert f"results: {seeds[1] / 'seeds.json'}" in shown.stdout
    several = command("evaluate", *seeds[1:], "--json")
    assert json.loads(several.stdout) == json.loads((seeds[1] / "seeds.json").read_text(encoding="utf-8"))


@pytest.mark.slow
def test_report_for_programs(seeds, command):
    one = json.loads(command("report", seeds[1], "--json").stdout)
    assert one["report"] == str(seeds[1] / "report.html") and one["results"] == str(seeds[1] / "metrics.json")
    assert one["headline"].startswith(
        "No significant difference between Bayesian and deterministic attention (1 "
    )
    assert one["seeds"] == [1]
    found = read_results(seeds[1] / "metrics.json")
    expected = [
        (item.data, item.measure, item.p) for item in found.differences if item.model == "bayesian_mean"
    ]
    values = sorted(expected)
    assert sorted((item["data"], item["measure"], item["p"]) for item in one["comparisons"]) == values
    assert {item["verdict"] for item in one["comparisons"]} == {"unclear"}
    several = json.loads(command("report", *seeds, "--json").stdout)
    assert several["seeds"] == [0, 1, 2] and several["report"].endswith("seeds.html")


@pytest.mark.slow
def test_runs_that_are_no_seeds_of_one_recipe_are_refused(seeds, command, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(seeds[1], other)
    text = (other / "recipe.yaml").read_text(encoding="utf-8")
    (other / "recipe.yaml").write_text(
        text.replace("seed: 1", "seed: 7").replace("num_samples: 3", "num_samples: 4")
    )
    for arguments, words in (
        ((seeds[0], seeds[1], seeds[1]), f"{seeds[1]}: expected another training.seed than 1"),
        ((seeds[0], other), "with prediction.num_samples 3, got 4"),
        ((seeds[0], tmp_path), "expected a run folder with recipe.yaml"),
        ((*seeds, "--baseline", seeds[0] / "baseline"), "--baseline"),
    ):
        for name in ("report", "evaluate"):
            result = command(name, *arguments)
            lines = result.stderr.splitlines()
            assert result.exit_code == 2 and result.stdout == "", result.output
            assert sum(line.startswith("error: ") for line in lines) == 1 and words in lines[-1]


@pytest.mark.slow
def test_a_comparison_of_another_class_is_refused_before_it_is_written(seeds, command, tmp_path, monkeypatch):
    copies = [tmp_path / folder.name for folder in seeds[:2]]
    for folder, copy in zip(seeds, copies, strict=False):
        shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("seeds.*"))
        command("report", copy)
    monkeypatch.setattr(ResultsView, "combine", lambda _, results: results)
    result = command("report", *copies)
    assert result.exit_code == 2
    assert "ResultsView.combine: expected Results, got dict; write a combine that returns it" in result.stderr
    assert not (copies[0] / "seeds.json").exists()


def test_a_baseline_begins_with_the_weights_that_it_shares():
    """Those of the same name and shape; others stay its own."""
    layers = [
        torch.nn.ModuleDict({"a": torch.nn.Linear(2, 3), "b": torch.nn.Linear(3, size)}) for size in (4, 5)
    ]
    own = layers[1]["b"].weight.clone()
    share_weights(*layers)
    assert torch.equal(layers[0]["a"].weight, layers[1]["a"].weight)
    assert torch.equal(layers[1]["b"].weight, own)


@pytest.mark.slow
def test_evaluations_that_do_not_fit_are_refused(seeds, command, tmp_path):
    copies = [tmp_path / folder.name for folder in seeds[:2]]
    for folder, copy in zip(seeds, copies, strict=False):
        shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("seeds.*"))
        command("report", copy)
    content = json.loads((copies[1] / "metrics.json").read_text(encoding="utf-8"))
    content["classes"] = ["x", "y"]
    (copies[1] / "metrics.json").write_text(json.dumps(content), encoding="utf-8")
    result = command("report", *copies)
    assert result.exit_code == 2
    assert "expected the classes of ." in result.stderr
    assert "evaluate both again" in result.stderr
    assert not (copies[0] / "seeds.html").exists()


@pytest.mark.slow
def test_the_time_of_a_run_is_the_sum_over_its_training(seeds, command):
    """Both networks; validation, which ends the records, has no time of its own."""
    command("report", seeds[1], "--again")
    expected = sum(
        record["seconds"]
        for folder in (seeds[1], seeds[1] / "baseline")
        for record in read_records(folder / "metrics.jsonl")
        if record["kind"] == "train"
    )
    run = read_results(seeds[1] / "metrics.json").run
    assert run.seconds == pytest.approx(expected) and expected > 0
    assert run.steps == 6


def test_the_time_of_records_that_end_with_validation(tmp_path):
    lines = [
        {"kind": "train", "step": 2, "seconds": 1.5},
        {"kind": "validation", "step": 2, "loss": 1.0},
        {"kind": "train", "step": 4, "seconds": 2.5},
        {"kind": "validation", "step": 4, "loss": 1.0},
    ]
    (tmp_path / "baseline").mkdir()
    for folder, kept in ((tmp_path, lines), (tmp_path / "baseline", lines[:2])):
        (folder / "metrics.jsonl").write_text(
            "".join(json.dumps(line) + "\n" for line in kept), encoding="utf-8"
        )
    assert spent(tmp_path) == {"steps": 4, "seconds": 5.5}
    assert spent(tmp_path / "nothing") == {"steps": 0, "seconds": 0}


@pytest.mark.slow
def test_a_resumed_run_counts_all_its_sessions(seeds, recipe, tmp_path):
    """Records up to the checkpoint stay as they are, and count."""
    copy = tmp_path / "copy"
    shutil.copytree(seeds[0], copy)
    for folder in (copy, copy / "baseline"):
        shutil.rmtree(folder / "checkpoints" / "step-000006")
        shutil.rmtree(folder / "model")
    kept = [
        record
        for record in read_records(copy / "metrics.jsonl")
        if record["step"] <= 3 and "seconds" in record
    ]
    assert kept
    succeeds("train", copy / "recipe.yaml", "-o", copy, "--resume", "--quiet")
    records = [record for record in read_records(copy / "metrics.jsonl") if "seconds" in record]
    assert records[: len(kept)] == kept
    assert spent(copy)["seconds"] >= sum(record["seconds"] for record in records)


@pytest.mark.slow
def test_predictions_of_texts_that_look_like_markup(seeds, command):
    texts = ("not [/good] at all", "a [bold]fine[/bold] film", HOSTILE, "\x1b[31mred \u202ederevo")
    result = command("predict", seeds[0], *texts)
    assert result.exit_code == 0, result.output
    for text in texts[:3]:
        assert text in result.stdout
    assert "\x1b" not in result.stdout and result.stdout.count("\u202e") == result.stdout.count("\u202c") == 1
    lines = command("predict", seeds[0], *texts, "--json").stdout.splitlines()
    assert [json.loads(line)["text"] for line in lines] == list(texts)


@pytest.mark.slow
def test_errors_and_warnings_are_text(seeds, command, tmp_path, recipe):
    for name in ("[/x]", "[bold]run", "\u202enur", "a\x1b[31mb"):
        result = command("report", tmp_path / name)
        assert result.exit_code == 2 and len(result.stderr.splitlines()) == 1
        assert name.replace("\x1b", "\ufffd") in result.stderr
        assert result.stderr.count("\u202e") == result.stderr.count("\u202c")
