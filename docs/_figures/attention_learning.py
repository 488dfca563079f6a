"""Draws ``docs/images/attention_learning.svg``: how a small classifier's attention comes about.

    python docs/_figures/attention_learning.py

The networks, texts and training are those of ``docs/tutorials/attention_learning.md``, whose examples it runs. A minute
on one core. Grey and the colours are legible on light and on dark pages.
"""

from pathlib import Path

import matplotlib as mpl
from page_examples import run_examples
from style import GREY, STYLE

mpl.use("svg")
from matplotlib import pyplot as plt  # after the choice of its output

DOCS = Path(__file__).parents[1]
FILE = DOCS / "images" / "attention_learning.svg"
PAGE = DOCS / "tutorials" / "attention_learning.md"
LAST = "## Attention without knowledge"


def main() -> None:
    """Agreements over steps, which are equally spaced."""
    names = run_examples(PAGE, LAST)
    learned, places = names["learned"], range(len(names["learned"]))
    courses = {
        "attention, own probe": ("#4c78a8", [each.agreement() for each in learned.values()]),
        "final attention, probe under uniform attention": ("#d9822b", names["course"].values()),
    }
    mpl.rcParams |= STYLE | {"font.size": 9, "savefig.transparent": True}
    figure, axes = plt.subplots(figsize=(5.2, 3.0), layout="constrained")
    for label, (colour, values) in courses.items():
        axes.plot(places, [100 * value for value in values], "o-", color=colour, markersize=3, label=label)
    axes.axhline(100 * names["last"].chance(), color=GREY, linestyle="--", linewidth=1, label="by chance")
    axes.set(xticks=places, xticklabels=list(learned), xlabel="step", ylabel="agreement (%)", ylim=(0, 42))
    axes.legend(frameon=False, labelcolor=GREY, fontsize="small", loc="upper left")
    figure.savefig(FILE, metadata={"Date": None})


if __name__ == "__main__":
    main()
