"""Table of docs/data/pretraining.json, which `tests/benchmarks/study.py pretraining` writes."""

from collections.abc import Mapping
from typing import Any

from measured_tables.markdown import interval, table

SOURCE = "tests/benchmarks/study.py pretraining"
VARIANTS = {
    "plain": "as it is",
    "weak": "repulsive, weight 0.001",
    "paper": "repulsive, weight 0.1",
    "nothing": "not pre-trained",
}
MEASURES = {
    "accuracy": ("accuracy of detection, %", 100, ".2f"),
    "margin": ("points above the majority", 100, ".2f"),
    "auroc": ("AUROC", 1, ".3f"),
    "overlap": ("overlap", 1, ".3f"),
    "sst2_accuracy": ("SST-2 after fine-tuning, %", 100, ".2f"),
}


def tables(content: Mapping[str, Any]) -> str:
    """Figures of each variant, and its differences to the plain one on SST-2."""
    rows = []
    for variant, row in content["summary"].items():
        cells = [
            interval(row.get(name), form, scale=scale) if row.get(name) else ""
            for name, (_, scale, form) in MEASURES.items()
        ]
        gap = row.get("difference", {}).get("sst2_accuracy")
        rows.append(
            [
                VARIANTS[variant],
                *cells,
                interval(gap, "+.2f", scale=100) if gap else "",
                str(row["sst2_accuracy"]["seeds"]),
            ]
        )
    head = ["first layer", *(title for title, _, _ in MEASURES.values()), "difference", "seeds"]
    words = (
        "Means over seeds and their 95% intervals (Student's t); differences are to the first row, of the same seed. "
        "The majority is the share of tokens that were not replaced; overlap is the share of attention that two heads "
        "of the first layer spend on the same tokens."
    )
    return f"{words}\n\n{table(head, rows)}"
