"""Draws ``docs/images/head_counts.svg``: accuracy of the self-attentive classifier against its number of heads.

    python docs/_figures/head_counts.py

From docs/data/head_counts.json, which ``tests/benchmarks/study.py head_count`` writes. The form of An et al. 2020,
Fig. 3. Grey and the colours are legible on light and on dark pages.
"""

import json
from pathlib import Path

import matplotlib as mpl
from style import GREY, STYLE

mpl.use("svg")
from matplotlib import pyplot as plt  # after the choice of its output

DOCS = Path(__file__).parents[1]
FILE = DOCS / "images" / "head_counts.svg"
DATA = DOCS / "data" / "head_counts.json"
METHODS = {"plain": ("as it is", GREY, -0.12), "svgd": ("with repulsion", "#4c78a8", 0.12)}
SUBJECTS = {"trec": "TREC", "sst2": "SST-2"}


def main() -> None:
    """Makes the file."""
    content = json.loads(DATA.read_text(encoding="utf-8"))
    counts = sorted({run["heads"] for run in content["runs"]})
    mpl.rcParams |= STYLE | {"font.size": 9, "savefig.transparent": True}
    figure, axes = plt.subplots(figsize=(4.6, 2.8), layout="constrained")
    for method, (label, colour, shift) in METHODS.items():
        runs = [run for run in content["runs"] if run["method"] == method]
        places = [counts.index(run["heads"]) + shift for run in runs]
        axes.plot(places, [100 * run["accuracy"] for run in runs], ".", color=colour, markersize=4, alpha=0.5)
        means = [100 * content["summary"][method][str(count)]["mean"] for count in counts]
        axes.plot(
            [place + shift for place in range(len(counts))],
            means,
            "o-",
            color=colour,
            linewidth=1.2,
            label=label,
        )
    axes.set(
        xticks=range(len(counts)),
        xticklabels=counts,
        xlabel="heads",
        ylabel=f"accuracy on {SUBJECTS[content['setting']['subject']]} (%)",
    )
    axes.legend(frameon=False, labelcolor=GREY)
    figure.savefig(FILE, metadata={"Date": None})


if __name__ == "__main__":
    main()
