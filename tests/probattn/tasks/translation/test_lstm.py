"""The command line with the LSTM encoder-decoder: soft attention, BABN and latent alignments, trained and reported."""

import pytest
from pyro.infer import TraceEnum_ELBO
from runs import succeeds

from probattn.inference import TraceGraphMeanFieldELBO
from probattn.inference.records import read_records
from probattn.recipes import load_any_recipe
from probattn.tasks import Translation, load_results

pytest.importorskip("sentencepiece", reason="needs sentencepiece (the extra 'translation')")
pytest.importorskip("sacrebleu", reason="needs sacrebleu (the extra 'translation')")

LSTM = ["repulsion=null", "network={name: lstm, width: 8, layers: 1}", "training.steps=4"]


def options(*overrides):
    return [word for each in (*LSTM, *overrides) for word in ("--set", each)]


@pytest.mark.parametrize(
    ("attention", "title"),
    [
        ("{method: variational}", "variational alignment, enumerated, mixture prediction"),
        (
            "{method: variational, estimator: sample, prediction: soft}",
            "variational alignment, sampled, soft prediction",
        ),
        ("{method: babn, kind: cross}", "BABN, default options"),
    ],
)
def test_a_method_and_its_baseline_are_trained_and_reported(
    translation_recipe, command, tmp_path, attention, title
):
    place = tmp_path / "run"
    chosen = options(f"attention={attention}")
    trained = command("train", translation_recipe, "--output", place, "--quiet", *chosen)
    assert trained.exit_code == 0, trained.output
    assert "model: 4 steps" in trained.output and "baseline: 4 steps" in trained.output
    last = read_records(place / "metrics.jsonl")[-1]
    assert last["kind"] == "validation" and last["kl"] > 0 and last["nll"] > 0
    succeeds("report", place)
    results = load_results(place)
    own = "variational" if "variational" in attention else "bayesian_expectation"
    assert [score.model for score in results.scores] == ["deterministic", own]
    assert results.run.method == title
    assert results.run.network == "LSTM, 1 + 1 layers x 8, bidirectional, 1 head, 60 subwords (bpe)"
    assert [curve.model for curve in results.curves][-1] == own
    succeeds("predict", place, "a dog runs .")


@pytest.mark.parametrize(
    ("estimator", "elbo"), [("enumerate", TraceEnum_ELBO), ("sample", TraceGraphMeanFieldELBO)]
)
def test_recipes_sum_over_alignments_or_draw_them_beside_an_exact_divergence(
    translation_recipe, estimator, elbo
):
    keys = [*LSTM, f"attention={{method: variational, estimator: {estimator}}}"]
    recipe = load_any_recipe(str(translation_recipe), keys)
    task = Translation(recipe)
    found = task.driver_options(task.program())
    assert type(found["elbo"]) is elbo and found["guide"].estimator == estimator


def test_several_heads_repel_each_other(translation_recipe, command, tmp_path):
    place = tmp_path / "run"
    heads = ["network={name: lstm, width: 8, layers: 1, heads: 3}", "report.baseline=false"]
    repelled = command(
        "train", translation_recipe, "--output", place, "--quiet", *options(*heads, "repulsion={}")
    )
    assert repelled.exit_code == 2
    assert "DotAttention has no projection of its own for the key" in repelled.output
    fine = options(*heads, "repulsion={projections: [query]}")
    succeeds("train", translation_recipe, "--output", place, "--quiet", *fine)
    assert len(read_records(place / "metrics.jsonl")[0]["particles"]) == 1
