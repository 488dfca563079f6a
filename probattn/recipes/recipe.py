"""A recipe: all that a run depends on."""

from __future__ import annotations

from pydantic import Field, model_validator

from probattn.recipes.alignment import AlignmentRecipe
from probattn.recipes.attention import AttentionRecipe
from probattn.recipes.data import DataRecipe
from probattn.recipes.disagreement import DisagreementRecipe
from probattn.recipes.methods import Method, build_methods
from probattn.recipes.network import NetworkRecipe
from probattn.recipes.prediction import PredictionRecipe, ReportRecipe
from probattn.recipes.probe import ProbeRecipe
from probattn.recipes.repulsion import RepulsionRecipe
from probattn.recipes.run import RunRecipe
from probattn.recipes.training import TrainingRecipe


class Recipe(RunRecipe):
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
    alignment: AlignmentRecipe | None = Field(
        default=None, description="The alignment of queries and keys, beside that method; null for none."
    )
    repulsion: RepulsionRecipe | None = Field(
        default=None, description="The repulsion between heads in training, beside both; null for none."
    )
    disagreement: DisagreementRecipe | None = Field(
        default=None,
        description="What heads pay in training for being alike, beside all that; null for nothing.",
    )
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
        attention = self.attention.model_copy(update={"method": "deterministic"})
        nothing = dict.fromkeys(("alignment", "repulsion", "disagreement"))
        return self.model_copy(update={"attention": attention, **nothing})

    def methods(self) -> tuple[Method, ...]:
        """What the network is converted with; empty where its attention stays as it is."""
        beside = (self.alignment, self.repulsion, self.disagreement)
        return build_methods(self.attention, beside, self.training.seed)

    def resolved(self) -> Recipe:
        """The same recipe with the paths of files and folders it reads made absolute."""
        return self.model_copy(update={"data": self.data.resolved(), "network": self.network.resolved()})
