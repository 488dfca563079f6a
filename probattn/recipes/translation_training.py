"""The training of a recipe of translation."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from probattn.recipes.training import TrainingRecipe

STEPS = 20_000
"""Updates where neither steps nor epochs are given."""


def _betas() -> dict[str, bool | int | float | list[float]]:
    return {"betas": [0.9, 0.98]}


class TranslationTrainingRecipe(TrainingRecipe):
    """How a translation network is trained, from random weights.

    The defaults are those of IWSLT experiments with a small Transformer.

    Example:
        >>> TranslationTrainingRecipe().optimizer_arguments
        {'betas': [0.9, 0.98]}
        >>> TranslationTrainingRecipe(epochs=2).steps is None
        True
    """

    epochs: int | None = Field(
        default=None,
        ge=1,
        description=f"Passes over the training pairs, instead of `steps`, of which {STEPS:,} are made where neither is "
        "given.",
    )
    batch_size: int = Field(default=256, ge=1, description="Sentence pairs of a micro-batch on one device.")
    length_pool: int | None = Field(
        default=20,
        ge=1,
        description="Batches hold pairs of similar length, sorted within this many updates' pairs; null for pairs "
        "at random.",
    )
    optimizer: Literal["adamw", "adam", "sgd"] = Field(default="adam", description="Optimiser of torch.")
    optimizer_arguments: dict[str, bool | int | float | list[float]] = Field(
        default_factory=_betas, description="Further arguments of the optimiser."
    )
    learning_rate: float = Field(default=5e-4, gt=0, lt=10, description="Of the network's own parameters.")
    weight_decay: float = Field(
        default=1e-4, ge=0, description="Of matrices; biases and norms are not decayed."
    )
    schedule: Literal["linear", "cosine", "constant_with_warmup", "inverse_sqrt"] = Field(
        default="inverse_sqrt", description="Course of the learning rates after their warm-up."
    )
    warmup_steps: int | None = Field(
        default=4000,
        ge=0,
        description="Updates in which the learning rates rise; null for `warmup`, which it replaces.",
    )
    label_smoothing: float = Field(
        default=0.1,
        ge=0,
        lt=1,
        description="Share of a token's probability that the likelihood spreads over all.",
    )
    per: Literal["token", "pair"] = Field(
        default="token",
        description="Unit of the objective: nats per target token, or per sentence pair. It scales likelihood, "
        "divergence and factors alike.",
    )

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, value: Any) -> Any:
        if isinstance(value, dict) and value.get("epochs") is None and value.get("steps") is None:
            return value | {"steps": STEPS}
        return value
