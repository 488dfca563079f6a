"""Sentence pairs that do or do not say the same (MRPC), and sentences that are or are not acceptable (CoLA)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from probattn.checks import shown
from probattn.data.errors import DataError
from probattn.data.folder import data_file
from probattn.data.identity import Split
from probattn.data.labelled import Examples, LabelledText, by_hash, disjoint
from probattn.data.text_files import read_text

MRPC_HEADER = ("Quality", "#1 ID", "#2 ID", "#1 String", "#2 String")
MRPC_ORIGIN = "https://github.com/brmson/dataset-sts (data/para/msr)"
COLA_COLUMNS = ("source", "label", "mark", "sentence")
COLA_ORIGIN = "https://nyu-mll.github.io/CoLA (raw)"


def mrpc() -> Examples:
    """The official splits with the validation part that is usual, less what a later one holds too."""
    names: tuple[tuple[Split, str], ...] = (
        ("train", "msr-para-train.tsv"),
        ("validation", "msr-para-val.tsv"),
        ("test", "msr-para-test.tsv"),
    )
    return disjoint({split: list(_pairs(name)) for split, name in names})


def cola() -> Examples:
    """In-domain sentences: the development set to test on; of the rest, a tenth by the hash of the text to validate.

    What either development set holds is taken out of the rest.
    """
    tests = list(_sentences("cola", "in_domain_dev.tsv"))
    held_out = {example.key for example in (*tests, *_sentences("cola", "out_of_domain_dev.tsv"))}
    rest = [example for example in _sentences("cola", "in_domain_train.tsv") if example.key not in held_out]
    return disjoint(by_hash(rest, validation=0.1, test=0.0) | {"test": tests})


def cola_out_of_domain() -> Examples:
    """Sentences from other publications than those of :func:`cola`: nothing to train on."""
    tests = list(_sentences("cola_out_of_domain", "out_of_domain_dev.tsv"))
    return disjoint({"train": [], "validation": [], "test": tests})


def _pairs(name: str) -> Iterator[LabelledText]:
    """Rows below a header; quotes are plain characters, and texts hold no tab."""
    path = data_file("mrpc", f"mrpc/{name}", origin=MRPC_ORIGIN)
    rows = _rows(path)
    line, header = next(rows)
    if tuple(header) != MRPC_HEADER:
        raise DataError(
            f"{path} line {line}: expected the columns {', '.join(MRPC_HEADER)}, got {', '.join(map(shown, header))}"
        )
    for line, row in rows:
        where = f"{path} line {line}"
        if len(row) != len(MRPC_HEADER):
            raise DataError(
                f"{where}: expected {len(MRPC_HEADER)} columns ({', '.join(MRPC_HEADER)}), got {len(row)}"
            )
        yield LabelledText(_sentence(row[3], where), _zero_or_one(row[0], where), _sentence(row[4], where))


def _sentences(dataset: str, name: str) -> Iterator[LabelledText]:
    path = data_file(dataset, f"cola/{name}", origin=COLA_ORIGIN)
    for line, row in _rows(path):
        where = f"{path} line {line}"
        if len(row) != len(COLA_COLUMNS):
            raise DataError(
                f"{where}: expected {len(COLA_COLUMNS)} columns ({', '.join(COLA_COLUMNS)}), got {len(row)}"
            )
        yield LabelledText(_sentence(row[3], where), _zero_or_one(row[1], where))


def _rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Line number and fields of each line that is not blank."""
    for line, content in enumerate(read_text(path).split("\n"), start=1):
        if content.strip():
            yield line, content.removesuffix("\r").split("\t")


def _sentence(text: str, where: str) -> str:
    if not text.strip():
        raise DataError(f"{where}: expected a sentence, got none")
    return text.strip()


def _zero_or_one(label: str, where: str) -> int:
    if label not in ("0", "1"):
        raise DataError(f"{where}: expected the label 0 or 1, got {shown(label)}")
    return int(label)
