"""Commands on recipes and runs of translation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from probattn.cli.sheets import Group, Sheet
from probattn.cli.trained_translator import load_translator
from probattn.cli.translation_training import prepare_translation, train_translation_run
from probattn.inference.report import MODEL_TITLES, TranslationResults, translation_headline
from probattn.inference.run import FitResult
from probattn.models import SearchOptions, translate
from probattn.recipes import TranslationRecipe


def train_translation(
    recipe: TranslationRecipe, folder: Path, *, resume: bool, quiet: bool
) -> dict[str, FitResult]:
    """Trains what a recipe of translation asks for.

    Args:
        recipe: of translation.
        folder: the run's folder, new unless resumed.
        resume: continue a run that was interrupted.
        quiet: no progress bars.

    Returns:
        Results by model.

    Raises:
        CommandError: attention cannot be as asked, or the folder holds a run.
        DataError: the data are not what the recipe says, or sentencepiece is not installed.
    """
    return train_translation_run(prepare_translation(recipe), folder, resume=resume, quiet=quiet)


def translate_texts(run: Path, recipe: TranslationRecipe, texts: Sequence[str]) -> list[str]:
    """Translates sentences with the network of a run.

    Raises:
        CommandError: the folder holds no finished run.
    """
    trained = load_translator(run)
    return translate(trained.model, texts, trained.subwords, SearchOptions(**recipe.search.model_dump()))


def translation_table(results: TranslationResults) -> Sheet:
    """BLEU, perplexity and token accuracy of each model, and what separates it from the deterministic one."""
    gaps = {
        item.model: (f"{item.value:+.2f}", f"[{item.low:+.2f}, {item.high:+.2f}]")
        for item in results.differences
    }
    rows = tuple(
        (
            MODEL_TITLES[score.model],
            f"{score.bleu:.2f}",
            *gaps.get(score.model, ("", "")),
            "" if score.perplexity is None else f"{score.perplexity:.2f}",
            f"{score.token_accuracy:.3f}",
            "" if score.step_seconds is None else f"{score.step_seconds:.3f}",
        )
        for score in results.scores
    )
    level = results.differences[0].level if results.differences else 0.95
    headings = (
        "attention",
        "BLEU",
        "difference",
        f"{level:.0%} interval",
        "perplexity",
        "subwords right",
        "s an update",
    )
    return Sheet(headings, (Group("", rows),), notes=(f"{translation_headline(results)}.",))
