"""The table of docs/data/launches.json, which tests/benchmarks/launches.py writes."""

from collections.abc import Mapping
from typing import Any

from measured_tables.markdown import table

SOURCE = "python tests/benchmarks/launches.py --output docs/data/launches.json"
TITLES = {
    "train": "training step: kernels per layer in excess of eager attention",
    "compiled": "training step, compiled two-layer network on a CPU: kernels per layer in excess of eager attention",
    "draws": "20 samples: kernels, in multiples of an eager forward pass",
    "moments": "moments: kernels, in multiples of an eager forward pass",
    "expectation": "expectation: kernels, in multiples of an eager forward pass",
}


def tables(content: Mapping[str, Any]) -> str:
    """Kernels and waits of each kind of step, beside the target."""
    rows = []
    for kind, title in TITLES.items():
        results = [item for item in content["results"] if item["kind"] == kind]
        for number, result in enumerate(results):
            goal = result["goal"]
            met = "" if goal is None else f"{goal}, {'met' if result['ratio'] <= goal else 'missed'}"
            waits = "" if kind == "compiled" else str(result["waits"])
            rows.append(["" if number else title, result["variant"], f"{result['ratio']:,.1f}", waits, met])
    return table(["", "", "kernels", "waits", "target"], rows)
