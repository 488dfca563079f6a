"""From a recipe to a finished run folder."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from transformers import PreTrainedModel

from probattn.cli.aligning import check_projection
from probattn.cli.errors import CommandError, one_line
from probattn.cli.networks import load_classifier, load_tokenizer, quiet_loading
from probattn.cli.processes import Processes
from probattn.cli.showing import calls_with_maps
from probattn.cli.trained import BASELINE, MODEL
from probattn.cli.words import Words, make_words
from probattn.data import PadCollate, Task, TextDataset, TokenizedTexts
from probattn.inference import AttentionGuide, SVGDDriver, SVIDriver
from probattn.inference.early_stopping import EarlyStopping
from probattn.inference.optimizers import OptimizerOptions, SchedulerOptions
from probattn.inference.result import FitResult
from probattn.inference.schedules import KLSchedule
from probattn.models import Classifier, convert, save
from probattn.recipes import AnyRecipe, Recipe, TrainingRecipe
from probattn.sites.repulsive import repulsive_heads

RECIPE = "recipe.yaml"


@dataclass(frozen=True)
class Prepared:
    """Everything that can be refused, made before the first file is written.

    Attributes:
        recipe: what was asked for.
        task: the data.
        tokenizer: the network's.
        train: tokenized training data.
        validation: tokenized validation data.
        words: those of a network that is built from nothing.
    """

    recipe: Recipe
    task: Task
    tokenizer: Any
    train: TokenizedTexts
    validation: TokenizedTexts
    words: Words | None = None


def prepare(recipe: Recipe) -> Prepared:
    """Loads data and tokenizer, and tokenizes all of it, so that no text is refused after training.

    Raises:
        DataError: the data are not what the recipe says.
        CommandError: the network cannot be loaded, or a figure not be drawn.
    """
    check_projection(recipe)
    task = recipe.data.load()
    words = (
        make_words(recipe.network, task.train, seed=recipe.training.seed) if recipe.network.is_new else None
    )
    tokenizer = load_tokenizer(recipe.network) if words is None else words.tokenizer
    network = load_classifier(recipe.network, task.label_names, seed=recipe.training.seed, words=words)

    def tokenized(data: TextDataset) -> TokenizedTexts:
        options = recipe.data
        return TokenizedTexts(
            data, tokenizer, max_length=options.max_length, config=network.config, on_long=options.on_long
        )

    roles = {role: tokenized(data) for role, data in task.roles().items()}
    return Prepared(recipe, task, tokenizer, roles["train"], roles["validation"], words)


def build_model(prepared: Prepared, *, baseline: bool) -> Classifier:
    """The recipe's network as a Pyro program, or its deterministic baseline; same seed, same initial weights.

    Raises:
        CommandError: the network's attention cannot be given the methods asked for.
    """
    recipe = prepared.recipe
    seed = recipe.training.seed
    net = load_classifier(recipe.network, prepared.task.label_names, seed=seed, words=prepared.words)
    methods = () if baseline else recipe.methods()
    if methods:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            try:
                convert(net, *methods, layers=recipe.attention.layers, attention=recipe.attention.kind)
            except (TypeError, ValueError) as error:
                raise CommandError(f"network {recipe.network.name!r}: {one_line(error)}") from error
    if not isinstance(recipe.report.map_layers, str):
        try:
            calls_with_maps(net, recipe.report.map_layers)
        except ValueError as error:
            raise CommandError(f"report.map_layers: {one_line(error)}") from error
    return Classifier(net, num_data=len(prepared.train))


def train_run(
    prepared: Prepared, folder: Path, *, resume: bool = False, quiet: bool = False
) -> dict[str, FitResult]:
    """Trains what the recipe asks for: its network and, where that has a method, the deterministic baseline beside it.

    Args:
        prepared: recipe and data.
        folder: the run's folder, new unless resumed.
        resume: continue a run that was interrupted.
        quiet: no progress bars.

    Returns:
        Results by model: "model" and, if trained, "baseline".

    Raises:
        CommandError: the folder holds a run already, or none to resume.
    """
    recipe = prepared.recipe
    processes = Processes(cpu=recipe.training.device == "cpu")
    check_folder(recipe, folder, resume)
    results: dict[str, FitResult] = {}
    parts = [(MODEL, folder)]
    if recipe.methods() and recipe.report.baseline:
        parts.insert(0, (BASELINE, folder / BASELINE))
    models = {name: build_model(prepared, baseline=name == BASELINE) for name, _ in parts}
    with processes.first_writes() as writes:
        if writes:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / RECIPE).write_text(recipe.resolved().dump(), encoding="utf-8")
    for name, place in parts:
        results[name] = _fit(prepared, models[name], place, resume=resume, quiet=quiet)
        with processes.first_writes() as writes:
            if writes:
                _save(prepared, models[name], place / MODEL)
    return results


def _fit(prepared: Prepared, model: Classifier, folder: Path, *, resume: bool, quiet: bool) -> FitResult:
    training = prepared.recipe.training
    kind = SVGDDriver if repulsive_heads(model) else SVIDriver
    driver = kind(
        model,
        guide=AttentionGuide(model),
        **_schedules(prepared.recipe),
        batch_size=training.batch_size,
        collate=PadCollate(prepared.tokenizer),
        precision=training.precision,
        cpu=training.device == "cpu",
        accumulation=training.accumulation,
        max_grad_norm=training.gradient_clip,
        seed=training.seed,
        log_every=training.log_every,
        eval_every=training.eval_every,
        checkpoint_every=training.checkpoint_every,
        keep_last=training.keep,
        early_stopping=_stopping(training),
        validation_metrics=accuracy,
        folder=folder,
        fingerprint={"data": data_digest(prepared.task), "network": prepared.recipe.network.name},
        progress=not quiet,
    )
    return driver.fit(
        prepared.train,
        prepared.validation,
        steps=training.steps,
        epochs=training.epochs,
        resume="auto" if resume else False,
    )


def _save(prepared: Prepared, model: Classifier, target: Path) -> None:
    """The trained network and its tokenizer, in place of what an earlier end of the run left."""
    if target.exists():
        shutil.rmtree(target)
    with quiet_loading():
        save(cast(PreTrainedModel, model.net), target)
    prepared.tokenizer.save_pretrained(target)


def _schedules(recipe: Recipe) -> dict[str, Any]:
    training = recipe.training
    return {
        "optimizer": OptimizerOptions(
            training.optimizer_class,
            training.learning_rate,
            training.site_learning_rate,
            alignment_learning_rate=None if recipe.alignment is None else recipe.alignment.learning_rate,
            weight_decay=training.weight_decay,
            arguments=training.optimizer_arguments,
        ),
        "scheduler": SchedulerOptions(training.schedule, warmup_fraction=training.warmup),
        "kl_schedule": KLSchedule(
            training.kl_schedule,
            final=training.kl_weight,
            warmup_steps=training.kl_warmup_steps,
            warmup_fraction=training.kl_warmup,
        ),
    }


def _stopping(training: TrainingRecipe) -> EarlyStopping | None:
    rule = training.early_stopping
    return None if rule is None else EarlyStopping(**rule.model_dump())


def accuracy(model: torch.nn.Module, batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Accuracy of a batch at whatever the network answers now, per row."""
    inputs = {name: value for name, value in batch.items() if name != "labels"}
    return {"accuracy": (model(inputs).argmax(dim=-1) == batch["labels"]).float()}


def data_digest(task: Task) -> str:
    """A fingerprint of the data, so that a run is not resumed on others."""
    digest = hashlib.sha256()
    for role, data in task.roles().items():
        digest.update(role.encode())
        for text in data.texts:
            digest.update(text.encode() + b"\0")
        for second in data.pairs or ():
            digest.update(second.encode() + b"\1")
        digest.update(repr(data.labels).encode())
    return digest.hexdigest()[:16]


def check_folder(recipe: AnyRecipe, folder: Path, resume: bool) -> None:
    """Makes sure that a new run does not write over another, and that a resumed one is that of its recipe.

    Raises:
        CommandError: the folder holds files, or no run of this recipe to resume.
    """
    known = folder / RECIPE
    if resume:
        if not known.exists():
            raise CommandError(f"{folder}: nothing to resume; expected a run folder with {RECIPE}")
        if known.read_text(encoding="utf-8") != recipe.resolved().dump():
            raise CommandError(f"{folder}: its recipe differs from the one given; resume with {known}")
    elif folder.exists() and any(folder.iterdir()):
        raise CommandError(
            f"{folder}: expected a new folder, it holds files; use another --output, or --resume"
        )
