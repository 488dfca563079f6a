"""Accuracy and calibration in one domain and in others, with temperature scaling and label smoothing.

    PROBATTN_DATA=/data python tests/benchmarks/study.py domain runs/domain --seeds 3

Trained in one domain, measured there and on the same task elsewhere, as in table 2 of Zhang et al. (ICML 2021) and of
Zhang et al. (NeurIPS 2021). The temperature is that of the validation texts of the training domain (Guo et al. 2017).
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Annotated, Any

import methods_study
import study
import torch
import typer
from rich.console import Console
from rich.table import Table
from torch import Tensor

from probattn.data import TextDataset, text_key
from probattn.metrics.functional import best_temperature, calibration_error
from probattn.tasks import Classification, Network, load_network

MERGED = "label_map: {neutral: not_entailment, contradiction: not_entailment}"
VADER = ("vader_movies", "vader_products", "vader_tweets", "vader_editorials")
TASKS: dict[str, list[str]] = {
    "sentiment": [
        "data.train=sst2",
        f"data.shifted=[customer_reviews, imdb, textfooler_yelp, {', '.join(VADER)}]",
        "data.max_length=64",
        "data.limits={train: 2000, validation: 500, test: 900, shifted: 500}",
    ],
    "inference": [
        "data.train=snli",
        "data.shifted=[mnli, sick]",
        "data.max_length=64",
        "data.limits={train: 4000, validation: 500, test: 900, shifted: 900}",
    ],
    "entailment": [
        f"data.train={{source: snli, {MERGED}}}",
        f"data.shifted=[scitail, rte, {{source: sick, {MERGED}}}]",
        "data.max_length=96",
        "data.limits={train: 4000, validation: 500, test: 900, shifted: 900}",
    ],
    "relatedness": [
        f"data.train={{source: sick, {MERGED}}}",
        "data.shifted=[rte, scitail]",
        "data.max_length=96",
        "data.limits={validation: 500, test: 1000, shifted: 1000}",
    ],
    "paraphrase": [
        "data.train=mrpc",
        "data.shifted=[qqp]",
        "data.max_length=96",
        "data.limits={shifted: 1000}",
    ],
}
SOFT = "attention.method=deterministic"
VARIANTS: dict[str, list[str]] = {
    "soft": [SOFT],
    "label smoothing": [SOFT, "training.label_smoothing=0.1"],
    "bam": ["attention.method=bam"],
    "babn": [],
    "aligned": [SOFT, "alignment={method: ct, weight: 0.01, reduction: mean, learning_rate: 1e-3}"],
    "repulsive": [SOFT, "repulsion={projections: [query, key], weight: 1e-3}"],
}
"""Keys of the recipe by variant."""
MEASURES = ("accuracy", "ece", "scaled_ece", "nll", "scaled_nll")
OTHERS = "other domains"
"""Name of the mean over the domains that a network was not trained in."""


def figures(probabilities: Tensor, labels: Tensor, temperature: Tensor) -> dict[str, float]:
    """Accuracy, and calibration error and likelihood as they are and at a temperature."""
    found = {"accuracy": (probabilities.argmax(dim=-1) == labels).double().mean().item()}
    logs = probabilities.double().clamp_min(1e-12).log()
    for prefix, values in (("", logs), ("scaled_", logs / temperature)):
        scaled = values.log_softmax(dim=-1)
        found[f"{prefix}ece"] = calibration_error(scaled.exp(), labels).item()
        found[f"{prefix}nll"] = torch.nn.functional.nll_loss(scaled, labels).item()
    return found


def measured(network: Network[Any], task: Classification) -> dict[str, dict[str, float]]:
    """Figures by data set, of the mean over draws where attention is latent, and the temperature.

    Texts that the network was trained on, as about half of VADER's film snippets, are left out.
    """
    trained = task.texts.train.keys()
    data: dict[str, TextDataset] = {"validation": task.texts.validation, **task.measured()}
    data.pop("out_of_domain", None)
    found: dict[str, dict[str, float]] = {}
    temperature = torch.tensor(1.0)
    for key, texts in data.items():
        new = [text_key(text, texts.pair(row)) not in trained for row, text in enumerate(texts.texts)]
        probabilities = study.probabilities(network, task, texts)[new]
        labels = torch.tensor(texts.labels)[new]
        if key == "validation":
            temperature = best_temperature(probabilities.double().clamp_min(1e-12).log(), labels)
            found[key] = {"temperature": temperature.item()}
        else:
            name = "home" if key == "test" else texts.source.partition(" ")[0]
            found[name] = figures(probabilities, labels, temperature) | {"texts": sum(new)}
    return found


def with_mean(run: study.Run) -> study.Run:
    """The run with the mean over its other domains beside them, each domain counting once."""
    others = [figures for name, figures in run["data"].items() if name not in {"validation", "home"}]
    mean = {name: statistics.fmean(each[name] for each in others) for name in MEASURES}
    return {**run, "data": {**run["data"], OTHERS: mean}} if len(others) > 1 else run


def summarise(runs: Sequence[study.Run]) -> study.Content:
    """By task, data set and variant: means with intervals, and differences to soft attention of the same seed."""
    runs = [with_mean(run) for run in runs]
    summary: study.Content = {}
    for task, variant in dict.fromkeys((run["task"], run["variant"]) for run in runs):
        own = [*study.by_seed(runs, task=task, variant=variant).values()]
        base = study.by_seed(runs, task=task, variant="soft")
        for data in own[0]["data"]:
            if data == "validation":
                continue
            row: study.Content = {}
            for measure in MEASURES:

                def value(run: study.Run, data: str = data, measure: str = measure) -> float:
                    return float(run["data"][data][measure])

                row[measure] = {"value": study.interval(map(value, own))}
                gap = study.paired(own, base, lambda run, other, value=value: value(run) - value(other))
                if variant != "soft" and gap is not None:
                    row[measure]["difference"] = gap
            summary.setdefault(task, {}).setdefault(data, {})[variant] = row
    return summary


def table(summary: Mapping[str, Any]) -> Table:
    """Accuracy and calibration errors in percent, and the difference of accuracy to soft attention."""
    shown = Table()
    for heading in ("task", "data", "variant", "accuracy", "difference", "ECE", "ECE, scaled", "seeds"):
        shown.add_column(heading, no_wrap=True)
    for task, sets in summary.items():
        for data, variants in sets.items():
            for variant, row in variants.items():
                gap = row["accuracy"].get("difference")
                words = "" if gap is None else f"{100 * gap['mean']:+.1f}"
                if gap is not None and gap["low"] is not None:
                    words += f" [{100 * gap['low']:+.1f}, {100 * gap['high']:+.1f}]"
                means = [
                    f"{100 * row[name]['value']['mean']:.1f}" for name in ("accuracy", "ece", "scaled_ece")
                ]
                seeds = str(row["accuracy"]["value"]["seeds"])
                shown.add_row(task, data, variant, means[0], words, *means[1:], seeds)
    return shown


@dataclass(kw_only=True)
class DomainStudy(study.Study):
    """Variants of one recipe of classification, trained in one domain."""

    folder: study.Folder
    seeds: study.Seeds = 3
    tasks: study.Names = "sentiment,inference,relatedness"
    variants: study.Names = None
    recipe: Annotated[str, typer.Option(help="Recipe that tasks and variants change.")] = "sentiment_babn"
    output: study.Output = study.DATA / "domains.json"
    set_: study.Keys = None

    summarise = staticmethod(summarise)

    def __post_init__(self) -> None:
        self.names = (
            study.chosen("tasks", self.tasks, TASKS),
            study.chosen("variants", self.variants, VARIANTS),
        )

    def setting(self) -> study.Content:
        """Keys that all runs change."""
        return {"recipe": self.recipe, "set": self.overrides}

    def jobs(self) -> Iterator[study.Job]:
        """The variants of each task, seed by seed."""
        common = (
            "data.out_of_domain=null",
            "report.baseline=false",
            "training.epochs=2",
            *methods_study.KEPT,
            *methods_study.REDUCED,
        )
        for seed, task, name in product(range(self.seeds), *self.names):
            keys = (*common, *TASKS[task], *VARIANTS[name], *self.overrides, f"training.seed={seed}")
            head = {"task": task, "variant": name, "seed": seed}
            folder = f"{task}/{name.replace(' ', '_')}/seed-{seed}"
            yield study.Job(head, self.recipe, keys, folder)

    def measure(self, job: study.Job) -> study.Run:
        """Trains a network and measures it in every domain."""
        place = self.place(job)
        task, trained = study.fit(job, place)
        return {"data": measured(load_network(place), task), "seconds": trained.seconds}

    def said(self, run: study.Run) -> str:
        return ", ".join(
            f"{name} {values['accuracy']:.3f}" for name, values in run["data"].items() if "accuracy" in values
        )

    def main(self) -> study.Content:
        """Prints the table of all runs."""
        content = super().main()
        Console(width=120).print(table(summarise(content["runs"])))
        return content


STUDY = DomainStudy
