"""Tables of docs/data/repulsion.json, which `tests/benchmarks/repulsion_study.py` writes."""

from collections.abc import Mapping
from typing import Any

from measured_tables.markdown import interval, table

SOURCE = "tests/benchmarks/repulsion_study.py"
SUBJECTS = {
    "trec": "Self-attentive classifier, TREC",
    "sst2": "Self-attentive classifier, SST-2",
    "sst2_transformer": "MiniLM, SST-2",
}
METHODS = {
    "plain": "as it is",
    "svgd": "SVGD",
    "svgd_strong": "SVGD, weight 0.01",
    "spos": "SPOS",
    "sgld": "SGLD",
    "svgd_normal": "SVGD, normal prior",
    "frobenius": "Frobenius penalty",
}


def tables(content: Mapping[str, Any]) -> str:
    """Accuracies, then how different heads are, a pair of tables for each network and its data."""
    parts = []
    for subject, rows in content["summary"].items():
        parts += [f"{SUBJECTS[subject]}.", _accuracies(rows), _heads(rows)]
    return "\n\n".join(parts)


def _accuracies(rows: Mapping[str, Any]) -> str:
    cells = []
    for name, row in rows.items():
        gap = interval(row.get("difference", {}).get("accuracy"), "+.2f", scale=100)
        cells.append(
            [METHODS[name], f"{100 * row['accuracy']['mean']:.2f}", gap, str(row["accuracy"]["seeds"])]
        )
    return table(["", "accuracy", "difference", "seeds"], cells)


def _heads(rows: Mapping[str, Any]) -> str:
    cells = []
    for name, row in rows.items():
        gaps = row.get("difference", {})
        cells.append(
            [
                METHODS[name],
                f"{row['distance']['mean']:#.3g}",
                f"{row['relative_distance']['mean']:#.3g}",
                interval(row.get("relative_distance_ratio"), "#.3g", strong=True),
                f"{row['overlap']['mean']:.3f}",
                interval(gaps.get("overlap"), "+.3f"),
                f"{row['cosine']['mean']:.3f}",
                f"{row['norm']['mean']:.2f}",
            ]
        )
    head = ["", "Dist", "relative Dist", "over that as it is", "overlap", "difference", "cosine"]
    return table([*head, "length of a head"], cells)
