"""BLEU of translation networks by what is done to their heads or to their attention, over seeds.

    PROBATTN_DATA=/data python tests/benchmarks/translation_study.py heads runs/heads --seeds 3
    PROBATTN_DATA=/data python tests/benchmarks/translation_study.py latent runs/latent --seeds 3

Trained for every seed: for `heads` the Transformer of a recipe as it is, with heads that repel each other in all layers
and in the first of each stack, and with disagreement regularisation (Table 2's and 8's form of An et al. 2020); for
`latent` the LSTM network with soft attention, variational attention (Deng et al. 2018) by enumeration and by sampling,
and Bayesian attention modules and belief networks (the table of Zhang et al. 2021). A run that is finished is not run
again and one that was interrupted is resumed, so the study can be stopped at any time. Times are measured after that,
method after method in several rounds (`translation_times.py`), and kept beside the runs. It writes
docs/data/translation.json and docs/data/translation_latent.json.
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
import translation_times
import typer
from paired_runs import differences, means

from probattn.data import PairCollate, SentencePairs, TokenizedPairs
from probattn.metrics.functional import attention_overlap, head_distance
from probattn.models import capture
from probattn.tasks import Network, Translation, load_network, load_task, train
from probattn.tasks.run import package_versions
from probattn.tasks.task import RECIPE

PLAIN = "plain"
METHODS: Mapping[str, Mapping[str, Sequence[str]]] = MappingProxyType(
    {
        "heads": {
            PLAIN: ("repulsion=null",),
            "disagreement": ("repulsion=null", "disagreement={method: outputs, weight: 1.0}"),
            "svgd": (),
            "svgd_first": ("repulsion.layers=first",),
        },
        "latent": {
            PLAIN: (),
            "va_enumerate": ("attention={method: variational, estimator: enumerate}",),
            "va_sample": ("attention={method: variational, estimator: sample}",),
            "bam": ("attention={method: bam}",),
            "babn": ("attention={method: babn}",),
        },
    }
)
"""Keys of the recipe that each method of a comparison changes; the first is what all are compared with."""

RECIPES: Mapping[str, str] = MappingProxyType(
    {"heads": "multi30k_reduced", "latent": "multi30k_lstm_reduced"}
)
QUALITY = ("bleu", "perplexity", "token_accuracy")
DIFFERENCE = ("distance", "relative_distance", "overlap")
MEASURES: Mapping[str, Sequence[str]] = MappingProxyType(
    {"heads": (*QUALITY, *DIFFERENCE), "latent": QUALITY}
)
SEEN = 200
"""Test pairs over which heads are compared."""

DATA = Path(__file__).resolve().parents[2] / "docs" / "data"
OUTPUTS = {"heads": DATA / "translation.json", "latent": DATA / "translation_latent.json"}

Run = dict[str, Any]


@dataclass(frozen=True)
class Job:
    """One network to train and measure.

    Attributes:
        comparison: one of :data:`METHODS`.
        method: one of that comparison's.
        seed: of the run.
    """

    comparison: str
    method: str
    seed: int

    @property
    def folder(self) -> str:
        """Where it lies in the study's folder."""
        return f"{self.method}/seed-{self.seed}"

    @property
    def overrides(self) -> list[str]:
        """Keys of the recipe that it changes."""
        return [*METHODS[self.comparison][self.method], f"training.seed={self.seed}", "report.baseline=false"]


def run_one(job: Job, recipe_name: str, overrides: Sequence[str], folder: Path) -> Run:
    """Trains and measures one network, or reads what is there."""
    place = folder / job.folder
    file = place / "measured.json"
    if file.exists():
        found: Run = json.loads(file.read_text(encoding="utf-8"))
        return found
    task = load_task(recipe_name, [*job.overrides, *overrides])
    if not isinstance(task, Translation):
        raise typer.BadParameter(f"recipe: expected one of translation, {recipe_name} is not")
    result = train(task, place, resume=(place / RECIPE).exists(), quiet=True)["model"]
    results = task.evaluate(place)
    (scores,) = results.scores
    trained = load_network(place)
    found = asdict(job) | {
        "steps": result.step,
        "seconds": round(result.seconds, 1),
        "parameters": trained_parameters(task),
        "signature": results.signature,
        "bleu": scores.bleu,
        "perplexity": scores.perplexity,
        "token_accuracy": scores.token_accuracy,
    }
    if job.comparison == "heads":
        found |= heads(trained, task.splits.test)
    file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return found


def trained_parameters(task: Translation) -> int:
    """How many numbers are trained: those of the network and, of latent alignments, those of the posterior."""
    model = task.program()
    guide = task.driver_options(model).get("guide")
    parts = (model,) if guide is None else (model, guide)
    return sum(parameter.numel() for part in parts for parameter in part.parameters())


