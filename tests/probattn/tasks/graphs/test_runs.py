"""Runs on a small graph in Planetoid's form: records, measures, and what is refused."""

import builtins
import pickle
import shutil

import pytest
import runs

from probattn.inference.records import read_records
from probattn.report import read_results


@pytest.fixture(scope="session")
def graph_run(graph_recipe, command, tmp_path_factory):
    pytest.importorskip("torch_geometric", reason="needs torch-geometric (the extra 'graph')")
    place = tmp_path_factory.mktemp("runs") / "circles"
    result = command("train", graph_recipe, "--output", place, "--quiet")
    assert result.exit_code == 0, result.output
    assert "model: 12 steps" in result.output and "baseline: 12 steps" in result.output
    return place


def test_train_fits_the_network_and_its_baseline(graph_run):
    own = [record for record in read_records(graph_run / "metrics.jsonl") if record["kind"] == "train"]
    plain = [
        record for record in read_records(graph_run / "baseline/metrics.jsonl") if record["kind"] == "train"
    ]
    assert own[-1]["kl_nats"] > 0 and own[-1]["factors"] != 0
    assert set(own[-1]["sites"]) == {"hidden.attention", "output.attention"}
    assert plain[-1]["kl_nats"] == 0 and plain[-1]["factors"] == 0
    assert plain[-1]["log_likelihood"] > plain[0]["log_likelihood"]


def test_evaluate_and_report(graph_run, command):
    runs.succeeds("report", graph_run)
    results = read_results(graph_run / "metrics.json")
    expected = {"deterministic", "bayesian_mean", "bayesian_expectation"}
    assert {score.model for score in results.scores} == expected
    assert (results.in_domain.size, results.in_domain.unit, results.run.train_size) == (30, "nodes", 12)
    assert [site.site for site in results.health] == ["hidden.attention", "output.attention"]
    assert all(site.spread > 0 for site in results.health)
    assert {(layer.model, layer.site) for layer in results.edges} == {
        (model, f"{layer}.attention")
        for model in ("deterministic", "bayesian_expectation")
        for layer in ("hidden", "output")
    }
    page = (graph_run / "report.html").read_text(encoding="utf-8")
    assert "90 nodes" in page and "CT alignment" in page
    again = command("evaluate", graph_run)
    assert again.exit_code == 0
    for layer in results.edges:
        assert f"{layer.from_uniform:.3f}" in again.output and f"{layer.key_norm:.3f}" in again.output


def test_the_report_measures_the_trained_layers(graph_run):
    pytest.importorskip("torch_geometric", reason="needs torch-geometric (the extra 'graph')")
    from probattn.tasks import load_network, run_task

    found = {(layer.model, layer.site): layer for layer in run_task(graph_run).evaluate(graph_run).edges}
    model = load_network(graph_run / "baseline").program
    inputs = model.features
    value, query, key = model.net.hidden.features(inputs)
    layer = found["deterministic", "hidden.attention"]
    for measured, vectors in ((layer.query_norm, query), (layer.key_norm, key), (layer.value_norm, value)):
        assert measured == pytest.approx(vectors.square().sum(-1).sqrt().mean().item(), rel=1e-5)
    weights = model.net.attention(inputs, model.edges)["hidden.attention"]
    assert 0 < layer.from_uniform < weights.max() * model.edges.degree.max()


def test_adversarial_alignment_trains_and_is_reported(graph_recipe, tmp_path):
    pytest.importorskip("torch_geometric", reason="needs torch-geometric (the extra 'graph')")
    keys = ("alignment.method=gan", "attention.method=deterministic", "training.epochs=2")
    runs.succeeds("report", runs.trained(graph_recipe, tmp_path / "run", *keys))
    models = {score.model for score in read_results(tmp_path / "run" / "metrics.json").scores}
    assert models == {"deterministic", "aligned"}


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("graph.folder=/no/such", ["/no/such lacks ind.pubmed.x"]),
        ("attention.layers=[2]", ["layers: expected numbers from -2 to 1, got 2"]),
    ],
)
def test_what_does_not_fit_is_said_in_one_line(graph_recipe, tmp_path, override, words):
    pytest.importorskip("torch_geometric", reason="needs torch-geometric (the extra 'graph')")
    place = tmp_path / "out"
    said = runs.refused("train", graph_recipe, "--output", place, "--quiet", "--set", override)
    assert all(word in said for word in words)
    assert not place.exists()


def test_an_edge_to_a_missing_node_is_said_in_one_line(graph_recipe, graph_folder, tmp_path):
    pytest.importorskip("torch_geometric", reason="needs torch-geometric (the extra 'graph')")
    copy = tmp_path / "graph"
    shutil.copytree(graph_folder, copy)
    (copy / "ind.pubmed.graph").write_bytes(pickle.dumps({0: [90]}))
    override = f"graph.folder={copy}"
    said = runs.refused("train", graph_recipe, "--output", tmp_path / "out", "--set", override)
    assert "missing node: 0 to 90" in said


def test_without_torch_geometric_the_line_names_the_extra(graph_recipe, tmp_path, monkeypatch):
    def missing(name, *arguments, **keywords):
        if name == "probattn.models.graph":
            raise ImportError("probattn.models.graph needs torch-geometric: pip install 'probattn[graph]'")
        return found(name, *arguments, **keywords)

    found = builtins.__import__
    monkeypatch.setattr(builtins, "__import__", missing)
    expected = runs.refused("train", graph_recipe, "--output", tmp_path / "out")
    assert "pip install 'probattn[graph]'" in expected
