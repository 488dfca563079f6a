"""The tables of docs/data/triage_heads.json, which `tests/benchmarks/study.py triage-heads` writes."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from measured_tables.markdown import interval, table
from measured_tables.triage import percent, share

SOURCE = "tests/benchmarks/study.py triage-heads"
DATA = Path(__file__).parents[2] / "data" / "triage_heads.json"
PARTS = ("guarantees", "intervals")
HEADS = {
    "slots": "tokens, RESTAURANTS-8K",
    "spans": "spans, RESTAURANTS-8K",
    "labels": "several labels, RESTAURANTS-8K",
    "relatedness": "numbers within 0.5, SICK",
    "relatedness_wide": "numbers within 1, SICK",
}
Run = Mapping[str, Any]


def load(part: str) -> tuple[str, list[Run]]:
    """The name of a table, and the runs."""
    return part, json.loads(DATA.read_text("utf-8"))["runs"]


def tables(content: tuple[str, list[Run]]) -> str:
    """One of the tables."""
    part, runs = content
    if part == "intervals":
        head = ["target error of the intervals, %", "true numbers inside, %, mean over splits", "width"]
        return table(head, intervals(runs))
    rates = ["target held, % of splits", "error rate, %", "coverage, %", "exact test, %", "oracle, %"]
    return table(["head, data (inputs, % wrong)", "target error rate, %", *rates], guarantees(runs))


def guarantees(runs: Sequence[Run]) -> Iterator[list[str]]:
    """How often each guarantee holds, and what is answered; a row more where texts are drawn with their questions."""
    for run in runs:
        title = (
            f"{HEADS.get(run['task'], run['task'])} ({run['predictions']:,}, {percent(run['error'])} wrong)"
        )
        for error, row in run["promises"].items():
            for name, drawn in (("", row), (", whole texts drawn", row.get("together"))):
                if drawn is not None:
                    rates = [percent(drawn[rate]) for rate in ("error", "answered")]
                    limits = ["", ""] if name else [percent(row[limit]) for limit in ("certain", "oracle")]
                    held = share(drawn["held"], drawn["interval"], ".1f")
                    yield [title + name, percent(float(error), "g"), held, *rates, *limits]


def intervals(runs: Sequence[Run]) -> Iterator[list[str]]:
    """Of numbers, how many are in their interval."""
    for run in {run["task"].partition("_")[0]: run for run in runs}.values():  # of a network once
        for error, row in run["promises"].items():
            if (found := row.get("intervals")) is not None:
                inside = interval(found["coverage"], ".2f", scale=100)
                yield [percent(float(error), "g"), inside, f"{found['width']:.2f}"]
