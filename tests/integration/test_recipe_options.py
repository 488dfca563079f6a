"""What a recipe can say is what models and inference take."""

from dataclasses import fields
from typing import Any, get_args

import pytest

from probattn.inference.options import EarlyStopping, KLSchedule, KLScheduleKind
from probattn.inference.session import Precision
from probattn.inference.svi import SVIDriver
from probattn.models.hosts.convert import Kind, Layers
from probattn.recipes import AttentionRecipe, EarlyStoppingRecipe, ReportRecipe, TrainingRecipe
from probattn.report.evaluation import THRESHOLDS
from probattn.tasks.sections.base import Section


def words(annotation: Any) -> set[str]:
    """Every word that a type names as a choice."""
    if isinstance(annotation, str):
        return {annotation}
    return {word for argument in get_args(annotation) for word in words(argument)}


@pytest.mark.parametrize(
    ("section", "key", "kind"),
    [
        (AttentionRecipe, "layers", Layers),
        (AttentionRecipe, "kind", Kind),
        (ReportRecipe, "map_layers", Layers),
        (TrainingRecipe, "kl_schedule", KLScheduleKind),
        (TrainingRecipe, "precision", Precision),
    ],
)
def test_choices(section: type[Section], key: str, kind: Any) -> None:
    assert words(section.model_fields[key].annotation) == words(kind)


def test_early_stopping_has_the_same_options() -> None:
    defaults = {field.name: field.default for field in fields(EarlyStopping)}
    assert EarlyStoppingRecipe().model_dump() == defaults


def test_defaults_are_the_driver_s() -> None:
    recipe = TrainingRecipe()
    driver = {field.name: field.default for field in fields(SVIDriver)}
    for key, option in (
        ("batch_size", "batch_size"),
        ("accumulation", "accumulation"),
        ("precision", "precision"),
        ("gradient_clip", "max_grad_norm"),
        ("seed", "seed"),
        ("log_every", "log_every"),
        ("eval_every", "eval_every"),
        ("checkpoint_every", "checkpoint_every"),
        ("keep", "keep_last"),
    ):
        assert getattr(recipe, key) == driver[option], key
    schedule = KLSchedule()
    assert (recipe.kl_schedule, recipe.kl_warmup, recipe.kl_warmup_steps) == (
        schedule.kind,
        schedule.warmup_fraction,
        schedule.warmup_steps,
    )
    assert (recipe.kl_weight, schedule.final) == (1e-3, 1.0)  # fine-tuning; the lower bound of the evidence
    assert tuple(ReportRecipe().thresholds) == THRESHOLDS
