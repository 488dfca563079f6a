"""How runs of synthetic tasks learn, collected from the recipes of experiments.

    python tests/benchmarks/copying_study.py runs/copying
    python tests/benchmarks/copying_study.py runs/copying --recipes copying_heads_reduced,copying_probe_reduced

Every recipe trains into a folder of its name. An experiment that is finished is not run again and one that was
interrupted is resumed, so the study can be stopped at any time. Everything was measured in training and is what
`probattn evaluate` writes; here it is averaged over runs. It writes docs/data/copying.json after each experiment, in
which those of other recipes stay as they are.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from probattn.inference.report import read_results
from probattn.recipes import ExperimentRecipe, load_any_recipe
from probattn.tasks import Experiments, evaluate, train
from probattn.tasks.experiments import ConditionRuns, ExperimentResults, leaders
from probattn.tasks.task import RECIPE

RECIPES = (
    "copying_permutations_reduced",
    "copying_heads_reduced",
    "copying_probe_reduced",
    "copying_locality_reduced",
)
RESULTS = "metrics.json"
PLACES = ("keyword", "next_word", "last")
"""Positions whose log-odds are compared run by run."""
DIGITS = 4

OUTPUT = Path(__file__).resolve().parents[2] / "docs" / "data" / "copying.json"


def load(name: str, overrides: Sequence[str]) -> ExperimentRecipe:
    """A recipe, which must be one of an experiment."""
    recipe = load_any_recipe(name, overrides)
    if not isinstance(recipe, ExperimentRecipe):
        raise typer.BadParameter(f"recipes: expected those of experiments, {name} is none")
    return recipe


def key_of(recipe: ExperimentRecipe) -> str:
    """Name of an experiment in the file, whatever its size: "heads" of copying_heads and of copying_heads_reduced."""
    return recipe.name.removeprefix("copying_").removesuffix("_reduced")


def run_one(recipe: ExperimentRecipe, folder: Path) -> ExperimentResults:
    """Trains and evaluates all conditions of an experiment, or reads what is there."""
    known, file = folder / RECIPE, folder / RESULTS
    if known.exists() and load_any_recipe(known) != recipe:
        raise typer.BadParameter(
            f"folder: expected runs of {recipe.name} as it is now, {folder} has another recipe; take a new folder"
        )
    if not file.exists():
        train(Experiments(recipe), folder, resume=known.exists(), quiet=True)
        evaluate(Experiments(recipe), folder)
    results: ExperimentResults = read_results(file, ExperimentResults)
    return results


def summarise(
    recipe: ExperimentRecipe, results: ExperimentResults, overrides: Sequence[str]
) -> dict[str, Any]:
    """What the documentation shows of an experiment."""
    tests = {test.condition: test for test in results.tests}
    conditions = {}
    for item in results.conditions:
        test = tests.get(item.key)
        conditions[item.key] = {
            "recipe": recipe.experiment.conditions[item.key].model_dump(exclude={"title"}),
            "fisher": None if test is None else test.fisher,
            "log_rank": None if test is None else test.log_rank,
            **summarise_condition(item, results.task),
        }
    return {
        "setting": setting(recipe, results, overrides),
        "task": results.task,
        "conditions": conditions,
        "search": [counts.model_dump() for counts in results.search],
    }


def setting(recipe: ExperimentRecipe, results: ExperimentResults, overrides: Sequence[str]) -> dict[str, Any]:
    """What was run, and with what."""
    return {
        "recipe": recipe.name,
        "overrides": list(overrides),
        "network": recipe.network.model_dump(),
        "training": recipe.training.model_dump(exclude={"checkpoint_every", "device"}),
        "threshold": results.threshold,
        "by_step": results.by_step,
        "search_steps": results.search_steps,
        "device": results.run.device,
        "versions": dict(results.run.versions),
    }


def summarise_condition(item: ConditionRuns, task: str) -> dict[str, Any]:
    """Runs that learned and the end of all, means over runs by step, and the accuracy of each run."""
    end = [value for value in item.measures["accuracy"][-1] if value is not None]
    found = {
        "title": item.title,
        "task": item.task,
        "seeds": len(item.first_steps),
        "reached": item.reached,
        "first_steps": list(item.first_steps),
        "median_step": item.median_step,
        "end": {"mean": rounded(statistics.fmean(end)), "lowest": rounded(min(end))},
        "chance": item.chance,
        "steps": list(item.steps),
        "mean": {name: [mean(row) for row in values] for name, values in item.measures.items()},
        "accuracy": [
            [rounded(value) for value in run] for run in zip(*item.measures["accuracy"], strict=True)
        ],
    }
    if task == "keyword":
        each = [leaders(item.measures, PLACES, place) for place in range(len(item.steps))]
        found["largest"] = {name: [counts[name] for counts in each] for name in PLACES}
    return found


def mean(values: Sequence[float | None]) -> float | None:
    """Mean of the runs that had something to measure; None without any."""
    there = [value for value in values if value is not None]
    return rounded(statistics.fmean(there)) if there else None


def rounded(value: float | None) -> float | None:
    """A figure to the digits that the file keeps."""
    return None if value is None else round(value, DIGITS)


def write(experiments: Mapping[str, Any], output: Path) -> None:
    """Writes the experiments; those that the file has of others stay. A list of numbers takes one line."""
    known = json.loads(output.read_text(encoding="utf-8")) if output.exists() else {}
    text = json.dumps(known | experiments, indent=1)
    text = re.sub(r"\[\s+([^][{}\"]+?)\s+\]", lambda found: f"[{' '.join(found[1].split())}]", text)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(text + "\n", encoding="utf-8")


def main(
    folder: Annotated[Path, typer.Argument(help="Where the runs go, a folder for each recipe.")],
    recipes: Annotated[
        str,
        typer.Option(help="Names or files of recipes, separated by commas; without _reduced the full size."),
    ] = ",".join(RECIPES),
    output: Annotated[Path, typer.Option(help="The file of results.")] = OUTPUT,
    set_: Annotated[list[str] | None, typer.Option("--set", help="Override a key of the recipes.")] = None,
) -> None:
    """Runs what is missing, recipe by recipe, and writes the results after each."""
    overrides = list(set_ or [])
    chosen = [load(name, overrides) for name in recipes.split(",")]
    keys = [key_of(recipe) for recipe in chosen]
    if len(set(keys)) < len(keys):
        raise typer.BadParameter(f"recipes: expected one size of each experiment, got {', '.join(keys)}")
    for key, recipe in zip(keys, chosen, strict=True):
        results = run_one(recipe, folder / recipe.name)
        write({key: summarise(recipe, results, overrides)}, output)
        learned = (f"{item.title} {item.reached} of {len(item.first_steps)}" for item in results.conditions)
        typer.echo(f"{recipe.name}, {results.threshold:g} by step {results.by_step}: {', '.join(learned)}")


if __name__ == "__main__":
    typer.run(main)
