"""The table of docs/data/rows.json, which `tests/benchmarks/study.py rows` writes, beside the papers' figures."""

from collections.abc import Mapping
from typing import Any

from measured_tables.markdown import table

SOURCE = "tests/benchmarks/study.py rows"
MEASURES = {
    "accuracy": "accuracy",
    "matthews": "Matthews correlation",
    "f1": "F1",
    "exact": "exact match",
    "exact_tuned": "exact match, tuned threshold",
    "f1_tuned": "F1, tuned threshold",
    "pearson": "Pearson correlation",
    "spearman": "Spearman correlation",
}
PAPER: dict[tuple[str, str], dict[str, str]] = {
    ("rte_babn", "test"): {"accuracy": "75.8, 77.6"},
    ("mrpc_babn", "test"): {"accuracy": "86.5, 89.2"},
    ("cola_babn", "test"): {"matthews": "54.5, 56.8"},
    ("qnli_babn", "test"): {"accuracy": "90.9, 91.9"},
    ("mnli_babn", "test"): {"accuracy": "85.1, 86.2"},
    ("sst2_babn", "test"): {"accuracy": "92.4, 93.1"},
    ("squad2_babn", "test"): {"exact": "78.80, 79.20", "f1": "82.07, 82.41"},
    ("snli_babn", "test"): {"accuracy": "90.04, 90.63"},
    ("snli_babn", "shifted"): {"accuracy": "73.52, 74.32"},
    ("snli_decomposable", "test"): {"accuracy": "84.63, -"},
    ("snli_decomposable", "shifted"): {"accuracy": "57.12, -"},
    ("snli_esim", "test"): {"accuracy": "88.32, -"},
    ("snli_esim", "shifted"): {"accuracy": "60.91, -"},
    ("snli_self_attentive", "test"): {"accuracy": "83.79, 84.58"},
}
"""Figures of soft attention and of the method, in percent, by recipe and data set; "-": not in the papers."""
DATA = {"test": "", "shifted": "the shifted set, "}


def tables(content: Mapping[str, Any]) -> str:
    """One row a recipe, data set and measure."""
    rows = []
    for recipe, found in content["summary"].items():
        for data, models in found["scores"].items():
            if data not in DATA:
                continue
            for measure in models["deterministic"]:
                pair = (models[model][measure] for model in ("deterministic", "method") if model in models)
                first = not rows or rows[-1][0] != f"`{recipe}`"
                rows.append(
                    [
                        f"`{recipe}`",
                        f"{found['sizes']['training']:,}" if first else "",
                        f"{DATA[data]}{MEASURES[measure]}",
                        ", ".join(f"{100 * each['mean']:.1f}" for each in pair),
                        PAPER.get((recipe, data), {}).get(measure, ""),
                        f"{found['minutes']['mean']:.0f}" if first else "",
                    ]
                )
    seeds = {run["seed"] for run in content["runs"]}
    number = f"{len(seeds)} seeds" if len(seeds) > 1 else "one seed"
    words = (
        f"`probattn train RECIPE` and `probattn evaluate`, {number}. Figures in percent: of soft attention, then of "
        "the method. The papers' are of ALBERT-base or BERT-base, trained on all data (in the last three rows of "
        "SNLI of their own networks): they name the row, and are not what this size can reach. Minutes of one CPU "
        "core, for training both networks and measuring them."
    )
    head = ["recipe", "training examples", "measure", "here", "papers", "minutes"]
    return f"{words}\n\n{table(head, rows)}"
