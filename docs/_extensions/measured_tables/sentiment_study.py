"""Tables of docs/data/sentiment_study.json, which `tests/benchmarks/study.py sentiment` writes as study.json."""

from collections.abc import Mapping
from typing import Any

from measured_tables.markdown import interval, table

SOURCE = "tests/benchmarks/study.py sentiment"
BASELINE = "deterministic"
MEASURES = {
    "rest.accuracy": "accuracy, point",
    "test.accuracy": "accuracy, samples",
    "test.nll": "NLL",
    "test.ece": "ECE",
    "test.overconfidence": "overconfidence",
    "test.pavpu": "PAvPU",
    "out_of_domain.auroc": "OOD AUROC",
}
HEALTH = {
    "spread": ("std/mean of W", "{:.2f}"),
    "concentration": ("k", "{:.2f}"),
    "kl_nats": ("KL, nats", "{:,.0f}"),
    "kl_reduced": ("reduced KL", "{:.2f}"),
}


def tables(content: Mapping[str, Any]) -> str:
    """Measures by method and, of methods with latent weights, the state of their sites."""
    variants = content["variants"]
    measures = [_measures(name, found["measures"]) for name, found in variants.items()]
    sites = [
        [
            name,
            f"`{site}`",
            *(form.format(state[key]) if key in state else "" for key, (_, form) in HEALTH.items()),
        ]
        for name, found in variants.items()
        for site, state in found["health"].items()
    ]
    parts = [table(["method", "seeds", *MEASURES.values()], measures)]
    if sites:
        shown = table(["method", "site", *(title for title, _ in HEALTH.values())], sites)
        parts.append(f"<details markdown><summary>Every attention call</summary>\n\n{shown}\n\n</details>")
    return "\n\n".join(parts)


def _measures(name: str, measures: Mapping[str, Any]) -> list[str]:
    """The baseline's values, else the differences to it with their intervals."""
    cells = [name, str(next(iter(measures.values()))["value"]["seeds"])]
    for key in MEASURES:
        row = measures.get(key)
        if row is None:
            cells.append("")
        elif name == BASELINE or "difference" not in row:
            cells.append(f"{row['value']['mean']:.3f}")
        else:
            cells.append(interval(row["difference"], "+.3f"))
    return cells
