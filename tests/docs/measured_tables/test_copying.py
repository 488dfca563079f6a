"""The tables of the synthetic tasks, from runs whose figures are known."""

import copying_study
import pytest

from probattn.recipes import ExperimentRecipe
from probattn.report import RunDescription
from probattn.tasks.experiments import ConditionRuns, ConditionTest, ExperimentResults, HeadCounts


def condition(key, values, first, others):
    """One of 3 runs, evaluated at steps 0, 10, .. 60; the runs differ by 0.1 in all but accuracy."""
    return ConditionRuns(
        key=key,
        title=f"the {key}",
        task="words",
        steps=tuple(range(0, 70, 10)),
        measures={"accuracy": values}
        | {
            name: tuple((here - 0.1, here, here + 0.1) for here in (start + place for place in range(7)))
            for name, start in others.items()
        },
        first_steps=first,
        reached=sum(step is not None for step in first),
        median_step=20.0 if first[0] else None,
    )


def summary(task, conditions, tests=(), search=()):
    keys = {item.key: {} if task == "keyword" else {"types": 60} for item in conditions}
    recipe = ExperimentRecipe(
        name="copying_few",
        experiment={"task": task, "conditions": keys},
        training={"steps": 60, "runs": 3, "batch_size": 4},
    )
    run = RunDescription(
        name="copying_few",
        method="m",
        network="n",
        data="d",
        train_size=1,
        steps=60,
        seconds=1.0,
        num_samples=1,
        device="cpu",
        seed=0,
        created="2026-01-01",
        versions={},
        recipe="",
    )
    results = ExperimentResults(
        run=run,
        task=task,
        threshold=0.9,
        by_step=60,
        conditions=conditions,
        tests=tests,
        search=search,
        search_steps=40 if search else None,
    )
    return copying_study.summarise(recipe, results, [])


@pytest.fixture
def tables(load):
    return load("measured_tables.copying")


def test_learned_runs_and_their_looks(tables):
    low, high = ((0.1, 0.2, 0.3),) * 7, ((0.1, 0.1, 0.1),) * 6 + ((0.9, 0.95, 0.7),)
    shown = tables.tables(
        summary(
            "copy",
            (
                condition("small", high, (20, 60, None), {"probe": 0.25, "attention": 0.5}),
                condition("large", low, (None, None, None), {"probe": 3}),
            ),
            (ConditionTest(condition="large", against="small", fisher=0.04, log_rank=1.23e-7),),
            (HeadCounts(model=7, good=5, bad=11),),
        )
    )
    assert shown.startswith(
        "`copying_few`: width 256, 60 updates of 4 sentences at a learning rate of 0.001, 3 runs a condition."
    )
    assert "| model | learned by step 40 | did not |\n| --- | --- | --- |\n| 7 | 5 | 11 |" in shown
    assert "|  | 0.9 by step 60 | median step |" in shown
    assert "| the small | 2 of 3 | 20 | 0.850 | 0.700 |  |  |" in shown
    assert "| the large | 0 of 3 | none | 0.200 | 0.100 | 0.04 | 1.2e-07 |" in shown
    assert "|  | step | 0 | 20 | 30 | 40 | 60 |" in shown
    assert "| the small | probe | 0.25 | 2.25 | 3.25 | 4.25 | 6.25 |\n|  | attention | 0.50 | 2.50 |" in shown
    assert "| the large | probe | 3.00 |" in shown and shown.count("attention") == 1


def test_log_odds_by_position(tables):
    odds = {"keyword": 1, "next_word": 0.95, "mean": 9, "last": -1}
    shown = tables.tables(summary("keyword", (condition("one", ((0.5, 0.5, 0.8),) * 7, (None,) * 3, odds),)))
    assert "| the one | 0 | 0.600 | 1.00 | 0.95 | 9.00 | -1.00 | 3 / 0 / 0 |" in shown
    assert "|  | 60 | 0.600 | 7.00 | 6.95 | 15.00 | 5.00 | 3 / 0 / 0 |" in shown
    assert "Fisher" not in shown and "learned by" not in shown


def test_every_experiment_of_the_study_has_a_part(tables):
    keys = [copying_study.key_of(copying_study.load(name, [])) for name in copying_study.RECIPES]
    assert keys == list(tables.PARTS)
