import warnings
from pathlib import Path

import pytest

from probattn.data import DataError, DataWarning, Source, load_task
from probattn.data.identity import split_of

pytestmark = pytest.mark.usefixtures("built_in")


def write(path: Path, texts: list[str], labels: str = "ab") -> Source:
    rows = [f"{text},{labels[n % len(labels)]}" for n, text in enumerate(texts)]
    path.write_text("\n".join(["text,label", *rows, ""]))
    return Source(str(path))


def test_a_built_in_training_set_brings_its_own_splits() -> None:
    task = load_task(
        {"train": Source("rotten_tomatoes"), "out_of_domain": Source("bbc_news")},
        limits={"train": 300, "out_of_domain": 50},
    )
    expected = {"train": 300, "validation": 830, "test": 865, "out_of_domain": 50}
    assert {role: len(data) for role, data in task.roles().items()} == expected
    assert task.label_names == ("negative", "positive")
    assert task.shared_with_training() == {}


def test_what_is_missing_is_set_aside(tmp_path: Path) -> None:
    texts = [f"text {n}" for n in range(400)] + ["Text 2!", "text 3."]  # a, b as before
    source = write(tmp_path / "a.csv", texts)
    task = load_task({"train": source}, validation_fraction=0.2, test_fraction=0.1)
    sizes = [len(data) for data in (task.train, task.validation, task.test)]
    assert sum(sizes) == 402
    assert abs(sizes[1] - 80) < 30 and abs(sizes[2] - 40) < 24
    assert task.shared_with_training() == {}
    assert task.validation.source == f"{source.source} (validation)"
    again = load_task({"train": source}, validation_fraction=0.2, test_fraction=0.1)
    assert again == task


def test_only_what_is_missing_is_set_aside(tmp_path: Path) -> None:
    train = write(tmp_path / "a.csv", [f"text {n}" for n in range(100)])
    test = write(tmp_path / "b.csv", ["one", "two"])
    task = load_task({"train": train, "test": test})
    assert task.test.texts == ("one", "two")
    assert len(task.train) + len(task.validation) == 100
    whole = load_task({"train": train, "test": test, "validation": test})
    assert len(whole.train) == 100


def test_texts_that_training_holds_too_are_counted_in_a_warning(tmp_path: Path) -> None:
    train = write(tmp_path / "a.csv", [f"text {n}" for n in range(100)])
    test = write(tmp_path / "b.csv", ["Text 1", "TEXT 2.", "new"])
    with pytest.warns(DataWarning) as caught:
        load_task({"train": train, "test": test, "validation": test})
    assert [str(warning.message).removeprefix(f"{test.source}: ") for warning in caught] == [
        f"2 of its 3 texts ({role}) are in the training data too, so that measurements on it flatter"
        for role in ("validation", "test")
    ]


def test_exact_copies_are_counted_and_kept(tmp_path: Path) -> None:
    train = write(tmp_path / "a.csv", ["same", "other", "same", "another", "Same"])
    test = write(tmp_path / "b.csv", ["new", "newer", "new"])
    with pytest.warns(DataWarning) as caught:
        task = load_task({"train": train, "test": test, "validation": write(tmp_path / "c.csv", ["x", "y"])})
    words = (
        "copies of the text and label of an earlier row: 1 (line 4); each copy counts again: remove the copies, unless "
        "it matters how often a text occurs"
    )
    messages = [str(warning.message) for warning in caught]
    assert messages == [f"{data.source}: {words}" for data in (train, test)]
    assert [len(data) for data in task.roles().values()] == [5, 2, 3]


def test_a_label_that_training_does_not_know(tmp_path: Path) -> None:
    train = write(tmp_path / "a.csv", ["one", "two"])
    test = write(tmp_path / "b.csv", ["three", "four"], "ac")
    with pytest.raises(DataError) as caught:
        load_task({"train": train, "test": test, "validation": train})
    assert str(caught.value) == (
        f"{test.source} line 3: expected a label of the training data ('a', 'b'), got 'c'; "
        "correct it, or rename it with 'label_map'"
    )


def test_too_few_to_set_some_aside(tmp_path: Path) -> None:
    train = write(tmp_path / "a.csv", ["one", "two"])
    message = r"2 texts are too few to set some aside for (validation|test); give a source"
    with pytest.raises(DataError, match=message):
        load_task({"train": train})


def test_texts_that_were_split_before_are_said_to_be(tmp_path: Path) -> None:
    numbered = [f"text {n}" for n in range(1000)]
    train = write(tmp_path / "a.csv", [text for text in numbered if split_of(text, 0.1, 0.1) == "train"])
    message = r"none of \d{3} different texts falls into the validation part, so they"
    with pytest.raises(DataError, match=message):
        load_task({"train": train})
    assert len(load_task({"train": write(tmp_path / "b.csv", numbered)}).test) > 50


@pytest.mark.filterwarnings(
    "ignore:.*copies of the text and label of an earlier row:probattn.data.DataWarning"
)
def test_copies_are_named_where_too_few_texts_differ(tmp_path: Path) -> None:
    train = write(tmp_path / "a.csv", ["one"] * 100)
    with (
        pytest.warns(DataWarning, match="labels in different rows: 100 "),
        pytest.raises(DataError, match=r"100 texts \(1 different one\) are too few to set some aside"),
    ):
        load_task({"train": train})


def test_a_limit_that_leaves_one_class(tmp_path: Path) -> None:
    train = write(tmp_path / "a.csv", [f"text {n}" for n in range(40)], "a" * 39 + "b")
    with pytest.raises(DataError, match="expected at least two classes"):
        load_task({"train": train, "validation": train, "test": train}, limits={"train": 2})


def test_something_to_train_on_is_needed() -> None:
    with pytest.raises(DataError, match="expected a source to train on, got test"):
        load_task({"test": Source("rotten_tomatoes")})


def test_nothing_is_said_where_nothing_is_wrong() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_task({"train": Source("rotten_tomatoes"), "shifted": Source("imdb")}, limits={"shifted": 100})
