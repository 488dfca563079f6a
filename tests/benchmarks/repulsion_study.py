"""What repulsion does to heads and to accuracy, over seeds: the self-attentive sentence classifier, and a Transformer.

    PROBATTN_DATA=/data python tests/benchmarks/repulsion_study.py runs/repulsion --seeds 5

Trained for every seed and subject (a network and its data): the network as it is, and with each method. Networks or
their training are smaller than the recipes' (`SUBJECTS`); `--full` takes the recipes as they are. A run that is
finished is not run again and one that was interrupted is resumed, so the study can be stopped at any time; with
`--finished` it trains nothing. It writes docs/data/repulsion.json.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import torch
import typer
from paired_runs import differences, means, ratio

from probattn.cli.aligning import captured
from probattn.cli.evaluating import package_versions
from probattn.cli.trained import EvaluationOptions, TrainedModel, load_model
from probattn.cli.training import RECIPE, prepare, train_run
from probattn.data import TextDataset
from probattn.inference.report import site_heads
from probattn.models import head_redundancy, inspect
from probattn.models.hosts.projections import head_lengths
from probattn.recipes import load_recipe

PLAIN = "plain"


@dataclass(frozen=True)
class Subject:
    """What is trained.

    Attributes:
        recipe: its name.
        reduced: keys that make it small enough for two CPU cores.
        without: methods that are another one here.
    """

    recipe: str
    reduced: tuple[str, ...]
    without: tuple[str, ...] = ()


SMALL_CLASSIFIER = (
    "network.config={hidden_size: 64, attention_size: 64, num_attention_heads: 30, classifier_size: 200}",
)
SUBJECTS: Mapping[str, Subject] = MappingProxyType(
    {
        "trec": Subject("trec_self_attentive", SMALL_CLASSIFIER),
        "sst2": Subject("sst2_self_attentive", (*SMALL_CLASSIFIER, "training.epochs=2")),
        "sst2_transformer": Subject(
            "sentiment_repulsive",
            (
                "data.limits={train: 3200, shifted: 2, out_of_domain: 2}",
                "training.epochs=null",
                "training.steps=200",
                "training.batch_size=16",
            ),
            without=("svgd_strong",),
        ),
    }
)
"""By the name that results go by: the first two are the self-attentive classifier, the last is MiniLM."""

METHODS: Mapping[str, Sequence[str]] = MappingProxyType(
    {
        PLAIN: ("repulsion=null",),
        "svgd": ("repulsion.sampler=svgd",),
        "svgd_strong": ("repulsion.sampler=svgd", "repulsion.weight=0.01"),
        "spos": ("repulsion.sampler=spos",),
        "sgld": ("repulsion.sampler=sgld",),
        "svgd_normal": ("repulsion.sampler=svgd", "repulsion.prior=1.0"),
        "frobenius": ("repulsion=null", "disagreement={method: frobenius, weight: 1.0}"),
    }
)
"""Keys of the recipe that each method changes; the first is what all are compared with.

The weight of `svgd_strong` is the paper's, which MiniLM's recipe has.
"""

MASKED = (PLAIN, "svgd")
"""Methods whose first seed is measured without each of its heads, too, and that can have more seeds."""

MASKED_TEXTS = 300
"""Test texts for that."""

MEASURED = "measured.json"
"""What a finished run's folder holds."""

MEASURES = ("accuracy", "distance", "relative_distance", "overlap", "cosine", "norm")
OUTPUT = Path(__file__).resolve().parents[2] / "docs" / "data" / "repulsion.json"

Run = dict[str, Any]


@dataclass(frozen=True)
class Job:
    """One network to train and measure.

    Attributes:
        subject: one of :data:`SUBJECTS`.
        method: one of :data:`METHODS`.
        seed: of the run.
    """

    subject: str
    method: str
    seed: int

    @property
    def folder(self) -> str:
        """Where it lies in the study's folder."""
        return f"{self.subject}/{self.method}/seed-{self.seed}"

    @property
    def overrides(self) -> list[str]:
        """Keys of the recipe that it changes."""
        return [*METHODS[self.method], f"training.seed={self.seed}", "report.baseline=false"]


def jobs(seeds: int, subjects: Sequence[str], methods: Sequence[str], more: int = 0) -> list[Job]:
    """What is to be done, seed by seed, so that every method has as many as the others when the study is stopped.

    Args:
        seeds: of every method.
        subjects: what is trained.
        methods: with which methods.
        more: seeds of the methods in :data:`MASKED` after those.
    """
    first, later = range(seeds), range(seeds, seeds + more)
    kept = [method for method in methods if method in MASKED]
    found = (*product(first, subjects, methods), *product(later, subjects, kept))
    return [Job(name, method, seed) for seed, name, method in found if method not in SUBJECTS[name].without]


def run_one(job: Job, recipe_name: str, overrides: Sequence[str], folder: Path) -> Run:
    """Trains and measures one network, or reads what is there."""
    place = folder / job.folder
    file = place / MEASURED
    if file.exists():
        found: Run = json.loads(file.read_text(encoding="utf-8"))
        return found
    recipe = load_recipe(recipe_name, [*job.overrides, *overrides])
    prepared = prepare(recipe)
    result = train_run(prepared, place, resume=(place / RECIPE).exists(), quiet=True)["model"]
    found = asdict(job) | {"steps": result.step, "seconds": round(result.seconds, 1)}
    trained, options = load_model(place), EvaluationOptions.of(recipe)
    found |= measure(trained, prepared.task.test, options)
    if job.seed == 0 and job.method in MASKED:
        found["redundancy"] = redundancy(trained, prepared.task.test.take(MASKED_TEXTS), options)
    file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return found


