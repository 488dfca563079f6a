"""Runs with repulsive heads through the whole command line, on a tiny network."""

import re
import shutil
from itertools import combinations

import pytest
import runs
import torch
from transformers import BertConfig, BertForSequenceClassification

from probattn.inference.records import read_records
from probattn.report import read_results
from probattn.sites.repulsive import repulsive_heads
from probattn.tasks import load_network

pytestmark = pytest.mark.filterwarnings("ignore::probattn.data.DataWarning")

KEYS = ("attention.method=deterministic", "repulsion={weight: 0.1}")
REPULSIVE = [word for key in KEYS for word in ("--set", key)]


@pytest.fixture(scope="module")
def repulsive(recipe, tmp_path_factory):
    """A run of deterministic attention with repulsive heads, and its baseline."""
    return runs.trained(recipe, tmp_path_factory.mktemp("runs") / "repulsive", *KEYS)


@pytest.fixture(scope="module")
def report(repulsive):
    runs.succeeds("report", repulsive)
    return read_results(repulsive / "metrics.json")


def test_training_moves_heads_as_particles(repulsive):
    records = [record for record in read_records(repulsive / "metrics.jsonl") if record["kind"] == "train"]
    trained, baseline = load_network(repulsive), load_network(repulsive / "baseline")
    assert (trained.key, baseline.key) == ("repulsive", "deterministic")
    assert set(records[-1]["particles"]) == set(repulsive_heads(trained.net))
    assert len(records[-1]["particles"]) == 6
    assert all(found["repulsion_ratio"] > 0 for found in records[-1]["particles"].values())
    plain = read_records(repulsive / "baseline" / "metrics.jsonl")
    assert not any("particles" in record for record in plain)
    states = [model.net.state_dict() for model in (trained, baseline)]
    assert states[0].keys() == states[1].keys()
    for name in repulsive_heads(trained.net):
        assert not torch.equal(*(state[f"{name}.weight"] for state in states))


def test_the_report_compares_repulsive_with_deterministic(repulsive, report):
    assert {score.model for score in report.scores} == {"deterministic", "repulsive"}
    assert {difference.model for difference in report.differences} == {"repulsive"}
    assert report.compared == "repulsive" and not report.health and report.alignment is None
    shown = report.attention[0].maps[0]
    assert shown.ratio == () and len(shown.baseline) == len(shown.mean)
    page = (repulsive / "report.html").read_text(encoding="utf-8")
    assert "Deterministic against repulsive" in page and "Repulsive attention weights, " in page
    assert "deterministic attention; repulsive heads by SVGD, weight 0.1" in page
    spoken = re.sub(r"<style>.*?</style>|<details class=.recipe.*?</details>", "", page, flags=re.DOTALL)
    assert "Bayesian" not in spoken and "ligned" not in spoken


def test_heads_are_measured_before_and_after(repulsive, report):
    found = report.heads
    assert found.models == ("start", "deterministic", "repulsive") and found.texts == report.in_domain.size
    names = [f"bert.encoder.layer.{layer}.attention.self" for layer in range(2)]
    expected = [(model, name) for model in found.models for name in names]
    assert [(site.model, site.site) for site in found.sites] == expected
    for site in found.sites:
        assert set(site.lengths) == {"query", "key", "value"} and 0 < site.overlap <= 1
    network = load_network(repulsive)
    lengths = [
        slices.particles().norm(dim=-1).mean().item() for _, slices in repulsive_heads(network.net).values()
    ]
    assert [value for site in found.sites[-2:] for value in site.lengths.values()] == pytest.approx(lengths)
    assert {item.model for item in found.drops} == set(found.whole) == {"deterministic", "repulsive"}
    assert found.masked_texts == report.in_domain.size and len(found.falls("repulsive")) == 4
    values = report.value("accuracy", "repulsive", "test")
    assert found.whole["repulsive"] == values
    truth = {(model, "the film was good") for model in ("deterministic", "repulsive")}
    assert {(item.model, item.text) for item in found.rows} == truth
    for item in found.rows:
        assert item.tokens[0] == "[CLS]" and len(item.weights) == 2
        assert all(sum(row) == pytest.approx(1, abs=1e-3) for row in item.weights)
    page = (repulsive / "report.html").read_text(encoding="utf-8")
    assert "Do the heads differ?" in page
    assert "Before training" in page
    assert "Accuracy lost without a head" in page


