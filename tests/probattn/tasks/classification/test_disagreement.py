"""Runs whose heads pay for being alike through the whole command line, on a tiny network."""

from __future__ import annotations

import shutil

import pytest

from probattn.inference.records import read_records
from probattn.inference.report import read_results
from probattn.models.hosts.convert import conversion
from probattn.recipes import load_recipe
from probattn.tasks import load_network
from probattn.tasks.programs import measured

pytestmark = pytest.mark.filterwarnings("ignore::probattn.data.DataWarning")

PLAIN = ("--set", "attention.method=deterministic", "--quiet")


def losses(folder):
    return [record.get("loss") for record in read_records(folder / "metrics.jsonl")]


def train(command, recipe, folder, *keys):
    overrides = [part for key in keys for part in ("--set", key)]
    result = command("train", recipe, "--output", folder, *PLAIN, *overrides)
    assert result.exit_code == 0, result.output
    return folder


def test_weight_zero_is_the_plain_run_bit_for_bit(recipe, command, tmp_path):
    # eager attention is what conversion switches to: another implementation rounds otherwise
    eager = ("network.config={attn_implementation: eager}", "report.baseline=false")
    plain = train(command, recipe, tmp_path / "plain", *eager)
    first = load_network(plain).net.state_dict()
    for method in ("frobenius", "outputs", "parameters"):
        nothing = f"disagreement={{method: {method}, weight: 0}}"
        folder = train(command, recipe, tmp_path / method, *eager, nothing)
        assert losses(folder) == losses(plain)
        second = load_network(folder).net.state_dict()
        assert all(value.equal(second[name]) for name, value in first.items())


@pytest.fixture(scope="module")
def regularised(recipe, command, tmp_path_factory):
    """A run with the Frobenius penalty, and its baseline."""
    folder = tmp_path_factory.mktemp("runs") / "regularised"
    return train(command, recipe, folder, "disagreement={method: frobenius, weight: 1}")


def test_training_pays_and_the_report_compares(regularised, command):
    records = [record for record in read_records(regularised / "metrics.jsonl") if record["kind"] == "train"]
    assert all(record["factors"] < 0 for record in records)
    trained = load_network(regularised)
    assert trained.key == "regularised" and "heads" in measured(trained.net)
    result = command("report", regularised)
    assert result.exit_code == 0, result.output
    found = read_results(regularised / "metrics.json")
    assert {score.model for score in found.scores} == {"deterministic", "regularised"}
    assert found.compared == "regularised"
    page = (regularised / "report.html").read_text(encoding="utf-8")
    assert "Deterministic against regularised" in page and "Regularised attention weights, " in page
    assert "deterministic attention; penalty on heads alike (frobenius), weight 1" in page


def test_it_resumes_beside_repulsion(recipe, command, tmp_path):
    keys = ("disagreement={method: positions}", "repulsion={sampler: spos}", "report.baseline=false")
    run, copy = train(command, recipe, tmp_path / "whole", *keys), tmp_path / "copy"
    shutil.copytree(run, copy)
    shutil.rmtree(copy / "checkpoints" / "step-000006")
    shutil.rmtree(copy / "model")
    result = command("train", copy / "recipe.yaml", "--output", copy, "--resume", "--quiet")
    assert result.exit_code == 0, result.output
    assert losses(run) == losses(copy)
    assert load_network(copy).key == "repulsive"
    assert conversion(load_network(copy).net).disagreement is not None


def test_words_for_the_method(recipe):
    overrides = [
        "attention.method=deterministic",
        "disagreement={method: outputs, weight: 0.5, layers: last}",
    ]
    assert load_recipe(recipe, overrides).method_words() == (
        "deterministic attention; penalty on heads alike (outputs), weight 0.5, layers last"
    )
