"""What `probattn check` flags in public data sets as they are distributed, and what --suspects finds of wrong labels.

PROBATTN_DATA=FOLDER python tests/benchmarks/checking_study.py            # counts by kind
PROBATTN_DATA=FOLDER python tests/benchmarks/checking_study.py --planted  # precision and recall of planted labels
"""

from __future__ import annotations

import csv
import json
import random
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from typing import Annotated

import typer

from probattn.data.checking import Rows, check_rows
from probattn.data.files import data_folder
from probattn.data.suspects import suspects

SHARE, SEEDS = 0.05, 3
COLUMNS = {"text": "text", "label": "label"}


def banking77(folder: Path) -> Iterator[tuple[str, str]]:
    for split in ("train", "test"):
        with (folder / "banking77" / f"{split}.csv").open(encoding="utf-8", newline="") as file:
            yield from ((row["text"], row["category"]) for row in csv.DictReader(file))


def clinc150(folder: Path) -> Iterator[tuple[str, str]]:
    data = json.loads((folder / "clinc_oos" / "data_full.json").read_text(encoding="utf-8"))
    for split in ("train", "val", "test"):
        yield from map(tuple, data[split])


def trec(folder: Path) -> Iterator[tuple[str, str]]:
    for split in ("train", "test"):
        for line in (folder / "trec" / f"TREC.{split}.all").read_text(encoding="latin-1").split("\n"):
            if line:
                label, text = line.split(" ", 1)
                yield text, f"class {label}"


def sms_spam(folder: Path) -> Iterator[tuple[str, str]]:
    for line in (folder / "sms_spam" / "SMSSpamCollection").read_text(encoding="utf-8").split("\n"):
        if line:
            label, text = line.split("\t")[:2]
            yield text, label


def main(planted: Annotated[bool, typer.Option("--planted")] = False) -> None:
    """Prints a table."""
    folder = data_folder("checking_study.py", ".", "the page of each data set")
    for read in (banking77, trec) if planted else (banking77, clinc150, trec, sms_spam):
        fields = [{"text": text, "label": label} for text, label in read(folder)]
        lines = [f"line {row + 2}" for row in range(len(fields))]
        started = time.process_time()
        if planted:
            for seed in range(SEEDS):
                print(read.__name__, f"seed {seed}:", _planted(fields, lines, seed))
        else:
            for damage in check_rows(Rows(fields, lines), COLUMNS):
                share = len(damage.rows) / len(fields)
                print(f"{read.__name__} {len(damage.rows)} ({share:.2%}) {damage.kind}: {damage.examples}")
        print(f"{read.__name__}: {len(fields):,} rows, {time.process_time() - started:.1f} CPU s")


def _planted(fields: list[dict[str, str]], lines: list[str], seed: int) -> str:
    """Replaces labels by others, uniformly, and counts which of them are suspected."""
    draw, names = random.Random(seed), sorted({row["label"] for row in fields})
    wrong = set(draw.sample(range(len(fields)), round(SHARE * len(fields))))
    changed = [
        {**row, "label": draw.choice([name for name in names if name != row["label"]])} if n in wrong else row
        for n, row in enumerate(fields)
    ]
    listed, accuracy, _ = suspects(Rows(changed, lines))
    hits = [item for item in listed if item.row in wrong]
    restored = mean(item.suggestion == fields[item.row]["label"] for item in hits)
    first = sum(item.row in wrong for item in listed[:100])
    return (
        f"{len(wrong)} planted, {len(listed)} suspected: precision {len(hits) / len(listed):.3f}, recall "
        f"{len(hits) / len(wrong):.3f}; {first} of the first 100 planted; suggestion right for {restored:.3f}; "
        f"accuracy {accuracy:.3f}"
    )


if __name__ == "__main__":
    typer.run(main)
