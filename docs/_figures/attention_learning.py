"""Draws ``docs/images/attention_learning.svg``: how a small classifier's attention comes about.

    python docs/_figures/attention_learning.py

The networks, texts and training are those of ``docs/tutorials/attention_learning.md``, whose examples it runs. Shown
beside the agreements is the test article with the fewest unknown words at its beginning among those whose class the
network knows and whose attention is clearest. A minute on one core. Grey and the colours are legible on light and on
dark pages.
"""

from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from page_examples import run_examples
from style import GREY, STYLE

mpl.use("svg")
from matplotlib import pyplot as plt  # after the choice of its output

DOCS = Path(__file__).parents[1]
FILE = DOCS / "images" / "attention_learning.svg"
PAGE = DOCS / "tutorials" / "attention_learning.md"
LAST = "## Attention without knowledge"
BLUE, ORANGE, WORDS = "#4c78a8", "#d9822b", 14


def draw_course(axes: Axes, names: dict[str, Any]) -> None:
    """Agreements over steps, which are equally spaced."""
    learned, course, last = names["learned"], names["course"], names["last"]
    places = range(len(learned))
    own = [100 * each.agreement() for each in learned.values()]
    axes.plot(places, own, "o-", color=BLUE, markersize=3, label="attention, own probe")
    other = [100 * value for value in course.values()]
    axes.plot(
        places,
        other,
        "o-",
        color=ORANGE,
        markersize=3,
        label="final attention,\nprobe under uniform attention",
    )
    axes.axhline(100 * last.chance(), color=GREY, linestyle="--", linewidth=1, label="by chance")
    axes.set(
        xticks=places,
        xticklabels=list(learned),
        xlabel="step",
        ylabel="agreement (%)",
        ylim=(0, 1.4 * max(own + other)),
    )
    axes.legend(frameon=False, labelcolor=GREY, fontsize="small", loc="upper left")


def choose(names: dict[str, Any]) -> int:
    """The article that is shown."""
    last, test, tokenizer = names["last"], names["test"], names["tokenizer"]
    weights, _ = last.padded(last.attention)

    def unknown(row: int) -> int:
        return test[row]["input_ids"][:WORDS].count(tokenizer.unk_token_id)

    def clear(row: int) -> float:
        return weights[row, :WORDS].max().item()

    known = [row for row in range(len(test)) if last.correct[row] and clear(row) > 0.25]
    return min(known, key=lambda row: (unknown(row), -clear(row)))


def draw_map(axes: Axes, values: np.ndarray, top: float, colour: str, title: str, steps: list[int]) -> None:
    """One map ``[steps, words]``: the more, the less transparent."""
    cells = np.empty((*values.shape, 4))
    cells[..., :3] = to_rgb(colour)
    cells[..., 3] = np.clip(values / top, 0, 1)
    axes.imshow(cells, aspect="auto", interpolation="nearest")
    axes.set_title(title, color=GREY)
    axes.set_yticks(range(len(steps)), [str(step) for step in steps])
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set(visible=True, color=GREY)


def main() -> None:
    """Makes the file."""
    names = run_examples(PAGE, LAST)
    learned, row = names["learned"], choose(names)
    steps = list(learned)
    maps = [
        np.stack([each.padded(part(each))[0][row, :WORDS].numpy() for each in learned.values()])
        for part in (lambda each: each.attention, lambda each: each.probe.exp())
    ]
    label = names["task"].train.label_names[names["test"][row]["labels"]]
    words = names["tokenizer"].convert_ids_to_tokens(names["test"][row]["input_ids"][:WORDS])
    mpl.rcParams |= STYLE | {"font.size": 9, "savefig.transparent": True}
    figure = plt.figure(figsize=(8.6, 3.6), layout="constrained")
    grid = figure.add_gridspec(2, 2, width_ratios=(1, 1.35))
    draw_course(figure.add_subplot(grid[:, 0]), names)
    for place, (values, colour, title) in enumerate(
        zip(maps, (BLUE, ORANGE), ("attention by step", f"probe by step: “{label}”"), strict=True)
    ):
        axes = figure.add_subplot(grid[place, 1])
        draw_map(axes, values, float(values.max()), colour, title, steps)
        axes.set_xticks(
            range(len(words)),
            words if place else [""] * len(words),
            rotation=60,
            ha="right",
            rotation_mode="anchor",
        )
    figure.savefig(FILE, metadata={"Date": None})


if __name__ == "__main__":
    main()
