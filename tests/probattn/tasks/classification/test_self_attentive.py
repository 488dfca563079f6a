"""The self-attentive classifier through the whole command line: built from scratch on the training texts."""

import json

import pytest
import torch
from runs import succeeds
from transformers import AutoTokenizer

from probattn.models import SelfAttentiveForSequenceClassification
from probattn.report import read_results
from probattn.tasks import load_network

pytestmark = pytest.mark.filterwarnings("ignore::probattn.data.DataWarning")

SIZES = "{hidden_size: 6, attention_size: 5, num_attention_heads: 4, classifier_size: 8}"
VECTORS = "good 1.0 0.5 -0.25\nbad -1.0 0.5 0.25\nfilm 0.1 0.2 0.3\n"


@pytest.fixture(scope="module")
def recipe(reviews, tmp_path_factory):
    folder = tmp_path_factory.mktemp("recipe")
    (folder / "vectors.txt").write_text(VECTORS, encoding="utf-8")
    file = folder / "sentence.yaml"
    file.write_text(
        f"""
network: {{name: self_attentive, config: {SIZES}, vocabulary: {{min_frequency: 2}},
          embeddings: {folder / "vectors.txt"}}}
data: {{train: {reviews}, out_of_domain: {reviews}}}
attention: {{method: deterministic}}
training: {{steps: 4, batch_size: 8, learning_rate: 1e-2, device: cpu}}
prediction: {{num_samples: 2}}
report: {{resamples: 100, uncertain: 1, texts: [the film was good]}}
""",
        encoding="utf-8",
    )
    return file


METHODS = {"bayesian": "attention.method=babn", "repulsive": "repulsion={projections: [query], weight: 0.1}"}


@pytest.fixture(scope="module", params=METHODS)
def run(request, recipe, command, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / request.param
    result = command("train", recipe, "-o", folder, "--quiet", "--set", METHODS[request.param])
    assert result.exit_code == 0, result.output
    measured = "vocabulary: 14 words, padding and unknown ones included; 3 have a vector (25.0% of the rest)"
    assert measured in result.output
    return folder


@pytest.mark.slow_but("repulsive")
def test_every_method_trains_evaluates_reports_and_predicts(run, command):
    succeeds("report", run)
    found = read_results(run / "metrics.json")
    assert {score.model for score in found.scores} > {"deterministic"}
    shown = found.attention[0]
    assert shown.rows == "heads" and shown.queries == tuple(f"head {head}" for head in range(4))
    assert shown.keys == ("the", "film", "was", "good")
    (only,) = shown.maps
    assert [len(row) for row in only.mean] == [4] * 4
    assert all(sum(row) == pytest.approx(1, abs=1e-3) for row in only.mean)
    assert bool(only.ratio) == (run.name == "bayesian") and bool(only.baseline) == (run.name != "bayesian")
    assert [word.word for word in found.words[0].explanation.words] == list(shown.keys)
    page = (run / "report.html").read_text(encoding="utf-8")
    assert "Shown: attention, a row a head." in page and "average of the heads" not in page
    result = command("predict", run, "a good film", "--json")
    assert result.exit_code == 0
    assert json.loads(result.output)["label"] in ("positive", "negative")


def test_the_folder_holds_network_and_words(run):
    trained = load_network(run)
    assert isinstance(trained.net, SelfAttentiveForSequenceClassification)
    assert trained.net.config.vocab_size == len(trained.codec) == 14
    assert trained.net.config.embedding_size == 3
    assert AutoTokenizer.from_pretrained(run / "model").tokenize("A Film!") == ["a", "film", "[UNK]"]


def test_it_starts_from_the_vectors(recipe, tmp_path):
    """With a rate too small to move a float."""
    keys = ("--set", "training.learning_rate=1e-30", "--set", "report.baseline=false", "--quiet")
    succeeds("train", recipe, "-o", tmp_path / "still", *keys)
    trained = load_network(tmp_path / "still")
    weight = trained.net.get_input_embeddings().weight.cpu()
    number = trained.codec.get_vocab()
    assert torch.equal(weight[number["good"]], torch.tensor([1.0, 0.5, -0.25]))
    assert (weight[0] == 0).all() and weight[number["was"]].abs().sum() > 0


def test_inspect_shows_it(command):
    result = command("inspect", "self_attentive")
    assert result.exit_code == 0
    assert result.output.splitlines()[1].split()[:4] == ["sentence.attention", "cross", "full", "30"]


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("network.config={embedding_size: 7}", "expected embedding_size 3, that of the vectors, got 7"),
        ("network.config={heads: 7}", "network.config: 'self_attentive' has no entry 'heads'"),
        (
            "network.config={hidden_size: 0}",
            "SelfAttentiveConfig.hidden_size: expected an integer >= 1, got 0",
        ),
        ("network.embeddings=none.txt", "none.txt: expected 'glove-6b-50d' or a text file"),
        ("network.vocabulary={min_frequency: 1000}", "expected a word that occurs 1000 times"),
        ("repulsion={}", "out of RepulsiveAttention(projections=...)"),
        ("network.name=minilm", "vocabulary: 'minilm' brings its own; this key is for self_attentive"),
    ],
)
def test_what_does_not_fit_is_one_line(recipe, command, tmp_path, key, message):
    result = command("train", recipe, "-o", tmp_path / "run", "--quiet", "--set", key)
    assert result.exit_code == 2
    assert message in result.output, result.output
    assert not (tmp_path / "run").exists()
