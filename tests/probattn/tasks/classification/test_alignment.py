"""Aligned runs through the whole command line, on a tiny network."""

import importlib.util
import json
import re

import pytest
import runs
import torch

from probattn.inference.records import read_records
from probattn.recipes import load_recipe
from probattn.report import read_results
from probattn.tasks import Classification, RunError, load_network

pytestmark = pytest.mark.filterwarnings("ignore::probattn.data.DataWarning")


@pytest.fixture(scope="module")
def aligned(recipe, tmp_path_factory):
    """A run of deterministic attention with conditional transport, and its baseline."""
    folder = tmp_path_factory.mktemp("runs") / "aligned"
    keys = ("alignment={method: ct, weight: 0.5}", "report.alignment_examples=6")
    return runs.trained(recipe, folder, "attention.method=deterministic", *keys)


@pytest.fixture(scope="module")
def report(aligned):
    runs.succeeds("report", aligned)
    return read_results(aligned / "metrics.json")


def test_training_adds_the_factor_and_its_own_learning_rate(aligned):
    records = [record for record in read_records(aligned / "metrics.jsonl") if record["kind"] == "train"]
    assert all(record["factors"] != 0 and record["kl_nats"] == 0 for record in records)
    expected = pytest.approx(records[0]["learning_rates"]["pretrained"])
    assert records[0]["learning_rates"]["alignment"] == expected
    plain = read_records(aligned / "baseline" / "metrics.jsonl")
    assert all(record.get("factors", 0) == 0 for record in plain)
    trained, baseline = load_network(aligned), load_network(aligned / "baseline")
    assert (trained.key, baseline.key) == ("aligned", "deterministic")


def test_the_report_compares_aligned_with_deterministic(aligned, report):
    assert {score.model for score in report.scores} == {"deterministic", "aligned"}
    assert {difference.model for difference in report.differences} == {"aligned"}
    assert not report.health
    assert report.compared == "aligned"
    page = (aligned / "report.html").read_text(encoding="utf-8")
    assert "Deterministic against aligned" in page
    spoken = re.sub(r"<style>.*?</style>|<details class=.recipe.*?</details>", "", page, flags=re.DOTALL)
    assert "Bayesian" not in spoken
    assert "deterministic attention; CT alignment, weight 0.5" in page


def test_queries_and_keys_are_measured_before_and_after(report):
    found = report.alignment
    assert found.models == ("deterministic", "aligned")
    assert (found.bandwidth_of, found.texts, found.projection) == ("deterministic", 6, "pca")
    names = [f"bert.encoder.layer.{layer}.attention.self" for layer in range(2)]
    expected = [(model, name) for model in found.models for name in names]
    assert [(site.model, site.site) for site in found.sites] == expected
    for site, other in zip(found.sites[:2], found.sites[2:], strict=True):
        assert site.bandwidth == other.bandwidth and len(site.mmd) == 2
        assert site.mmd != other.mmd
    values = {(model, names[1], head) for model in found.models for head in range(2)}
    assert {(cloud.model, cloud.site, cloud.head) for cloud in found.clouds} == values


def test_maps_of_both_networks_stand_side_by_side(aligned, report):
    from probattn.models import capture

    example = report.attention[0]
    shown = example.maps[0]
    assert shown.ratio == () and len(shown.baseline) == len(shown.mean) == len(example.queries)
    for model, rows in (
        (load_network(aligned), shown.mean),
        (load_network(aligned / "baseline"), shown.baseline),
    ):
        inputs = model.moved(model.codec(example.example.text, return_tensors="pt"))
        weights = capture(model.net, inputs)[shown.site].weights[0].mean(dim=0).cpu()
        torch.testing.assert_close(torch.tensor(rows), weights, atol=1e-4, rtol=0)
    page = (aligned / "report.html").read_text(encoding="utf-8")
    assert page.count("Deterministic attention weights, ") > 0 and "Aligned attention weights, " in page
    assert "Shown: layer 1, average of the heads." in page
    payload = json.loads(
        re.search(r'<script type="application/json">(.*?)</script>', page, re.DOTALL).group(1)
    )
    assert [kind["name"] for kind in payload["kinds"]] == ["baseline", "mean"]


def test_predict_takes_one_pass(aligned, command):
    found = json.loads(command("predict", aligned, "the film was good", "--json").output.splitlines()[-1])
    assert found["spread"] == 0 and 0.5 <= found["probability"] <= 1


def test_what_is_left_out_is_not_measured(recipe, tmp_path):
    keys = ("attention.method=deterministic", "alignment.method=mmd", "report.baseline=false")
    run = runs.trained(recipe, tmp_path / "run", *keys, "report.alignment_examples=0")
    runs.succeeds("report", run)
    found = read_results(run / "metrics.json")
    assert found.alignment is None
    assert {score.model for score in found.scores} == {"aligned"}


def test_tsne_without_scikit_learn_is_refused_before_training(recipe, command, tmp_path, monkeypatch):
    keys = ["alignment.method=ct", "report.projection=tsne"]
    _ = Classification(load_recipe(recipe, keys)).data
    monkeypatch.setattr("probattn.tasks.classification.task.find_spec", lambda _: None)
    with pytest.raises(RunError, match=r"pip install 'probattn\[figures\]'"):
        _ = Classification(load_recipe(recipe, keys)).data
    _ = Classification(load_recipe(recipe, keys[1:])).data
    assert importlib.util.find_spec("sklearn") is not None
