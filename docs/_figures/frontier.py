"""Draws ``docs/images/frontier.svg``: how much more each method answers at 5% error, and what its predictions cost.

    python docs/_figures/frontier.py

From docs/data/methods.json, which ``tests/benchmarks/study.py methods`` writes. Grey and the colours are legible on
light and on dark pages. Methods of equal cost stand side by side.
"""

import json
from pathlib import Path

import matplotlib as mpl
from style import GREY, STYLE

mpl.use("svg")
from matplotlib import pyplot as plt  # after the choice of its output

DOCS = Path(__file__).parents[1]
FILE = DOCS / "images" / "frontier.svg"
DATA = DOCS / "data" / "methods.json"
SETS = {"clinc150": "CLINC150", "banking77": "BANKING77", "trec": "TREC", "rotten_tomatoes": "film reviews"}
METHODS = {
    "deterministic": ("deterministic", "#4c78a8"),
    "undropped": ("without attention dropout", "#17a2b8"),
    "smoothed": ("label smoothing", "#9d755d"),
    "babn": ("BABN", "#e07b39"),
    "bam": ("BAM", "#54a24b"),
    "aligned": ("aligned (CT)", "#b279a2"),
    "repulsive": ("repulsive", "#b8860b"),
}
WAYS = {
    "point": ("one pass", "o"),
    "moments": ("moments", "D"),
    "dropout": ("dropout draws", "s"),
    "draws": ("posterior draws", "^"),
    "ensemble": ("ensemble of five", "*"),
}
APART = 1.09
"""Factor of the cost by which one method stands right of the one before it."""


def main() -> None:
    """Makes the file."""
    content = json.loads(DATA.read_text(encoding="utf-8"))["methods"]
    mpl.rcParams |= STYLE | {"font.size": 9, "savefig.transparent": True}
    width = 2.3 * len(content) + 1.9
    figure, panels = plt.subplots(1, len(content), figsize=(width, 2.9), layout="constrained")
    for axes, (name, results) in zip(panels, content.items(), strict=True):
        shares = {(row["recipe"], row["variant"]): row["values"].get("coverage") for row in results["rows"]}
        reference = shares[tuple(results["reference"])]["mean"]
        for row in results["rows"]:
            if row["recipe"] not in METHODS or row["variant"] not in WAYS:
                continue
            gap = row["gaps"].get("coverage")
            middle = shares[row["recipe"], row["variant"]]["mean"] - reference
            ends = [0.0, 0.0] if gap is None else [abs(gap[end] - middle) for end in ("low", "high")]
            place = list(METHODS).index(row["recipe"]) - (len(METHODS) - 1) / 2
            axes.errorbar(
                row["cost"]["mean"] * APART**place,
                100 * middle,
                yerr=[[100 * end] for end in ends],
                color=METHODS[row["recipe"]][1],
                marker=WAYS[row["variant"]][1],
                markersize=4.5,
                linewidth=0.9,
            )
        axes.axhline(0, color=GREY, linewidth=0.6, zorder=0)
        axes.set(xscale="log", xticks=[1, 3, 10], xticklabels=["1", "3", "10"])
        axes.set_title(f"{SETS[name]} ({reference:.0%})")
        axes.minorticks_off()
    figure.supxlabel("cost of a prediction, in passes of the network", fontsize=9, color=GREY)
    panels[0].set_ylabel("more answered, in points")
    marks = [
        *(plt.Line2D([], [], color=colour, lw=3, label=words) for words, colour in METHODS.values()),
        *(plt.Line2D([], [], color=GREY, marker=mark, ls="", label=words) for words, mark in WAYS.values()),
    ]
    figure.legend(handles=marks, frameon=False, labelcolor=GREY, loc="outside right center", fontsize=8)
    figure.savefig(FILE, metadata={"Date": None})


if __name__ == "__main__":
    main()
