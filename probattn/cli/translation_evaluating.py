"""From a finished run of translation to the records of its report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torch import Tensor

from probattn.cli.description import method_words, spent
from probattn.cli.errors import CommandError, one_line, one_to_compare
from probattn.cli.evaluating import now, package_versions
from probattn.cli.probing import of_the_same_examples, read_dynamics
from probattn.cli.trained import BASELINE, MODEL, RECIPE
from probattn.cli.trained_translator import TrainedTranslator, load_translator
from probattn.cli.translation_heads import measure_heads
from probattn.cli.translation_networks import network_words
from probattn.data import SentencePairs
from probattn.files.durable import write_atomically
from probattn.inference.report import (
    MODEL_LABELS,
    DataSet,
    ModelKey,
    RunDescription,
    TranslationResults,
    TranslationSample,
    bleu_difference,
    translation_curves,
    translation_scores,
)
from probattn.metrics.functional import bleu, bleu_counts
from probattn.models import SearchOptions, translate
from probattn.recipes import TranslationRecipe

TRANSLATIONS = "translations.jsonl"
"""All test sentences of a run with their references and translations, one JSON object a line."""


def evaluate_translation_run(
    run: Path, recipe: TranslationRecipe, baseline: Path | None = None
) -> TranslationResults:
    """Translates the test sentences with the run's network, and its baseline if there is one, and measures them.

    All translations are written beside the records, as ``translations.jsonl``.

    Args:
        run: the folder.
        recipe: of the run.
        baseline: another run of deterministic attention to compare with; by default the one within the run, if any.

    Returns:
        The records.

    Raises:
        CommandError: the folder holds no finished run, the baseline is not deterministic, or sacrebleu is not
            installed.
        DataError: the data are not what they were.
    """
    trained = load_translator(run)
    networks = [*_baseline(run, baseline, trained), trained]
    splits = recipe.translation.load()
    test = splits.test
    options = SearchOptions(**recipe.search.model_dump())
    found: dict[ModelKey, list[str]] = {
        each.key: translate(each.model, test.sources, each.subwords, options) for each in networks
    }
    try:
        counts = {key: bleu_counts(texts, test.targets) for key, texts in found.items()}
        signature = bleu(found[trained.key], test.targets).signature
    except ImportError as error:
        raise CommandError(one_line(error)) from error
    _write_translations(run / TRANSLATIONS, test, found)
    watched = [read_dynamics(each.folder, each.key, maps=each is trained) for each in networks]
    return TranslationResults(
        run=_describe(run, recipe, trained, splits.train),
        languages=test.languages,
        search=_search_words(recipe),
        signature=signature,
        test=_data_set(test),
        scores=tuple(
            translation_scores(each.key, counts[each.key], each.tokens(test, recipe), each.records)
            for each in networks
        ),
        differences=_differences(counts, recipe),
        samples=_samples(test, found, recipe.report.samples),
        curves=tuple(curve for each in networks for curve in translation_curves(each.records, each.key)),
        dynamics=of_the_same_examples(watched),
        heads=measure_heads(networks, test, recipe),
    )


def _baseline(run: Path, given: Path | None, trained: TrainedTranslator) -> list[TrainedTranslator]:
    """The deterministic network beside the run's own, where there is one."""
    folder = given or run / BASELINE
    if given is not None and trained.key == "deterministic":
        raise CommandError(one_to_compare(run, given))
    if trained.key == "deterministic" or (given is None and not (folder / MODEL).is_dir()):
        return []
    found = load_translator(folder)
    if found.key != "deterministic":
        raise CommandError(
            f"{folder}: expected a deterministic run as baseline, its attention is {MODEL_LABELS[found.key]}"
        )
    return [found]


def _differences(counts: dict[ModelKey, Tensor], recipe: TranslationRecipe) -> tuple[Any, ...]:
    if "deterministic" not in counts:
        return ()
    report = recipe.report
    return tuple(
        bleu_difference(
            key,
            own,
            counts["deterministic"],
            resamples=report.resamples,
            level=report.level,
            seed=report.seed,
        )
        for key, own in counts.items()
        if key != "deterministic"
    )


def _samples(
    test: SentencePairs, found: dict[ModelKey, list[str]], number: int
) -> tuple[TranslationSample, ...]:
    """A fixed choice of test sentences, whatever their translations."""
    if not number:
        return ()
    places = {pair: row for row, pair in enumerate(zip(test.sources, test.targets, strict=True))}
    chosen = test.take(number)
    rows = [places[pair] for pair in zip(chosen.sources, chosen.targets, strict=True)]
    return tuple(
        TranslationSample(
            source=test.sources[row],
            reference=test.targets[row],
            translations={key: texts[row] for key, texts in found.items()},
        )
        for row in rows
    )


def _write_translations(path: Path, test: SentencePairs, found: dict[ModelKey, list[str]]) -> None:
    lines = []
    for row, (source, reference) in enumerate(zip(test.sources, test.targets, strict=True)):
        own = {key: texts[row] for key, texts in found.items()}
        lines.append(json.dumps({"source": source, "reference": reference, **own}, ensure_ascii=False))
    write_atomically(path, ("\n".join(lines) + "\n").encode())


def _data_set(test: SentencePairs) -> DataSet:
    return DataSet(
        key="test",
        title="Test",
        role="in_domain",
        size=len(test),
        labelled=True,
        source=f"{test.source}; {test.licence}",
        unit="sentences",
    )


def _search_words(recipe: TranslationRecipe) -> str:
    search = recipe.search
    if search.num_beams == 1:
        return "greedy search"
    return f"beam search, {search.num_beams} beams, length penalty {search.length_penalty:g}"


def _describe(
    run: Path, recipe: TranslationRecipe, trained: TrainedTranslator, train: SentencePairs
) -> RunDescription:
    return RunDescription(
        name=recipe.name,
        method=method_words(recipe),
        network=network_words(recipe),
        data=train.source,
        train_size=len(train),
        **spent(run),
        num_samples=1,
        device=f"{trained.device.type}, {recipe.training.precision} autocast".replace(
            "no autocast", "float32"
        ),
        seed=recipe.training.seed,
        created=now(),
        versions=package_versions(),
        recipe=(run / RECIPE).read_text(encoding="utf-8"),
        commands=(f"probattn train {run / RECIPE} --output NEW_FOLDER", "probattn report NEW_FOLDER"),
    )
