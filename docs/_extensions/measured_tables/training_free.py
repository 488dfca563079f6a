"""The table of docs/data/training_free.json, which `tests/benchmarks/training_free_study.py` writes."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from measured_tables.markdown import interval, table
from measured_tables.triage import NAMES
from probattn.metrics.functional import mean_interval

SOURCE = "tests/benchmarks/training_free_study.py"
DATA = Path(__file__).parents[2] / "data" / "training_free.json"
PARTS = ("figures",)
MEASURES = {"nll": (1.0, ".3f"), "ece": (100.0, ".1f"), "coverage": (100.0, ".1f"), "auroc": (1.0, ".3f")}
"""Measures with their scale and form."""
WAYS = ("temperature", "training-free")
"""What is compared with one pass, network by network."""


def load(_: str) -> Mapping[str, Any]:
    """All that was measured."""
    content: Mapping[str, Any] = json.loads(DATA.read_text("utf-8"))
    return content


def tables(content: Mapping[str, Any]) -> str:
    """Mean differences from one pass over networks."""
    head = [
        "data (networks)",
        "prediction",
        "NLL",
        "ECE, points",
        "coverage at 5% error, points",
        "AUROC, out-of-domain texts",
    ]
    return table(head, rows(content["runs"]))


def rows(runs: list[Mapping[str, Any]]) -> Iterator[list[str]]:
    """A row of means for one pass, then rows of differences from it, with their intervals over networks."""
    for data in sorted({run["data"] for run in runs}):
        found = [run["values"] for run in runs if run["data"] == data]
        measures = {name: form for name, form in MEASURES.items() if name in found[0]["one pass"]}
        missing = [""] * (len(MEASURES) - len(measures))  # without out-of-domain data the last one
        first = [
            format(scale * sum(item["one pass"][name] for item in found) / len(found), form)
            for name, (scale, form) in measures.items()
        ]
        yield [f"{NAMES[data.removesuffix('_known')]} ({len(found)})", "one forward pass", *first, *missing]
        for way in WAYS:
            gaps = [
                mean_interval([item[way][name] - item["one pass"][name] for item in found])._asdict()
                for name in measures
            ]
            forms = zip(gaps, measures.values(), strict=True)
            cells = [interval(gap, f"+{form}", scale=scale) for gap, (scale, form) in forms]
            yield ["", way, *cells, *missing]
