"""The model card has the figures that the trainer measured, and those of the weights that are saved alone."""

import json
import re

import pytest
from datasets import Dataset, DatasetInfo, NamedSplit
from huggingface_hub import ModelCard

import probattn
from probattn.models import describe, load
from probattn.models.hosts.description import without_folders
from probattn.trainer import compute_uncertainty
from probattn.trainer.evaluation import name_of

NOTHING = "Calibration: not measured."


METHODS = (probattn.BayesianAttention(),)


def trainer_of(scene, folder, *, methods=METHODS, evaluated=None, **options):
    own = {name: options.pop(name) for name in ("prediction", "num_samples") if name in options}
    return probattn.ProbabilisticTrainer(
        model=scene.network(scene.bert, *methods),
        args=scene.arguments(folder, per_device_train_batch_size=8, **options),
        train_dataset=scene.classes(16),
        eval_dataset=evaluated or scene.classes(10, seed=1),
        compute_metrics=compute_uncertainty,
        **own,
    )


def card(trainer, folder):
    trainer.save_model(str(folder))
    return (folder / "README.md").read_text()


def figures(text, heading):
    """The table below a heading, by name."""
    table = text.partition(f"{heading}:\n\n")[2].partition("\n\n")[0].splitlines()[2:]
    return dict(re.fullmatch(r"\| (\S+) \| (\S+) \|", line).groups() for line in table)


def shortly(
    metrics, prefix, left_out=("runtime", "per_second", "preparation_time", "kl", "kl_nats", "factors")
):
    shown = {name: value for name, value in metrics.items() if name.startswith(prefix)}
    return {
        name.removeprefix(prefix): f"{value:.4g}"
        for name, value in shown.items()
        if not name.removeprefix(prefix).endswith(left_out)
    }


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("/home/a b/c d/reviews.csv", "reviews.csv"),
        ("C:\\data\\reviews.csv", "reviews.csv"),
        ("../data/graphs/cora: 5 nodes, 3 edges with self loops", "cora: 5 nodes, 3 edges with self loops"),
        ("sst2", "sst2"),
        ("nyu-mll/glue", "nyu-mll/glue"),
        ("", ""),
    ],
)
def test_words_about_data_have_no_folders(words, expected):
    assert without_folders(words) == expected


def test_words_about_a_file_that_is_there_have_no_folders(tmp_path, monkeypatch):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "reviews.csv").touch()
    monkeypatch.chdir(tmp_path)
    assert without_folders("data/reviews.csv, 40 images") == "reviews.csv, 40 images"


def test_what_was_measured_is_on_the_card(scene, tmp_path):
    trainer = trainer_of(scene, tmp_path / "run", prediction="draws", num_samples=3)
    assert NOTHING in card(trainer, tmp_path / "before")
    describe(trainer.model, data="numbers", metrics={"mine": 0.5}, base_model="someone/bert")
    first, other = trainer.evaluate(), trainer.predict(scene.classes(6)).metrics
    text = card(trainer, tmp_path / "net")
    assert {"accuracy", "calibration_error", "negative_log_likelihood"} < shortly(first, "eval_").keys()
    assert figures(text, "Evaluation `eval` on 10 rows, mean of 3 draws") == shortly(first, "eval_")
    assert figures(text, "Evaluation `test` on 6 rows, mean of 3 draws") == shortly(other, "test_")
    assert "| mine | 0.5 |" in text and "Training data: numbers." in text and NOTHING not in text
    again = load(tmp_path / "net")  # the sums of the folder hold
    again.save_pretrained(tmp_path / "again")
    assert (tmp_path / "again" / "README.md").read_text() == text


def test_figures_of_earlier_weights_are_not(scene, tmp_path):
    trainer = trainer_of(scene, tmp_path / "run", max_steps=1)
    trainer.evaluate()
    describe(trainer.model, metrics={"mine": 0.5})
    trainer.train()
    text = card(trainer, tmp_path / "trained")
    assert "Evaluation" not in text and "| mine | 0.5 |" in text
    trainer.evaluate(metric_key_prefix="after")
    assert "`after` on 10 rows, posterior expectation" in card(trainer, tmp_path / "measured")


