"""A recipe: all that a run depends on."""

from __future__ import annotations

from typing import Any

from pydantic import Field, model_validator

from probattn.recipes.data import DataRecipe
from probattn.recipes.methods import (
    AlignmentRecipe,
    AttentionRecipe,
    DisagreementRecipe,
    MethodRecipe,
    RepulsionRecipe,
    beside,
)
from probattn.recipes.network import NetworkRecipe
from probattn.recipes.prediction import PredictionRecipe, ReportRecipe
from probattn.recipes.probe import ProbeRecipe
from probattn.recipes.training import TrainingRecipe


class Recipe(MethodRecipe):
    """All that a run depends on, as a user writes it in YAML.

    Two recipes are equal if they say the same, and what :meth:`dump` writes loads as an equal recipe.

    Example:
        >>> recipe = Recipe(data={"train": "rotten_tomatoes"})
        >>> recipe.attention.method, recipe.output
        ('babn', 'runs/run')
        >>> recipe.baseline().methods()
        ()
    """

    network: NetworkRecipe = Field(default=NetworkRecipe(), description="The network to start from.")
    data: DataRecipe = Field(description="What to train on and to measure on.")
    attention: AttentionRecipe = Field(default=AttentionRecipe(), description="The attention method.")
    alignment: AlignmentRecipe | None = beside(AlignmentRecipe)
    repulsion: RepulsionRecipe | None = beside(RepulsionRecipe)
    disagreement: DisagreementRecipe | None = beside(DisagreementRecipe)
    training: TrainingRecipe = Field(default=TrainingRecipe(), description="How to train.")
    prediction: PredictionRecipe = Field(default=PredictionRecipe(), description="How to predict.")
    probe: ProbeRecipe | None = Field(
        default=None,
        description="What is recorded in training of how attention is learned; null for nothing, "
        "`probattn train --probe` for the defaults.",
    )
    report: ReportRecipe = Field(default=ReportRecipe(), description="What to report.")

    @model_validator(mode="after")
    def _texts_like_the_data(self) -> Recipe:
        paired = self.data.train.build().paired
        if self.report.texts and paired != bool(self.report.pairs):
            expected = "the second of each of texts, since the data are pairs" if paired else "none"
            raise ValueError(f"report.pairs: expected {expected}, got {len(self.report.pairs)}")
        return self

    def baseline(self) -> Recipe:
        """The same recipe with deterministic attention as it is; everything else stays, the output folder too."""
        without: dict[str, Any] = dict.fromkeys(self.sections())
        return self.model_copy(update=without | {"attention": self.attention.deterministic()})

    def resolved(self) -> Recipe:
        """The same recipe with the paths of files and folders it reads made absolute."""
        return self.model_copy(update={"data": self.data.resolved(), "network": self.network.resolved()})
