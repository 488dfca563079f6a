"""From a condition of an experiment to the driver that trains all its runs, and the heads that the runs begin with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate.utils import send_to_device
from safetensors.torch import load_file
from torch import Tensor, nn

from probattn.files.durable import write_tensors
from probattn.inference.many_runs import Evaluation, ManyRunsDriver
from probattn.models.copying import (
    CopyBatch,
    CopyingOptions,
    CopyingRuns,
    CopyTask,
    KeywordRuns,
    KeywordTask,
    copying_probe,
    keyword_measures,
    share_at,
    token_accuracy,
)
from probattn.probes import AttentionMode, agreement, frozen_probe
from probattn.tasks.errors import RunError
from probattn.tasks.experiments.recipe import ConditionRecipe, ExperimentRecipe, HeadSearchRecipe

PROBES = "probes"
"""Folder of a condition under uniform attention that keeps its probes, a file for each evaluated step."""


@dataclass(frozen=True)
class Seeds:
    """Seeds of the runs of a condition: of what is no head, of the sentences, and of the heads ``[R][K]``, if any."""

    models: tuple[int, ...]
    data: tuple[int, ...]
    heads: tuple[tuple[int, ...], ...] | None = None

    @classmethod
    def of(cls, recipe: ExperimentRecipe) -> Seeds:
        """Those of a condition whose runs differ in everything."""
        first = recipe.training.seed
        seeds = tuple(range(first, first + recipe.training.runs))
        return cls(seeds, seeds)


@dataclass(frozen=True)
class Stage:
    """A condition to be trained for some steps, and the folder of probes under uniform attention beside it."""

    name: str
    condition: ConditionRecipe
    seeds: Seeds
    folder: Path
    steps: int
    uniform: Path | None = None


@contextmanager
def stage_driver(recipe: ExperimentRecipe, stage: Stage, *, quiet: bool) -> Iterator[ManyRunsDriver]:
    """The driver of a condition; inside the block only what is to learn requires gradients."""
    build = _copying if recipe.experiment.task == "copy" else _keyword
    driver = build(recipe, stage, quiet)
    if stage.condition.attention == "frozen_probe":
        scores = [item for name, item in driver.model.named_parameters() if name.startswith("attention")]
        with frozen_probe(driver.model, scores) as learning:
            driver.parameters = learning
            yield driver
    else:
        yield driver


def copy_task(condition: ConditionRecipe) -> CopyTask:
    """The task of a condition."""
    return CopyTask(condition.types, condition.length, condition.sets, condition.order)


def _copying(recipe: ExperimentRecipe, stage: Stage, quiet: bool) -> ManyRunsDriver:
    training, condition, seeds = recipe.training, stage.condition, stage.seeds
    task = copy_task(condition)
    attention: AttentionMode = "uniform" if condition.attention == "uniform" else "learned"
    network = recipe.network
    options = CopyingOptions(task.vocabulary, network.width, condition.heads, attention, network.form)
    model = CopyingRuns(options, seeds.models, seeds.heads)
    panel = task.draw(seeds.data, 0, training.probe_sentences, "test")

    def evaluate(step: int, device: torch.device) -> dict[str, Tensor]:
        fresh = send_to_device(task.draw(seeds.data, step + 1, training.test_sentences, "test"), device)
        accuracy = token_accuracy(model(fresh.source, fresh.target).logits, fresh.target)
        return {"accuracy": accuracy} | _attention_measures(model, send_to_device(panel, device), stage, step)

    def batches(step: int) -> CopyBatch:
        return task.draw(seeds.data, step, training.batch_size)

    return _driver(recipe, stage, model, batches, evaluate, quiet)


def _attention_measures(model: CopyingRuns, panel: CopyBatch, stage: Stage, step: int) -> dict[str, Tensor]:
    """Positions of the largest attention and probe, and whether they agree, of a panel of sentences."""
    output = model(panel.source, panel.target)
    probe = copying_probe(model, output, panel.target)
    measures = {"probe": share_at(probe, panel.positions)}
    if model.options.attention == "uniform":
        path = stage.folder / PROBES
        path.mkdir(parents=True, exist_ok=True)
        write_tensors(path / f"step-{step:06d}.safetensors", {"probe": probe})
        return measures
    weights = output.weights.sum(dim=1)  # [R, B, T, L]
    measures["attention"] = share_at(weights, panel.positions)
    measures["agreement"] = _by_run(agreement(weights, probe))
    if stage.uniform is not None:
        files = sorted(stage.uniform.glob("step-*.safetensors"))
        probes = [load_file(file)["probe"].to(weights.device) for file in files]
        agreements = torch.stack([_by_run(agreement(weights, item)) for item in probes])
        measures["agreement_uniform"] = agreements.amax(dim=0)
    return measures


def _by_run(values: Tensor) -> Tensor:
    return values.flatten(1).mean(dim=-1)


def _keyword(recipe: ExperimentRecipe, stage: Stage, quiet: bool) -> ManyRunsDriver:
    training, condition, seeds = recipe.training, stage.condition, stage.seeds
    task = KeywordTask(condition.types, condition.length)
    model = KeywordRuns(
        condition.types, recipe.network.width, seeds.models, bidirectional=condition.bidirectional
    )

    def evaluate(step: int, device: torch.device) -> dict[str, Tensor]:
        batch = send_to_device(task.draw(seeds.data, step + 1, training.test_sentences, "test"), device)
        return keyword_measures(model(batch.words), batch)._asdict()

    return _driver(
        recipe, stage, model, lambda step: task.draw(seeds.data, step, training.batch_size), evaluate, quiet
    )


def _driver(
    recipe: ExperimentRecipe,
    stage: Stage,
    model: nn.Module,
    batches: Callable[[int], Any],
    evaluate: Evaluation,
    quiet: bool,
) -> ManyRunsDriver:
    training = recipe.training
    return ManyRunsDriver(
        model,
        batches,
        stage.steps,
        evaluate=evaluate,
        evaluate_at=training.evaluated(stage.steps),
        learning_rate=training.learning_rate,
        checkpoint_every=training.checkpoint_every,
        folder=stage.folder,
        fingerprint={
            "network": recipe.network.model_dump(),
            "condition": stage.condition.model_dump(),
            "seeds": asdict(stage.seeds),
        },
        cpu=training.device == "cpu",
        progress=not quiet,
        title=stage.name,
    )


TRIAL = 10**6
"""What the seeds of a candidate's sentences differ by."""
Pools = Mapping[int, tuple[Sequence[int], Sequence[int]]]
"""Seeds of the good and of the bad heads that were tried in a model, by the model's seed."""


