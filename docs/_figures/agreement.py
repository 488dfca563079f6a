"""Draws ``docs/images/agreement.svg``: how agreement of attention with three things goes in training.

    python docs/_figures/agreement.py

From docs/data/agreement.json, which ``tests/benchmarks/study.py agreement`` writes. Steps are equally spaced. Grey and
the colours are legible on light and on dark pages.
"""

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from style import GREY, STYLE

mpl.use("svg")
from matplotlib import pyplot as plt  # after the choice of its output

DOCS = Path(__file__).parents[1]
FILE = DOCS / "images" / "agreement.svg"
DATA = DOCS / "data" / "agreement.json"
SUBJECTS = {"sst2": "SST-2", "bbc": "BBC news", "imdb": "IMDB", "multi30k": "Multi30k En-De"}
COURSES = {
    "uniform": ("final attention, probe under uniform attention", "#d9822b"),
    "own": ("attention, own probe", "#4c78a8"),
    "second": ("final attention, attention of another seed", "#54a24b"),
}


def draw(axes: Axes, summary: Mapping[str, Any], runs: Iterable[Mapping[str, Any]]) -> None:
    """One subject: a thin line a seed, their mean, and chance."""
    steps = sorted({int(step) for course in summary["course"].values() for step in course})
    for name, (label, colour) in COURSES.items():
        mean = {int(step): 100 * value for step, value in summary["course"][name].items()}
        places = [steps.index(step) for step in mean]
        for run in runs:
            axes.plot(
                places,
                [100 * run["course"][name][str(step)] for step in mean],
                color=colour,
                linewidth=0.7,
                alpha=0.45,
            )
        axes.plot(places, list(mean.values()), "o-", color=colour, markersize=3, linewidth=1.4, label=label)
    words = [f"{step:,}" for step in steps]
    axes.set_xticks(range(len(steps)), words, rotation=60, ha="right", rotation_mode="anchor")
    axes.axhline(100 * summary["chance"]["mean"], color=GREY, linestyle="--", linewidth=1, label="by chance")
    axes.set(xlabel="step", ylim=(0, None))


def main() -> None:
    """Makes the file."""
    content = json.loads(DATA.read_text(encoding="utf-8"))
    shown = {key: title for key, title in SUBJECTS.items() if key in content["summary"]}
    mpl.rcParams |= STYLE | {"font.size": 9, "savefig.transparent": True}
    rows = math.ceil(len(shown) / 2)
    figure, panels = plt.subplots(
        rows, 2, figsize=(7.2, 2.7 * rows + 0.5), layout="constrained", squeeze=False
    )
    for axes in panels.flat[len(shown) :]:
        axes.set_axis_off()
    for axes, (key, title) in zip(panels.flat, shown.items(), strict=False):
        draw(axes, content["summary"][key], [run for run in content["runs"] if run["subject"] == key])
        axes.set_title(title)
    for axes in panels[:, 0]:
        axes.set_ylabel("agreement (%)")
    figure.legend(
        *panels[0, 0].get_legend_handles_labels(),
        loc="outside lower center",
        ncols=2,
        frameon=False,
        labelcolor=GREY,
    )
    figure.savefig(FILE, metadata={"Date": None})


if __name__ == "__main__":
    main()
