"""Draws ``docs/images/head_counts.svg``: accuracy of the self-attentive classifier against its number of heads.

    python docs/_figures/head_counts.py

From what was measured of ``probattn reproduce rma/figure-3a``. The form of An et al. 2020, Fig. 3. Grey and the colours
are legible on light and on dark pages.
"""

import statistics
from pathlib import Path

import matplotlib as mpl
from style import GREY, STYLE

mpl.use("svg")
from matplotlib import pyplot as plt  # after the choice of its output

from probattn.reproduce import measured

DOCS = Path(__file__).parents[1]
FILE = DOCS / "images" / "head_counts.svg"
METHODS = {"MA": ("as it is", GREY, -0.12), "RMA": ("with repulsion", "#4c78a8", 0.12)}


def main() -> None:
    """Makes the file."""
    record = measured("rma/figure-3a")
    assert record is not None
    counts = [int(row.removeprefix("heads_")) for row in record.cells]
    mpl.rcParams |= STYLE | {"font.size": 9, "savefig.transparent": True}
    figure, axes = plt.subplots(figsize=(4.6, 2.8), layout="constrained")
    for method, (label, colour, shift) in METHODS.items():
        values = [list(row[method].values.values()) for row in record.cells.values()]
        points = [(index + shift, value) for index, seeds in enumerate(values) for value in seeds]
        axes.plot(*zip(*points, strict=True), ".", color=colour, markersize=4, alpha=0.5)
        means = [statistics.mean(seeds) for seeds in values]
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
        ylabel="accuracy on TREC (%)",
    )
    axes.legend(frameon=False, labelcolor=GREY)
    figure.savefig(FILE, metadata={"Date": None})


if __name__ == "__main__":
    main()