def measure(trained: TrainedModel, data: TextDataset, options: EvaluationOptions) -> dict[str, float]:
    """Accuracy, and how different the heads are over all texts: means over attention calls; the length of queries."""
    rows = data.rows(data.shortest_first())
    calls = inspect(trained.net)
    sites = site_heads(captured(trained, rows, options, calls), trained.key, head_lengths(trained.net, calls))
    found = {
        "distance": [site.distance for site in sites],
        "relative_distance": [site.relative for site in sites],
        "overlap": [site.overlap for site in sites if site.overlap is not None],
        "cosine": [_between(torch.tensor(site.similarity)) for site in sites],
        "norm": [site.lengths["query"] for site in sites],
    }
    return {"accuracy": accuracy(trained, rows, options)} | {
        name: statistics.fmean(values) for name, values in found.items()
    }


def redundancy(trained: TrainedModel, data: TextDataset, options: EvaluationOptions) -> dict[str, Any]:
    """Accuracy on the texts with all heads, and how far it falls without each, call after call."""
    calls = inspect(trained.net)
    found = head_redundancy(trained.net, lambda: accuracy(trained, data, options), calls)
    return {"texts": len(data), "accuracy": found.whole, "drops": [found.drops[call.name] for call in calls]}


def accuracy(trained: TrainedModel, data: TextDataset, options: EvaluationOptions) -> float:
    """Share of the labelled texts that are classified right."""
    right = 0
    for batch in trained.batches(data, options):
        inputs = {name: values.to(trained.device) for name, values in batch.items() if name != "labels"}
        with torch.no_grad():
            right += int((trained.model(inputs).argmax(dim=-1).cpu() == batch["labels"]).sum())
    return right / len(data)


def _between(similarity: torch.Tensor) -> float:
    """The mean over pairs of different heads."""
    heads = len(similarity)
    return float(similarity.sum() - similarity.trace()) / (heads * (heads - 1))


def summarise(runs: Sequence[Run]) -> dict[str, Any]:
    """Means over seeds by subject and method, and differences and ratios to the plain network of the same seed."""
    summary: dict[str, Any] = {}
    for subject, method in dict.fromkeys((run["subject"], run["method"]) for run in runs):
        of_subject = [run for run in runs if run["subject"] == subject]
        plain = {run["seed"]: run for run in of_subject if run["method"] == PLAIN}
        own = [run for run in of_subject if run["method"] == method]
        row = means(own, MEASURES)
        if method != PLAIN and plain:
            row |= {
                "difference": differences(own, plain, MEASURES),
                "relative_distance_ratio": ratio(own, plain, "relative_distance"),
            }
        summary.setdefault(subject, {})[method] = row
    return summary


def write(runs: Sequence[Run], setting: Mapping[str, Any], output: Path) -> None:
    """Writes settings, runs and their summary."""
    output.parent.mkdir(parents=True, exist_ok=True)
    content = {"setting": setting, "runs": runs, "summary": summarise(runs)}
    output.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def reductions(subject: str, full: bool) -> list[str]:
    """Keys that make a subject small, none of them at full size."""
    return [] if full else list(SUBJECTS[subject].reduced)


def main(
    folder: Annotated[Path, typer.Argument(help="Where the runs go.")],
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds, from 0.")] = 5,
    more: Annotated[int, typer.Option(min=0, help="Further seeds of the network as it is and of SVGD.")] = 0,
    subjects: Annotated[str, typer.Option(help="Subjects, separated by commas.")] = ",".join(SUBJECTS),
    methods: Annotated[str, typer.Option(help="Methods, separated by commas.")] = ",".join(METHODS),
    output: Annotated[Path, typer.Option(help="The file of results.")] = OUTPUT,
    *,
    full: Annotated[bool, typer.Option("--full", help="Sizes of the recipes.")] = False,
    finished: Annotated[
        bool, typer.Option("--finished", help="Train nothing; take what is finished.")
    ] = False,
    set_: Annotated[list[str] | None, typer.Option("--set", help="Override a key of the recipes.")] = None,
) -> None:
    """Runs what is missing, seed by seed, and writes the results after each run."""
    chosen = {"subjects": subjects.split(","), "methods": methods.split(",")}
    for option, known in (("subjects", SUBJECTS), ("methods", METHODS)):
        unknown = [name for name in chosen[option] if name not in known]
        if unknown:
            raise typer.BadParameter(f"{option}: expected some of {', '.join(known)}, got {unknown[0]!r}")
    overrides = {name: [*reductions(name, full), *(set_ or [])] for name in chosen["subjects"]}
    setting = {
        "recipes": {name: SUBJECTS[name].recipe for name in chosen["subjects"]},
        "methods": {name: list(METHODS[name]) for name in chosen["methods"]},
        "overrides": overrides,
        "versions": package_versions(),
    }
    runs: list[Run] = []
    for job in jobs(seeds, chosen["subjects"], chosen["methods"], more):
        if finished and not (folder / job.folder / MEASURED).exists():
            continue
        runs.append(run_one(job, SUBJECTS[job.subject].recipe, overrides[job.subject], folder))
        write(runs, setting, output)
        said = ", ".join(f"{name} {runs[-1][name]:.4f}" for name in MEASURES)
        typer.echo(f"{job.folder}: {said}")


if __name__ == "__main__":
    typer.run(main)
