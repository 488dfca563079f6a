"""mkdocs hook: `<!-- benchmark -->` in a page becomes the tables of docs/data/benchmark.json."""

import json
from pathlib import Path
from typing import Any

MARK = "<!-- benchmark -->"
TITLES = {
    "train": "Training step",
    "expectation": "Posterior expectation",
    "draws": "20 draws, to one eager pass",
    "site-train": "Training step, the site alone",
    "site-expectation": "Expectation, the site alone",
}
COLUMNS = "seconds | ratio | quartiles | range | peak MiB | parameters added | bar"
UNMEASURED = "*No figures from an idle machine are in this version; `make bench` gives those of yours.*"


def on_page_markdown(markdown: str, config: Any, **_: Any) -> str:
    """Puts the tables in the place of the mark."""
    if MARK not in markdown:
        return markdown
    path = Path(config["docs_dir"]) / "data" / "benchmark.json"
    return markdown.replace(
        MARK, tables(json.loads(path.read_text("utf-8"))) if path.exists() else UNMEASURED
    )


def tables(content: dict[str, Any]) -> str:
    """The file of `tests/benchmarks/attention.py` as Markdown."""
    shape, machine = content["shape"], content["machine"]
    setting = (
        f"{shape['layers']} layers of {shape['hidden']}, {shape['heads']} heads, batches of {shape['batch']} x "
        f"{shape['length']}; {content['rounds']} rounds on {machine['cores']} cores, {machine['device']}, torch "
        f"{machine['torch']}, load {machine['load_before']:.2f} before."
    )
    parts = [setting]
    for kind, title in TITLES.items():
        rows = [_row(result) for result in content["results"] if result["kind"] == kind]
        if rows:
            parts.append(
                "\n".join((f"| {title} | {COLUMNS} |", f"|---{'|---' * COLUMNS.count('|')}|---|", *rows))
            )
    return "\n\n".join(parts)


def _row(result: dict[str, Any]) -> str:
    ratio, bar, peak, added = (result[name] for name in ("ratio", "bar", "peak_mib", "parameters"))
    cells = [
        result["variant"],
        f"{result['seconds']:.3g}",
        f"**{ratio['median']:.2f}**",
        *("{:.2f} to {:.2f}".format(*ratio[name]) for name in ("quartiles", "range")),
        "" if peak is None else f"{peak:.0f}",
        "" if added is None else f"{added:.2%}",
        "" if bar is None else f"{bar}: {'met' if result['passed'] else 'missed'}",
    ]
    return f"| {' | '.join(cells)} |"
