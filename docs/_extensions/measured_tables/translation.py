"""Tables of docs/data/translation.json, which `tests/benchmarks/translation_study.py` writes."""

from collections.abc import Mapping
from typing import Any

from measured_tables.markdown import interval, table

SOURCE = "tests/benchmarks/translation_study.py"
METHODS = {
    "plain": "as it is",
    "disagreement": "disagreement of outputs (Li et al. 2018)",
    "svgd": "repulsive, all layers",
    "svgd_first": "repulsive, first layers",
}


def tables(content: Mapping[str, Any]) -> str:
    """Quality and time by method, then how different heads are."""
    rows = content["summary"]
    return "\n\n".join([_quality(rows), _heads(rows)])


def _quality(rows: Mapping[str, Any]) -> str:
    cells = []
    for name, row in rows.items():
        cells.append(
            [
                METHODS[name],
                interval(row["bleu"], ".2f", strong=True),
                interval(row.get("difference", {}).get("bleu"), "+.2f"),
                f"{row['perplexity']['mean']:.2f}",
                f"{1000 * row['step_seconds']['mean']:.0f} ms",
                interval(row.get("step_ratio"), ".2f"),
                str(row["bleu"]["seeds"]),
            ]
        )
    return table(["", "BLEU", "difference", "perplexity", "an update", "over as it is", "seeds"], cells)


def _heads(rows: Mapping[str, Any]) -> str:
    cells = []
    for name, row in rows.items():
        gaps = row.get("difference", {})
        cells.append(
            [
                METHODS[name],
                f"{row['distance']['mean']:.3g}",
                interval(row["relative_distance"], ".3f"),
                interval(gaps.get("relative_distance"), "+.3f"),
                f"{row['overlap']['mean']:.3f}",
                interval(gaps.get("overlap"), "+.3f"),
            ]
        )
    return table(["", "Dist", "relative Dist", "difference", "overlap", "difference"], cells)
