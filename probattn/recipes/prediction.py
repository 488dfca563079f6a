"""Prediction and report of a recipe."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from probattn.recipes.section import Section


class PredictionRecipe(Section):
    """How predictions are drawn."""

    num_samples: int = Field(default=20, ge=1, description="Posterior draws.")
    chunk_size: int | None = Field(
        default=None,
        ge=1,
        description="Draws that go through the network at once, to bound memory; null for all.",
    )
    batch_size: int = Field(default=32, ge=1, description="Texts of a batch.")
    seed: int = Field(default=0, ge=0, le=2**31 - 1, description="Of the draws.")


class ReportRecipe(Section):
    """What the report shows."""

    baseline: bool = Field(
        default=True,
        description="Whether to train the same network with deterministic attention too (same data, seed and number of "
        "updates) and to compare.",
    )
    measures: list[Literal["matthews", "f1"]] = Field(
        default_factory=list,
        description="Further measures of the predicted classes: `matthews` (Matthews correlation), `f1` (of the second "
        "of two classes, else the mean over classes).",
    )
    bins: int = Field(
        default=10, ge=2, le=100, description="Bins of the reliability diagram and of the calibration errors."
    )
    thresholds: list[Annotated[float, Field(gt=0, lt=1)]] = Field(
        default_factory=lambda: [0.001, 0.01, 0.05, 0.1, 0.2, 0.5],
        min_length=1,
        description="p-values of the PAvPU curve.",
    )
    resamples: int = Field(
        default=1000, ge=100, description="Bootstrap resamples behind intervals and p values."
    )
    level: float = Field(default=0.95, gt=0, lt=1, description="Level of the intervals.")
    texts: list[Annotated[str, Field(min_length=1)]] = Field(
        default_factory=list, description="Texts of one's own choice whose attention maps are shown."
    )
    pairs: list[Annotated[str, Field(min_length=1)]] = Field(
        default_factory=list,
        description="The second of each of `texts`, where the task is about pairs of texts.",
    )
    uncertain: int = Field(
        default=4, ge=0, le=50, description="Most uncertain test texts whose attention maps are shown."
    )
    mistakes: int = Field(default=8, ge=0, le=100, description="Most confident mistakes that are listed.")
    map_layers: Literal["all", "first", "last"] | Annotated[list[int], Field(min_length=1)] = Field(
        default="last", description="Layers whose attention maps are shown."
    )
    alignment_texts: int = Field(
        default=64,
        ge=0,
        description="Test texts over which queries and keys are compared, where the recipe aligns them.",
    )
    projection: Literal["pca", "tsne"] = Field(
        default="pca",
        description="How the figure of queries and keys comes to two dimensions; `tsne` needs scikit-learn.",
    )
    head_texts: int = Field(
        default=64,
        ge=0,
        description="Test texts over which heads are compared, where the recipe has `repulsion` or `disagreement`.",
    )
    masked_texts: int = Field(
        default=64,
        ge=0,
        description="Test texts over which accuracy without each head is measured, one pass a head; 0 for none.",
    )
    heads: list[Annotated[int, Field(ge=0)]] = Field(
        default_factory=list, description="Heads that get maps of their own, besides the mean over heads."
    )

    @model_validator(mode="after")
    def _whole_pairs(self) -> ReportRecipe:
        if self.pairs and len(self.pairs) != len(self.texts):
            raise ValueError(
                f"pairs: expected as many as texts ({len(self.texts)}) or none, got {len(self.pairs)}"
            )
        return self

    def second_texts(self) -> list[str] | None:
        """The second of each of ``texts``; None where they stand alone."""
        return self.pairs or None
