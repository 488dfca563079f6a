"""mkdocs hook: `<!-- sentiment study -->` in a page becomes the tables of docs/data/sentiment_study.json."""

import json
from pathlib import Path
from typing import Any

MARK = "<!-- sentiment study -->"
BASELINE = "deterministic"
MEASURES = {
    "rest.accuracy": "accuracy, point",
    "test.accuracy": "accuracy, draws",
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
    "kl_reduced": ("KL, reduced", "{:.2f}"),
}
UNMEASURED = "*No figures of this study are in this version.*"


def on_page_markdown(markdown: str, config: Any, **_: Any) -> str:
    """Puts the tables in the place of the mark."""
    if MARK not in markdown:
        return markdown
    path = Path(config["docs_dir"]) / "data" / "sentiment_study.json"
    return markdown.replace(
        MARK, tables(json.loads(path.read_text("utf-8"))) if path.exists() else UNMEASURED
    )


def tables(content: dict[str, Any]) -> str:
    """The file of `tests/benchmarks/sentiment_study.py` as Markdown."""
    variants = content["variants"]
    parts = [_measures(variants)]
    sites = [name for name, found in variants.items() if found["health"]]
    if sites:
        parts.append(_health({name: variants[name]["health"] for name in sites}))
    return "\n\n".join(parts)


def _measures(variants: dict[str, Any]) -> str:
    head = f"| method | seeds | {' | '.join(MEASURES.values())} |\n|---|---|{'---|' * len(MEASURES)}"
    return "\n".join((head, *(_row(name, found["measures"]) for name, found in variants.items())))


def _row(name: str, measures: dict[str, Any]) -> str:
    cells = [name, str(next(iter(measures.values()))["value"]["seeds"])]
    for key in MEASURES:
        row = measures.get(key)
        cells.append("" if row is None else _cell(row, name == BASELINE))
    return f"| {' | '.join(cells)} |"


def _cell(row: dict[str, Any], baseline: bool) -> str:
    """The baseline's value, else the difference to it with its interval."""
    if baseline or "difference" not in row:
        return f"{row['value']['mean']:.3f}"
    gap = row["difference"]
    words = f"{gap['mean']:+.3f}"
    return words if gap["low"] is None else f"{words} [{gap['low']:+.3f}, {gap['high']:+.3f}]"


def _health(variants: dict[str, dict[str, dict[str, float]]]) -> str:
    head = f"| method | site | {' | '.join(title for title, _ in HEALTH.values())} |\n|---|---|{'---|' * len(HEALTH)}"
    rows = [
        f"| {name} | `{site}` | "
        + " | ".join(form.format(found[key]) if key in found else "" for key, (_, form) in HEALTH.items())
        + " |"
        for name, sites in variants.items()
        for site, found in sites.items()
    ]
    return "\n".join((head, *rows))
