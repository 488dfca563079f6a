"""Intervals of predicted relatedness on SICK: their coverage before and after held-out pairs have stretched them.

    PROBATTN_DATA=/data python tests/benchmarks/study.py relatedness --seeds 3

MiniLM with a head of one number is fine-tuned on the 4,500 pairs of SICK's training part (relatedness from 1 to 5;
Marelli et al. 2014), intervals are stretched by its 500 trial pairs and measured on its 4,927 test pairs. It writes
docs/data/relatedness.json; runs that are in it are not run again.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Annotated, Any

import study
import torch
import typer
from scipy import stats
from torch import Tensor
from transformers import AutoModelForSequenceClassification, AutoTokenizer, DataCollatorWithPadding

import probattn
from probattn.data.files import data_file
from probattn.inference import OptimizerOptions, SVIDriver, posterior_predict
from probattn.metrics.functional import interval_coverage, interval_score, interval_stretch
from probattn.models import Regressor, convert
from probattn.tasks.classification.recipe import NetworkRecipe

PARTS = {"train": "SICK_train.txt", "held out": "SICK_trial.txt", "test": "SICK_test_annotated.txt"}
METHODS: dict[str, probattn.BayesianAttention | None] = {
    "deterministic": None,
    "babn": probattn.BayesianAttention(),
    "bam": probattn.BayesianAttention.bam(),
}
LEVELS = (0.8, 0.95)
ORIGIN = "https://zenodo.org/records/2787612"


@dataclass(kw_only=True)
class RelatednessStudy(study.FileStudy):
    """Attention methods over seeds."""

    seeds: study.Seeds = 3
    methods: study.Names = None
    output: study.Output = study.DATA / "relatedness.json"
    epochs: Annotated[int, typer.Option(help="Passes over the training pairs.")] = 2
    draws: Annotated[int, typer.Option(help="Posterior draws of a prediction.")] = 20
    limit: Annotated[int | None, typer.Option(help="Most pairs of a part.")] = None
    network: Annotated[str, typer.Option(help="minilm or a folder.")] = "minilm"

    words = "{method}, seed {seed}"
    shown = ("pearson", "coverage_80", "stretched_coverage_80", "coverage_95", "stretched_coverage_95")

    def __post_init__(self) -> None:
        self.names = study.chosen("methods", self.methods, METHODS)

    def setting(self) -> study.Content:
        """Sizes and options that all runs share."""
        return {
            "network": self.network,
            "epochs": self.epochs,
            "limit": self.limit,
            "batch_size": 32,
            "draws": self.draws,
        }

    def begin(self) -> study.Content:
        """The file so far."""
        return study.earlier(self.output, "--output") if self.output.exists() else super().begin()

    def jobs(self) -> Iterator[study.Job]:
        """Seed by seed, all methods."""
        for seed, method in product(range(self.seeds), self.names):
            yield study.Job({"method": method, "seed": seed})

    def order(self, run: study.Run) -> Any:
        """By method, then seed."""
        return list(METHODS).index(run["method"]), run["seed"]

    def measure(self, job: study.Job) -> study.Run:
        """Trains a network, stretches its intervals on the held-out pairs and measures them on the test pairs."""
        folder = NetworkRecipe(name=self.network).locate()
        torch.manual_seed(job.head["seed"])
        net = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=1)
        method = METHODS[job.head["method"]]
        if method is not None:
            convert(net, method)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        parts = {name: pairs(file, tokenizer, self.limit) for name, file in PARTS.items()}
        train = parts["train"]
        program, collate = Regressor(net, num_data=len(train)), DataCollatorWithPadding(tokenizer)
        driver = SVIDriver(
            program,
            batch_size=32,
            seed=job.head["seed"],
            optimizer=OptimizerOptions(learning_rate=5e-5),
            collate=collate,
            cpu=True,
            progress=False,
        )
        driver.fit(train, epochs=self.epochs)
        draws = 1 if method is None else self.draws
        predicted = {name: predictions(program, parts[name], collate, draws) for name in ("held out", "test")}
        return figures(*predicted["held out"], *predicted["test"])


def pairs(file: str, tokenizer: Any, limit: int | None) -> list[dict[str, Any]]:
    """Tokenized pairs of a part with their relatedness."""
    with data_file("SICK", f"sick/{file}", origin=ORIGIN).open(encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))[:limit]
    tokens = tokenizer(
        [row["sentence_A"] for row in rows], [row["sentence_B"] for row in rows], truncation=True
    )
    return [
        {name: values[number] for name, values in tokens.items()}
        | {"labels": float(row["relatedness_score"])}
        for number, row in enumerate(rows)
    ]


def predictions(
    program: Regressor, rows: Sequence[Mapping[str, Any]], collate: Any, draws: int
) -> tuple[Any, Tensor]:
    """The posterior of all rows, short ones first, and their numbers."""
    rows = sorted(rows, key=lambda row: len(row["input_ids"]))
    loader = torch.utils.data.DataLoader(rows, batch_size=32, collate_fn=collate)
    return posterior_predict(program, loader, draws), torch.tensor([row["labels"] for row in rows])


def figures(held: Any, held_target: Tensor, posterior: Any, target: Tensor) -> dict[str, float]:
    """What is measured of a run."""
    mean = posterior.mean[:, 0]
    found = {
        "pearson": float(stats.pearsonr(mean, target).statistic),
        "spearman": float(stats.spearmanr(mean, target).statistic),
        "rmse": (mean - target).square().mean().sqrt().item(),
        "noise": posterior.noise.std.item(),
        "spread": posterior.std.mean().item(),
    }
    for level in LEVELS:
        stretch = interval_stretch(held.interval(level), held_target, level).item()
        for name, factor in (("", 1.0), ("stretched_", stretch)):
            ends = posterior.interval(level, stretch=factor)
            percent = f"{100 * level:.0f}"
            found |= {
                f"{name}coverage_{percent}": interval_coverage(ends, target).item(),
                f"{name}width_{percent}": (ends[1] - ends[0]).mean().item(),
                f"{name}score_{percent}": interval_score(ends[..., 0], target, level).mean().item(),
            }
        found[f"stretch_{percent}"] = stretch
    return found


STUDY = RelatednessStudy
