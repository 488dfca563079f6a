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
}


TASKS = {"sst2": "SST-2", "sick": "SICK"}


def tables(content: Mapping[str, Any]) -> str:
    """Figures of each variant, and what fine-tuning makes of it."""
    summary = content["summary"]
    tuned = [name for name in TASKS if f"{name}_accuracy" in summary["nothing"]]
    rows = []
    for variant, row in summary.items():
        cells = [VARIANTS[variant]]
        for name, (_, scale, form) in MEASURES.items():
            cells.append(interval(row.get(name), form, scale=scale) if row.get(name) else "")
        for name in tuned:
            cells.append(interval(row[f"{name}_accuracy"], ".2f", scale=100))
            gap = row.get("difference", {}).get(f"{name}_accuracy")
            cells.append(interval(gap, "+.2f", scale=100) if gap else "")
        rows.append(cells)
    head = ["first layer", *(title for title, _, _ in MEASURES.values())]
    for name in tuned:
        head += [f"{TASKS[name]} after fine-tuning, %", "difference"]
    seeds = len({run["seed"] for run in content["runs"]})
    words = (
        f"Means over {seeds} seeds and their 95% intervals (Student's t); differences are to the first row of the same "
        "seed. The majority is the share of tokens that were not replaced; overlap is the share of attention that two "
        "heads of the first layer spend on the same tokens."
    )
    return f"{words}\n\n{table(head, rows)}"
