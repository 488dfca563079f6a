"""The hub's loader on local folders, which ``datasets`` reads as it reads the hub."""

import json
import sys
from pathlib import Path

import pytest

from probattn.data import DataError, Source

datasets = pytest.importorskip("datasets")

ROWS = [("fine", 1), ("dull", 0), ("great", 1)]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "reviews"
    folder.mkdir()
    for split in ("train", "test"):
        lines = [json.dumps({"text": f"{text} {split}", "label": label}) for text, label in ROWS]
        (folder / f"{split}.jsonl").write_text("\n".join(lines))
    return folder


def with_names(folder: Path, labels: str) -> None:
    (folder / "README.md").write_text(
        "---\nlicense: mit\ndataset_info:\n  features:\n  - name: text\n    dtype: string\n  - name: label\n"
        "    dtype:\n      class_label:\n        names:\n          '0': bad\n          '1': good\n"
        "configs:\n- config_name: default\n  data_files:\n  - split: train\n    path: train.jsonl\n---\n"
    )
    lines = [
        json.dumps({"text": text, "label": label})
        for (text, _), label in zip(ROWS, json.loads(labels), strict=True)
    ]
    (folder / "train.jsonl").write_text("\n".join(lines))


def error(source: Source) -> str:
    with pytest.raises(DataError) as caught:
        source.load()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_data_set_without_class_names(folder: Path) -> None:
    data = Source(f"hub:{folder}").load()
    assert (data.texts, data.labels) == (("fine train", "dull train", "great train"), (1, 0, 1))
    assert (data.label_names, data.source) == (("0", "1"), f"hub:{folder} (train)")
    assert Source(f"hub:{folder}").load("shifted", ("0", "1")).texts[0] == "fine test"


def test_class_names_and_licence_are_those_of_the_data_set(folder: Path) -> None:
    with_names(folder, "[1, 0, 1]")
    data = Source(f"hub:{folder}").load()
    assert (data.labels, data.label_names) == ((1, 0, 1), ("bad", "good"))
    mapped = Source(f"hub:{folder}", label_map={"bad": "negative", "good": "positive"})
    assert mapped.load().label_names == ("negative", "positive")
    assert mapped.load("train", ("positive", "negative")).labels == (0, 1, 0)


def test_a_row_without_label(folder: Path) -> None:
    with_names(folder, "[1, -1, 1]")
    assert error(Source(f"hub:{folder}")) == (
        f"hub:{folder} (train) row 2: expected a label in 0..1, got -1 (-1 marks rows without label); "
        "choose a split with labels"
    )


def test_a_split_and_a_column_that_are_not_there(folder: Path) -> None:
    expected = f"hub:{folder} (tests): expected a split 'tests', got 'train', 'test'; did you mean 'test'?"
    assert error(Source(f"hub:{folder}", split="tests")) == expected
    assert error(Source(f"hub:{folder}", text="txt")) == (
        f"hub:{folder} (train): expected a column 'txt', got 'text', 'label'; did you mean 'text'? "
        "name the column of the texts with 'text: text'"
    )


def test_a_data_set_that_cannot_be_loaded() -> None:
    said = error(Source("hub:no-such-owner/no-such-set"))
    assert said.startswith("hub:no-such-owner/no-such-set (train): cannot be loaded (")
    assert said.endswith("check the name and the network, or fetch it once where there is one")


def test_the_package_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert error(Source("hub:owner/name")) == (
        "hub:owner/name (train): expected the package datasets, got no such package; "
        "install it: pip install 'probattn[data]'"
    )
