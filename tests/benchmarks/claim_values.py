"""Differences by seed of probattn/reproduce/claims.yaml, from the files in docs/data.

    python tests/benchmarks/claim_values.py [--write]

Every item of evidence that has a `pick` is a line of its own; its `values`, or its `summary` where the file has no
single seeds, are what `pick` finds in the file of `source`. Without `--write` the lines that are not up to date are
printed.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from functools import cache
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
CLAIMS = ROOT / "probattn" / "reproduce" / "claims.yaml"
MADE = re.compile(r", (values|summary): \{[^{}]*\}\}$")


@cache
def content(source: str) -> Any:
    """What a file of figures holds."""
    return json.loads((ROOT / source).read_text("utf-8"))


def at(item: Any, path: str) -> Any:
    """What lies at a path of keys and places."""
    for key in path.split("/"):
        item = item[int(key)] if isinstance(item, list) else item[key]
    return item


def figures(run: Any, pick: dict[str, Any]) -> dict[str, float]:
    """The figure of a run by seed; of a run that lists its seeds, those of all."""
    less = pick.get("less", 0.0)
    values = [at(run, path) for path in pick["at"]]
    if isinstance(values[0], list):
        return {str(seed): value for seed, value in enumerate(values[0])}
    taken = statistics.fmean(at(run, path) for path in less) if isinstance(less, list) else less
    return {str(run["seed"]): statistics.fmean(values) - taken}


def by_seed(runs: list[Any], having: dict[str, Any], pick: dict[str, Any]) -> dict[str, float]:
    """The figures of the runs that have something."""
    chosen = [run for run in runs if all(run.get(key) == value for key, value in having.items())]
    by_run = [figures(run, pick) for run in chosen]
    values = {seed: value for one in by_run for seed, value in one.items()}
    if not values or len(values) != sum(map(len, by_run)):
        raise ValueError(f"expected one run a seed with {having}, got {len(chosen)} runs")
    return values


def picked(source: str, pick: dict[str, Any]) -> tuple[str, dict[str, float]]:
    """ "values" and the differences by seed, or "summary" and what the file has."""
    runs, scale = at(content(source), pick.get("under", "runs")), pick.get("scale", 1.0)
    if not isinstance(runs, list):
        summary = at(runs, pick["at"][0])
        scaled = {name: rounded(scale * summary[name]) for name in ("mean", "low", "high")}
        return "summary", {**scaled, "seeds": summary["seeds"]}
    having = pick.get("of", {})
    values = by_seed(runs, having, pick)
    if minus := pick.get("minus"):
        others = by_seed(runs, having | minus, pick)
        values = {seed: value - others[seed] for seed, value in values.items() if seed in others}
    return "values", {seed: rounded(scale * value) for seed, value in sorted(values.items(), key=seeds)}


def seeds(pair: tuple[str, float]) -> int:
    return int(pair[0])


def rounded(value: float) -> float:
    """To six digits, without what rounding of sums leaves of 0."""
    return float(f"{value:.6g}") if abs(value) > 1e-9 else 0.0


def updated(text: str) -> str:
    """The file with the values that docs/data has."""
    anchors: dict[str, str] = {}

    def line(text: str) -> str:
        for mark in re.finditer(r"&(\w+) (\[[^]]*\])", text):
            anchors[mark[1]] = mark[2]
        if " pick: {" not in text:
            return text
        bare = MADE.sub("}", text)
        plain = re.sub(r"\*(\w+)", lambda mark: anchors[mark[1]], re.sub(r"&\w+ ", "", bare))
        (item,) = yaml.safe_load(plain)
        name, figures_of = picked(item["source"], item["pick"])
        made = ", ".join(
            f'"{key}": {value:g}' if name == "values" else f"{key}: {value:g}"
            for key, value in figures_of.items()
        )
        return f"{bare[:-1]}, {name}: {{{made}}}}}"

    return "\n".join(map(line, text.split("\n")))


def main() -> None:
    old = CLAIMS.read_text("utf-8")
    new = updated(old)
    if "--write" in sys.argv[1:]:
        CLAIMS.write_text(new, "utf-8")
        return
    for before, after in zip(old.split("\n"), new.split("\n"), strict=True):
        if before != after:
            print(f"-{before}\n+{after}")
    sys.exit(old != new)


if __name__ == "__main__":
    main()
