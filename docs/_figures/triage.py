"""Draws ``docs/images/triage.svg``: the share of inputs that is answered at a promised error, on four tasks.

    python docs/_figures/triage.py

From docs/data/triage.json, which ``tests/benchmarks/study.py triage`` writes. Grey and the colours are legible on light
and on dark pages.
"""

import json
from pathlib import Path

import matplotlib as mpl
from style import GREY, STYLE

mpl.use("svg")
from matplotlib import pyplot as plt  # after the choice of its output

DOCS = Path(__file__).parents[1]
FILE = DOCS / "images" / "triage.svg"
DATA = DOCS / "data" / "triage.json"
TASKS = {
    "clinc150": ("CLINC150, 150 intents", "#4c78a8"),
    "banking77": ("BANKING77, 77 intents", "#e07b39"),
    "rotten_tomatoes": ("film reviews", "#54a24b"),
    "snli": ("SNLI, 4,000 pairs", "#b279a2"),
}


def main() -> None:
    """Makes the file."""
    content = json.loads(DATA.read_text(encoding="utf-8"))
    mpl.rcParams |= STYLE | {"font.size": 9, "savefig.transparent": True}
    figure, axes = plt.subplots(figsize=(6.4, 3.0), layout="constrained")
    for place, run in enumerate(run for run in content["runs"] if run["seed"] == 0):
        words, colour = TASKS[run["task"]]
        rows = list(run["promises"].values())
        at = [number + 0.14 * (place - 1.5) for number in range(len(rows))]
        shares = [100 * row["answered"] for row in rows]
        reach = [[100 * abs(row["range"][end] - row["answered"]) for row in rows] for end in (0, 1)]
        label = f"{words} ({100 * run['error']:.0f}% wrong)"
        axes.errorbar(at, shares, yerr=reach, fmt="o", color=colour, markersize=5, linewidth=1.2, label=label)
        oracle = [100 * row["oracle"] for row in rows]
        axes.plot(at, oracle, "_", color=colour, markersize=9, markeredgewidth=1.6)
    axes.plot([], [], "_", color=GREY, markersize=9, markeredgewidth=1.6, label="known errors (oracle)")
    promises = [f"{100 * float(error):g}%" for error in content["runs"][0]["promises"]]
    axes.set(
        xticks=range(len(promises)),
        xticklabels=promises,
        xlabel="promised error among the answered inputs",
        ylabel="answered (%)",
        ylim=(-3, 103),
    )
    axes.legend(frameon=False, labelcolor=GREY, loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.savefig(FILE, metadata={"Date": None})


if __name__ == "__main__":
    main()
