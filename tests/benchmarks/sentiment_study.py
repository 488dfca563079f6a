"""Accuracy and uncertainty of attention methods over seeds, paired with the deterministic network of the same seed.

    python tests/benchmarks/sentiment_study.py runs/study --seeds 5

Each variant overrides keys of one recipe. A run that is finished is not run again and one that was interrupted is
resumed, so the study can be stopped at any time; the table is made of the runs that are there.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from scipy import stats

from probattn.cli.evaluating import EvaluationOptions, evaluate_run, load_model, now, package_versions
from probattn.cli.training import RECIPE, prepare, train_run
from probattn.inference.report import Measure, ModelKey, Results, RunDescription, read_results, write_results
from probattn.recipes import Recipe, load_recipe

VARIANTS: dict[str, list[str]] = {
    "deterministic": ["attention.method=deterministic"],
    "babn": [],
    "babn truncated noise": ["attention.noise=truncated"],
    "babn KL over keys": ["attention.kl_reduction=keys"],
    "babn KL summed": ["attention.kl_reduction=sum"],
    "bam": ["attention.method=bam"],
}
BASELINE = "deterministic"
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


@dataclass(frozen=True)
class Interval:
    """Mean over seeds with a 95% interval of Student's t; the interval is None for one seed."""

    mean: float
    low: float | None
    high: float | None
    seeds: int


def interval(values: Iterable[float]) -> Interval:
    """Mean and 95% t-interval.

    Example:
        >>> interval([0.5, 0.5]).low
        0.5
    """
    found = list(values)
    mean = statistics.fmean(found)
    if len(found) < 2:
        return Interval(mean, None, None, len(found))
    half = float(stats.t.ppf(0.975, len(found) - 1)) * statistics.stdev(found) / len(found) ** 0.5
    return Interval(mean, mean - half, mean + half, len(found))


def run_one(recipe: Recipe, folder: Path) -> Results:
    """Trains and evaluates one variant with one seed, or reads what is there."""
    file = folder / "metrics.json"
    if file.exists():
        return read_results(file)
    prepared = prepare(recipe)
    if not (folder / "model").is_dir():
        train_run(prepared, folder, resume=(folder / RECIPE).exists(), quiet=True)
    trained = load_model(folder)
    data = {str(role): item for role, item in prepared.task.roles().items()}
    description = RunDescription(
        name=folder.name,
        method=recipe.attention.method,
        network=recipe.network.name,
        data=recipe.data.train.source,
        train_size=len(prepared.train),
        steps=0,
        seconds=0.0,
        num_samples=recipe.prediction.num_samples,
        device=str(trained.device),
        seed=recipe.training.seed,
        created=now(),
        versions=package_versions(),
        recipe=recipe.dump(),
    )
    results = evaluate_run(trained, None, data, description, EvaluationOptions.of(recipe))
    write_results(results, file)
    return results


def scores(results: Results) -> dict[str, dict[str, float]]:
    """Measures by data set, of the mean over draws or of the deterministic network."""
    model: ModelKey = (
        "deterministic" if results.score("bayesian_mean", results.home.key) is None else "bayesian_mean"
    )
    found: dict[str, dict[str, float]] = {}
    for data in results.data:
        score = results.score(model, data.key)
        assert score is not None
        values = {measure: score.measure(measure) for measure in MEASURES}
        found[data.key] = {measure: value for measure, value in values.items() if value is not None}
    return found


def summarise(runs: Mapping[str, Mapping[int, Results]]) -> dict[str, Any]:
    """Differences to the deterministic network of the same seed, and the posterior's health, over seeds."""
    measured = {
        variant: {seed: scores(found) for seed, found in seeds.items()} for variant, seeds in runs.items()
    }
    summary: dict[str, Any] = {}
    for variant, seeds in measured.items():
        paired = sorted(seeds.keys() & measured.get(BASELINE, {}).keys())
        rows: dict[str, Any] = {}
        for data in next(iter(seeds.values())):
            for measure in next(iter(seeds.values()))[data]:
                own = interval(values[data][measure] for values in seeds.values())
                row: dict[str, Any] = {"value": vars(own)}
                if variant != BASELINE and paired:
                    gaps = [
                        seeds[seed][data][measure] - measured[BASELINE][seed][data][measure]
                        for seed in paired
                    ]
                    row["difference"] = vars(interval(gaps))
                rows[f"{data}.{measure}"] = row
        health = [[vars_of(site) for site in found.health] for found in runs[variant].values()]
        summary[variant] = {"measures": rows, "health": health}
    return summary


def vars_of(record: Any) -> dict[str, Any]:
    """A record as plain values."""
    values: dict[str, Any] = record.model_dump()
    return values


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
    set_: Annotated[list[str] | None, typer.Option("--set", help="Override a key of the recipe.")] = None,
) -> None:
    """Runs what is missing, seed by seed, and prints the table."""
    names = [name.strip() for name in variants.split(",")]
    unknown = [name for name in names if name not in VARIANTS]
    if unknown:
        raise typer.BadParameter(f"expected some of {', '.join(VARIANTS)}, got {unknown[0]!r}")
    runs: dict[str, dict[int, Results]] = {name: {} for name in names}
    for seed in range(seeds):
        for name in names:
            overrides = [*(set_ or []), *VARIANTS[name], f"training.seed={seed}", "report.baseline=false"]
            place = folder / name.replace(" ", "_") / f"seed-{seed}"
            runs[name][seed] = run_one(load_recipe(recipe, overrides), place)
            (folder / "study.json").write_text(
                json.dumps(summarise(runs_with_results(runs)), indent=1) + "\n"
            )
    Console(width=120).print(table(summarise(runs)))


def runs_with_results(runs: Mapping[str, Mapping[int, Results]]) -> dict[str, Mapping[int, Results]]:
    """The variants that have a finished run."""
    return {name: found for name, found in runs.items() if found}


if __name__ == "__main__":
    typer.run(main)
