"""Data sets of rows: the forms that files of GLUE, SNLI and SICK have, the hub, and what is refused."""

import csv
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from probattn.data import BUILT_IN, SPLITS, DataError, DataWarning, Source, corpora, load_task
from probattn.data.corpora import CORPORA

GLUE = {
    "glue_cola": ("CoLA", "", "gj04\t{label}\t\tSentence {row}.", "Sentence {row}."),
    "glue_sst2": ("SST-2", "sentence\tlabel", "phrase {row} \t{label}", "phrase {row}"),
    "glue_mrpc": (
        "MRPC",
        "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String",
        '{label}\t7\t8\tSaid "{row}\tSaid so.',
        'Said "{row}',
    ),
    "qqp": (
        "QQP",
        "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate",
        "1\t2\t3\tQ {row}?\tOr?\t{label}",
        "Q {row}?",
    ),
    "qnli": ("QNLI", "index\tquestion\tsentence\tlabel", "{row}\tQ {row}?\tA.\t{name}", "Q {row}?"),
    "rte": ("RTE", "index\tsentence1\tsentence2\tlabel", "{row}\tT {row}.\tH.\t{name}", "T {row}."),
    "mnli": (
        "MNLI",
        "index\tgenre\tsentence1\tsentence2\tlabel1\tgold_label",
        "{row}\tfiction\tT {row}.\tH.\tneutral\t{name}",
        "T {row}.",
    ),
}
"""Folder, header, a row and the text that is read of it, as GLUE's own files have them."""


def put(folder: Path, name: str, rows: int, file: str) -> None:
    place, header, row, _ = GLUE[name]
    classes = BUILT_IN[name].label_names
    lines = [header] if header else []
    lines += [
        row.format(row=number, label=number % 2, name=classes[number % len(classes)])
        for number in range(rows)
    ]
    target = folder / place / file
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text("\n".join(lines) + "\n", encoding="utf-8")


