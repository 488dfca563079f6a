"""Draws ``docs/images/count_tables.svg``: what words that occur together tell, and where attention could then go.

    python docs/_figures/count_tables.py

Four small corpora, each with its count table (Snell et al. 2021, Eq. 16) and, of one of its pairs, the alignment that
IBM Model 1 gives after a few steps. The form of Fig. 1, 4, 5 and 8. Grey and the colour are legible on light and on
dark pages.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from style import GREY, STYLE

from probattn.probes import IBMModel1, ParallelCorpus

mpl.use("svg")
from matplotlib import pyplot as plt  # after the choice of its output

FILE = Path(__file__).parents[1] / "images" / "count_tables.svg"
BLUE = "#4c78a8"
STEPS = 5
"""Steps of expectation-maximisation behind the alignments; the counts are those of the first."""
Pair = tuple[Sequence[str], Sequence[str]]


@dataclass(frozen=True)
class Example:
    """A corpus, and the pair whose alignment is shown.

    Attributes:
        title: what it is.
        pairs: input and output words of each sentence.
        shown: the pair.
    """

    title: str
    pairs: Sequence[Pair]
    shown: Pair


def split(*pairs: tuple[str, str]) -> list[Pair]:
    """Pairs of sentences as words."""
    return [(source.split(), target.split()) for source, target in pairs]


def examples() -> list[Example]:
    """The four corpora."""
    translation = split(
        ("the dog sleeps", "der Hund schläft"),
        ("the man runs", "der Mann rennt"),
        ("a man sleeps", "ein Mann schläft"),
        ("a dog runs", "ein Hund rennt"),
    )
    reviews = split(
        ("a great film", "good"),
        ("a funny plot", "good"),
        ("great plot", "good"),
        ("a dull film", "bad"),
        ("a weak plot", "bad"),
        ("dull plot", "bad"),
    )
    copies = {letters: [(order, order) for order in permutations(letters)] for letters in ("abcd", "efgh")}
    return [
        Example("translation", translation, translation[-1]),
        Example("classification", reviews, reviews[0]),
        Example("permutations", copies["abcd"], copies["abcd"][9]),
        Example("two sets of permutations", copies["abcd"] + copies["efgh"], copies["abcd"][9]),
    ]


def draw(axes: Axes, values: np.ndarray, rows: Sequence[str], columns: Sequence[str]) -> None:
    """A table ``[rows, columns]``: the closer a value to 1, the less transparent its cell."""
    for (row, column), value in np.ndenumerate(values):
        axes.add_patch(
            Rectangle((column - 0.46, row - 0.46), 0.92, 0.92, color=BLUE, alpha=value, linewidth=0)
        )
    axes.set(xlim=(-0.5, len(columns) - 0.5), ylim=(len(rows) - 0.5, -0.5))
    axes.set_xticks(range(len(columns)), columns, rotation=45, ha="right", rotation_mode="anchor")
    axes.set_yticks(range(len(rows)), rows)
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set(visible=True, color=GREY, linewidth=0.5)


def tell(axes: Axes, values: np.ndarray) -> None:
    """Writes the values into their cells."""
    for (row, column), value in np.ndenumerate(values):
        colour = "white" if value >= 0.5 else GREY
        axes.text(column, row, f"{value:.2f}", color=colour, ha="center", va="center", weight="bold")


def main() -> None:
    """Writes the file."""
    chosen = examples()
    with mpl.rc_context(STYLE | {"font.size": 9}):
        figure = plt.figure(figsize=(9, 5.2), layout="constrained")
        top, bottom = figure.subfigures(2, 1, height_ratios=(1.2, 1), hspace=0.04)
        top.suptitle(
            "Counts: how often an input word (down) meets an output word (across)", fontsize="medium"
        )
        bottom.suptitle(
            "Alignments of one sentence: how far an output word (down) comes from an input word (across)",
            fontsize="medium",
        )
        above, below = top.subplots(1, len(chosen)), bottom.subplots(1, len(chosen))
        for table, panel, example in zip(above, below, chosen, strict=True):
            corpus = ParallelCorpus.from_words(*zip(*example.pairs, strict=True))
            first = IBMModel1.fit(corpus)
            counts = first.counts.toarray()
            draw(table, counts / counts.max(), first.source_vocabulary.words, first.target_vocabulary.words)
            table.set_title(example.title)
            source, target = example.shown
            ids = first.source_vocabulary.encode(source), first.target_vocabulary.encode(target)
            weights = first.improve(corpus, STEPS - 1).attention(*ids).numpy()
            draw(panel, weights, target, source)
            tell(panel, weights)
            panel.set_box_aspect(len(target) / len(source))
        figure.savefig(FILE, transparent=True, metadata={"Date": None, "Creator": None})


if __name__ == "__main__":
    main()
