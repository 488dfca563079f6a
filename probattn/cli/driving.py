"""What the training of recipes of every kind has in common: the driver's options, and the folder of a run."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from torch import nn
from transformers import PreTrainedModel

from probattn.cli.errors import CommandError, one_line
from probattn.cli.learning import learning
from probattn.cli.networks import quiet_loading
from probattn.cli.processes import Processes
from probattn.cli.trained import BASELINE, MODEL, RECIPE
from probattn.files.durable import write_atomically
from probattn.inference import AttentionGuide, SVGDDriver, SVIDriver
from probattn.inference.optimizers import OptimizerOptions, SchedulerOptions
from probattn.inference.options import EarlyStopping, KLSchedule
from probattn.inference.run import FitResult
from probattn.models import Classifier, Translator, convert, save
from probattn.recipes import (
    AlignmentRecipe,
    AnyRecipe,
    AttentionKeys,
    Recipe,
    TrainingRecipe,
    TranslationRecipe,
)
from probattn.recipes.methods import Method
from probattn.sites.repulsive import repulsive_heads

Model = TypeVar("Model", bound=nn.Module)


def make_driver(
    model: nn.Module, training: TrainingRecipe, alignment: AlignmentRecipe | None, **options: Any
) -> SVIDriver:
    """The driver that a model asks for, with the options of a recipe.

    Args:
        model: a Pyro program; with repulsive heads it gets an ``SVGDDriver``.
        training: of the recipe.
        alignment: of the recipe, for the learning rate of its networks.
        **options: further options of the driver.
    """
    kind = SVGDDriver if repulsive_heads(model) else SVIDriver
    rule = training.early_stopping
    return kind(
        model,
        optimizer=OptimizerOptions(
            training.optimizer_class,
            training.learning_rate,
            training.site_learning_rate,
            alignment_learning_rate=None if alignment is None else alignment.learning_rate,
            weight_decay=training.weight_decay,
            arguments=training.optimizer_arguments,
        ),
        scheduler=SchedulerOptions(training.schedule, training.warmup_steps, training.warmup),
        kl_schedule=KLSchedule(
            training.kl_schedule,
            final=training.kl_weight,
            warmup_steps=training.kl_warmup_steps,
            warmup_fraction=training.kl_warmup,
        ),
        batch_size=training.batch_size,
        precision=training.precision,
        cpu=training.device == "cpu",
        accumulation=training.accumulation,
        max_grad_norm=training.gradient_clip,
        seed=training.seed,
        log_every=training.log_every,
        eval_every=training.eval_every,
        checkpoint_every=training.checkpoint_every,
        keep_last=training.keep,
        early_stopping=None if rule is None else EarlyStopping(**rule.model_dump()),
        **({"guide": AttentionGuide(model)} | options),
    )


def fit_program(
    model: Classifier | Translator,
    recipe: Recipe | TranslationRecipe,
    train: Any,
    validation: Any,
    *,
    resume: bool,
    **options: Any,
) -> FitResult:
    """Trains a program as its recipe says.

    Args:
        model: the program; its network learns as a whole, or its attention alone with ``training.frozen_probe``.
        recipe: with the options of the driver and the length of the run.
        train: data to train on.
        validation: data to validate on.
        resume: continue from the newest checkpoint, if there is one.
        **options: further options of the driver.
    """
    training = recipe.training
    with learning(model.net, training):
        return make_driver(model, training, recipe.alignment, **options).fit(
            train,
            validation,
            steps=training.steps,
            epochs=training.epochs,
            resume="auto" if resume else False,
        )


def put_methods(
    net: PreTrainedModel, methods: Sequence[Method], attention: AttentionKeys, *, seed: int, name: str
) -> None:
    """Gives a network the methods of a recipe, if there are any.

    Args:
        net: changed in place.
        methods: what to give it.
        attention: of the recipe, for the layers and kinds it names.
        seed: of the parameters that methods bring along.
        name: the network's, for messages.

    Raises:
        CommandError: the network's attention cannot be given them.
    """
    if not methods:
        return
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        try:
            convert(net, *methods, layers=attention.layers, attention=attention.kind)
        except (TypeError, ValueError) as error:
            raise CommandError(f"network {name!r}: {one_line(error)}") from error


def keep_network(net: nn.Module, target: Path, beside: Callable[[Path], object]) -> None:
    """Saves a network in place of what an earlier end of the run left.

    Args:
        net: the network.
        target: its folder.
        beside: writes into that folder what the network reads and writes with.
    """
    if target.exists():
        shutil.rmtree(target)
    with quiet_loading():
        save(cast(PreTrainedModel, net), target, beside=beside)


def train_parts(
    recipe: AnyRecipe,
    folder: Path,
    models: Mapping[str, Model],
    fit: Callable[[Model, Path], FitResult],
    save: Callable[[Model, Path], None],
) -> dict[str, FitResult]:
    """Trains the networks of a run one after the other into its folder; the first process writes.

    Args:
        recipe: written into the folder first.
        folder: the run's.
        models: by name, "baseline" and "model".
        fit: trains one of them into a folder.
        save: keeps one in a folder that may be there from an earlier end of the run.

    Returns:
        Results by name.
    """
    processes = Processes(cpu=recipe.training.device == "cpu")
    with processes.first_writes() as writes:
        if writes:
            keep_recipe(recipe, folder)
    results: dict[str, FitResult] = {}
    for name, model in models.items():
        place = folder if name == MODEL else folder / name
        results[name] = fit(model, place)
        with processes.first_writes() as writes:
            if writes:
                check_recipe_is_there(folder)
                save(model, place / MODEL)
    return results


def keep_recipe(recipe: AnyRecipe, folder: Path) -> None:
    """Writes the recipe of a run into its folder, which is made; a run that is resumed has it.

    Args:
        recipe: with every key filled in.
        folder: the run's.

    Raises:
        OSError: it cannot be written; no part of it is left.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / RECIPE).exists():
        write_atomically(folder / RECIPE, recipe.resolved().dump().encode())


def check_recipe_is_there(folder: Path) -> None:
    """Makes sure that a run that ends is the run that began.

    Raises:
        CommandError: its folder was removed.
    """
    if not (folder / RECIPE).exists():
        raise CommandError(
            f"{folder}: expected {RECIPE}, found none; the folder was removed or moved while the run was writing into "
            "it; train it again"
        )


def part_names(methods: bool, baseline: bool) -> tuple[str, ...]:
    """Names of what a run trains: its own network and, where it has a method and a baseline is wanted, that before.

    Example:
        >>> part_names(methods=True, baseline=True)
        ('baseline', 'model')
    """
    return (BASELINE, MODEL) if methods and baseline else (MODEL,)
