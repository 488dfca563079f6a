"""Draws ``docs/images/repulsive_heads.svg``: where the heads of two small classifiers look in a news article.

    python docs/_figures/repulsive_heads.py

The networks, texts and training are those of ``docs/tutorials/repulsive_heads.md``, whose examples it runs. Shown is
the test article with the fewest unknown words at its beginning among those whose class both networks know. Less than a
minute on one core. Grey and the colour are legible on light and on dark pages.
"""

from pathlib import Path

import matplotlib as mpl
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from page_examples import run_examples
from style import GREY, STYLE

from probattn.models import capture

mpl.use("svg")
from matplotlib import pyplot as plt  # after the choice of its output

DOCS = Path(__file__).parents[1]
FILE = DOCS / "images" / "repulsive_heads.svg"
PAGE = DOCS / "tutorials" / "repulsive_heads.md"
LAST = "## Heads with repulsion"
BLUE, WORDS, FULL = "#4c78a8", 16, 0.25


def draw(axes: Axes, weights: np.ndarray, words: list[str], title: str) -> None:
    """One map ``[heads, words]``: the more attention, the less transparent."""
    cells = np.empty((*weights.shape, 4))
    cells[..., :3] = to_rgb(BLUE)
    cells[..., 3] = np.clip(weights / FULL, 0, 1)
    axes.imshow(cells, aspect="auto", interpolation="nearest")
    axes.set_title(title, color=GREY)
    axes.set_xticks(range(len(words)), words, rotation=60, ha="right", rotation_mode="anchor")
    axes.set_yticks(range(len(weights)), [str(head) for head in range(len(weights))])
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set(visible=True, color=GREY)


def main() -> None:
    """Makes the file."""
    names = run_examples(PAGE, LAST)
    tokenizer, batch, labels = names["tokenizer"], names["batch"], names["labels"]
    networks = {"as it is": names["net"].eval(), "with repulsion": names["other"].eval()}
    with torch.no_grad():
        right = [network(**batch).logits.argmax(dim=-1) == labels for network in networks.values()]
    unknown = (batch["input_ids"][:, :WORDS] == tokenizer.unk_token_id).sum(dim=1)
    row = int(torch.where(torch.stack(right).all(dim=0), unknown, WORDS).argmin())
    words = tokenizer.convert_ids_to_tokens(batch["input_ids"][row])[:WORDS]
    mpl.rcParams |= STYLE | {"font.size": 9, "savefig.transparent": True}
    figure, panels = plt.subplots(1, 2, figsize=(7.6, 3.2), layout="constrained", sharey=True)
    for axes, (title, network) in zip(panels, networks.items(), strict=True):
        (call,) = capture(network, batch).values()
        draw(axes, call.weights[row, :, 0, :WORDS].detach().numpy(), words, title)
    panels[0].set_ylabel("head")
    figure.savefig(FILE, metadata={"Date": None})


if __name__ == "__main__":
    main()
