"""Table of docs/data/translation_longer.json, which `tests/benchmarks/study.py translation longer` writes."""

from collections.abc import Mapping
from typing import Any

from measured_tables.markdown import interval, table
from measured_tables.translation_latent import METHODS

SOURCE = "tests/benchmarks/study.py translation longer"


def tables(content: Mapping[str, Any]) -> str:
    """BLEU by method and seed, its mean and difference to soft attention, perplexity and its difference."""
    rows = content["summary"]
    seeds = sorted({run["seed"] for run in content["runs"]})
    bleu = {(run["method"], run["seed"]): run["bleu"] for run in content["runs"]}
    cells = []
    for method, row in rows.items():
        gaps = row.get("difference", {})
        cells.append(
            [
                METHODS[method],
                *(f"{bleu[method, seed]:.1f}" if (method, seed) in bleu else "" for seed in seeds),
                interval(row["bleu"], ".2f", strong=True),
                interval(gaps.get("bleu"), "+.2f"),
                f"{row['perplexity']['mean']:.2f}",
                interval(gaps.get("perplexity"), "+.2f"),
            ]
        )
    head = ["", *(f"BLEU, seed {seed}" for seed in seeds), "mean", "difference", "perplexity", "difference"]
    return table(head, cells)