def test_heads_without_baseline_start_or_masks(recipe, network, tmp_path):
    own = tmp_path / "network"
    shutil.copytree(network, own)
    keys = (f"network.name={own}", "report.baseline=false", "report.masked_examples=0", "report.texts=[]")
    runs.trained(recipe, tmp_path / "run", *KEYS, *keys)
    shutil.rmtree(own)
    runs.succeeds("report", tmp_path / "run")
    found = read_results(tmp_path / "run" / "metrics.json").heads
    assert found.models == ("repulsive",) and not found.drops and len({item.text for item in found.rows}) == 2
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "The network before training could not be loaded again" in page


def test_calibration_and_ood_inputs_stand_side_by_side(report):
    """The form of An et al. 2020, C.4 and C.5: reliability of both, entropy of both on OOD data."""
    for model in ("deterministic", "repulsive"):
        home, ood = (report.score(model, key) for key in ("test", "out_of_domain"))
        assert (
            home.reliability and home.values["ece"] is not None and home.values["overconfidence"] is not None
        )
        assert len(ood.entropy.quantiles) > 10 and ood.values["auroc"] is not None
    assert report.difference("ece", "repulsive", "test") is not None
    assert report.difference("auroc", "repulsive", "out_of_domain") is not None


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("{layers: [5]}", "layers: expected numbers from -2 to 1 for the self attention"),
        ("{layers: cross}", "no attention call with layers='cross'"),
    ],
)
def test_bad_options_are_one_line(recipe, command, tmp_path, written, message):
    result = command("train", recipe, "--output", tmp_path / "run", "--set", f"repulsion={written}")
    assert result.exit_code == 2
    (line,) = [line for line in result.output.splitlines() if not line.startswith("warning: ")]
    assert line.startswith("error: ") and message in line
    assert not (tmp_path / "run").exists()


def test_one_head_has_nobody_to_repel(recipe, network, command, tmp_path):
    single = tmp_path / "network"
    shutil.copytree(network, single)
    config = BertConfig.from_pretrained(network, num_attention_heads=1)
    BertForSequenceClassification(config).save_pretrained(single)
    keys = ("--set", f"network.name={single}", *REPULSIVE)
    result = command("train", recipe, "--output", tmp_path / "run", *keys)
    assert result.exit_code == 2
    assert "expected two heads or more to repel each other, got one" in result.output
    assert not (tmp_path / "run").exists()


def test_a_projection_that_the_host_lacks_is_one_line(recipe, command, tmp_path, monkeypatch):
    from probattn.models.hosts import methods

    monkeypatch.setitem(methods.SEPARATE, "value", ("w_v",))
    result = command("train", recipe, "--output", tmp_path / "run", *REPULSIVE)
    assert result.exit_code == 2
    assert "has no projection of its own for the value" in result.output
    assert "leave 'value' out" in result.output
    assert not (tmp_path / "run").exists()


def test_the_steps_from_a_penalty_to_repulsion_train(recipe, tmp_path):
    """Table 9 of An et al. 2020, step by step; the first is a factor, the others directions."""
    plain = ("attention.method=deterministic", "report.baseline=false")
    steps = (
        "disagreement={method: parameters, weight: 0.1}",
        "repulsion={kernel: cosine, smoothing: false, weight: 0.1}",
        "repulsion={kernel: cosine, weight: 0.1}",
    )
    states = []
    for number, step in enumerate(steps):
        run = runs.trained(recipe, tmp_path / str(number), *plain, step)
        states.append(load_network(run).net.state_dict())
    # of this network's heads the values alone have gradients that show beside the repulsion
    values = [state["bert.encoder.layer.1.attention.self.value.weight"] for state in states]
    for one, other in combinations(values, 2):
        assert (one - other).abs().max() > 1e-6