def test_a_checkpoint_has_its_own_figures_and_so_has_the_best_network(scene, tmp_path):
    trainer = trainer_of(
        scene,
        tmp_path,
        num_train_epochs=3,
        save_strategy="epoch",
        eval_strategy="epoch",
        load_best_model_at_end=True,
        metric_for_best_model="eval_log_likelihood",
        greater_is_better=False,  # the worst
        learning_rate=1e-2,
    )
    trainer.train()
    logged = {record["step"]: record for record in trainer.state.log_history if "eval_loss" in record}
    heading = "Evaluation `eval` on 10 rows, posterior expectation"
    for step, record in logged.items():
        text = (tmp_path / f"checkpoint-{step}" / "README.md").read_text()
        assert figures(text, heading)["loss"] == f"{record['eval_loss']:.4g}"
    best = min(logged.values(), key=lambda record: record["eval_log_likelihood"])
    assert best is not logged[max(logged)]
    found = figures(card(trainer, tmp_path / "best"), heading)
    assert found == {name: value for name, value in shortly(best, "eval_").items() if name in found}
    assert found.keys() >= {"loss", "accuracy", "log_likelihood"}


@pytest.mark.parametrize("methods", [(), METHODS])
def test_the_card_of_a_push_has_both(scene, tmp_path, methods):
    """``Trainer.push_to_hub`` saves, writes this card over that of the network, and uploads the folder."""
    trainer = trainer_of(scene, tmp_path, methods=methods)
    trainer.evaluate()
    trainer.save_model()
    trainer.create_model_card(tags="mine")
    text = (tmp_path / "README.md").read_text()
    assert "## Training procedure" in text and "mine" in ModelCard(text).data.tags
    assert ("Evaluation `eval` on 10 rows" in text) == ("How to load" in text) == bool(methods)
    if methods:
        assert "probattn" in ModelCard(text).data.tags
        load(tmp_path)


def test_a_figure_that_is_not_finite_is_said(scene, tmp_path):
    trainer = trainer_of(scene, tmp_path / "run")
    trainer.compute_metrics = lambda _: {"score": float("nan"), "word": "no number"}
    trainer.evaluate()
    text = card(trainer, tmp_path / "net")
    assert figures(text, "Evaluation `eval` on 10 rows, posterior expectation")["score"] == "nan"
    json.loads((tmp_path / "net" / "probattn.json").read_text(), parse_constant=pytest.fail)
    load(tmp_path / "net")


@pytest.mark.parametrize(
    ("info", "split", "name"),
    [
        (
            {"dataset_name": "glue", "builder_name": "parquet", "config_name": "sst2"},
            "test",
            "glue (sst2, test)",
        ),
        ({"builder_name": "imdb", "config_name": "default"}, None, "imdb"),
        ({"builder_name": "csv", "dataset_name": "csv", "config_name": "default"}, "train", ""),
        ({}, "train", ""),
    ],
)
def test_names_of_data_sets(info, split, name):
    data = Dataset.from_dict(
        {"x": [1]}, info=DatasetInfo(**info), split=None if split is None else NamedSplit(split)
    )
    assert name_of(data) == name == name_of(data.select([0]))
    assert name_of([1]) == ""


def test_a_named_data_set_is_named(scene, tmp_path):
    rows = {name: [row[name] for row in scene.classes(4)] for name in ("input_ids", "labels")}
    data = Dataset.from_dict(rows, info=DatasetInfo(dataset_name="reviews"), split=NamedSplit("test"))
    trainer = trainer_of(scene, tmp_path / "run", evaluated=data)
    trainer.evaluate()
    assert "`eval` on 4 rows of reviews (test), posterior" in card(trainer, tmp_path / "net")
