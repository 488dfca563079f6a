"""Several labels a text: the command line, the measures, and what is refused."""

import json
import random

import numpy as np
import pytest
import torch
from runs import bert, overrides, refused, succeeds, tokenizer
from sklearn.metrics import f1_score

from probattn.inference import Posterior
from probattn.recipes import load_any_recipe
from probattn.tasks import load_network, load_results
from probattn.tasks.fine_tuning import Labels
from probattn.tasks.fine_tuning.encoding import Batch, padded

TOPICS = {"film": "screen", "plot": "story", "cast": "people"}


def write_topics(file, number=60):
    """JSON Lines of texts with a label for each of three words in them, some with none."""
    draw = random.Random(0)
    with file.open("w", encoding="utf-8") as opened:
        for row in range(number):
            words = [*draw.sample([*TOPICS, "good", "bad", "fine"], 3), str(row)]
            labels = [TOPICS[word] for word in words if word in TOPICS]
            opened.write(json.dumps({"text": " ".join(words), "labels": labels}) + "\n")


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    folder = tmp_path_factory.mktemp("labels")
    write_topics(folder / "topics.jsonl")
    tokenizer().save_pretrained(folder / "network")
    bert(num_labels=3).save_pretrained(folder / "network")
    file = folder / "recipe.yaml"
    file.write_text(f"labels: {{train: {folder}/topics.jsonl}}\nnetwork: {{name: {folder}/network}}\n")
    return file


def test_a_run_is_reported_and_answers(reported):
    run = reported("labels")
    results = load_results(run)
    models = ["deterministic", "bayesian_mean", "bayesian_expectation", "bayesian_moments"]
    assert [score.model for score in results.scores] == models
    for score in results.scores:
        assert score.values.keys() == Labels.measures.keys()
        assert 0 <= score.values["brier"] <= 1 and score.values["nll"] > 0
    assert results.listings[0].headings[0] == "Label"
    assert [row[0] for row in results.listings[0].rows] == ["a", "b"]
    page = (run / "report.html").read_text()
    assert "By label" in page and "All labels right" in page
    answer = json.loads(succeeds("predict", run, "film plot", "--json"))
    assert answer["probability"].keys() == {"a", "b"}
    assert answer["entropy"] >= answer["mutual_information"] >= 0
    assert "Predicted" in succeeds("predict", run, "film plot")
    assert load_network(run).net.config.problem_type == "multi_label_classification"


def task_of(recipe, *keys):
    return Labels(load_any_recipe(recipe, keys))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_measures_are_those_of_scikit_learn_and_of_torch(recipe, dtype):
    task = task_of(recipe)
    examples, codec, net = task.examples["train"], tokenizer(), bert()
    encoded = task.encode(codec, examples)
    tensors = padded(codec, [row for each in encoded for row in each.rows])
    truth = tensors["labels"]
    assert truth.tolist() == [[float(name in e["target"]) for name in task.label_names()] for e in examples]

    torch.manual_seed(0)
    draws = 2 * torch.randn(4, len(examples), 3, dtype=dtype)
    columns = task.record(Posterior(draws, link="sigmoid"), Batch(examples, encoded, tensors, net.config))
    figures = task.figures(columns)
    mean = draws.double().sigmoid().mean(dim=0)
    predicted = (mean > 0.5).numpy()
    assert figures["micro_f1"] == pytest.approx(f1_score(truth, predicted, average="micro"))
    macro = f1_score(truth, predicted, average="macro", zero_division=np.nan)
    assert figures["macro_f1"] == pytest.approx(macro)
    assert figures["exact"] == pytest.approx((predicted == truth.bool().numpy()).all(axis=1).mean())
    loss = torch.nn.functional.binary_cross_entropy(mean, truth.double(), reduction="sum") / len(examples)
    assert figures["nll"] == pytest.approx(loss.item(), rel=1e-5)
    assert figures["brier"] == pytest.approx((mean - truth).square().mean().item(), rel=1e-5)

    single = task.record(Posterior(draws[:1], link="sigmoid"), Batch(examples, encoded, tensors, net.config))
    mean_loss = torch.nn.BCEWithLogitsLoss()(draws[0].double(), truth.double()).item()
    assert task.figures(single)["nll"] == pytest.approx(3 * mean_loss, rel=1e-5)


