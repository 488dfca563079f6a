"""From a finished experiment to the records of its report."""

from __future__ import annotations

from pathlib import Path

import torch

from probattn.cli.errors import CommandError
from probattn.cli.evaluating import now, package_versions
from probattn.cli.experiments import found_heads
from probattn.cli.sheets import Group, Sheet
from probattn.cli.trained import RECIPE
from probattn.inference.records import Record, read_records
from probattn.inference.report import (
    ConditionRuns,
    ConditionTest,
    ExperimentResults,
    HeadCounts,
    RunDescription,
    first_steps,
    fisher_p,
    log_rank_p,
    median_step,
    reached,
    runs_of,
)
from probattn.inference.report.experiment_records import LOG_ODDS
from probattn.inference.storage import RECORDS
from probattn.recipes import ConditionRecipe, ExperimentRecipe

NOT_MEASURES = {"kind", "step", "seconds"}


def evaluate_experiment(
    run: Path, recipe: ExperimentRecipe, baseline: Path | None = None
) -> ExperimentResults:
    """Counts the runs that learned, and compares the conditions; everything was measured in training.

    Args:
        run: the folder.
        recipe: of the run.
        baseline: None; conditions are compared with each other.

    Returns:
        The records.

    Raises:
        CommandError: a condition is not finished, or another baseline is named.
    """
    if baseline is not None:
        raise CommandError(f"{run}: expected no --baseline, the conditions of an experiment are compared")
    records = {name: _records(run, recipe, name) for name in recipe.experiment.conditions}
    conditions = tuple(_condition(recipe, name, found) for name, found in records.items())
    first, *others = conditions
    search = recipe.experiment.search
    pools = {} if search is None else found_heads(recipe, run)
    return ExperimentResults(
        run=_described(run, recipe, sum(item.seconds for item in conditions)),
        task=recipe.experiment.task,
        threshold=recipe.experiment.threshold,
        by_step=recipe.by_step,
        conditions=conditions,
        tests=()
        if recipe.experiment.task == "keyword"
        else tuple(_test(recipe, first, item) for item in others),
        search=tuple(
            HeadCounts(model=model, good=len(good), bad=len(bad)) for model, (good, bad) in pools.items()
        ),
        search_steps=None if search is None else search.steps,
    )


def experiment_table(results: ExperimentResults) -> Sheet:
    """Conditions with the runs that learned, for a terminal."""
    reached = f"{results.threshold:g} by step {results.by_step}"
    tests = {test.condition: test for test in results.tests}
    rows = []
    for item in results.conditions:
        test = tests.get(item.key)
        values = (item.median_step, test and test.fisher, test and test.log_rank)
        cells = ["" if value is None else f"{value:.3g}" for value in values]
        rows.append((item.title, f"{item.reached} of {len(item.first_steps)}", *cells))
    headings = ("condition", reached, "median step", "Fisher p", "log-rank p")
    return Sheet(headings, (Group("", tuple(rows)),))


def _records(run: Path, recipe: ExperimentRecipe, name: str) -> list[Record]:
    records = [record for record in read_records(run / name / RECORDS) if record.get("kind") == "validation"]
    last = records[-1]["step"] if records else None
    if last != recipe.training.steps:
        at = "nothing" if last is None else f"step {last}"
        raise CommandError(
            f"{run}: expected condition {name!r} trained to step {recipe.training.steps}, found {at}; continue with "
            f"`probattn train {run / RECIPE} --output {run} --resume`"
        )
    needed = {"accuracy", *(LOG_ODDS if recipe.experiment.task == "keyword" else ())}
    found = [record.keys() - NOT_MEASURES for record in records]
    if not needed <= found[0] or any(each != found[0] for each in found):
        raise CommandError(
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
        raise CommandError(
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
    return RunDescription(
        name=recipe.name,
        method=f"{training.runs} runs a condition; Adam, learning rate {training.learning_rate:g}, "
        f"{training.batch_size} sentences an update",
        network=f"{model}, width {recipe.network.width}",
        data="drawn from each run's seed",
        train_size=training.steps * training.batch_size,
        steps=training.steps,
        seconds=seconds,
        num_samples=1,
        device=f"{'accelerator' if gpu else 'cpu'}, float32",
        seed=training.seed,
        created=now(),
        versions=package_versions(),
        recipe=(run / RECIPE).read_text(encoding="utf-8"),
        commands=(f"probattn train {run / RECIPE} --output NEW_FOLDER", "probattn report NEW_FOLDER"),
    )
