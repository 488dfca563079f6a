"""From a finished run of translation to the records of its report."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import PreTrainedModel

from probattn.cli.description import method_words
from probattn.cli.errors import CommandError, one_line, one_to_compare
from probattn.cli.evaluating import RECORDS, now, package_versions
from probattn.cli.networks import quiet_loading
from probattn.cli.probing import of_the_same_examples, read_dynamics
from probattn.cli.trained import BASELINE, MODEL, RECIPE, model_key
from probattn.cli.translation_networks import network_words
from probattn.cli.translation_training import SUBWORDS
from probattn.data import PairCollate, SentencePairs, Subwords, TokenizedPairs
from probattn.inference.records import Record, read_records
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
from probattn.models import SearchOptions, Translator, load, translate
from probattn.models.translation import token_measures
from probattn.recipes import TranslationRecipe

TRANSLATIONS = "translations.jsonl"
"""All test sentences of a run with their references and translations, one JSON object a line."""


@dataclass(frozen=True)
class TrainedTranslator:
    """A network of a run with its vocabulary, on the device where it translates."""

    model: Translator
    subwords: Subwords
    folder: Path

    @property
    def key(self) -> ModelKey:
        """What it is called in records; latent attention translates at its expectation."""
        key = model_key(cast(PreTrainedModel, self.model.net))
        return "bayesian_expectation" if key == "bayesian_mean" else key

    @property
    def records(self) -> list[Record]:
        """What was recorded in training."""
        return read_records(self.folder / RECORDS)

    @property
    def device(self) -> torch.device:
        """Where the network lies."""
        return next(self.model.parameters()).device

    def tokens(self, pairs: SentencePairs, recipe: TranslationRecipe) -> dict[str, float]:
        """Sums over sentence pairs of what perplexity and token accuracy are made of."""
        options = recipe.translation
        rows = TokenizedPairs(
            pairs.rows(pairs.shortest_first()),
            self.subwords,
            max_length=options.max_length,
            on_long=options.on_long,
        )
        sums = dict.fromkeys(("nll", "tokens", "correct"), 0.0)
        for batch in DataLoader(rows, batch_size=recipe.search.batch_size, collate_fn=PairCollate()):
            inputs = {name: tensor.to(self.device) for name, tensor in batch.items()}
            with torch.no_grad():
                found = token_measures(self.model(inputs), inputs["labels"])
            sums = {name: sums[name] + found[name].double().sum().item() for name in sums}
        return sums


def load_translator(folder: Path) -> TrainedTranslator:
    """Loads a trained network from the folder of its records.

    Raises:
        CommandError: the folder holds no finished run.
        DataError: its vocabulary is missing or damaged.
    """
    place = folder / MODEL
    if not place.is_dir():
        raise CommandError(
            f"{folder}: expected a finished run with a folder '{MODEL}', found none; train it first"
        )
    with quiet_loading():
        net = load(place)
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    model = Translator(net).to(device or torch.device("cpu"))
    return TrainedTranslator(model.eval(), Subwords.load(place / SUBWORDS), folder)


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
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _data_set(test: SentencePairs) -> DataSet:
    return DataSet(
        key="test",
        title="Test",
        role="in_domain",
        size=len(test),
        labelled=True,
        source=f"{test.source}; {test.licence}",
    )


def _search_words(recipe: TranslationRecipe) -> str:
    search = recipe.search
    if search.num_beams == 1:
        return "greedy search"
    return f"beam search, {search.num_beams} beams, length penalty {search.length_penalty:g}"


def _describe(
    run: Path, recipe: TranslationRecipe, trained: TrainedTranslator, train: SentencePairs
) -> RunDescription:
    last: Record = trained.records[-1] if trained.records else {}
    return RunDescription(
        name=recipe.name,
        method=method_words(recipe),
        network=network_words(recipe),
        data=train.source,
        train_size=len(train),
        steps=int(last.get("step", 0)),
        seconds=sum(float(record.get("seconds", 0.0)) for record in trained.records),
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
