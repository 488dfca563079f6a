"""From a recipe of translation to a finished run folder."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from pyro.infer import TraceEnum_ELBO

from probattn.cli.driving import fit_program, keep_network, part_names, put_methods, train_parts
from probattn.cli.learning import check_frozen_probe
from probattn.cli.probing import Watched
from probattn.cli.trained import BASELINE
from probattn.cli.training import check_folder
from probattn.cli.translation_networks import TITLES, build_network
from probattn.data import PairCollate, ParallelSplits, SentencePairs, Subwords, TokenizedPairs
from probattn.inference import TraceGraphMeanFieldELBO
from probattn.inference.run import FitResult
from probattn.metrics.functional import bleu
from probattn.models import AlignmentGuide, SearchOptions, Translator, VariationalTranslator, translate
from probattn.models.translation import token_measures
from probattn.models.translation.variational import MAX_PLATE_NESTING
from probattn.recipes import TranslationProbeRecipe, TranslationRecipe

SUBWORDS = "subwords.model"
"""The vocabulary of a run, in its folder for the model."""


@dataclass(frozen=True)
class PreparedTranslation:
    """Everything that can be refused, made before the first file is written.

    Attributes:
        recipe: what was asked for.
        splits: the sentence pairs.
        subwords: the vocabulary, learned from the training pairs.
        train: tokenized training pairs.
        validation: tokenized validation pairs, the shortest first.
        watched: what is looked at in training, if anything is.
    """

    recipe: TranslationRecipe
    splits: ParallelSplits
    subwords: Subwords
    train: TokenizedPairs
    validation: TokenizedPairs
    watched: Watched | None = None


def prepare_translation(recipe: TranslationRecipe) -> PreparedTranslation:
    """Reads the pairs, learns the subwords and tokenizes everything, so that no sentence is refused after training.

    Raises:
        DataError: the data are not what the recipe says, or do not allow as many subwords.
    """
    options = recipe.translation
    splits = options.load()
    subwords = Subwords.train(
        splits.train.sources + splits.train.targets, options.subwords, options.subword_model
    )
    roles = splits.roles()
    roles["validation"] = splits.validation.rows(splits.validation.shortest_first())

    def tokenize(pairs: SentencePairs) -> TokenizedPairs:
        return TokenizedPairs(pairs, subwords, max_length=options.max_length, on_long=options.on_long)

    tokenized = {role: tokenize(pairs) for role, pairs in roles.items()}
    watched = None
    if recipe.probe is not None:
        rows = tokenize(splits.validation.take(recipe.probe.examples))
        watched = _watched(recipe.probe, rows, subwords)
    return PreparedTranslation(recipe, splits, subwords, tokenized["train"], tokenized["validation"], watched)


def _watched(options: TranslationProbeRecipe, rows: TokenizedPairs, subwords: Subwords) -> Watched:
    """What is looked at in training."""
    search = SearchOptions(num_beams=1)

    def measure(model: torch.nn.Module) -> float:
        texts = translate(cast(Translator, model), rows.pairs.sources, subwords, search)
        return bleu(texts, rows.pairs.targets).score

    return Watched(
        options,
        rows,
        PairCollate(),
        text=lambda row: rows.pairs.sources[row],
        keys=lambda row: subwords.pieces(rows[row]["input_ids"]),
        queries=lambda row: subwords.pieces(rows[row]["labels"]),
        bleu=measure if options.bleu else None,
    )


def build_translator(prepared: PreparedTranslation, *, baseline: bool) -> Translator:
    """The recipe's network as a Pyro program, or its deterministic baseline; same seed, same initial weights.

    Raises:
        CommandError: the network's attention cannot be given the methods asked for, or not learn alone.
    """
    recipe = prepared.recipe
    training = recipe.training
    net = build_network(recipe, len(prepared.subwords))
    check_frozen_probe(net, training, recipe.network.name)
    methods = () if baseline else recipe.methods()
    put_methods(net, methods, recipe.attention, seed=training.seed, name=TITLES[recipe.network.name])
    options: dict[str, Any] = {
        "num_data": len(prepared.train),
        "label_smoothing": training.label_smoothing,
        "mean_length": prepared.train.mean_target_length if training.per == "token" else None,
    }
    if recipe.is_variational and not baseline:
        return VariationalTranslator(net, prediction=recipe.attention.prediction, **options)
    return Translator(net, **options)


def inference_options(model: Translator, recipe: TranslationRecipe) -> dict[str, Any]:
    """Guide and estimator of a latent alignment, for the driver; nothing for other programs.

    Args:
        model: the program.
        recipe: what was asked for.
    """
    if not isinstance(model, VariationalTranslator):
        return {}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.training.seed)
        guide = AlignmentGuide(model, recipe.attention.estimator)
    exact = recipe.attention.estimator == "enumerate"
    return {
        "guide": guide,
        "elbo": TraceEnum_ELBO(max_plate_nesting=MAX_PLATE_NESTING) if exact else TraceGraphMeanFieldELBO(),
    }


def train_translation_run(
    prepared: PreparedTranslation, folder: Path, *, resume: bool = False, quiet: bool = False
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
    names = part_names(recipe.is_variational or bool(recipe.methods()), recipe.report.baseline)
    models = {name: build_translator(prepared, baseline=name == BASELINE) for name in names}
    watched = prepared.watched
    if watched is not None:
        watched.check(models[names[-1]])

    def fit(model: Translator, place: Path) -> FitResult:
        return fit_program(
            model,
            recipe,
            prepared.train,
            prepared.validation,
            resume=resume,
            collate=PairCollate(),
            length_pool=recipe.training.length_pool,
            validation_metrics=measures,
            folder=place,
            observers=() if watched is None else (watched.observer(place),),
            fingerprint={"data": pairs_digest(prepared.splits), "subwords": prepared.subwords.digest},
            progress=not quiet,
            **inference_options(model, recipe),
        )

    def keep(model: Translator, target: Path) -> None:
        keep_network(model.net, target, lambda folder: prepared.subwords.save(folder / SUBWORDS))

    return train_parts(recipe, folder, models, fit, keep)


def measures(model: torch.nn.Module, batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """What each pair of a batch adds to perplexity and token accuracy, at whatever the network answers now."""
    return token_measures(model(batch), batch["labels"])


def pairs_digest(splits: ParallelSplits) -> str:
    """A fingerprint of the data, so that a run is not resumed on others."""
    digest = hashlib.sha256()
    for role, pairs in splits.roles().items():
        digest.update(role.encode())
        for source, target in zip(pairs.sources, pairs.targets, strict=True):
            digest.update(source.encode() + b"\0" + target.encode() + b"\1")
    return digest.hexdigest()[:16]
