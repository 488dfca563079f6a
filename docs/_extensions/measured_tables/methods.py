"""The tables of docs/data/methods.json, which `tests/benchmarks/study.py methods` writes by group and data set."""

from collections.abc import Mapping
from typing import Any

from measured_tables.markdown import table

SOURCE = "tests/benchmarks/study.py methods"
PARTS = ("methods", "objective")
NAMES = {
    "clinc150": "CLINC150",
    "banking77": "BANKING77, a quarter of the intents left out",
    "trec": "TREC",
    "rotten_tomatoes": "Rotten Tomatoes",
}
WAYS = {
    "point": "one pass",
    "temperature": "temperature",
    "laplace": "Laplace, last layer",
    "energy": "energy",
    "distance": "distance of features",
    "dropout": "dropout draws",
    "draws": "posterior draws",
    "draws_temperature": "posterior draws, temperature",
    "moments": "moments",
    "moments_temperature": "moments, temperature",
    "ensemble": "ensemble of the seeds",
}
MEASURES = {
    "accuracy": ("accuracy, %", 100, ".1f"),
    "nll": ("NLL", 1, ".3f"),
    "ece": ("ECE, %", 100, ".1f"),
    "coverage": ("coverage, %", 100, ".1f"),
    "auroc": ("AUROC", 1, ".3f"),
}
LEAST = 0.005
"""The least difference that is called reliable, as in all reports."""


def cell(row: Mapping[str, Any], name: str, texts: int) -> str:
    """A mean, and in brackets the interval of its difference to the reference, bold where that is reliable."""
    _, scale, form = MEASURES[name]
    found = row["values"].get(name)
    if found is None:
        return ""
    words = format(scale * found["mean"], form)
    gap = row["gaps"].get(name)
    if gap is None:
        return words
    reliable = (
        gap["corrected"] is not None
        and gap["corrected"] < 0.05
        and abs(gap["value"]) >= LEAST
        and len(gap["seeds"]) >= 3
        and texts >= 200
    )
    low, high = (format(scale * gap[end], f"+{form}") for end in ("low", "high"))
    return f"**{words}** [{low}, {high}]" if reliable else f"{words} [{low}, {high}]"


def tables(content: Mapping[str, Any]) -> str:
    """A table a data set."""
    return "\n\n".join(_table(name, found) for name, found in content.items())


def _table(name: str, found: Mapping[str, Any]) -> str:
    measures = [each for each in MEASURES if any(each in row["values"] for row in found["rows"])]
    sizes = found["sizes"]
    rows = [
        [
            row["recipe"].replace("_", " "),
            WAYS[row["way"]],
            *(cell(row, each, sizes["test"]) for each in measures),
            format(row["cost"]["mean"], ".1f"),
        ]
        for row in found["rows"]
    ]
    head = ["recipe", "prediction", *(MEASURES[each][0] for each in measures), "cost, passes"]
    outside = f", {sizes['out_of_domain']:,} out of domain" if "out_of_domain" in sizes else ""
    words = (
        f"**{NAMES[name]}**: {sizes['train']:,} training texts, {sizes['test']:,} test texts{outside}, "
        f"{len(found['seeds'])} seeds."
    )
    return f"{words}\n\n{table(head, rows)}"
