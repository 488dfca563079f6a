"""A head of a user: pairs of texts, a measure beside those of classes, decisions and out-of-domain data."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any, ClassVar

import pytest
import runs
import torch
from pydantic import Field
from runs import succeeds
from torch import Tensor

from probattn import tasks
from probattn.report import Results, read_results
from probattn.tasks.fine_tuning import Encoded, HeadRecipe, HeadTask, Labels, TextsSection, classes
from probattn.tasks.held_out import HeldOut
from probattn.tasks.measures import number

NAMES = ("negative", "neutral", "positive")
COSTS = torch.tensor([[0.0, 1, 3], [1, 0, 1], [3, 1, 0]], dtype=torch.float64)


class AspectsSection(TextsSection):
    """Texts with an aspect and its sentiment each."""

    text_pair: str | None = Field(default="aspect", description="Column of the aspects.")
    label: str = Field(default="sentiment", description="Column of the sentiments.")

    def target(self, value: Any, where: str) -> str:
        """The sentiment."""
        return str(value)


class AspectsRecipe(HeadRecipe):
    """All that a run on aspects depends on."""

    aspects: AspectsSection = Field(description="The texts.")


class Aspects(HeadTask):
    """Sentiments of aspects."""

    section = "aspects"
    recipe_class = AspectsRecipe
    unit = "texts"
    auto = Labels.auto
    inputs = ("text", "aspect")
    measures: ClassVar[Any] = {"cost": number("Cost", "Mean cost of the answers"), **classes.MEASURES}
    headings: ClassVar[Any] = {"text": "Text", "truth": "True", "label": "Predicted", "entropy": "Entropy"}
    evaluation = classes.class_evaluation
    validation_metrics = tasks.ProgramTask.validation_metrics

    @property
    def deciding(self) -> classes.ClassesDeciding:
        """Decisions by the validation texts."""
        return classes.ClassesDeciding(self)

    def label_names(self) -> list[str]:
        """The sentiments."""
        return list(NAMES)

    def encode(self, codec: Any, examples: Any) -> list[Encoded]:
        """Both texts."""
        rows = self.section_of_examples.tokens(codec, examples)
        for row, example in zip(rows, examples, strict=True):
            if "target" in example:
                row["labels"] = NAMES.index(example["target"])
        return [Encoded([row]) for row in rows]

    def record(self, posterior: Any, batch: Any) -> dict[str, Tensor]:
        """Columns of classes, and the cost."""
        columns = dict(classes.class_record(posterior, batch))
        return {**columns, "cost": COSTS[columns["label"], columns["predicted"]]}

    def record_unlabelled(self, posterior: Any, batch: Any) -> Any:
        """Columns of classes."""
        return classes.class_record(posterior, batch)

    def figures(self, columns: Any) -> dict[str, float | None]:
        """The mean cost, and the measures of classes."""
        return {"cost": columns["cost"].mean().item(), **classes.class_figures(self, columns)}

    def answer(self, posterior: Any, batch: Any) -> list[dict[str, Any]]:
        """The most probable sentiment."""
        answers = zip(batch.examples, classes.class_answers(posterior, batch), strict=True)
        return [{"text": row["text"], "aspect": row["pair"], **answer} for row, answer in answers]

    def truth(self, example: Any) -> str:
        """The sentiment."""
        return str(example["target"])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("aspects")
    runs.tokenizer().save_pretrained(folder / "network")
    runs.bert().base_model.save_pretrained(folder / "network")
    for name, size, columns in (("aspects", 120, 3), ("other", 15, 2)):
        with (folder / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["text", "aspect", "sentiment"][:columns])
            for row in range(size):
                words = [runs.WORDS[(row + step) % len(runs.WORDS)] for step in range(4)]
                fields = [f"{' '.join(words)} {row}", words[row % 4], NAMES[row % 3]]
                writer.writerow(fields[:columns])
    (folder / "recipe.yaml").write_text(
        f"aspects: {{train: {folder}/aspects.csv, out_of_domain: {folder}/other.csv}}\n"
        f"network: {{name: {folder}/network}}\ntraining: {{{runs.TRAINING}}}\n"
        "prediction: {num_samples: 3}\nreport: {resamples: 100}\n"
    )
    tasks.TASKS.insert(0, Aspects)
    succeeds("train", folder / "recipe.yaml", "-o", folder / "run", "--quiet")
    succeeds("report", folder / "run", "--quiet")
    yield folder / "run"
    tasks.TASKS.remove(Aspects)


def test_its_measure_is_compared_and_shown_beside_those_of_classes(run: Path) -> None:
    results = read_results(run / "metrics.json", Results)
    with (run / "predictions.csv").open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["data"] == "test"]
    cost = [COSTS[NAMES.index(row["true"]), NAMES.index(row["label"])].item() for row in rows]
    values = results.score("bayesian_mean", "test").values
    assert values["cost"] == pytest.approx(sum(cost) / len(cost))
    assert values["accuracy"] == pytest.approx(sum(not value for value in cost) / len(cost))
    assert {"cost", "auroc"} <= {item.measure for item in results.differences}
    expected = {"auroc", "fpr95", "mutual_information"}
    assert results.score("bayesian_mean", "out_of_domain").values.keys() == expected
    page = (run / "report.html").read_text(encoding="utf-8")
    assert "Cost" in page and "calibrated" in page


def test_it_decides_by_both_texts(run: Path) -> None:
    succeeds("triage", run, "--error", "0.9", "--novelty", "0.5", "--num-samples", "2", "--quiet")
    shown = succeeds("predict", run, "the good film", "--pair", "film", "--policy", run, "--json", "--quiet")
    assert json.loads(shown)["label"] in NAMES
    deciding = tasks.run_task(run).deciding
    held_out = deciding.held_out()["test"]
    assert held_out.labels is not None and set(held_out.labels) <= set(NAMES)
    read = deciding.features(run)
    first, second = (
        read(HeldOut("", "", "", ["the good film"], [aspect], None)).inputs
        for aspect in ("film", "plot was bad")
    )
    assert not torch.allclose(first, second)