def heads(trained: Network[Any], test: SentencePairs) -> dict[str, float]:
    """How different the heads are: means over attention calls, on the first test pairs."""
    rows = TokenizedPairs(test.rows(range(min(SEEN, len(test)))), trained.codec)
    batch = PairCollate()([rows[row] for row in range(len(rows))])
    inputs = {name: tensor.to(trained.device) for name, tensor in batch.items() if name != "labels"}
    with torch.no_grad():
        calls = capture(trained.net, inputs).values()
    distances = [head_distance(call.output, call.query_valid) for call in calls]
    overlaps = [attention_overlap(call.weights, call.query_valid) for call in calls]
    return {
        "distance": statistics.fmean(found.distance.item() for found in distances),
        "relative_distance": statistics.fmean(found.relative.item() for found in distances),
        "overlap": statistics.fmean(found.item() for found in overlaps),
    }


def times(
    folder: Path, recipe: str, methods: Mapping[str, Sequence[str]], keys: Sequence[str], rounds: int
) -> Run:
    """Times of an update, measured or as they stand beside the runs."""
    file = folder / "times.json"
    asked = {
        "recipe": recipe,
        "keys": {name: [*own, *keys] for name, own in methods.items()},
        "rounds": rounds,
    }
    if file.exists():
        found: Run = json.loads(file.read_text(encoding="utf-8"))
        if found["asked"] == asked:
            return found
    found = {"asked": asked} | translation_times.measure(recipe, methods, keys, rounds, PLAIN)
    file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return found


def summarise(runs: Sequence[Run], timed: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Means over seeds by method, differences to the plain network of the same seed, and times where there are."""
    plain = {run["seed"]: run for run in runs if run["method"] == PLAIN}
    summary: dict[str, Any] = {}
    for method in dict.fromkeys(run["method"] for run in runs):
        own = [run for run in runs if run["method"] == method]
        measures = MEASURES[own[0]["comparison"]]
        summary[method] = means(own, measures) | {"parameters": own[0]["parameters"]}
        if method != PLAIN and plain:
            summary[method]["difference"] = differences(own, plain, measures)
        if timed is not None:
            summary[method] |= timed["methods"][method]
    return summary


def write(
    runs: Sequence[Run], setting: Mapping[str, Any], output: Path, timed: Mapping[str, Any] | None = None
) -> None:
    """Writes settings, runs and their summary."""
    output.parent.mkdir(parents=True, exist_ok=True)
    content = {"setting": setting, "runs": runs, "summary": summarise(runs, timed)}
    output.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def main(
    comparison: Annotated[str, typer.Argument(help="What is compared: heads or latent.")],
    folder: Annotated[Path, typer.Argument(help="Where the runs go.")],
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds, from 0.")] = 3,
    methods: Annotated[str | None, typer.Option(help="Methods, separated by commas; all by default.")] = None,
    recipe: Annotated[
        str | None, typer.Option(help="The recipe; multi30k_small and multi30k_lstm have the full sizes.")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Turns of each method when times are measured.")] = 5,
    output: Annotated[Path | None, typer.Option(help="The file of results.")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="Override a key of the recipe.")] = None,
) -> None:
    """Runs what is missing, seed by seed, and writes the results after each run."""
    if comparison not in METHODS:
        raise typer.BadParameter(f"comparison: expected one of {', '.join(METHODS)}, got {comparison!r}")
    known, recipe = METHODS[comparison], recipe or RECIPES[comparison]
    chosen = list(known) if methods is None else methods.split(",")
    unknown = [name for name in chosen if name not in known]
    if unknown:
        raise typer.BadParameter(f"methods: expected some of {', '.join(known)}, got {unknown[0]!r}")
    overrides = list(set_ or [])
    setting = {
        "recipe": recipe,
        "methods": {name: list(known[name]) for name in chosen},
        "overrides": overrides,
        "versions": package_versions(),
    }
    runs: list[Run] = []
    for seed, method in product(range(seeds), chosen):
        job = Job(comparison, method, seed)
        runs.append(run_one(job, recipe, overrides, folder))
        write(runs, setting, output or OUTPUTS[comparison])
        said = ", ".join(f"{name} {runs[-1][name]:.4f}" for name in MEASURES[comparison])
        typer.echo(f"{job.folder}: {said}")
    if PLAIN in chosen:
        timed = times(folder, recipe, {name: known[name] for name in chosen}, overrides, rounds)
        write(runs, setting, output or OUTPUTS[comparison], timed)


if __name__ == "__main__":
    typer.run(main)
