"""How runs of synthetic tasks learn, collected from the recipes of experiments.

    python tests/benchmarks/study.py copying runs/copying
    python tests/benchmarks/study.py copying runs/copying --recipes copying_heads_reduced,copying_probe_reduced

Every recipe trains into a folder of its name. Everything was measured in training and is what `probattn evaluate`
writes; here it is averaged over runs. It writes docs/data/copying.json after each experiment, in which those of other
recipes stay as they are.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import study
import typer

from probattn.files.durable import write_atomically
from probattn.recipes import ExperimentRecipe, load_any_recipe
from probattn.tasks import Experiments, evaluate, train
from probattn.tasks.experiments import ConditionRuns, ExperimentResults
from probattn.tasks.experiments.results import leaders
from probattn.tasks.task import RECIPE

RECIPES = (
    "copying_permutations_reduced",
    "copying_heads_reduced",
    "copying_probe_reduced",
    "copying_locality_reduced",
)
PLACES = ("keyword", "next_word", "last")
"""Positions whose log-odds are compared run by run."""
DIGITS = 4


def load(name: str, overrides: Sequence[str]) -> ExperimentRecipe:
    """A recipe, which must be one of an experiment."""
    recipe = load_any_recipe(name, overrides)
    if not isinstance(recipe, ExperimentRecipe):
        raise typer.BadParameter(f"recipes: expected those of experiments, {name} is none")
    return recipe


def key_of(recipe: ExperimentRecipe) -> str:
    """Name of an experiment in the file, whatever its size: "heads" of copying_heads and of copying_heads_reduced."""
    return recipe.name.removeprefix("copying_").removesuffix("_reduced")


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


@dataclass(kw_only=True)
class CopyingStudy(study.Study):
    """Experiments, each with all its conditions and runs."""

    folder: study.Folder
    recipes: Annotated[
        str,
        typer.Option(help="Names or files of recipes, separated by commas; without _reduced the full size."),
    ] = ",".join(RECIPES)
    output: study.Output = study.DATA / "copying.json"
    set_: study.Keys = None

    def __post_init__(self) -> None:
        loaded = [load(name, self.overrides) for name in self.recipes.split(",")]
        self.chosen = {recipe.name: recipe for recipe in loaded}
        keys = [key_of(recipe) for recipe in loaded]
        if len(set(keys)) < len(keys):
            raise typer.BadParameter(f"recipes: expected one size of each experiment, got {', '.join(keys)}")

    def begin(self) -> study.Content:
        """What the file holds of all experiments; those of other recipes stay."""
        return study.read_json(self.output) if self.output.exists() else {}

    def jobs(self) -> Iterator[study.Job]:
        for name, recipe in self.chosen.items():
            yield study.Job({"experiment": key_of(recipe)}, name, folder=name)

    def read(self, job: study.Job) -> study.Run | None:
        """The figures of a finished experiment; a folder of another recipe is refused."""
        recipe, known = self.chosen[job.recipe], self.place(job) / RECIPE
        if known.exists() and load_any_recipe(known) != recipe.model_copy(
            update={"output": str(known.parent)}
        ):
            raise typer.BadParameter(
                f"folder: expected runs of {recipe.name} as it is now, {known.parent} has another recipe; "
                "take a new folder"
            )
        return super().read(job)

    def measure(self, job: study.Job) -> study.Run:
        """Trains and evaluates all conditions of an experiment."""
        task, folder = Experiments(self.chosen[job.recipe]), self.place(job)
        train(task, folder, resume=(folder / RECIPE).exists(), quiet=True)
        return {"found": summarise(task.recipe, evaluate(task, folder), self.overrides)}

    def write(self, content: study.Content, run: study.Run) -> study.Content:
        """Puts an experiment into the file. A list of numbers takes one line."""
        content = content | {run["experiment"]: run["found"]}
        text = json.dumps(content, indent=1)
        text = re.sub(r"\[\s+([^][{}\"]+?)\s+\]", lambda found: f"[{' '.join(found[1].split())}]", text)
        self.output.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self.output, f"{text}\n".encode())
        return content

    def said(self, run: study.Run) -> str:
        setting, conditions = run["found"]["setting"], run["found"]["conditions"].values()
        learned = (f"{item['title']} {item['reached']} of {item['seeds']}" for item in conditions)
        return f"{setting['threshold']:g} by step {setting['by_step']}: {', '.join(learned)}"


STUDY = CopyingStudy
