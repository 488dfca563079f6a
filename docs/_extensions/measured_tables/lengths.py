"""Tables of docs/data/lengths.json, which `make bench` writes (tests/benchmarks/attention.py with lengths)."""

from collections.abc import Mapping
from typing import Any

from measured_tables.benchmark import TITLES
from measured_tables.markdown import table

SOURCE = "make bench"


def tables(content: Mapping[str, Any]) -> str:
    """A table for each kind of pass: a variant a row, a length and a type a column."""
    runs, machine = content["runs"], content["machine"]
    setting = (
        f"Ratios (median over {content['rounds']} rounds), and peak memory in MiB in parentheses; "
        f"{machine['cores']} cores, {machine['device']}, torch {machine['torch']}."
    )
    heads = [f"{run['shape']['batch']} x {run['shape']['length']}, {run['shape']['dtype']}" for run in runs]
    cells: dict[str, dict[str, dict[str, str]]] = {}
    for run, head in zip(runs, heads, strict=True):
        for row in run["results"]:
            text = f"**{row['ratio']['median']:.2f}** ({row['peak_mib']:,.0f})"
            cells.setdefault(row["kind"], {}).setdefault(row["variant"], {})[head] = text
    parts = [
        table(
            [TITLES[kind], *heads],
            [[name, *(row.get(head, "") for head in heads)] for name, row in rows.items()],
        )
        for kind, rows in cells.items()
    ]
    return "\n\n".join([setting, *parts])
