"""The command line on a small graph in Planetoid's form: train, resume, evaluate, report, and what is refused."""

from __future__ import annotations

import builtins
import json
import pickle
import shutil

import graph_study
import pytest
import runs
import typer

from probattn.inference.records import read_records
from probattn.inference.report import read_results


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("graph")
    runs.write_graph(place)
    return place


@pytest.fixture(scope="session")
def graph_recipe(folder, tmp_path_factory):
    """A recipe of 12 updates, latent and aligned at once."""
    file = tmp_path_factory.mktemp("recipe") / "circles.yaml"
    file.write_text(
        f"""
graph: {{name: pubmed, folder: {folder}}}
network: {{heads: 2, features: 4, output_heads: 2}}
attention: {{method: babn}}
alignment: {{method: ct}}
training: {{epochs: 12, kl_warmup_steps: 4, checkpoint_every: 6, log_every: 3, device: cpu, early_stopping: null}}
prediction: {{num_samples: 3}}
report: {{resamples: 100}}
""",
        encoding="utf-8",
    )
    return file


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
    result = command("report", graph_run)
    assert result.exit_code == 0, result.output
    results = read_results(graph_run / "metrics.json")
    assert {score.model for score in results.scores} == {
        "deterministic",
        "bayesian_mean",
        "bayesian_expectation",
    }
    assert results.in_domain.size == 30 and results.run.train_size == 12
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
    assert again.exit_code == 0 and "Accuracy" in again.output
    for layer in results.edges:
        assert f"{layer.from_uniform:.3f}" in again.output and f"{layer.key_norm:.3f}" in again.output
    assert read_results(graph_run / "metrics.json").scores == results.scores


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


@pytest.mark.parametrize("override", ["alignment.method=gan", "attention.method=bam"])
def test_other_methods_train_and_report(graph_recipe, command, tmp_path, override):
    pytest.importorskip("torch_geometric", reason="needs torch-geometric (the extra 'graph')")
    place = tmp_path / "run"
    other = "attention.method=deterministic" if "alignment" in override else "attention.concentration=10.0"
    options = ["--set", override, "--set", other, "--set", "training.epochs=2"]
    trained = command("train", graph_recipe, "--output", place, "--quiet", *options)
    assert trained.exit_code == 0, trained.output
    result = command("report", place)
    assert result.exit_code == 0, result.output
    models = {score.model for score in read_results(place / "metrics.json").scores}
    assert models >= {"deterministic", "aligned" if "alignment" in override else "bayesian_mean"}


def test_a_resumed_run_ends_where_the_whole_one_did(graph_run, graph_recipe, command, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(graph_run, copy)
    for place in (copy, copy / "baseline"):
        shutil.rmtree(place / "checkpoints" / "step-000012")
        shutil.rmtree(place / "model")
    result = command("train", graph_recipe, "--output", copy, "--resume", "--quiet")
    assert result.exit_code == 0, result.output
    losses = [[record["loss"] for record in read_records(run / "metrics.jsonl")] for run in (graph_run, copy)]
    assert losses[0] == losses[1]


def refused(result, *words):
    assert result.exit_code == 2, result.output
    lines = [line for line in result.output.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1
    for word in words:
        assert word in lines[0]


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("graph.folder=/no/such", ["/no/such lacks ind.pubmed.x"]),
        ("alignment.method=tc", ["alignment.method", "'tc'"]),
        ("alignment.weight=-1", ["alignment.weight", "-1"]),
        ("attention.layers=[2]", ["layers: expected numbers from -2 to 1, got 2"]),
        ("data.train=imdb", ["unknown key 'data'"]),
    ],
)
def test_what_does_not_fit_is_said_in_one_line(graph_recipe, command, tmp_path, override, words):
    pytest.importorskip("torch_geometric", reason="needs torch-geometric (the extra 'graph')")
    place = tmp_path / "out"
    refused(command("train", graph_recipe, "--output", place, "--quiet", "--set", override), *words)
    assert not place.exists()


def test_an_edge_to_a_missing_node_is_said_in_one_line(graph_recipe, folder, command, tmp_path):
    pytest.importorskip("torch_geometric", reason="needs torch-geometric (the extra 'graph')")
    copy = tmp_path / "graph"
    shutil.copytree(folder, copy)
    (copy / "ind.pubmed.graph").write_bytes(pickle.dumps({0: [90]}))
    override = f"graph.folder={copy}"
    refused(
        command("train", graph_recipe, "--output", tmp_path / "out", "--set", override),
        "missing node: 0 to 90",
    )


def test_a_run_on_a_graph_neither_predicts_texts_nor_takes_another_baseline(graph_run, command, tmp_path):
    refused(command("predict", graph_run, "a text"), "expected a run that answers texts, got one of graph")
    refused(command("report", graph_run, "--baseline", tmp_path), "expected no --baseline")


def test_without_torch_geometric_the_line_names_the_extra(graph_recipe, command, tmp_path, monkeypatch):
    def missing(name, *arguments, **keywords):
        if name == "probattn.models.graph":
            raise ImportError("probattn.models.graph needs torch-geometric: pip install 'probattn[graph]'")
        return found(name, *arguments, **keywords)

    found = builtins.__import__
    monkeypatch.setattr(builtins, "__import__", missing)
    refused(command("train", graph_recipe, "--output", tmp_path / "out"), "pip install 'probattn[graph]'")


def test_several_runs_on_a_graph_are_compared_over_seeds(graph_run, graph_recipe, command, tmp_path):
    place = tmp_path / "second"
    trained = command("train", graph_recipe, "-o", place, "--quiet", "--set", "training.seed=1")
    assert trained.exit_code == 0, trained.output
    result = command("report", place, graph_run)
    assert result.exit_code == 0, result.output
    found = read_results(place / "seeds.json")
    assert len(found.seeds) == 2 and found.data[0].unit == "nodes" and found.differences
    assert "(2 seeds, 30 nodes)" in (place / "seeds.html").read_text(encoding="utf-8")
    single = read_results(graph_run / "metrics.json").run
    spent = sum(
        record["seconds"]
        for folder in (graph_run, graph_run / "baseline")
        for record in read_records(folder / "metrics.jsonl")
        if record["kind"] == "train"
    )
    assert single.seconds == pytest.approx(spent) and spent > 0


def test_the_study_runs_each_variant_once(graph_recipe, tmp_path, monkeypatch, capsys):
    pytest.importorskip("torch_geometric", reason="needs torch-geometric (the extra 'graph')")
    monkeypatch.setitem(graph_study.RECIPES, "cora", str(graph_recipe))
    options = {"variants": "mmd,bam", "seeds": 1, "output": tmp_path / "graphs.json"}
    graph_study.STUDY(**options).main()
    assert "cora mmd 0: " in capsys.readouterr().out
    content = json.loads((tmp_path / "graphs.json").read_text(encoding="utf-8"))
    assert [run["variant"] for run in content["runs"]] == ["bam", "mmd"] and content["set"] == []
    for run in content["runs"]:
        assert 0 <= run["draws_accuracy"] <= 1 and run["steps"] == 12 and len(run["layers"]) == 2
    graph_study.STUDY(**options).main()
    assert capsys.readouterr().out == ""
    with pytest.raises(typer.BadParameter, match=r"holds runs with --set \[\]; use another --output"):
        graph_study.STUDY(**options, set_=["training.epochs=1"]).main()
