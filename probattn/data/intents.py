"""Intents of requests: CLINC150, whose classes are those of its file, and BANKING77, whole or with intents left out."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from pydantic import TypeAdapter

from probattn.data.errors import DataError
from probattn.data.files import data_file, read_text
from probattn.data.identity import Examples, LabelledText, by_hash, disjoint
from probattn.files.json_files import JSONError, parse_json

CLINC_ORIGIN = "https://github.com/clinc/oos-eval (data/data_full.json)"
BANKING_ORIGIN = "https://github.com/PolyAI-LDN/task-specific-datasets (banking_data)"
OUT_OF_SCOPE = "oos"
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
    return disjoint(
        {"train": [], "validation": [], "test": [LabelledText(text, 0) for text, _ in queries["oos_test"]]}
    )


def _banking(name: str) -> dict[str, list[tuple[str, str]]]:
    """Texts and intents of both files, by part."""
    splits = {}
    for split in ("train", "test"):
        path = data_file(name, f"banking77/{split}.csv", origin=BANKING_ORIGIN)
        rows = csv.DictReader(io.StringIO(read_text(path), newline=""))
        if set(rows.fieldnames or ()) != {"text", "category"}:
            raise DataError(f"{path}: expected the columns text and category, got {rows.fieldnames}")
        splits[split] = [(row["text"].strip(), row["category"]) for row in rows]
    return splits


def banking_names(subset: str = "all") -> tuple[str, ...]:
    """The 77 intents; those that are "known", or "left_out"."""
    names = sorted({intent for _, intent in _banking("banking77")["train"]})
    left_out = names[EVERY - 1 :: EVERY]
    if subset == "left_out":
        return tuple(left_out)
    return tuple(name for name in names if subset == "all" or name not in left_out)


def banking(subset: str = "all") -> Examples:
    """The official test set; a tenth of the rest, by the hash of the text, is for validation.

    Texts of intents that are left out are all for testing.
    """
    names = {name: index for index, name in enumerate(banking_names(subset))}
    splits = {
        split: [LabelledText(text, names[intent]) for text, intent in rows if intent in names]
        for split, rows in _banking("banking77").items()
    }
    if subset == "left_out":
        return disjoint({"train": [], "validation": [], "test": splits["test"]})
    return disjoint(by_hash(splits["train"], validation=0.1, test=0.0) | {"test": splits["test"]})
