"""Tables of docs/data/translation.json, which `tests/benchmarks/study.py translation` writes, and of its `parts`."""

from collections.abc import Mapping
from typing import Any

from measured_tables.markdown import interval, table

SOURCE = "tests/benchmarks/study.py translation heads"
METHODS = {
    "plain": "as it is",
    "disagreement": "disagreement of outputs (Li et al. 2018)",
    "svgd": "repulsive, all layers",
    "svgd_first": "repulsive, first layers",
    "all": "repulsive, all layers and projections",
    "query": "queries alone",
    "key": "keys alone",
    "value": "values alone",
    "encoder": "in the encoder alone",
    "decoder": "in the decoder alone",
    "cross": "from decoder to encoder alone",
    "first": "first layers alone",
    "last": "last layers alone",
}
"""Those of `heads`, then those of `parts`, which shares the first."""


def tables(content: Mapping[str, Any]) -> str:
    """Quality and time by method, then how different heads are."""
    rows = content["summary"]
    return "\n\n".join([quality(rows, METHODS), _heads(rows)])


def quality(rows: Mapping[str, Any], methods: Mapping[str, str]) -> str:
    """BLEU, perplexity, size and time by method.

    Args:
        rows: the study's summary.
        methods: words for its methods.
    """
    cells = []
    for name, row in rows.items():
        cells.append(
            [
                methods[name],
                interval(row["bleu"], ".2f", strong=True),
                interval(row.get("difference", {}).get("bleu"), "+.2f"),
                f"{row['perplexity']['mean']:.2f}",
                f"{row['parameters'] / 1e6:.2f} M",
                f"{1000 * row['step_seconds']['mean']:.0f} ms" if "step_seconds" in row else "",
                interval(row.get("step_ratio"), ".2f"),
                str(row["bleu"]["seeds"]),
            ]
        )
    head = ["", "BLEU", "difference", "perplexity", "parameters", "an update", "over the first", "seeds"]
    return table(head, cells)


def _heads(rows: Mapping[str, Any]) -> str:
    cells = []
    for name, row in rows.items():
        gaps = row.get("difference", {})
        cells.append(
            [
                METHODS[name],
                f"{row['distance']['mean']:#.3g}",
                interval(row["relative_distance"], ".3f"),
                interval(gaps.get("relative_distance"), "+.3f"),
                f"{row['overlap']['mean']:.3f}",
                interval(gaps.get("overlap"), "+.3f"),
            ]
        )
    return table(["", "Dist", "relative Dist", "difference", "overlap", "difference"], cells)
