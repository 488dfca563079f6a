"""One of several endings of a text: multiple choice, as in SWAG and HellaSWAG."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor
from transformers import AutoModelForMultipleChoice

from probattn.checks import shown
from probattn.data import DataError
from probattn.data.corpora import Corpus
from probattn.data.files import data_file, read_text
from probattn.data.identity import Split, order, split_of
from probattn.data.rows import as_text, text_of
from probattn.data.tables import field_of
from probattn.inference.posterior import Posterior
from probattn.options import Filled
from probattn.tasks.errors import RunError
from probattn.tasks.fine_tuning.classes import (
    MEASURES,
    ClassesDeciding,
    class_evaluation,
    class_figures,
    class_record,
)
from probattn.tasks.fine_tuning.encoding import Answer, Batch, Encoded
from probattn.tasks.fine_tuning.recipe import Examples, ExamplesSection, HeadRecipe, Rows
from probattn.tasks.fine_tuning.task import UNCERTAINTY, HeadTask
from probattn.tasks.programs import ProgramTask
from probattn.tasks.sections.base import key

SEPARATOR = "|"
"""Between the endings of a text, where they stand in one string."""


def snli(split: Split) -> Rows:
    """Premises of SNLI's development set (Bowman et al. 2015), each with an entailed hypothesis and two others."""
    origin = "https://nlp.stanford.edu/projects/snli"
    path = data_file("snli", "nli/snli_dev.jsonl", origin=origin)
    hypotheses_of: dict[str, dict[str, str]] = defaultdict(dict)
    for line in read_text(path).splitlines():
        row = json.loads(line)
        hypotheses_of[row["premise"]].setdefault(str(row["label"]), row["hypothesis"])
    for number, (premise, hypotheses) in enumerate(hypotheses_of.items(), start=1):
        if len(hypotheses) == 3 and split_of(premise) == split:
            endings = sorted(hypotheses.items(), key=lambda item: order(item[1]))
            right = [label for label, _ in endings].index(ENTAILED)
            yield (
                f"{path} premise {number}",
                {"text": premise, "endings": [text for _, text in endings], "label": right},
            )


ENTAILED = "entailment"

SWAG = Corpus(
    "swag",
    {"text": ("sent1",)},
    {"train": ("swag/train.csv",), "test": ("swag/val.csv",)},
    "https://github.com/rowanz/swagaf (data)",
    ("allenai/swag", "regular", "validation"),
)
HELLASWAG = Corpus(
    "hellaswag",
    {"text": ("ctx_a",)},
    {"train": ("hellaswag/hellaswag_train.jsonl",), "test": ("hellaswag/hellaswag_val.jsonl",)},
    "https://github.com/rowanz/hellaswag (data)",
    ("Rowan/hellaswag", None, "validation"),
)


def swag(split: Split) -> Rows:
    """SWAG (Zellers et al. 2018): a sentence and the beginning of the next with four endings each."""
    for where, fields in SWAG.by_split(raw=True)[split]:
        endings = [f"{fields['sent2']} {fields[f'ending{number}']}" for number in range(4)]
        yield where, {"text": fields["sent1"], "endings": endings, "label": fields["label"]}


def hellaswag(split: Split) -> Rows:
    """HellaSWAG (Zellers et al. 2019): the beginning of a passage with four endings each."""
    for where, fields in HELLASWAG.by_split(raw=True)[split]:
        begin = fields.get("ctx_b") or ""
        endings = [f"{begin} {ending}".strip() for ending in fields["endings"]]
        yield where, {"text": fields["ctx_a"], "endings": endings, "label": fields["label"]}


