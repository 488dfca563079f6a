"""The tables of docs/data/effects.json, which `tests/benchmarks/study.py effects` writes, by name."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml

from measured_tables.markdown import table

SOURCE = "tests/benchmarks/study.py effects"
DATA = Path(__file__).parents[2] / "data" / "effects.json"
TITLES = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8"))
SETS, METHODS, BY_SET, OTHERS, SCORES, SPREADS, LISTS, COUNTS = TITLES.values()  # in the order of the file
OF_ANSWER = [name for name in METHODS if not name.startswith("doubt")]
PARTS = ("networks", *BY_SET, "others", "spreads", "listed")
Sets = Mapping[str, Mapping[str, Any]]


def load(part: str) -> tuple[str, Mapping[str, Sets]]:
    """The name of a table, and the figures by kind of network."""
    return part, json.loads(DATA.read_text("utf-8"))["summary"]


def tables(content: tuple[str, Mapping[str, Sets]]) -> str:
    """One of the tables."""
    part, summary = content
    if part in BY_SET:
        kind, measure = BY_SET[part]
        return by_set(summary[kind], measure)
    if part == "networks":
        columns = (
            "seeds",
            "accuracy, %",
            "texts",
            "words per text",
            "planted clauses",
            "decrease of the probability by the clause",
        )
        agreed = ("sides with the same leading word, %", "texts with this on both sides, %")
        return table(["data", *columns, *agreed], networks(summary["deterministic"]))
    if part == "others":
        return table(["method", *OTHERS.values()], others(summary["deterministic"]))
    if part == "spreads":
        return table(["data", "score", *SPREADS.values()], spreads(summary["babn"]))
    return table(["data set, list", *COUNTS.values()], listed(summary))


def form(value: Sequence[float] | None, digits: int = 2, scale: float = 1.0) -> str:
    """A figure with its interval."""
    if value is None:
        return ""
    mean, low, high = (f"{scale * number:.{digits}f}" for number in value)
    return f"{mean} [{low}, {high}]"


def by_set(sets: Sets, measure: str) -> str:
    """A row a method, a column a data set: a measure with its interval, of the data sets that have it."""
    size = (0, 100) if measure == "removed" else (2, 1)
    of_clause = measure.startswith("planted")
    sets = {name: one for name, one in sets.items() if any(measure in row for row in one["methods"].values())}
    rows = [
        [METHODS[name], *(form(one["methods"].get(name, {}).get(measure), *size) for one in sets.values())]
        for name in (METHODS if measure == "removed" else OF_ANSWER)
        if any(measure in one["methods"].get(name, {}) for one in sets.values())
    ]
    if of_clause:
        rows.append(["leaving the word out", *(form(one[f"{measure}_left_out"]) for one in sets.values())])
    return table(["method", *(SETS.get(name, name) for name in sets)], rows)


def networks(sets: Sets) -> Iterator[list[str]]:
    """What was trained and measured."""
    for name, one in sets.items():
        accuracies = ", ".join(f"{100 * value:.1f}" for value in one["accuracy"])
        seeds, numbers = (
            ", ".join(map(str, one["seeds"])),
            (f"{one[key]:.0f}" for key in ("texts", "words", "planted")),
        )
        agreed = (form(one[key], 0, 100) for key in ("agreement", "agreement_texts"))
        yield [SETS.get(name, name), seeds, accuracies, *numbers, form(one["planted_drop"]), *agreed]


def others(sets: Sets) -> Iterator[list[str]]:
    """Other measures, means over data sets of short and of long texts."""

    def mean(name: str, measure: str, long: bool) -> str:
        rows = [one["methods"][name].get(measure) for one in sets.values() if one["long"] == long]
        values = [row if measure == "cost" else row[0] for row in rows if row]
        return f"{fmean(values):.{1 if measure in ('passes', 'cost') else 2}f}" if values else ""

    for name in OF_ANSWER:
        pairs = ([mean(name, measure, long) for long in (False, True)] for measure in OTHERS)
        yield [METHODS[name], *(" / ".join(filter(None, pair)) for pair in pairs)]


def spreads(sets: Sets) -> Iterator[list[str]]:
    """What the spread over draws says of errors."""
    for name, one in sets.items():
        for score, title in SCORES.items():
            figures = (form(one["distrust"].get(key.format(score))) for key in SPREADS)
            yield [SETS.get(name, name) if score == "spread" else "", title, *figures]


def listed(summary: Mapping[str, Sets]) -> Iterator[list[str]]:
    """Function words among those that are named as what makes a network unsure."""
    for kind, name, title in LISTS:
        for data, one in summary.get(kind, {}).items():
            if counted := one.get("reviewed", {}).get(name):
                yield [f"{SETS.get(data, data)}, {title}", *(f"{counted[key]}" for key in COUNTS)]
