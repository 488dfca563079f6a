"""Fixtures: a tiny network with its tokenizer, a few texts and pairs, and runs made of them."""

import pytest
import runs


@pytest.fixture(autouse=True)
def _offline(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture(scope="session")
def network(tmp_path_factory):
    """Folder of a BERT of 2 layers x 16 with a word-level tokenizer of at most 16 tokens."""
    folder = tmp_path_factory.mktemp("network")
    runs.tokenizer().save_pretrained(folder)
    runs.bert().save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def reviews(tmp_path_factory):
    """A CSV file of 120 short reviews."""
    file = tmp_path_factory.mktemp("data") / "reviews.csv"
    runs.write_reviews(file, 120)
    return file


@pytest.fixture(scope="session")
def recipe(network, reviews, tmp_path_factory):
    """A recipe of 6 steps."""
    file = tmp_path_factory.mktemp("recipe") / "tiny.yaml"
    file.write_text(
        f"""
network: {{name: {network}}}
data: {{train: {reviews}, shifted: {reviews}, out_of_domain: {reviews}, max_length: null}}
attention: {{method: babn}}
training: {{steps: 6, batch_size: 8, log_every: 2, checkpoint_every: 3, learning_rate: 1e-3, device: cpu}}
prediction: {{num_samples: 3}}
report: {{resamples: 100, uncertain: 1, mistakes: 2, texts: [the film was good]}}
""",
        encoding="utf-8",
    )
    return file


@pytest.fixture(scope="session")
def command():
    """Runs a command and returns click's result."""
    return runs.invoke


@pytest.fixture(scope="session")
def run(recipe, tmp_path_factory):
    """A finished run folder."""
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    result = runs.invoke("train", recipe, "--output", folder, "--quiet")
    assert result.exit_code == 0, result.output
    assert "warning: " in result.output and "are in the training data too" in result.output
    return folder


@pytest.fixture(scope="session")
def pairs_folder(tmp_path_factory):
    """40 + 10 + 12 pairs, word for word."""
    place = tmp_path_factory.mktemp("pairs")
    runs.write_pairs(place, 40, 10, 12)
    return place


@pytest.fixture(scope="session")
def translation_recipe(pairs_folder, tmp_path_factory):
    """A recipe of 6 updates of repulsive heads."""
    file = tmp_path_factory.mktemp("recipe") / "words.yaml"
    file.write_text(
        f"""
translation:
  train: {pairs_folder}/train
  validation: {pairs_folder}/dev
  test: {pairs_folder}/test
  subwords: 60
  max_length: 40
network: {{width: 16, layers: 1, heads: 2, feed_forward: 16}}
attention: {{method: deterministic}}
repulsion: {{weight: 0.1}}
training: {{steps: 6, batch_size: 10, log_every: 2, checkpoint_every: 3, eval_every: 3, warmup_steps: 2, device: cpu}}
search: {{num_beams: 2, extra_length: 3}}
report: {{samples: 3, resamples: 100}}
""",
        encoding="utf-8",
    )
    return file


@pytest.fixture(scope="session")
def translation_run(translation_recipe, command, tmp_path_factory):
    place = tmp_path_factory.mktemp("runs") / "words"
    result = command("train", translation_recipe, "--output", place, "--quiet")
    assert result.exit_code == 0, result.output
    assert "model: 6 steps" in result.output and "baseline: 6 steps" in result.output
    return place


@pytest.fixture(scope="session")
def graph_folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("graph")
    runs.write_graph(place)
    return place


@pytest.fixture(scope="session")
def graph_recipe(graph_folder, tmp_path_factory):
    """A recipe of 12 updates, latent and aligned at once."""
    file = tmp_path_factory.mktemp("recipe") / "circles.yaml"
    file.write_text(
        f"""
graph: {{name: pubmed, folder: {graph_folder}}}
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
