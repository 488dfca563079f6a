"""Synthetic experiments: conditions that are trained with many seeds and compared."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from shlex import quote

import torch

from probattn.inference.records import Record, read_records
from probattn.inference.run import FitResult
from probattn.report import RunDescription
from probattn.tasks.errors import RunError, as_run_error
from probattn.tasks.experiments.conditions import (
    PROBES,
    Pools,
    Seeds,
    Stage,
    copy_task,
    draw_heads,
    pools,
    search_seeds,
    stage_driver,
)
from probattn.tasks.experiments.page import ExperimentView
from probattn.tasks.experiments.recipe import SEARCH, ConditionRecipe, ExperimentRecipe
from probattn.tasks.experiments.results import (
    LOG_ODDS,
    ConditionRuns,
    ConditionTest,
    ExperimentResults,
    HeadCounts,
    first_steps,
    fisher_p,
    log_rank_p,
    median_step,
    reached,
    runs_of,
)
from probattn.tasks.run import describe, launched
from probattn.tasks.task import RECIPE, RECORDS, Part, Task

NOT_MEASURES = {"kind", "step", "seconds"}


class Experiments(Task[ExperimentRecipe, ExperimentResults]):
    """Conditions of a synthetic task, each trained with every seed, after an optional search for attention heads."""

    section = "experiment"
    recipe_class = ExperimentRecipe
    view = ExperimentView()

    def parts(self, folder: Path) -> Iterator[Part]:
        """The search for heads, if any, then every condition; each has a subfolder of the run's folder."""
        if launched():
            raise RunError("experiments: expected one process, got a launcher's several")
        return self._parts(folder)

    def _parts(self, folder: Path) -> Iterator[Part]:
        good_heads: Pools | None = None
        if self.recipe.experiment.search is not None:
            yield self._part(search_stage(self.recipe, folder))
            good_heads = searched_heads(self.recipe, folder)
        for name in _order(self.recipe):
            yield self._part(condition_stage(self.recipe, folder, name, good_heads))

    def _part(self, stage: Stage) -> Part:
        return Part(stage.name, partial(_fit, self.recipe, stage))

    def evaluate(self, run: Path, baseline: Path | None = None) -> ExperimentResults:
        """Counts the runs that learned the task, and compares the conditions, from measurements during training."""
        recipe = self.recipe
        if baseline is not None:
            raise RunError(f"{run}: expected no --baseline, the conditions of an experiment are compared")
        records = {name: _records(run, recipe, name) for name in recipe.experiment.conditions}
        conditions = tuple(_condition(recipe, name, validations) for name, validations in records.items())
        first, *others = conditions
        search = recipe.experiment.search
        heads = {} if search is None else searched_heads(recipe, run)
        keyword = recipe.experiment.task == "keyword"
        return ExperimentResults(
            run=_described(run, recipe, sum(item.seconds for item in conditions)),
            task=recipe.experiment.task,
            threshold=recipe.experiment.threshold,
            by_step=recipe.by_step,
            conditions=conditions,
            tests=() if keyword else tuple(_test(recipe, first, item) for item in others),
            search=tuple(
                HeadCounts(model=model, good=len(good), bad=len(bad)) for model, (good, bad) in heads.items()
            ),
            search_steps=None if search is None else search.steps,
        )


def search_stage(recipe: ExperimentRecipe, folder: Path) -> Stage:
    """Models of one head on the task of the first condition that asks for good and bad ones."""
    search = recipe.experiment.search
    assert search is not None
    wanting = next(
        condition for condition in recipe.experiment.conditions.values() if condition.starts != "random"
    )
    condition = wanting.model_copy(update={"title": None, "heads": 1, "starts": "random"})
    return Stage(SEARCH, condition, search_seeds(recipe, search), folder / SEARCH, search.steps)


def searched_heads(recipe: ExperimentRecipe, folder: Path) -> Pools:
    """Heads that the search of a run found; ``RunError`` where its records are missing."""
    stage = search_stage(recipe, folder)
    steps, accuracy = runs_of(read_records(stage.folder / RECORDS), "accuracy", len(stage.seeds.models))
    if not steps:
        raise RunError(
            f"{stage.folder}: expected the accuracies of the search in {RECORDS}, found none; train again"
        )
    good = [step is not None for step in first_steps(steps, accuracy, recipe.experiment.threshold)]
    search = recipe.experiment.search
    below = None if search is None else search.bad_below
    bad = [
        not learned and (below is None or (last is not None and last < below))
        for learned, last in zip(good, accuracy[-1], strict=True)
    ]
    return pools(stage.seeds, good, bad)


def condition_stage(recipe: ExperimentRecipe, folder: Path, name: str, candidates: Pools | None) -> Stage:
    """A condition of the recipe, with the heads it asks for; ``RunError`` where there are none such."""
    condition = recipe.experiment.conditions[name]
    seeds = Seeds.of(recipe) if candidates is None else draw_heads(recipe, condition, candidates)
    uniform = _uniform(recipe, condition)
    path = None if uniform is None or uniform == name else folder / uniform / PROBES
    return Stage(name, condition, seeds, folder / name, recipe.training.steps, path)


