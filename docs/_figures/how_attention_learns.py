"""Draws ``docs/images/how_attention_learns.svg``: IBM Model 1 on Multi30k, and the proxy's first step against width.

    PROBATTN_DATA=/data python docs/_figures/how_attention_learns.py

The folder must hold ``multi30k`` with ``{train,val}.{en,de}.gz``. It prints the figures that the page quotes; half
a minute on one core. Grey and the colours are legible on light and on dark pages.
"""

import os
import sys
from pathlib import Path

import matplotlib as mpl
import numpy as np
import torch
from matplotlib.axes import Axes
from style import GREY, STYLE
from torch.nn.utils.rnn import pad_sequence

from probattn.probes import (
    BagOfWordsProxy,
    IBMModel1,
    ParallelCorpus,
    Vocabulary,
    gradient_flow,
    gradient_flow_limit,
    mean_agreement,
    random_agreement,
    read_parallel,
)

mpl.use("svg")
from matplotlib import pyplot as plt  # after the choice of its output

FILE = Path(__file__).parents[1] / "images" / "how_attention_learns.svg"
SENTENCE = 88
"""Line of the validation set, counted from 0."""
PAIRS = 500
"""Pairs of the training set that the proxy sees; its derivative is a dense table."""
WIDTHS = (64, 256, 1024, 4096, 16384)
Sentences = list[list[str]]


def draw_alignment(axes: Axes, model: IBMModel1, pair: tuple[list[str], list[str]]) -> None:
    """One heat map: output words down, input words across."""
    source, target = pair
    ids = model.source_vocabulary.encode(source), model.target_vocabulary.encode(target)
    axes.imshow(model.attention(*ids).numpy(), cmap="magma", vmin=0, vmax=1, aspect="auto")
    axes.set_xticks(range(len(source)), source, rotation=60, ha="right", rotation_mode="anchor")
    axes.set_yticks(range(len(target)), target)
    axes.tick_params(length=0)
    axes.set_title(f"IBM Model 1, {model.steps} {'step' if model.steps == 1 else 'steps'}")


def flow_errors(corpus: ParallelCorpus) -> dict[str, list[float]]:
    """Relative errors of the derivative at initialisation, for every width."""
    limit = gradient_flow_limit(torch.from_numpy(IBMModel1.fit(corpus).counts.toarray()).float())
    errors: dict[str, list[float]] = {"logits": [], "probabilities": []}
    for width in WIDTHS:
        generator = torch.Generator().manual_seed(0)
        sizes = len(corpus.source_vocabulary), len(corpus.target_vocabulary)
        found = gradient_flow(BagOfWordsProxy(*sizes, width, generator=generator), corpus)
        for name, column in errors.items():
            truth = getattr(limit, name)
            column.append(float((getattr(found, name) - truth).norm() / truth.norm()))
    return errors


def draw_errors(axes: Axes, errors: dict[str, list[float]]) -> None:
    """Log-log, beside the slope of 1 / sqrt(d)."""
    for (name, column), look in zip(errors.items(), (("#4c78a8", "-"), ("#d9822b", "--")), strict=True):
        axes.plot(WIDTHS, column, color=look[0], linestyle=look[1], marker="o", markersize=4, label=name)
    guide = errors["logits"][0] * np.sqrt(WIDTHS[0] / np.array(WIDTHS))
    axes.plot(WIDTHS, guide, color=GREY, linewidth=0.8, linestyle=":", label="1 / √d")
    axes.set(xscale="log", yscale="log", xlabel="width d", title="proxy: error of the limit")
    axes.legend(frameon=False)


def padded(sentences: Sentences, vocabulary: Vocabulary) -> tuple[torch.Tensor, torch.Tensor]:
    """Numbers ``[B, S]`` and where they are words."""
    numbers = [vocabulary.encode(each) for each in sentences]
    ids = pad_sequence(numbers, batch_first=True, padding_value=-1)
    return ids, torch.arange(ids.shape[1]) < torch.tensor([len(each) for each in numbers]).unsqueeze(-1)


def tell(models: list[IBMModel1], corpus: ParallelCorpus, validation: tuple[Sentences, Sentences]) -> None:
    """What the page quotes."""
    source, mask = padded(validation[0], corpus.source_vocabulary)
    target, words = padded(validation[1], corpus.target_vocabulary)
    words &= target >= 0
    first, last = (each.attention(source, target, mask) for each in models)
    mean = mean_agreement(first, last, mask=mask.unsqueeze(1), query_mask=words)
    baseline = random_agreement(mask.sum(-1)).unsqueeze(-1).expand(words.shape)[words].mean()
    sys.stdout.write(f"agreement of 1 step with 5: {mean:.3f}, random baseline {baseline:.3f}\n")
    for model in models:
        nats = -model.log_likelihood(corpus) / corpus.target.sum()
        sys.stdout.write(f"{model.steps}: {nats:.3f} nats a word, {model.translations('dog', 3)}\n")


def main() -> None:
    """Writes the file."""
    folder = Path(os.environ["PROBATTN_DATA"]) / "multi30k"
    train = read_parallel(folder / "train.en.gz", folder / "train.de.gz")
    validation = read_parallel(folder / "val.en.gz", folder / "val.de.gz")
    corpus = ParallelCorpus.from_words(*train)
    models = [IBMModel1.fit(corpus, steps) for steps in (1, 5)]
    tell(models, corpus, validation)
    errors = flow_errors(ParallelCorpus.from_words(train[0][:PAIRS], train[1][:PAIRS]))
    for name, column in errors.items():
        sys.stdout.write(f"error of {name}: {', '.join(f'{each:.3f}' for each in column)}\n")
    with mpl.rc_context(STYLE | {"font.size": 9}):
        figure, axes = plt.subplots(1, 3, figsize=(9, 3.2), layout="constrained")
        for panel, model in zip(axes, models, strict=False):
            draw_alignment(panel, model, (validation[0][SENTENCE], validation[1][SENTENCE]))
        draw_errors(axes[2], errors)
        FILE.parent.mkdir(exist_ok=True)
        figure.savefig(FILE, transparent=True, metadata={"Date": None, "Creator": None})


if __name__ == "__main__":
    main()
