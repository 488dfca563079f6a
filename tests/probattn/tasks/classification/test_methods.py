"""Methods of heads, alone and beside each other: weight zero, resuming, what they are called, and a penalty's run."""

import shutil

import pytest
import runs

from probattn.inference.records import read_records
from probattn.models.hosts.convert import conversion
from probattn.recipes import load_recipe
from probattn.report import read_results
from probattn.tasks import load_network
from probattn.tasks.networks import measured

pytestmark = pytest.mark.filterwarnings("ignore::probattn.data.DataWarning")

PLAIN = ("attention.method=deterministic", "report.baseline=false")
EAGER = "network.config={attn_implementation: eager}"
"""What conversion switches to: another implementation rounds otherwise."""
SGD = ("training.optimizer=sgd", "training.learning_rate=0.1")


def same(one, other):
    """Two trainings went the same way, to the same weights of the network itself."""
    first, second = (
        [record.get("loss") for record in read_records(folder / "metrics.jsonl")] for folder in (one, other)
    )
    assert first == second
    before, after = (load_network(folder).net.state_dict() for folder in (one, other))
    assert all(value.equal(after[name]) for name, value in before.items())


@pytest.fixture(scope="module")
def plain(recipe, tmp_path_factory):
    """Runs without a method, by what further keys they have."""
    place = tmp_path_factory.mktemp("plain")
    keys = {"adam": (EAGER,), "sgd": SGD}
    return {name: runs.trained(recipe, place / name, *PLAIN, *more) for name, more in keys.items()}


@pytest.mark.slow_but("alignment={method: gan, weight: 0}")
@pytest.mark.parametrize(
    "nothing",
    [
        "alignment={method: gan, weight: 0}",
        *(f"disagreement={{method: {name}, weight: 0}}" for name in ("frobenius", "outputs", "parameters")),
    ],
)
def test_weight_zero_is_the_plain_run_bit_for_bit(recipe, plain, tmp_path, nothing):
    same(plain["adam"], runs.trained(recipe, tmp_path / "run", *PLAIN, EAGER, nothing))


def test_without_repulsion_and_kernel_it_is_the_plain_run_bit_for_bit(recipe, plain, tmp_path):
    """The kernel of nobody but oneself; its 1/M, two heads, is undone by the step size."""
    nothing = "repulsion={weight: 0, kernel: identity, step_size: 2}"
    same(plain["sgd"], runs.trained(recipe, tmp_path / "run", *PLAIN, *SGD, nothing))


@pytest.mark.slow_but("keys0-bayesian_mean-alignment")
@pytest.mark.parametrize(
    ("keys", "key", "section"),
    [
        (["alignment={method: ct, weight: 0.1}"], "bayesian_mean", "alignment"),
        (
            [PLAIN[0], "disagreement={method: positions}", "repulsion={sampler: spos}"],
            "repulsive",
            "disagreement",
        ),
    ],
)
def test_an_interrupted_run_repeats_the_whole_one(recipe, tmp_path, keys, key, section):
    run, copy = runs.trained(recipe, tmp_path / "whole", *keys, PLAIN[1]), tmp_path / "copy"
    shutil.copytree(run, copy)
    shutil.rmtree(copy / "checkpoints" / "step-000006")
    shutil.rmtree(copy / "model")
    runs.succeeds("train", copy / "recipe.yaml", "--output", copy, "--resume", "--quiet")
    same(run, copy)
    trained = load_network(copy)
    assert trained.key == key
    assert any(method.section == section for method in conversion(trained.net).methods)


@pytest.fixture(scope="module")
def regularised(recipe, tmp_path_factory):
    """A run with the Frobenius penalty, and its baseline."""
    folder = tmp_path_factory.mktemp("runs") / "regularised"
    return runs.trained(recipe, folder, PLAIN[0], "disagreement={method: frobenius, weight: 1}")


@pytest.mark.slow
def test_training_pays_and_the_report_compares(regularised):
    records = [record for record in read_records(regularised / "metrics.jsonl") if record["kind"] == "train"]
    assert all(record["factors"] < 0 for record in records)
    trained = load_network(regularised)
    assert trained.key == "regularised" and "heads" in measured(trained.net)
    runs.succeeds("report", regularised)
    found = read_results(regularised / "metrics.json")
    assert {score.model for score in found.scores} == {"deterministic", "regularised"}
    assert found.compared == "regularised"
    page = (regularised / "report.html").read_text(encoding="utf-8")
    assert "Deterministic against regularised" in page and "Regularised attention weights, " in page
    assert "deterministic attention; penalty on heads alike (frobenius), weight 1" in page


@pytest.mark.parametrize(
    ("section", "words"),
    [
        (
            "alignment={method: ot, debias: false, layers: last}",
            "OT alignment, weight 0.01, layers last, debias False",
        ),
        (
            "disagreement={method: outputs, weight: 0.5, layers: last}",
            "penalty on heads alike (outputs), weight 0.5, layers last",
        ),
        ("repulsion={sampler: spos, layers: first}", "repulsive heads by SPOS, weight 0.001, layers first"),
        (
            "repulsion={projections: [query, key], layers: [0]}",
            "repulsive heads by SVGD, weight 0.001, projections query and key, layers 0",
        ),
    ],
)
def test_words_for_the_method(recipe, section, words):
    assert load_recipe(recipe, [PLAIN[0], section]).method_words() == f"deterministic attention; {words}"
