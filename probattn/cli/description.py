"""What was run, in words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from probattn.cli.evaluating import RECORDS, now, package_versions
from probattn.cli.trained import BASELINE, RECIPE, TrainedModel
from probattn.inference.records import read_records
from probattn.inference.report import RunDescription
from probattn.recipes import GraphRecipe, Recipe, TranslationRecipe


def describe_run(run: Path, recipe: Recipe, trained: TrainedModel, train_size: int) -> RunDescription:
    """What a run folder holds, in words for its report.

    Args:
        run: the folder.
        recipe: what was asked for.
        trained: the network that came out.
        train_size: training examples.
    """
    return RunDescription(
        name=recipe.name,
        method=method_words(recipe),
        network=recipe.network.name
        + (", uniform attention" if recipe.network.config.get("uniform_attention") else ""),
        data=recipe.data.train.source,
        train_size=train_size,
        **spent(run),
        num_samples=recipe.prediction.num_samples,
        device=f"{trained.device.type}, {recipe.training.precision} autocast".replace(
            "no autocast", "float32"
        ),
        seed=recipe.training.seed,
        created=now(),
        versions=package_versions(),
        recipe=(run / RECIPE).read_text(encoding="utf-8"),
        commands=(f"probattn train {run / RECIPE} --output NEW_FOLDER", "probattn report NEW_FOLDER"),
    )


def spent(run: Path) -> dict[str, Any]:
    """What the training of a run took, from its records, also where it was resumed.

    Returns:
        steps: of its network.
        seconds: of that and of the baseline beside it; a record of training holds those since the record before it.
    """
    parts = [read_records(folder / RECORDS) for folder in (run, run / BASELINE)]
    trained = [record for records in parts for record in records if record.get("kind") == "train"]
    return {
        "steps": int(parts[0][-1]["step"]) if parts[0] else 0,
        "seconds": sum(float(record.get("seconds", 0)) for record in trained),
    }


def method_words(recipe: Recipe | GraphRecipe | TranslationRecipe) -> str:
    r"""The attention method with the options that differ from the defaults, and what stands beside it.

    Example:
        >>> from probattn.recipes import read_recipe
        >>> method_words(read_recipe("data: {train: imdb}\nalignment: {method: gan, weight: 0.1}"))
        'BABN, default options; GAN alignment, weight 0.1'
        >>> method_words(read_recipe("data: {train: imdb}\nattention: {method: bam}\ntraining: {frozen_probe: true}"))
        'BAM, concentration 10.0; nothing but attention learns'
    """
    return recipe.method_words()
