"""Draws ``docs/images/alignment_clouds.svg``: queries and keys of three heads, before and after alignment alone.

    python docs/_figures/alignment_clouds.py

MiniLM of the installed package, its first two layers; sixteen film reviews to look at and sixty-four to align on, whose
labels are not looked at. It takes about two minutes on one core. Grey and
both colours are legible on light and on dark pages.
"""

from itertools import islice
from pathlib import Path

import matplotlib as mpl
import numpy as np
import torch
from matplotlib.axes import Axes
from sklearn.decomposition import PCA
from transformers import AutoModelForSequenceClassification, AutoTokenizer, PreTrainedModel

from probattn import AlignmentAttention
from probattn.data import Source, TextDataset, load_task
from probattn.inference import AttentionELBO, AttentionGuide
from probattn.models import Classifier, capture, convert
from probattn.recipes import NetworkRecipe

mpl.use("svg")
from matplotlib import pyplot as plt  # after the choice of its output

FILE = Path(__file__).parents[1] / "images" / "alignment_clouds.svg"
SITE = "bert.encoder.layer.1.attention.self"
HEADS = (0, 5, 11)
STEPS, BATCH, RATE = 60, 16, 1e-3
GREY, QUERY, KEY = "#808080", "#4c78a8", "#d9822b"

Batch = dict[str, torch.Tensor]


def build() -> tuple[PreTrainedModel, Batch, Batch]:
    """The network, the batch to align on and the batch to look at."""
    torch.manual_seed(0)
    folder = NetworkRecipe(name="minilm").locate()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    net = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=2, num_hidden_layers=2)
    task = load_task({"train": Source("rotten_tomatoes")}, limits={"train": 64, "validation": 8, "test": 16})

    def batch_of(data: TextDataset) -> Batch:
        encoded = tokenizer(
            list(data.texts), padding=True, truncation=True, max_length=48, return_tensors="pt"
        )
        return {**encoded, "labels": torch.tensor(data.labels)}

    return net, batch_of(task.train), batch_of(task.test)


def align(net: PreTrainedModel, batch: Batch) -> None:
    """Trains on the factors and nothing else."""
    convert(net, AlignmentAttention("mmd", weight=1.0, bandwidth="median"))
    model = Classifier(net.train())
    module = AttentionELBO()(model, AttentionGuide(model))
    optimizer = torch.optim.Adam(net.parameters(), lr=RATE)
    rows = torch.arange(len(batch["labels"])).split(BATCH)
    for step in range(STEPS):
        (own,) = islice(rows, step % len(rows), step % len(rows) + 1)
        optimizer.zero_grad()
        (-module({name: values[own] for name, values in batch.items()}).factors).backward()
        optimizer.step()
    net.eval()


def tokens(net: PreTrainedModel, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
    """Queries and keys of the real tokens, ``[H, N, D]`` each."""
    call = capture(net, {name: values for name, values in batch.items() if name != "labels"})[SITE]
    query = call.query.transpose(0, 1)[:, call.query_valid]
    key = call.key.transpose(0, 1)[:, call.key_valid]
    return query.detach().numpy(), key.detach().numpy()


def draw(axes: Axes, clouds: tuple[np.ndarray, np.ndarray], view: PCA, limits: np.ndarray) -> None:
    """One panel: every other token of both clouds, on the axes given."""
    for cloud, colour, name in zip(clouds, (QUERY, KEY), ("queries", "keys"), strict=True):
        places = view.transform(cloud[::2])
        axes.plot(*places.T, ".", markersize=2.5, alpha=0.7, markeredgewidth=0, color=colour, label=name)
    axes.set(xlim=limits[:, 0], ylim=limits[:, 1], xticks=[], yticks=[])
    for spine in axes.spines.values():
        spine.set_color(GREY)


def main() -> None:
    """Makes the file."""
    net, train, seen = build()
    before = tokens(net.eval(), seen)
    align(net, train)
    after = tokens(net, seen)
    mpl.rcParams |= {
        "svg.hashsalt": "alignment",
        "text.color": GREY,
        "axes.labelcolor": GREY,
        "font.size": 9,
        "savefig.transparent": True,
    }
    figure, panels = plt.subplots(2, len(HEADS), figsize=(7.6, 4.6), layout="constrained")
    for column, head in enumerate(HEADS):
        pooled = np.concatenate([cloud[head] for cloud in before])
        view = PCA(2).fit(pooled)
        places = np.concatenate([view.transform(cloud[head]) for cloud in (*before, *after)])
        margin = 0.05 * np.ptp(places, axis=0)
        limits = np.stack([places.min(axis=0) - margin, places.max(axis=0) + margin])
        for row, clouds in enumerate((before, after)):
            draw(panels[row, column], (clouds[0][head], clouds[1][head]), view, limits)
        panels[0, column].set_title(f"head {head}", color=GREY)
    panels[0, 0].set_ylabel("before")
    panels[1, 0].set_ylabel("after")
    panels[0, 0].legend(frameon=False, labelcolor=GREY, markerscale=2, loc="best")
    figure.savefig(FILE, metadata={"Date": None})


if __name__ == "__main__":
    main()
