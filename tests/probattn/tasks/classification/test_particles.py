"""A recipe whose layers are particles, through every command that reads its run."""

import csv
import json

import pytest
import runs

from probattn.inference import posterior_predict
from probattn.sites.particle_layers import particle_record
from probattn.tasks import load_network

KEYS = ("attention.method=deterministic", "report.baseline=false", "training.steps=6")


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    folder = tmp_path_factory.mktemp("particles")
    file = folder / "texts.yaml"
    file.write_text(runs.recipes(folder)["texts"], encoding="utf-8")
    return file


@pytest.fixture(scope="module", params=["independent", "svgd"])
def run(request, recipe):
    key = f"particles={{sampler: {request.param}, num_particles: 3, layers: last, repulsion: 0.01}}"
    return runs.trained(recipe, recipe.parent / request.param, *KEYS, key)


def test_a_run_is_loaded_reported_explained_and_predicted_with_its_particles(run):
    network = load_network(run)
    _, record = particle_record(network.net)
    assert network.key == "particles" and record.method.num_particles == 3 and network.has_draws
    runs.succeeds("report", run)
    records = json.loads((run / "metrics.json").read_text())
    assert {score["model"] for score in records["scores"]} == {"particles"}
    page = (run / "report.html").read_text()
    assert "mean of particles" in page and "Which words speak for the answer" in page
    said = json.loads(runs.succeeds("predict", run, "the film was good", "--json"))
    inputs = network.codec(["the film was good"], return_tensors="pt")
    draws = posterior_predict(network.program, network.moved(inputs))
    assert said["probability"] == pytest.approx(float(draws.mean_probabilities.max()), abs=1e-4)
    assert "good" in runs.succeeds("explain", run, "the film was good")


def test_a_policy_may_rank_by_the_disagreement_of_particles(run, tmp_path):
    file = tmp_path / "more.csv"
    runs.write_reviews(file, 120)
    options = ("--data", file, "--error", "0.9", "--score", "mutual_information")
    runs.succeeds("triage", run, *options, "--output", tmp_path / "policy.json")
    policy = json.loads((tmp_path / "policy.json").read_text())
    assert policy["score"] == "mutual_information"
    rows = runs.succeeds("predict", run, "--policy", tmp_path / "policy.json", "--input", file)
    answers = list(csv.DictReader(rows.splitlines()))
    assert len(answers) == 120


@pytest.mark.slow
def test_recipes_with_particles_are_compared_with_the_network_as_it_is(recipe, tmp_path):
    plain, particles = tmp_path / "plain.yaml", tmp_path / "particles.yaml"
    content = recipe.read_text().replace("method: babn", "method: deterministic")
    plain.write_text(content, encoding="utf-8")
    particles.write_text(f"{content}particles: {{num_particles: 2, layers: last}}\n", encoding="utf-8")
    table = runs.succeeds("compare", plain, particles, "--seeds", 1, "--output", tmp_path / "out", "--quiet")
    assert "posterior draws" in table and "2 particles of layers last, independent" in table
