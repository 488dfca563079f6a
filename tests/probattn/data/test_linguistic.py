"""MRPC and CoLA as their files have them, and files that are not as they should be."""

import csv
import os
from pathlib import Path

import pytest

from probattn.data import BUILT_IN, DataError, Source, text_key

HEADER = "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n"


def folder_of_data() -> Path:
    folder = os.environ.get("PROBATTN_DATA")
    if not folder:
        pytest.skip("PROBATTN_DATA names no folder with mrpc and cola")
    return Path(folder)


def write_mrpc(folder: Path, train: str, header: str = HEADER) -> Path:
    (folder / "mrpc").mkdir()
    for name in ("val", "test"):
        (folder / "mrpc" / f"msr-para-{name}.tsv").write_bytes((header + "1\t1\t2\ta\tb\r\n").encode())
    path = folder / "mrpc" / "msr-para-train.tsv"
    path.write_bytes((header + train).encode())
    return path


def write_cola(folder: Path, train: str) -> Path:
    (folder / "cola").mkdir()
    (folder / "cola" / "in_domain_dev.tsv").write_text("a\t1\t\tIt rains.\nb\t0\t*\tRains it.\n")
    (folder / "cola" / "out_of_domain_dev.tsv").write_text(
        "c\t1\t\tIt snows.\nc\t0\t*\tSnows.\nc\t1\t\tsnows\n"
    )
    path = folder / "cola" / "in_domain_train.tsv"
    path.write_text(train)
    return path


def test_the_published_sizes_of_mrpc_before_repeats_are_dropped() -> None:
    # 5,801 pairs, 67% of them paraphrases (Dolan and Brockett 2005)
    counts = {}
    for name in ("train", "val", "test"):
        file = folder_of_data() / "mrpc" / f"msr-para-{name}.tsv"
        rows = list(
            csv.DictReader(file.read_text("utf-8-sig").splitlines(), delimiter="\t", quoting=csv.QUOTE_NONE)
        )
        counts[name] = (len(rows), sum(row["Quality"] == "1" for row in rows))
    assert counts == {"train": (3576, 2407), "val": (500, 346), "test": (1725, 1147)}
    assert sum(size for size, _ in counts.values()) == 5801


def test_pairs_of_mrpc_are_those_of_the_file() -> None:
    file = folder_of_data() / "mrpc" / "msr-para-test.tsv"
    rows = list(
        csv.DictReader(file.read_text("utf-8-sig").splitlines(), delimiter="\t", quoting=csv.QUOTE_NONE)
    )
    labelled = {(row["#1 String"], row["#2 String"]): int(row["Quality"]) for row in rows}
    data = BUILT_IN["mrpc"].load("test")
    assert data.pairs is not None
    assert data.labels is not None
    found = dict(zip(zip(data.texts, data.pairs, strict=True), data.labels, strict=True))
    stripped = {(first.strip(), second.strip()): label for (first, second), label in labelled.items()}
    assert found.items() <= stripped.items() and len(stripped) - len(found) <= 1
    assert sum('"' in text for text in data.texts) > 100  # plain characters


def test_no_sentence_of_cola_is_trained_and_tested_on() -> None:
    folder = folder_of_data() / "cola"
    held_out = set()
    for name in ("in_domain_dev", "out_of_domain_dev"):
        lines = (folder / f"{name}.tsv").read_text("utf-8").splitlines()
        held_out |= {text_key(line.split("\t")[3]) for line in lines}
    for split in ("train", "validation"):
        assert not BUILT_IN["cola"].load(split).keys() & held_out
    assert len(BUILT_IN["cola"].load("test")) == 527


def test_the_small_files_read_as_they_should(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROBATTN_DATA", str(tmp_path))
    write_mrpc(tmp_path, '0\t3\t4\tSaid "no\tSaid no.\r\n\r\n1\t5\t6\tA\tB.\r\n1\t5\t6\tb\ta\r\n')
    tested = BUILT_IN["mrpc"].load("test")
    assert (tested.texts, tested.pairs, tested.labels) == (("a",), ("b",), (1,))
    train = BUILT_IN["mrpc"].load("train")
    # the pair (A, B.) is the one that is tested on; turned round it is another
    assert train.texts == ('Said "no', "b")
    assert train.pairs == ("Said no.", "a")
    assert train.labels == (0, 1)
    assert train.label_names == ("different", "equivalent")


def test_cola_takes_both_development_sets_out_of_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROBATTN_DATA", str(tmp_path))
    rows = "".join(f"d\t{number % 2}\t\tSentence {number}.\n" for number in range(200))
    write_cola(tmp_path, f"a\t1\t\tit rains\na\t1\t\tIt snows!\na\t0\t*\tSnows.\n{rows}a\t1\t\tsentence 0\n")
    parts = BUILT_IN["cola"].examples()
    assert len(parts["train"]) + len(parts["validation"]) == 200
    assert 5 < len(parts["validation"]) < 40
    assert [example.text for example in parts["test"]] == ["It rains.", "Rains it."]
    assert Source("cola_out_of_domain").load("shifted", ("unacceptable", "acceptable")).labels == (1, 0)
    with pytest.raises(
        DataError, match=r"cola_out_of_domain \(train\): expected at least one text, got none"
    ):
        Source("cola_out_of_domain").load()


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            "1\t1\t2\tonly one",
            "line 3: expected 5 columns (Quality, #1 ID, #2 ID, #1 String, #2 String), got 4",
        ),
        ("yes\t1\t2\ta\tb", "line 3: expected the label 0 or 1, got 'yes'"),
        ("1\t1\t2\ta\t ", "line 3: expected a sentence, got none"),
    ],
)
def test_a_malformed_row_of_mrpc_is_named(
    row: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROBATTN_DATA", str(tmp_path))
    path = write_mrpc(tmp_path, f"0\t3\t4\tgood\trow\n{row}\n")
    with pytest.raises(DataError) as caught:
        Source("mrpc").load()
    assert str(caught.value) == f"{path} {message}"


def test_mrpc_without_its_header_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROBATTN_DATA", str(tmp_path))
    path = write_mrpc(tmp_path, "", header="1\t1\t2\tx\ty\n")
    with pytest.raises(DataError) as caught:
        Source("mrpc").load()
    assert str(caught.value) == (
        f"{path} line 1: expected the columns Quality, #1 ID, #2 ID, #1 String, #2 String, got '1', '1', '2', 'x', 'y'"
    )


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("a\t1\tno mark", "line 1: expected 4 columns (source, label, mark, sentence), got 3"),
        ("a\t2\t\tA sentence.", "line 1: expected the label 0 or 1, got '2'"),
        ("a\t1\t\t", "line 1: expected a sentence, got none"),
    ],
)
def test_a_malformed_row_of_cola_is_named(
    row: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROBATTN_DATA", str(tmp_path))
    path = write_cola(tmp_path, f"{row}\n")
    with pytest.raises(DataError) as caught:
        Source("cola").load()
    assert str(caught.value) == f"{path} {message}"