def test_a_label_that_is_nowhere_leaves_the_mean_and_certainty_that_is_wrong_is_finite(recipe):
    task = task_of(recipe)
    example = {"text": "film", "target": ["screen"]}
    encoded = task.encode(tokenizer(), [example])
    tensors = padded(tokenizer(), encoded[0].rows)
    place = list(task.label_names()).index("screen")
    logits = torch.full((2, 1, 3), -200.0)
    batch = Batch([example], encoded, tensors, bert().config)
    wrong = task.figures(task.record(Posterior(logits, link="sigmoid"), batch))
    assert wrong["nll"] == pytest.approx(200) and wrong["macro_f1"] == 0 and wrong["exact"] == 0
    logits[..., place] = 200.0
    right = task.figures(task.record(Posterior(logits, link="sigmoid"), batch))
    assert right["macro_f1"] == right["micro_f1"] == right["exact"] == 1 and right["nll"] == 0


def test_labels_stay_as_they_are_where_there_are_as_many_as_tokens(recipe):
    task = task_of(recipe)
    examples = [{"text": "film", "target": ["screen"]}, {"text": "film plot cast was", "target": []}]
    rows = [row for each in task.encode(tokenizer(), examples) for row in each.rows]
    assert len(rows[0]["input_ids"]) == len(rows[0]["labels"]) == 3
    assert padded(tokenizer(), rows)["labels"].shape == (2, 3)


def test_labels_are_lists_or_names_with_a_separator(recipe, tmp_path):
    file = tmp_path / "rows.csv"
    file.write_text("text,labels\nfilm,screen | people\nplot,\ncast,people|\n")
    task = task_of(
        recipe,
        f"labels.train={file}",
        f"labels.test={file}",
        f"labels.validation={file}",
        "labels.separator='|'",
    )
    assert [each["target"] for each in task.examples["test"]] == [["people", "screen"], [], ["people"]]
    assert task.label_names() == ["people", "screen"]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ('{"text": "film", "labels": 3}', "line 1: expected a list of labels in 'labels'"),
        ('{"text": "film", "labels": [1.5]}', "line 1: expected a list of labels in 'labels'"),
        ('{"text": " ", "labels": []}', "line 1: expected text in 'text'"),
        ('{"text": "film", "tags": []}', "expected a column 'labels', got text, tags"),
        ('{"text": "film", "labels": []}', "expected labels in 'labels', got none in any text"),
    ],
)
def test_what_is_no_text_with_labels_is_refused(recipe, tmp_path, content, expected):
    file = tmp_path / "rows.jsonl"
    file.write_text(content + "\n")
    keys = overrides(*(f"labels.{part}={file}" for part in ("train", "validation", "test")))
    assert expected in refused("train", recipe, "--output", tmp_path / "run", *keys)


def test_a_label_that_is_not_among_the_training_texts_is_refused(recipe, tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text('{"text": "film", "labels": ["sound"]}\n')
    line = refused("train", recipe, "--output", tmp_path / "run", *overrides(f"labels.test={file}"))
    assert "expected labels of the training texts (people, screen, story), got 'sound' of 'film'" in line


def test_pairs_are_read_and_answered_for(recipe, tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text('{"text": "film", "other": "plot", "labels": ["a"]}\n')
    task = task_of(
        recipe,
        *(f"labels.{part}={file}" for part in ("train", "validation", "test")),
        "labels.text_pair=other",
    )
    assert task.answering.columns_read == ("text", "other")
    (encoded,) = task.encode(tokenizer(), task.examples["test"])
    words = tokenizer().convert_ids_to_tokens(encoded.rows[0]["input_ids"])
    assert words == ["[CLS]", "film", "[SEP]", "plot", "[SEP]"]
