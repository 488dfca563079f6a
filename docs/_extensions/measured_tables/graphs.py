"""Tables of docs/data/graphs.json, which `tests/benchmarks/study.py graph` writes."""

import statistics
from collections.abc import Mapping
from typing import Any

from measured_tables.markdown import interval, table
from probattn.metrics.functional import mean_interval

SOURCE = "tests/benchmarks/study.py graph"
BASELINE = "deterministic"
NAMES = {
    "deterministic": "deterministic",
    "gan": "aligned, GAN",
    "ct": "aligned, CT",
    "ot": "aligned, OT",
    "mmd": "aligned, MMD",
    "bam": "BAM",
    "babn": "BABN",
}
LATENT = ("bam", "babn")

Run = Mapping[str, Any]


def tables(content: Mapping[str, Any]) -> str:
    """Two tables a graph: accuracies, and what the layers do."""
    parts = []
    for graph in sorted({run["graph"] for run in content["runs"]}):
        by_variant = {
            variant: {
                run["seed"]: run
                for run in content["runs"]
                if (run["graph"], run["variant"]) == (graph, variant)
            }
            for variant in NAMES
        }
        found = {variant: runs for variant, runs in by_variant.items() if runs}
        parts += [_accuracies(graph, found), _looks(graph, found)]
    return "\n\n".join(parts)


def _accuracies(graph: str, found: Mapping[str, Mapping[int, Run]]) -> str:
    rows = []
    for variant, runs in found.items():
        key = "draws_" if variant in LATENT else "test_"
        accuracy = {seed: 100 * run[f"{key}accuracy"] for seed, run in runs.items()}
        base = {seed: 100 * run["test_accuracy"] for seed, run in found.get(BASELINE, {}).items()}
        gaps = [value - base[seed] for seed, value in accuracy.items() if seed in base]
        cells = [
            NAMES[variant],
            f"**{statistics.fmean(accuracy.values()):.2f}**",
            f"{statistics.stdev(accuracy.values()):.2f}" if len(accuracy) > 1 else "",
            "" if variant == BASELINE else interval(mean_interval(gaps)._asdict() if gaps else None, "+.2f"),
            f"{_mean(runs, f'{key}nll'):.3f}",
            f"{_mean(runs, 'steps'):.0f}",
            f"{len(runs)}",
        ]
        rows.append(cells)
    head = [graph.capitalize(), "test accuracy", "sd", "difference, paired", "NLL", "updates", "seeds"]
    return table(head, rows)


def _looks(graph: str, found: Mapping[str, Mapping[int, Run]]) -> str:
    """Distance from uniform and norms, of the hidden and the output layer."""
    rows = []
    for variant, runs in found.items():
        cells = [NAMES[variant]]
        for name in ("from_uniform", "query_norm", "key_norm", "value_norm"):
            layers = [
                statistics.fmean(run["layers"][layer][name] for run in runs.values()) for layer in (0, 1)
            ]
            cells.append(
                ", ".join(f"{100 * value:.1f}%" if "uniform" in name else f"{value:.2f}" for value in layers)
            )
        rows.append(cells)
    head = [f"{graph.capitalize()}: hidden, output", "from uniform", "query norm", "key norm", "value norm"]
    return table(head, rows)


def _mean(runs: Mapping[int, Run], name: str) -> float:
    return statistics.fmean(run[name] for run in runs.values())
