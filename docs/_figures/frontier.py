"""Draws ``docs/images/frontier.svg``: what can be answered at 5% error against what a prediction costs, by method.

    python docs/_figures/frontier.py

From docs/data/methods.json, which ``tests/benchmarks/study.py methods`` writes. Grey and the colours are legible on
light and on dark pages.
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
    "smoothed": ("label smoothing", "#9d755d"),
    "babn": ("BABN", "#e07b39"),
    "bam": ("BAM", "#54a24b"),
    "aligned": ("aligned (CT)", "#b279a2"),
    "repulsive": ("repulsive", "#b8860b"),
}
WAYS = {
    "point": ("one pass", "o"),
    "laplace": ("Laplace, last layer", "v"),
    "moments": ("moments", "D"),
    "dropout": ("dropout draws", "s"),
    "draws": ("posterior draws", "^"),
    "ensemble": ("ensemble of the seeds", "*"),
}


def main() -> None:
    """Makes the file."""
    content = json.loads(DATA.read_text(encoding="utf-8"))["methods"]
    mpl.rcParams |= STYLE | {"font.size": 9, "savefig.transparent": True}
    width = 2.3 * len(content) + 1.7
    figure, panels = plt.subplots(1, len(content), figsize=(width, 2.9), layout="constrained")
    for axes, (name, results) in zip(panels, content.items(), strict=True):
        for row in results["rows"]:
            if row["recipe"] not in METHODS or row["way"] not in WAYS:
                continue
            share = row["values"]["coverage"]
            ends = [share["mean"] if share[end] is None else share[end] for end in ("low", "high")]
            axes.errorbar(
                row["cost"]["mean"],
                100 * share["mean"],
                yerr=[[100 * abs(end - share["mean"])] for end in ends],
                color=METHODS[row["recipe"]][1],
                marker=WAYS[row["way"]][1],
                markersize=5,
                linewidth=0.8,
            )
        axes.set(xscale="log", xticks=[1, 3, 10], xticklabels=["1", "3", "10"], title=SETS[name])
        axes.minorticks_off()
    figure.supxlabel("cost of a prediction, in passes of the network", fontsize=9, color=GREY)
    panels[0].set_ylabel("answered at 5% error (%)")
    marks = [
        *(plt.Line2D([], [], color=colour, lw=3, label=words) for words, colour in METHODS.values()),
        *(plt.Line2D([], [], color=GREY, marker=mark, ls="", label=words) for words, mark in WAYS.values()),
    ]
    figure.legend(handles=marks, frameon=False, labelcolor=GREY, loc="outside right center", fontsize=8)
    figure.savefig(FILE, metadata={"Date": None})


if __name__ == "__main__":
    main()