@pytest.mark.parametrize("under", ["glue", "."])
@pytest.mark.parametrize("name", GLUE)
def test_glues_own_files_are_read(name, under, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("PROBATTN_DATA", str(tmp_path))
    put(tmp_path / under, name, 200, "train.tsv")
    put(tmp_path / under, name, 12, "dev_matched.tsv" if name == "mnli" else "dev.tsv")
    parts = {split: BUILT_IN[name].load(split) for split in SPLITS}
    text = GLUE[name][3]
    assert set(parts["test"].texts) == {text.format(row=row) for row in range(12)}
    assert len(parts["train"]) + len(parts["validation"]) == 188  # those that are tested on are taken out
    assert 5 < len(parts["validation"]) < 40
    for data in parts.values():
        assert (data.pairs is not None) == BUILT_IN[name].paired
        for row, number in enumerate(int(text.strip('?." ').split()[-1].strip('"')) for text in data.texts):
            assert data.labels[row] == number % (3 if name == "mnli" else 2)


def test_the_usual_folder_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROBATTN_DATA", str(tmp_path))
    for file, rows in (("train.tsv", 50), ("dev.tsv", 5)):
        put(tmp_path / "glue", "rte", rows, file)
        put(tmp_path, "rte", 2 * rows, file)
        (tmp_path / "RTE").rename(tmp_path / "rte") if file == "dev.tsv" else None
    assert len(BUILT_IN["rte"].load("test")) == 10


def test_broken_lines_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROBATTN_DATA", str(tmp_path))
    put(tmp_path, "qqp", 40, "train.tsv")
    put(tmp_path, "qqp", 4, "dev.tsv")
    with (tmp_path / "QQP" / "train.tsv").open("a") as file:
        file.write("1\t2\t3\tcut off\n\n")
    with pytest.warns(DataWarning, match=r"train.tsv: 1 lines without 6 fields are skipped \(42\)"):
        BUILT_IN["qqp"].load("train")


def test_a_development_set_alone_is_cut_by_its_premises(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("PROBATTN_DATA", str(tmp_path))
    rows = [
        {"premise": f"Premise {row}.", "hypothesis": f"Claim {label}.", "label": label}
        for row in range(100)
        for label in ("entailment", "neutral", "contradiction", "-")
    ]
    (tmp_path / "nli").mkdir()
    (tmp_path / "nli" / "snli_dev.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.warns(DataWarning, match="snli: only .*snli_dev.jsonl is there: it is cut"):
        parts = BUILT_IN["snli"].examples()
    premises = [{example.text for example in parts[split]} for split in SPLITS]
    assert sum(map(len, premises)) == 100 and not premises[0] & premises[2]
    assert [len(parts[split]) for split in SPLITS] == [3 * len(some) for some in premises]  # "-" is no label


def test_rows_come_from_the_hub_where_there_are_no_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PROBATTN_DATA", raising=False)
    asked = []

    def load_hub(name, split, configuration, source):
        asked.append((name, configuration, split))
        size = 60 if split == "train" else 9
        return [
            {"premise": f"{split} {row}", "hypothesis": "H", "label": -1 if row == 4 else row % 3}
            for row in range(size)
        ]

    monkeypatch.setattr(corpora, "load_hub", load_hub)
    parts = BUILT_IN["mnli"].examples()
    assert asked == [("nyu-mll/glue", "mnli", "validation_matched"), ("nyu-mll/glue", "mnli", "train")]
    assert len(parts["test"]) == 8 and len(parts["train"]) + len(parts["validation"]) == 59
    assert Counter(example.label for example in parts["test"]) == {0: 3, 1: 2, 2: 3}


def test_neither_files_nor_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PROBATTN_DATA", str(tmp_path))

    def load_hub(*_):
        raise DataError("no network")

    monkeypatch.setattr(corpora, "load_hub", load_hub)
    message = r"'rte': expected rte/train.tsv, rte/dev.tsv in .* the hub, but: no network"
    with pytest.raises(DataError, match=message):
        BUILT_IN["rte"].load("train")
    words = r"'scitail': expected nli/scitail_test.jsonl in .*, got no such file"
    with pytest.raises(DataError, match=words):
        BUILT_IN["scitail"].load("test")
    monkeypatch.delenv("PROBATTN_DATA")
    refusal = r"to name a folder with nli/scitail_test\.jsonl, got no such variable"
    with pytest.raises(DataError, match=refusal):
        BUILT_IN["scitail"].load("test")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("index\tsentence1\tlabel\n1\ta\tentailment\n", "expected a column 'sentence2', got"),
        ("index\tsentence1\tsentence2\tlabel\n1\ta\tb\tmaybe\n", "expected a label in entailment"),
        ("index\tsentence1\tsentence2\tlabel\n1\t \tb\tentailment\n", "line 2: expected text in 'sentence1'"),
    ],
)
def test_wrong_files_are_refused(content, message, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("PROBATTN_DATA", str(tmp_path))
    put(tmp_path, "rte", 30, "train.tsv")
    (tmp_path / "RTE" / "dev.tsv").write_text(content)
    with pytest.raises(DataError, match=message):
        BUILT_IN["rte"].load("test")


@pytest.mark.filterwarnings("ignore::probattn.data.DataWarning")
@pytest.mark.parametrize(
    ("name", "folder", "sizes"),
    [
        ("rte", "rte", (2229, 258, 277)),
        ("sick", "sick", (4420, 495, 4926)),
        ("customer_reviews", "sentiment", None),
        ("sms_spam", "sms_spam", None),
        ("clinc150", "clinc_oos", (14894, 2993, 4493)),
        ("clinc150_out_of_scope", "clinc_oos", (0, 0, 1000)),
        ("banking77", "banking77", (8913, 1029, 3076)),
        ("banking77_known", "banking77", (6778, 776, 2316)),
        ("banking77_left_out", "banking77", (0, 0, 760)),
        ("textfooler_mr", "attack", None),
        ("textfooler_snli", "attack", None),
        ("textfooler_ag", "attack", None),
        ("scitail", "nli", None),
        ("qnli", "qnli", None),
        ("snli", "nli", None),
        ("mnli", "nli", None),
    ],
)
def test_the_sets_at_hand(name, folder, sizes, public_data) -> None:
    public_data(folder)
    parts = BUILT_IN[name].examples()
    keys = [{example.key for example in parts[split]} for split in SPLITS]
    assert not keys[0] & keys[1] and not keys[0] & keys[2] and not keys[1] & keys[2]
    assert len({example.label for example in parts["test"]}) == len(BUILT_IN[name].label_names)
    if sizes is not None:
        assert tuple(len(parts[split]) for split in SPLITS) == sizes


def test_intents_are_those_of_the_files(public_data: Callable[..., Path]) -> None:
    folder = public_data("clinc_oos", "banking77")
    queries = dict(json.loads((folder / "clinc_oos/data_full.json").read_text(encoding="utf-8"))["test"])
    data = BUILT_IN["clinc150"].load("test")
    assert data.labels is not None
    assert all(
        data.label_names[label] == queries[text] for text, label in zip(data.texts, data.labels, strict=True)
    )
    rows = csv.DictReader(
        (folder / "banking77/test.csv").read_text(encoding="utf-8").splitlines(keepends=True)
    )
    requests = {row["text"].strip(): row["category"] for row in rows}
    known, other = (BUILT_IN[f"banking77_{part}"] for part in ("known", "left_out"))
    for each in (known, other):
        found = each.load("test")
        assert found.labels is not None
        pairs = zip(found.texts, found.labels, strict=True)
        assert all(found.label_names[label] == requests[text] for text, label in pairs)
    assert sorted(known.label_names + other.label_names) == list(BUILT_IN["banking77"].label_names)


@pytest.mark.filterwarnings("ignore::probattn.data.DataWarning")
def test_classes_can_be_merged_and_shifted_sets_be_several(public_data: Callable[..., Path]) -> None:
    public_data("sick", "rte", "nli")
    merged = {"neutral": "not_entailment", "contradiction": "not_entailment"}
    task = load_task(
        {
            "train": Source("sick", label_map=merged),
            "shifted": [Source("rte"), Source("scitail"), Source("snli", label_map=merged)],
        },
        limits={"shifted": 50},
    )
    assert task.label_names == ("entailment", "not_entailment")
    roles = task.roles()
    assert list(roles) == ["train", "validation", "test", "shifted", "shifted_2", "shifted_3"]
    assert [len(roles[role]) for role in list(roles)[3:]] == [50, 50, 50]
    assert all(data.label_names == task.label_names for data in roles.values())


def test_every_corpus_of_classes_has_a_name() -> None:
    assert set(CORPORA) - {"stsb"} <= set(BUILT_IN)
