"""The table of docs/data/benchmark_cuda.json, which `make cuda` writes (tests/benchmarks/attention.py)."""

from collections.abc import Mapping
from typing import Any

from measured_tables.benchmark import setting
from measured_tables.markdown import table

SOURCE = "make cuda"
TITLES = {
    "train": "training step",
    "expectation": "expectation",
    "undriven": "plain forward pass, relative to sdpa",
    "draws": "20 samples",
    "moments": "moments",
}


def tables(content: Mapping[str, Any]) -> str:
    """The setting, then the ratio of each kind of pass by variant, and the memory of a training step."""
    found = {(result["kind"], result["variant"]): result for result in content["results"]}
    variants = dict.fromkeys(variant for kind, variant in found if kind in TITLES)
    rows = []
    for variant in variants:
        cells = []
        for kind in TITLES:
            result = found.get((kind, variant))
            cells.append("" if result is None else f"{result['ratio']['median']:.2f}")
        trained = found.get(("train", variant))
        cells.insert(1, "" if trained is None else f"{trained['memory']:.2f}")
        rows.append([variant, *cells])
    first, *others = TITLES.values()
    return f"{setting(content)}\n\n{table(['', first, 'memory of a training step', *others], rows)}"
