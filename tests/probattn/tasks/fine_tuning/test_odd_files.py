"""Files that tables of pandas, SWAG and other schemes of tags make, and numbers of any unit."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from runs import tokenizer

from probattn.data import DataError
from probattn.inference.posterior import Posterior
from probattn.sites.observation import ObservationNoise, ObservedNoise
from probattn.tasks.fine_tuning import Choices, Labels, Regression, Tokens
from probattn.tasks.fine_tuning.answering import HeadAnswering, rounded
from probattn.tasks.fine_tuning.choices import ChoicesSection
from probattn.tasks.fine_tuning.encoding import Batch, Encoded
from probattn.tasks.fine_tuning.labels import LabelsDeciding, LabelsSection
from probattn.tasks.fine_tuning.regression import LEVELS, RegressionSection
from probattn.tasks.fine_tuning.spans import SpansSection
from probattn.tasks.fine_tuning.tokens import TokensDeciding, TokensSection


def with_examples(kind: Any, section: Any, train: Any = ()) -> Any:
    """A task with these training examples, for what it computes."""
    made = kind.__new__(kind)
    made.__dict__["examples"] = {"train": train}
    if section is not None:
        made.recipe = SimpleNamespace(examples=lambda: ("section", section))
    return made


@pytest.mark.parametrize("text", ["['four', 'card']", '["four", "card"]', "['four'\n 'card']", "[]"])
def test_the_text_of_a_list_is_refused(text: str) -> None:
    labels, tokens = LabelsSection(train="a.csv"), TokensSection(train="a.csv")
    with pytest.raises(
        DataError, match="here: expected no brackets and quotes in 'labels', got the text of a list"
    ):
        labels.target(text, "here")
    with pytest.raises(
        DataError, match=r"in 'tokens', got the text of a list.*to_json\(orient='records', lines=True"
    ):
        tokens.example({"tokens": text, "tags": "O O"}, "here")


def test_words_in_brackets_are_no_list() -> None:
    example = TokensSection(train="a.csv").example({"tokens": "[ four ] 'card'", "tags": "O B-x O O"}, "here")
    assert example["words"] == ["[", "four", "]", "'card'"]


def test_a_column_that_occurs_twice_is_refused(tmp_path: Any) -> None:
    file = tmp_path / "twice.csv"
    file.write_text("text,label,label\na film,1,2\n", encoding="utf-8")
    with pytest.raises(DataError, match="expected one column 'label', got 2; rename the others"):
        RegressionSection(train=str(file)).read_examples(str(file), "train")


@pytest.mark.parametrize("value", [True, "1_000", "nan", None, "a"])
def test_what_is_no_number_is_refused(value: Any) -> None:
    with pytest.raises(DataError, match="here: expected a number in 'label'"):
        RegressionSection(train="a.csv").target(value, "here")


def test_answers_that_are_missing_are_not_no_answer() -> None:
    section = SpansSection(train="a.jsonl")
    row = {"question": "Who?", "context": "He did."}
    assert section.example(row | {"answers": ""}, "here")["answers"] == ()
    with pytest.raises(DataError, match="here: expected a field 'answers', got none; did you mean 'answer'"):
        section.example(row | {"answer": "He"}, "here")


SWAG = {"sent1": "He stops.", "sent2": "Then he", "ending0": "sits.", "ending1": "runs.", "label": "1"}


@pytest.mark.parametrize("begin", ["Then he", None, float("nan")])
def test_endings_have_their_beginning_in_training_and_in_prediction(begin: Any) -> None:
    names = ["ending0", "ending1"]
    section = ChoicesSection(train="a.csv", text="sent1", beginning="sent2", endings=names)
    row = SWAG | {"sent2": begin}
    expected = ["Then he sits.", "Then he runs."] if begin == "Then he" else ["sits.", "runs."]
    assert section.example(row, "here")["endings"] == expected
    del row["label"]
    assert section.unlabelled_row(row, "here") == {"text": "He stops.", "endings": expected}
    answering = HeadAnswering(SimpleNamespace(section_of_examples=section))
    assert answering.second_text(row, "ending0", "here") == expected
    assert section.unlabelled_columns() == ["sent1", "sent2", *names]
    del row["ending1"]
    with pytest.raises(DataError, match="here: expected a field 'ending1', got none"):
        section.unlabelled_row(row, "here")


def test_lists_of_endings_are_read_from_files_as_in_training() -> None:
    section = ChoicesSection(train="a.jsonl")
    answering = HeadAnswering(SimpleNamespace(section_of_examples=section))
    for endings in (["good", "bad"], "good | bad"):
        assert answering.second_text({"text": "a", "endings": endings}, "endings", "here") == ["good", "bad"]
    with pytest.raises(DataError, match="here: expected two endings or more in 'endings', got 'good'"):
        answering.second_text({"text": "a", "endings": "good"}, "endings", "here")


def test_a_long_ending_is_cut() -> None:
    section = ChoicesSection(train="a.jsonl", max_length=8)
    examples = [{"text": "a film", "endings": ["good", "the film was " * 20], "label": 0}]
    (encoded,) = with_examples(Choices, section).encode(tokenizer(), examples)
    assert [len(row) <= 8 for row in encoded.rows[0]["input_ids"]] == [True, True]


@pytest.mark.parametrize(
    ("prefix", "refused"), [("E", True), ("S", True), ("L", True), ("U", True), ("B", False)]
)
def test_tags_of_other_schemes_are_refused(prefix: str, refused: bool) -> None:
    train = [{"words": ["a", "b", "c"], "tags": ["B-x", "I-x", f"{prefix}-x"]}]
    task = with_examples(Tokens, TokensSection(train="a.jsonl"), train)
    if not refused:
        assert task.label_names() == ["B-x", "I-x"]
        return
    with pytest.raises(
        DataError, match=f"a.jsonl: expected tags in the BIO scheme, got '{prefix}-x' as well as 'I-x'"
    ):
        task.label_names()


def test_classes_of_words_may_have_any_name() -> None:
    train = [{"words": ["a", "b"], "tags": ["S-Bahn", "U-Bahn"]}]
    assert with_examples(Tokens, TokensSection(train="a.jsonl"), train).label_names() == ["S-Bahn", "U-Bahn"]


def test_words_without_tokens_have_no_probability_and_are_uncertain() -> None:
    config: Any = SimpleNamespace(id2label={0: "O", 1: "B-x"})
    logits = torch.zeros(1, 1, 3, 2)
    logits[..., 1, 1] = logits[..., 2, 0] = 5
    batch = Batch([{"words": ["a", "\u200b", "b"]}], [Encoded([], [None, 0, 2])], {}, config)
    (answer,) = with_examples(Tokens, None).answer(Posterior(logits), batch)
    sure = pytest.approx(torch.tensor(5.0).sigmoid().item(), abs=1e-6)
    assert answer["tags"] == ["B-x", "O", "O"] and answer["probability"] == [sure, None, sure]
    assert TokensDeciding(None).read(answer)["uncertainty"] == 1


def test_a_class_that_is_called_none_is_not_the_empty_set() -> None:
    deciding = LabelsDeciding(with_examples(Labels, None))
    assert deciding.wrong({"labels": "none", "probability": {"none": 0.9}}, [])
    assert not deciding.wrong({"labels": "none", "probability": {"none": 0.9}}, ["none"])


def numbers(size: float, count: int) -> tuple[Any, Any]:
    """A task of numbers about so large, a hundredth apart, and the columns of its record."""
    steps = torch.arange(count, dtype=torch.float64)
    target = size * (1 + 0.01 * steps)
    noise = ObservedNoise(ObservationNoise("normal"), torch.tensor([0.5]))
    logits = torch.stack([steps - 0.25, steps + 0.25])[..., None].float()
    config: Any = SimpleNamespace(label_mean=size, label_std=0.01 * size)
    examples = [{"text": "a", "target": value} for value in target.tolist()]
    batch = Batch(examples, [], {}, config)
    return with_examples(Regression, None), (Posterior(logits, link="identity", noise=noise), batch)


@pytest.mark.parametrize("size", [1e-7, 1.0, 1.8e9])
def test_numbers_have_the_digits_of_their_unit(size: float) -> None:
    task, (posterior, batch) = numbers(size, 25)
    columns = task.record(posterior, batch)
    spread = 0.01 * size * 0.25
    assert torch.allclose(columns["std"], columns["std"].new_tensor(spread * math.sqrt(2)), rtol=1e-6)
    assert torch.allclose(columns["prediction"], columns["target"], rtol=1e-9, atol=0)
    answer = task.answer(posterior, batch)[0]
    shown = HeadAnswering(SimpleNamespace(inputs=("text",))).columns(answer)
    for name, value in shown.items():
        assert value == pytest.approx(answer[name], rel=1e-5), name
    assert float(task.truth(batch.examples[3])) == pytest.approx(batch.examples[3]["target"], rel=1e-14)


def test_rounded_numbers_are_json_and_finite() -> None:
    assert json.loads(json.dumps([rounded(0.0), rounded(-1 / 3)])) == [0.0, -0.333333]
    assert math.isinf(rounded(math.inf)) and math.isnan(rounded(math.nan))


@pytest.mark.parametrize(
    ("count", "levels"), [(3, [0.5]), (4, [0.5, 0.8]), (18, [0.5, 0.8, 0.9]), (19, [*LEVELS])]
)
def test_intervals_are_not_calibrated_by_fewer_numbers_than_their_level_needs(
    count: int, levels: list[float]
) -> None:
    task, (posterior, batch) = numbers(1.0, 25)
    columns = task.record(posterior, batch)
    stretched = task.calibrated(columns, {name: value[:count] for name, value in columns.items()})
    defined = [
        level for index, level in enumerate(LEVELS) if not stretched["stretched"][:, index].isnan().any()
    ]
    assert defined == levels
    figures = task.figures(stretched)
    for level in (0.8, 0.95):
        for measure in ("stretched_miss", "stretched_coverage", "score"):
            assert (figures[f"{measure}_{100 * level:.0f}"] is not None) == (level in levels)
        assert figures[f"coverage_{100 * level:.0f}"] is not None
    (table,) = task.listings({"attention": stretched})
    assert [row[1] for row in table.rows if row[-1] != ""] == [f"{level:.0%}" for level in levels]
