"""Draws ``docs/images/lengths.svg``: what a training step and a prediction cost, against the length of a text.

    python docs/_figures/lengths.py

From docs/data/lengths.json, which ``tests/benchmarks/attention.py --lengths ...`` writes. Grey and the colours are
legible on light and on dark pages.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from style import GREY, STYLE

mpl.use("svg")
from matplotlib import pyplot as plt  # after the choice of its output

DOCS = Path(__file__).parents[1]
FILE = DOCS / "images" / "lengths.svg"
DATA = DOCS / "data" / "lengths.json"
COLOURS = {
    "eager": GREY,
    "sdpa": "#b5578a",
    "BAM": "#3f9b6c",
    "BABN": "#4c78a8",
    "BABN, compiled": "#d9822b",
    "BABN, last layer": "#b5578a",
    "MC dropout": GREY,
}
LINES = {"float32": "-", "bfloat16": ":"}
SIZES = (250, 500, 1000, 2000, 4000)
PANELS = (
    ("train", "ratio", "training step, time", "times eager"),
    ("train", "peak_mib", "training step, peak memory", "MiB"),
    ("draws", "ratio", "20 draws, time", "eager passes"),
    ("moments", "ratio", "moments of two classes, time", "eager passes"),
)


def draw(axes: Axes, content: Mapping[str, Any], kind: str, field: str) -> None:
    """One panel: a line for each variant and type."""
    found: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for run in content["runs"]:
        for row in (row for row in run["results"] if row["kind"] == kind):
            value = row[field]["median"] if field == "ratio" else row[field]
            found.setdefault((row["variant"], run["shape"]["dtype"]), []).append(
                (run["shape"]["length"], value)
            )
    for (name, dtype), points in found.items():
        label = name if dtype == "float32" else None
        axes.plot(
            *zip(*points, strict=True), LINES[dtype] + "o", color=COLOURS[name], label=label, markersize=3
        )
    axes.set_xscale("log", base=2)
    lengths = sorted({run["shape"]["length"] for run in content["runs"]})
    axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
    axes.minorticks_off()


def main() -> None:
    """Makes the file."""
    content = json.loads(DATA.read_text(encoding="utf-8"))
    with mpl.rc_context(STYLE | {"font.size": 9}):
        figure, grid = plt.subplots(2, 2, figsize=(7.6, 5.6), layout="constrained")
        for axes, (kind, field, title, unit) in zip(grid.flat, PANELS, strict=True):
            draw(axes, content, kind, field)
            axes.set(title=title, ylabel=unit, xlabel="tokens of a text")
            if field == "peak_mib":
                axes.set_yscale("log")
                axes.set_yticks(SIZES, [f"{size:,}" for size in SIZES])
                axes.minorticks_off()
            else:
                axes.set_ylim(0, 1.4 * axes.get_ylim()[1])  # room for the legend
            axes.legend(frameon=False, labelcolor=GREY, fontsize="small")
        figure.savefig(FILE, transparent=True, metadata={"Date": None, "Creator": None})


if __name__ == "__main__":
    main()
