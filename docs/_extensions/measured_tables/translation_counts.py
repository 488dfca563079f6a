"""The table of docs/data/translation_counts.json, which `tests/benchmarks/study.py translation` writes."""

import math
from collections.abc import Mapping
from typing import Any

from measured_tables.markdown import interval, table

SOURCE = "tests/benchmarks/study.py translation counts"


def tables(content: Mapping[str, Any]) -> str:
    """BLEU and likelihood by the number of heads, as they are and with repulsion."""
    rows = content["summary"]
    cells = []
    for name, row in rows.items():
        method, _, heads = name.partition("_")
        if method == "svgd":
            plain = rows[f"plain_{heads}"]
            cells.append(
                [
                    heads,
                    *(interval(one["bleu"], ".2f") for one in (plain, row)),
                    interval(row["difference"]["bleu"], "+.2f"),
                    *(f"{math.log(one['perplexity']['mean']):.3f}" for one in (plain, row)),
                    str(row["bleu"]["seeds"]),
                ]
            )
    head = ["heads", "BLEU as it is", "BLEU, repulsive", "difference", "nats a token", "repulsive", "seeds"]
    return table(head, cells)
