"""Makes the README's files, tickets.csv and new.csv, of BANKING77, and counts what was wrong among the decisions.

python tests/benchmarks/tickets.py            # then the README's commands
python tests/benchmarks/tickets.py decided.csv
"""

from __future__ import annotations

import csv
import random
from pathlib import Path
from typing import Annotated

import typer

from probattn.data.files import data_folder

TICKETS, NEW = 5000, 300


def main(
    decided: Annotated[Path | None, typer.Argument(help="What `predict --policy` wrote.")] = None,
) -> None:
    """Writes the files into this folder, or judges the decisions."""
    source = data_folder("tickets.py", "banking77", "BANKING77 (Casanueva et al. 2020)") / "train.csv"
    with source.open(encoding="utf-8", newline="") as file:
        rows = [(row["text"], row["category"]) for row in csv.DictReader(file)]
    random.Random(0).shuffle(rows)
    new = rows[TICKETS : TICKETS + NEW]
    if decided is None:
        _write("tickets.csv", [("text", "intent"), *rows[:TICKETS]])
        _write("new.csv", [("text",), *((text,) for text, _ in new)])
        return
    with decided.open(encoding="utf-8", newline="") as file:
        labels = [(row["decision"], row["label"]) for row in csv.DictReader(file)]
    for decision in ("answer", "person"):
        pairs = [
            (label, true) for (word, label), (_, true) in zip(labels, new, strict=True) if word == decision
        ]
        print(f"{decision}: {len(pairs)}, {sum(label != true for label, true in pairs)} wrong")


def _write(name: str, lines: list[tuple[str, ...]]) -> None:
    with Path(name).open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(lines)


if __name__ == "__main__":
    typer.run(main)
