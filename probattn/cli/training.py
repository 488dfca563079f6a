"""From a recipe to a finished run folder."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from probattn.cli.aligning import check_projection
from probattn.cli.driving import fit_program, keep_network, part_names, put_methods, train_parts
from probattn.cli.errors import CommandError, one_line
from probattn.cli.learning import check_frozen_probe
from probattn.cli.networks import load_classifier, load_tokenizer
from probattn.cli.probing import Watched
from probattn.cli.showing import calls_with_maps
from probattn.cli.trained import BASELINE, RECIPE
from probattn.cli.words import Words, make_words
from probattn.data import PadCollate, Task, TextDataset, TokenizedTexts
from probattn.inference.run import FitResult
from probattn.models import Classifier
from probattn.recipes import AnyRecipe, Recipe


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
        watched: what is looked at in training, if anything is.
    """

    recipe: Recipe
    task: Task
    tokenizer: Any
    train: TokenizedTexts
    validation: TokenizedTexts
    words: Words | None = None
    watched: Watched | None = None


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
    watched = None
    if recipe.probe is not None:
        texts = task.validation.take(recipe.probe.examples)
        rows = tokenized(texts)
        watched = Watched(
            recipe.probe,
            rows,
            PadCollate(tokenizer),
            text=lambda row: texts.texts[row],
            keys=lambda row: tokenizer.convert_ids_to_tokens(rows[row]["input_ids"]),
            queries=lambda row: [task.label_names[rows[row]["labels"]]],
        )
    return Prepared(recipe, task, tokenizer, roles["train"], roles["validation"], words, watched)


def build_model(prepared: Prepared, *, baseline: bool) -> Classifier:
    """The recipe's network as a Pyro program, or its deterministic baseline; same seed, same initial weights.

    Raises:
        CommandError: the network's attention cannot be given the methods asked for, or not learn alone.
    """
    recipe = prepared.recipe
    seed = recipe.training.seed
    net = load_classifier(recipe.network, prepared.task.label_names, seed=seed, words=prepared.words)
    check_frozen_probe(net, recipe.training, recipe.network.name)
    methods = () if baseline else recipe.methods()
    put_methods(net, methods, recipe.attention, seed=seed, name=recipe.network.name)
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
    check_folder(recipe, folder, resume)
    names = part_names(bool(recipe.methods()), recipe.report.baseline)
    models = {name: build_model(prepared, baseline=name == BASELINE) for name in names}
    watched = prepared.watched
    if watched is not None:
        watched.check(models[names[-1]])

    def fit(model: Classifier, place: Path) -> FitResult:
        return fit_program(
            model,
            recipe,
            prepared.train,
            prepared.validation,
            resume=resume,
            collate=PadCollate(prepared.tokenizer),
            validation_metrics=accuracy,
            folder=place,
            observers=() if watched is None else (watched.observer(place),),
            fingerprint={"data": data_digest(prepared.task), "network": recipe.network.name},
            progress=not quiet,
        )

    def keep(model: Classifier, target: Path) -> None:
        keep_network(model.net, target, prepared.tokenizer.save_pretrained)

    return train_parts(recipe, folder, models, fit, keep)


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
