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

TASKS = {
    "sst2": "SST-2",
    "clinc150-1500": "CLINC150, 1,500",
    "clinc150-5000": "CLINC150, 5,000",
    "clinc150": "CLINC150, 15,000",
}
"""Data sets of fine-tuning; where there are several, with their numbers of labels."""


def tables(content: Mapping[str, Any]) -> str:
    """Figures of each variant, and what fine-tuning makes of it: columns of one data set, a table of several."""
    summary = content["summary"]
    tuned = {name: words for name, words in TASKS.items() if f"{name}_accuracy" in summary["nothing"]}
    beside = tuned if len(tuned) == 1 else {}
    rows = []
    for variant, row in summary.items():
        cells = [interval(row.get(name), form, scale=scale) for name, (_, scale, form) in MEASURES.items()]
        for name in beside:
            cells += [_accuracy(row, name), _accuracy(row.get("difference", {}), name, "+")]
        if any(cells):
            rows.append([VARIANTS[variant], *cells])
    head = ["first layer", *(title for title, _, _ in MEASURES.values())]
    for words in beside.values():
        head += [f"{words} after fine-tuning, %", "difference"]
    seeds = len({run["seed"] for run in content["runs"]})
    words = (
        f"Means over {seeds} seeds and their 95% intervals (Student's t); differences are to the first row of the same "
        "seed. The majority is the share of tokens that were not replaced; overlap is the share of attention that two "
        "heads of the first layer spend on the same tokens."
    )
    parts = [words, table(head, rows)]
    if len(tuned) > 1:
        others = [name for name in summary if "difference" in summary[name]]
        titles = VARIANTS | {"plain": "pre-trained"}
        head = ["labels of", *(f"{titles[name]}, %" for name in summary), *("difference" for _ in others)]
        rows = [
            [
                words,
                *(_accuracy(summary[variant], name) for variant in summary),
                *(_accuracy(summary[variant]["difference"], name, "+") for variant in others),
            ]
            for name, words in tuned.items()
        ]
        parts += [
            "Test accuracy after fine-tuning, and differences to the pre-trained network:",
            table(head, rows),
        ]
    return "\n\n".join(parts)


def _accuracy(row: Mapping[str, Any], name: str, sign: str = "") -> str:
    return interval(row.get(f"{name}_accuracy"), f"{sign}.2f", scale=100)
