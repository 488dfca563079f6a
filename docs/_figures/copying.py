"""Draws ``docs/images/copying.svg``: the accuracy of every run that copies, and log-odds by position of classifiers.

    python docs/_figures/copying.py

From docs/data/copying.json, which ``tests/benchmarks/study.py copying`` writes; what it lacks has no panel. The form
of Snell et al. 2021, Fig. 3, 6 and 7. Grey and the colours are legible on light and on dark pages.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from style import GREY, STYLE

mpl.use("svg")
from matplotlib import pyplot as plt  # after the choice of its output

DOCS = Path(__file__).parents[1]
FILE = DOCS / "images" / "copying.svg"
DATA = DOCS / "data" / "copying.json"
COLOURS = ("#4c78a8", "#d9822b", "#3f9b6c", "#b5578a")
COPYING = {"permutations": "sentences (Fig. 3)", "heads": "eight heads (Fig. 6)"}
PLACES = {"keyword": "keyword", "next_word": "word after it", "mean": "mean of all", "last": "last word"}
BELOW: Mapping[str, Any] = {
    "frameon": False,
    "labelcolor": GREY,
    "fontsize": "small",
    "loc": "upper center",
    "bbox_to_anchor": (0.5, -0.2),
    "borderaxespad": 0.0,
}
"""Where a legend stands: no curve passes there."""


def panels(content: Mapping[str, Any]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Kind, title and what is drawn, panel by panel."""
    for name, title in COPYING.items():
        if name in content:
            yield "runs", title, content[name]["conditions"]
    if "locality" in content:
        for row in content["locality"]["conditions"].values():
            yield "odds", f"{row['title']} (Fig. 7)", row


def draw_runs(axes: Axes, conditions: Mapping[str, Any]) -> None:
    """Accuracy against steps: a thin line for each run, a thick one for the median of a condition."""
    handles = []
    for row, colour in zip(conditions.values(), COLOURS, strict=False):
        runs = np.array(row["accuracy"], dtype=float).T  # [steps, runs]
        axes.plot(row["steps"], runs, color=colour, linewidth=0.6, alpha=0.45)
        axes.plot(row["steps"], np.median(runs, axis=1), color=colour, linewidth=2)
        handles.append(Line2D([], [], color=colour, label=row["title"]))
    axes.set(ylim=(0, 1.02), ylabel="accuracy", yticks=np.linspace(0, 1, 6))
    axes.legend(handles=handles, **BELOW)


def draw_odds(axes: Axes, row: Mapping[str, Any]) -> None:
    """Means over runs of the log-odds, by position."""
    for (name, words), colour in zip(PLACES.items(), COLOURS, strict=True):
        axes.plot(row["steps"], np.array(row["mean"][name], dtype=float), color=colour, label=words)
    axes.axhline(0, color=GREY, linewidth=0.5)
    axes.set_ylabel("log-odds γ")
    axes.legend(**BELOW, ncols=2)


def main() -> None:
    """Makes the file."""
    drawn = list(panels(json.loads(DATA.read_text(encoding="utf-8"))))
    with mpl.rc_context(STYLE | {"font.size": 9}):
        rows = -(-len(drawn) // 2)
        figure, grid = plt.subplots(rows, 2, figsize=(7.6, 3.3 * rows), layout="constrained", squeeze=False)
        for axes in grid.flat[len(drawn) :]:
            axes.remove()
        for axes, (kind, title, found) in zip(grid.flat, drawn, strict=False):
            (draw_runs if kind == "runs" else draw_odds)(axes, found)
            axes.set(title=title, xlabel="updates")
        figure.savefig(FILE, transparent=True, metadata={"Date": None, "Creator": None})


if __name__ == "__main__":
    main()