def _order(recipe: ExperimentRecipe) -> list[str]:
    """Uniform attention first: others are compared with its probes."""
    conditions = recipe.experiment.conditions
    return sorted(conditions, key=lambda name: conditions[name].attention != "uniform")


def _uniform(recipe: ExperimentRecipe, condition: ConditionRecipe) -> str | None:
    """The condition of the same task under uniform attention, if there is one."""
    if recipe.experiment.task != "copy":
        return None
    for name, value in recipe.experiment.conditions.items():
        if value.attention == "uniform" and copy_task(value) == copy_task(condition):
            return name
    return None


def _fit(recipe: ExperimentRecipe, stage: Stage, resume: bool, quiet: bool) -> FitResult:
    with stage_driver(recipe, stage, quiet=quiet) as driver, as_run_error(ArithmeticError, where=stage.name):
        return driver.fit(resume="auto" if resume else False)


def _records(run: Path, recipe: ExperimentRecipe, name: str) -> list[Record]:
    records = [record for record in read_records(run / name / RECORDS) if record.get("kind") == "validation"]
    last = records[-1]["step"] if records else None
    if last != recipe.training.steps:
        at = "nothing" if last is None else f"step {last}"
        raise RunError(
            f"{run}: expected condition {name!r} trained to step {recipe.training.steps}, found {at}; continue with "
            f"`probattn train {quote(str(run / RECIPE))} --output {quote(str(run))} --resume`"
        )
    needed = {"accuracy", *(LOG_ODDS if recipe.experiment.task == "keyword" else ())}
    measures = [record.keys() - NOT_MEASURES for record in records]
    if not needed <= measures[0] or any(measure != measures[0] for measure in measures):
        raise RunError(
            f"{run / name / RECORDS}: expected the same measures at every evaluated step, {', '.join(sorted(needed))} "
            "among them, found others; train again"
        )
    return records


def _condition(recipe: ExperimentRecipe, name: str, records: list[Record]) -> ConditionRuns:
    condition = recipe.experiment.conditions[name]
    measures = [key for key in records[-1] if key not in NOT_MEASURES]
    runs = recipe.training.runs
    steps, accuracy = runs_of(records, "accuracy", runs)
    if all(value is None for value in accuracy[-1]):
        raise RunError(
            f"condition {name!r}: expected accuracies at step {steps[-1]}, found none; train again"
        )
    first = first_steps(steps, accuracy, recipe.experiment.threshold)
    return ConditionRuns(
        key=name,
        title=recipe.titles()[name],
        task=_task_words(recipe, condition),
        steps=steps,
        measures={key: runs_of(records, key, runs)[1] for key in measures},
        first_steps=first,
        reached=reached(first, recipe.by_step),
        median_step=median_step(first),
        chance=1 / condition.length if recipe.experiment.task == "copy" else None,
        seconds=float(records[-1].get("seconds", 0.0)),
    )


def _test(recipe: ExperimentRecipe, first: ConditionRuns, item: ConditionRuns) -> ConditionTest:
    return ConditionTest(
        condition=item.key,
        against=first.key,
        fisher=fisher_p(item.first_steps, first.first_steps, recipe.by_step),
        log_rank=log_rank_p(item.first_steps, first.first_steps, (item.steps[-1], first.steps[-1])),
    )


def _task_words(recipe: ExperimentRecipe, condition: ConditionRecipe) -> str:
    if recipe.experiment.task == "keyword":
        direction = "both directions" if condition.bidirectional else "one direction"
        return f"{condition.length} words of {condition.types}, read in {direction}"
    words = f"{condition.length} words of {condition.types}"
    if condition.sets > 1:
        words += f", one of {condition.sets} sets"
    if condition.order == "permuted":
        words += ", put in another order"
    if condition.attention != "learned":
        words += {"uniform": ", uniform attention", "frozen_probe": ", frozen probe"}[condition.attention]
    if condition.heads > 1:
        starts = {"random": "", "bad": ", all of them bad", "one_good": ", one of them good"}[
            condition.starts
        ]
        words += f", {condition.heads} heads{starts}"
    return words


def _described(run: Path, recipe: ExperimentRecipe, seconds: float) -> RunDescription:
    training = recipe.training
    copying = recipe.experiment.task == "copy"
    model = (
        "LSTM encoder-decoder with dot attention" if copying else "LSTM classifier under uniform attention"
    )
    gpu = training.device == "auto" and torch.accelerator.is_available()
    return describe(
        run,
        recipe,
        method=f"{training.runs} runs a condition; Adam, learning rate {training.learning_rate:g}, "
        f"{training.batch_size} sentences an update",
        network=f"{model}, width {recipe.network.width}",
        data="drawn from each run's seed",
        train_size=training.steps * training.batch_size,
        steps=training.steps,
        seconds=seconds,
        device=f"{'accelerator' if gpu else 'cpu'}, float32",
    )
