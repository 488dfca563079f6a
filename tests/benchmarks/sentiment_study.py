"""Accuracy and uncertainty of attention methods over seeds, paired with the deterministic network of the same seed.

    python tests/benchmarks/sentiment_study.py runs/study --seeds 5

Each variant overrides keys of one recipe. A run that is finished is not run again and one that was interrupted is
resumed, so the study can be stopped at any time; the table is made of the runs that are there.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table

from probattn.inference.predictive import posterior_expectation
from probattn.inference.report import (
    Measure,
    ModelKey,
    Results,
    SiteHealth,
    read_results,
)
from probattn.metrics.functional import mean_interval
from probattn.recipes import Recipe, load_recipe
from probattn.tasks import Classification, Network, evaluate, load_network, train
from probattn.tasks.task import RECIPE

VARIANTS: dict[str, list[str]] = {
    "deterministic": ["attention.method=deterministic"],
    "babn": [],
    "babn truncated noise": ["attention.noise=truncated"],
    "babn KL over keys": ["attention.kl_reduction=keys"],
    "babn KL summed": ["attention.kl_reduction=sum"],
    "babn KL weight 1": ["training.kl_weight=1"],
    "babn rho 1.5": ["attention.rho=1.5"],
    "babn rho 3": ["attention.rho=3"],
    "bam": ["attention.method=bam"],
}
BASELINE = "deterministic"
HEALTH = ("spread", "concentration", "kl_nats", "kl_reduced")
REST = "rest.json"
"""Accuracy of a run on training texts that it was not trained on."""
MEASURES: tuple[Measure, ...] = (
    "accuracy",
    "nll",
    "ece",
    "overconfidence",
    "pavpu",
    "aurc",
    "auroc",
    "fpr95",
)


def rest_accuracy(trained: Network[Any], task: Classification, number: int) -> dict[str, float]:
    """Accuracy of the point prediction on training texts beyond ``data.limits.train``.

    The posterior expectation of a Bayesian network, one pass a text: more texts than the test set has, for less.
    """
    recipe = task.recipe
    everything = recipe.data.model_copy(
        update={"limits": recipe.data.limits.model_copy(update={"train": None})}
    )
    used = frozenset(task.texts.train.texts)
    pool = everything.load().train
    left = [row for row, text in enumerate(pool.texts) if text not in used]
    if not left:
        return {}
    rest = pool.rows(left).take(number)  # as the limits of a recipe choose: the file is in order of class
    rest = rest.rows(rest.shortest_first())
    assert rest.labels is not None
    batches = task.batches(trained, rest)
    guesses = [posterior_expectation(trained.program, plain(batch)).argmax(dim=-1) for batch in batches]
    right = torch.cat(guesses) == torch.tensor(rest.labels)
    return {"accuracy": right.double().mean().item(), "texts": len(rest)}


def plain(batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A batch without its labels."""
    return {name: values for name, values in batch.items() if name != "labels"}


def run_one(recipe: Recipe, folder: Path, rest: int = 0) -> Results:
    """Trains and evaluates one variant with one seed, or reads what is there."""
    file = folder / "metrics.json"
    if file.exists():
        return read_results(file)
    task = Classification(recipe)
    if not (folder / "model").is_dir():
        train(task, folder, resume=(folder / RECIPE).exists(), quiet=True)
    if rest:
        found = rest_accuracy(load_network(folder), task, rest)
        (folder / REST).write_text(json.dumps(found) + "\n", encoding="utf-8")
    results: Results = evaluate(task, folder)
    return results


