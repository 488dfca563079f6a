"""The table of docs/data/attacks.json, which `tests/benchmarks/study.py attack` writes."""

from collections.abc import Mapping
from typing import Any

from measured_tables.markdown import interval, table

SOURCE = "tests/benchmarks/study.py attack"
MEASURES = {"failed": "failed attacks, %", "attacked": "accuracy after, %"}


def tables(content: Mapping[str, Any]) -> str:
    """One row an attack, a variant and a prediction."""
    setting = content["setting"]
    rows = []
    for attack, variants in content["summary"].items():
        for variant, predictions in variants.items():
            for prediction, row in predictions.items():
                values, gaps = row["values"], row.get("differences", {})
                cells = [interval(values[name], ".1f", scale=100) for name in MEASURES]
                gap = interval(gaps.get("failed"), "+.1f", scale=100)
                queries = f"{values['queries']['mean']:.0f}"
                rows.append(
                    [attack, variant, prediction, *cells, gap, queries, str(values["failed"]["seeds"])]
                )
    words = (
        f"{setting['number']} test texts a network; draws: the mean over {setting['num_samples']}. Mean over seeds "
        "and its 95% interval (Student's t); the difference is to soft attention of the same seed."
    )
    head = [
        "attack",
        "attention",
        "prediction",
        *MEASURES.values(),
        "difference of failed",
        "queries",
        "seeds",
    ]
    return f"{words}\n\n{table(head, rows)}"