class ChoicesSection(ExamplesSection):
    """Texts with endings, one of which is right.

    Built in are `swag` and `hellaswag` (Zellers et al. 2018, 2019), and `snli`: a premise with one hypothesis of each
    label, of which the entailed one is right (Bowman et al. 2015).
    """

    named: ClassVar[Any] = {"snli": snli, "swag": swag, "hellaswag": hellaswag}

    text: Filled = key("text", "Column of the texts.")
    beginning: Filled | None = key(
        None, "Column of the beginning of all endings (`sent2` of SWAG); null for none."
    )
    endings: list[str] = key(
        ["endings"],
        "Columns with the endings (`[ending0, ending1, ending2, ending3]`), or one column with a list of "
        f"endings or a string with `{SEPARATOR}` between endings.",
        min_length=1,
    )
    label: Filled = key("label", "Column of the number of the right ending, counted from 0.")
    max_length: int = key(128, "Maximum number of tokens of text and ending; the rest is cut.", ge=3)

    def columns(self) -> Collection[str]:
        """Text, endings and label."""
        return [self.text, *([self.beginning] if self.beginning else []), *self.endings, self.label]

    def example(self, fields: Mapping[str, Any], where: str) -> Mapping[str, Any]:
        """Text, endings and the number of the right one."""
        text = text_of(fields.get(self.text), self.text, where)
        endings = self.second_text(fields, self.endings[0], where)
        label = str(fields.get(self.label)).strip()
        if not label.isdecimal() or int(label) >= len(endings):
            raise DataError(
                f"{where}: expected a number in 0..{len(endings) - 1} in {self.label!r}, got "
                f"{shown(fields.get(self.label))}"
            )
        return {"text": text, "endings": endings, "label": int(label)}

    @property
    def columns_read(self) -> tuple[str, str | None]:
        """Text and the first column of endings."""
        return self.text, self.endings[0]

    def unlabelled(self, text: str, pair: str | None) -> Mapping[str, Any]:
        """A text with its endings, which contain their beginning."""
        endings = _endings(pair)
        if len(endings) < 2:
            raise RunError(f"expected endings with {SEPARATOR!r} between them, got {shown(pair)}")
        return {"text": text, "endings": endings}

    def unlabelled_columns(self) -> Collection[str]:
        """Text and endings."""
        return [name for name in self.columns() if name != self.label]

    def second_text(self, fields: Mapping[str, Any], name: str, where: str) -> Any:
        """All endings with their beginning; those of one column if ``name`` is another than the first."""
        columns = self.endings if name == self.endings[0] else [name]
        values = [field_of(fields, column, where) for column in columns]
        endings = _endings(values[0]) if len(values) == 1 else values
        if len(endings) < 2 or not all(isinstance(ending, str) for ending in endings):
            raise DataError(
                f"{where}: expected two endings or more in {name!r}, got {shown(values if values[1:] else values[0])}"
            )
        begin = as_text(field_of(fields, self.beginning, where)).strip() if self.beginning else ""
        return [f"{begin} {ending}".strip() for ending in endings]


class ChoicesRecipe(HeadRecipe):
    """All that a run of multiple choice depends on."""

    choices: ChoicesSection = Field(description="The texts and their endings.")


class Choices(HeadTask):
    """Multiple choice: which of several endings of a text is right."""

    section = "choices"
    recipe_class = ChoicesRecipe
    decides = ClassesDeciding
    unit = "texts"
    auto = AutoModelForMultipleChoice
    inputs = ("text", "endings")
    headings: ClassVar[Any] = {"text": "Text", "truth": "Right ending", "choice": "Chosen", **UNCERTAINTY}

    measures = MEASURES
    validation_metrics = ProgramTask.validation_metrics
    evaluation = class_evaluation
    figures = class_figures
    record = record_unlabelled = staticmethod(class_record)

    def collate(self, codec: Any) -> Any:
        """Function that makes a batch ``[B, K, T]`` of rows with K endings of T tokens."""
        return partial(padded_choices, codec)

    def encode(self, codec: Any, examples: Examples) -> list[Encoded]:
        """Tokens of each text with each of its endings."""
        numbers = {len(example["endings"]) for example in examples}
        if len(numbers) > 1:
            raise DataError(
                f"{self.section_of_examples.train}: expected as many endings in every row, got "
                f"{', '.join(map(str, sorted(numbers)))}"
            )
        count = numbers.pop()
        tokens = codec(
            [example["text"] for example in examples for _ in range(count)],
            [ending for example in examples for ending in example["endings"]],
            truncation=True,
            max_length=self.section_of_examples.max_length,
        )
        encoded = []
        for row, example in enumerate(examples):
            inputs: dict[str, Any] = {
                name: values[row * count : (row + 1) * count] for name, values in tokens.items()
            }
            if "label" in example:
                inputs["labels"] = example["label"]
            encoded.append(Encoded([inputs]))
        return encoded

    def answer(self, posterior: Posterior, batch: Batch) -> list[Answer]:
        """The most probable ending of each text."""
        probabilities, best = posterior.mean_probabilities, posterior.mean_probabilities.argmax(dim=-1)
        return [
            {
                "text": example["text"],
                "endings": list(example["endings"]),
                "choice": example["endings"][int(best[row])],
                "label": int(best[row]),
                "probability": probabilities[row, best[row]].item(),
                "probabilities": [round(value, 6) for value in probabilities[row].tolist()],
                "entropy": posterior.entropy[row].item(),
                "mutual_information": posterior.mutual_information[row].item(),
            }
            for row, example in enumerate(batch.examples)
        ]

    def truth(self, example: Mapping[str, Any]) -> str:
        """The right ending."""
        return str(example["endings"][example["label"]])


def padded_choices(codec: Any, rows: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
    """Rows of K sequences each as a batch ``[B, K, T]``, with their labels ``[B]``."""
    names = [name for name in rows[0] if name != "labels"]
    count = len(rows[0][names[0]])
    flat = [{name: row[name][index] for name in names} for row in rows for index in range(count)]
    padded = codec.pad(flat, return_tensors="pt")
    batch = {name: value.view(len(rows), count, -1) for name, value in padded.items()}
    return batch | ({"labels": torch.tensor([row["labels"] for row in rows])} if "labels" in rows[0] else {})


def _endings(value: Any) -> list[Any]:
    if isinstance(value, str):
        return [item.strip() for item in value.split(SEPARATOR)]
    return list(value) if isinstance(value, Iterable) else []
