"""Draws ``docs/images/head_redundancy.svg``: how far accuracy falls without each head, as it is and with repulsion.

    python docs/_figures/head_redundancy.py

From the first seed of docs/data/repulsion.json, which ``tests/benchmarks/study.py repulsion`` writes; a network that is
not in it has no panel. The form of An et al. 2020, Fig. 2. Grey and the colours are legible on light and on dark pages.
"""

import json
from itertools import chain
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from style import GREY, STYLE

mpl.use("svg")
from matplotlib import pyplot as plt  # after the choice of its output

DOCS = Path(__file__).parents[1]
FILE = DOCS / "images" / "head_redundancy.svg"
DATA = DOCS / "data" / "repulsion.json"
SUBJECTS = {
    "trec": "self-attentive classifier, TREC",
    "sst2": "self-attentive classifier, SST-2",
    "sst2_transformer": "MiniLM, SST-2",
}
METHODS = {"plain": ("as it is", GREY), "svgd": ("with repulsion", "#4c78a8")}


def draw(axes: Axes, runs: dict[str, Any], title: str) -> None:
    """One panel: heads in the order of what they are worth."""
    for method, (label, colour) in METHODS.items():
        found = runs[method]["redundancy"]
        drops = sorted((100 * drop for drop in chain(*found["drops"])), reverse=True)
        axes.plot(range(1, len(drops) + 1), drops, ".-", color=colour, markersize=4, linewidth=1, label=label)
    axes.axhline(0, color=GREY, linewidth=0.5)
    axes.set(title=title, xlabel="heads, the one most missed first")


def main() -> None:
    """Makes the file."""
    content = json.loads(DATA.read_text(encoding="utf-8"))
    mpl.rcParams |= STYLE | {"font.size": 9, "savefig.transparent": True}
    shown = {name: title for name, title in SUBJECTS.items() if name in content["summary"]}
    size = (min(3.8 * len(shown), 8.6), 2.8)
    figure, panels = plt.subplots(1, len(shown), figsize=size, layout="constrained", squeeze=False)
    for axes, (subject, title) in zip(panels[0], shown.items(), strict=True):
        own = {
            run["method"]: run
            for run in content["runs"]
            if run["subject"] == subject and run["seed"] == 0 and run["method"] in METHODS
        }
        draw(axes, own, title)
    panels[0, 0].set_ylabel("points of accuracy lost")
    panels[0, 0].legend(frameon=False, labelcolor=GREY)
    figure.savefig(FILE, metadata={"Date": None})


if __name__ == "__main__":
    main()