def search_seeds(recipe: ExperimentRecipe, search: HeadSearchRecipe) -> Seeds:
    """Runs of one head for each candidate, all different; candidates of a model read the same sentences."""
    first = recipe.training.seed
    runs = list(product(range(search.models), range(search.candidates), range(search.trials)))
    return Seeds(
        tuple(first + model for model, _, _ in runs),
        tuple(first + model + TRIAL * trial for model, _, trial in runs),
        tuple((first + search.candidates * model + candidate,) for model, candidate, _ in runs),
    )


def pools(seeds: Seeds, good: Sequence[bool], bad: Sequence[bool]) -> Pools:
    """Seeds of the heads by model, those that are good in each run and those that are bad in each."""
    pools_by_model: dict[int, tuple[list[int], list[int]]] = {model: ([], []) for model in seeds.models}
    tried: dict[tuple[int, int], list[tuple[bool, bool]]] = {}
    assert seeds.heads is not None
    for model, (head,), *states in zip(seeds.models, seeds.heads, good, bad, strict=True):
        tried.setdefault((model, head), []).append((states[0], states[1]))
    for (model, head), runs in tried.items():
        for pool, number in zip(pools_by_model[model], (0, 1), strict=True):
            if all(run[number] for run in runs):
                pool.append(head)
    return pools_by_model


def draw_heads(recipe: ExperimentRecipe, condition: ConditionRecipe, candidates: Pools) -> Seeds:
    """Seeds of a condition, heads out of the search's with their sentences; ``RunError`` where no model has enough."""
    heads, runs, first = condition.heads, recipe.training.runs, recipe.training.seed
    minimum = max(item.heads for item in recipe.experiment.conditions.values() if item.starts != "random")
    usable = [model for model, (good, bad) in candidates.items() if good and len(bad) >= minimum]
    if not usable:
        counts = ", ".join(f"{len(good)} good and {len(bad)} bad" for good, bad in candidates.values())
        raise RunError(
            f"search: expected a model with a good head and {minimum} bad ones, got {counts}; try more candidates, or "
            "other experiment.search.steps"
        )
    search = recipe.experiment.search
    tried = 0 if search is None else search.models * search.candidates
    models = tuple(usable[run % len(usable)] for run in range(runs))
    heads_by_run = []
    for run, model in enumerate(models):
        draw = np.random.default_rng((first, run))
        good, bad = candidates[model]
        if condition.starts == "random":
            fresh = first + tried + run * heads
            heads_by_run.append(tuple(range(fresh, fresh + heads)))
            continue
        picked = [int(head) for head in draw.choice(list(bad), heads, replace=False)]
        if condition.starts == "one_good":
            picked[int(draw.integers(heads))] = int(draw.choice(list(good)))
        heads_by_run.append(tuple(picked))
    return Seeds(models, models, tuple(heads_by_run))