def scores(results: Results, rest: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """Measures by data set, of the mean over draws or of the deterministic network; "rest" is a point prediction's."""
    model: ModelKey = (
        "deterministic" if results.score("bayesian_mean", results.in_domain.key) is None else "bayesian_mean"
    )
    found: dict[str, dict[str, float]] = {}
    for data in results.data:
        score = results.score(model, data.key)
        assert score is not None
        values = {measure: score.measure(measure) for measure in MEASURES}
        found[data.key] = {measure: value for measure, value in values.items() if value is not None}
    if rest:
        found["rest"] = {"accuracy": rest["accuracy"]}
    return found


def rest_of(folder: Path) -> dict[str, float]:
    """What :func:`rest_accuracy` left in a run's folder; empty where it was not asked for."""
    file = folder / REST
    found: dict[str, float] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    return found


def summarise(
    runs: Mapping[str, Mapping[int, Results]], rest: Mapping[str, Mapping[int, Mapping[str, float]]]
) -> dict[str, Any]:
    """Differences to the deterministic network of the same seed, and the posterior's health, over seeds."""
    measured = {
        variant: {seed: scores(found, rest[variant][seed]) for seed, found in seeds.items()}
        for variant, seeds in runs.items()
    }
    summary: dict[str, Any] = {}
    for variant, seeds in measured.items():
        paired = sorted(seeds.keys() & measured.get(BASELINE, {}).keys())
        rows: dict[str, Any] = {}
        for data in next(iter(seeds.values())):
            for measure in next(iter(seeds.values()))[data]:
                own = mean_interval(values[data][measure] for values in seeds.values())._asdict()
                row: dict[str, Any] = {"value": own}
                if variant != BASELINE and paired:
                    gaps = [
                        seeds[seed][data][measure] - measured[BASELINE][seed][data][measure]
                        for seed in paired
                    ]
                    row["difference"] = mean_interval(gaps)._asdict()
                rows[f"{data}.{measure}"] = row
        health = mean_health([found.health for found in runs[variant].values()])
        summary[variant] = {"measures": rows, "health": health}
    return summary


def mean_health(runs: Sequence[Sequence[SiteHealth]]) -> dict[str, dict[str, float]]:
    """State of the posterior by site, averaged over runs; what no run has is left out."""
    found: dict[str, dict[str, list[float]]] = {}
    for site in (site for run in runs for site in run):
        values = found.setdefault(site.site, {})
        for name in HEALTH:
            value = getattr(site, name)
            if value is not None:
                values.setdefault(name, []).append(value)
    return {
        site: {name: statistics.fmean(numbers) for name, numbers in values.items()}
        for site, values in found.items()
    }


def table(summary: Mapping[str, Any]) -> Table:
    """Values, and differences to the deterministic network with their intervals."""
    shown = Table()
    for heading in ("variant", "data", "value", "difference [95% interval]", "seeds"):
        shown.add_column(heading, no_wrap=True)
    for variant, found in summary.items():
        for name, row in found["measures"].items():
            gap = row.get("difference")
            words = "" if gap is None else f"{gap['mean']:+.4f}"
            if gap is not None and gap["low"] is not None:
                words += f" [{gap['low']:+.4f}, {gap['high']:+.4f}]"
            shown.add_row(variant, name, f"{row['value']['mean']:.4f}", words, str(row["value"]["seeds"]))
    return shown


def main(
    folder: Annotated[Path, typer.Argument(help="Where the runs go.")],
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds, from 0.")] = 5,
    recipe: Annotated[str, typer.Option(help="Recipe that the variants change.")] = "sentiment_babn",
    variants: Annotated[str, typer.Option(help="Names, separated by commas; all by default.")] = ",".join(
        VARIANTS
    ),
    rest: Annotated[
        int, typer.Option(min=0, help="Most training texts left out by data.limits.train to test points on.")
    ] = 0,
    set_: Annotated[list[str] | None, typer.Option("--set", help="Override a key of the recipe.")] = None,
) -> None:
    """Runs what is missing, seed by seed, and prints the table."""
    names = [name.strip() for name in variants.split(",")]
    unknown = [name for name in names if name not in VARIANTS]
    if unknown:
        raise typer.BadParameter(f"expected some of {', '.join(VARIANTS)}, got {unknown[0]!r}")
    runs: dict[str, dict[int, Results]] = {name: {} for name in names}
    points: dict[str, dict[int, dict[str, float]]] = {name: {} for name in names}
    for seed in range(seeds):
        for name in names:
            overrides = [*(set_ or []), *VARIANTS[name], f"training.seed={seed}", "report.baseline=false"]
            place = folder / name.replace(" ", "_") / f"seed-{seed}"
            runs[name][seed] = run_one(load_recipe(recipe, overrides), place, rest)
            points[name][seed] = rest_of(place)
            found = summarise({known: seeds for known, seeds in runs.items() if seeds}, points)
            content = {"recipe": recipe, "set": set_ or [], "rest": rest, "variants": found}
            (folder / "study.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    Console(width=120).print(table(found))


if __name__ == "__main__":
    typer.run(main)
