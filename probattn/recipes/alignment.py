"""The alignment of queries and keys in a recipe."""

from __future__ import annotations

from dataclasses import fields
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from probattn.recipes.section import Section
from probattn.sites.alignment import AlignmentAttention

OWN_KEYS = ("preset", "learning_rate", "kind")
"""Keys that are no options of the method under their own name."""


class AlignmentRecipe(Section):
    r"""The divergence that draws the queries and keys of each head together in training, and its options.

    It stands beside whatever `attention` asks for: deterministic attention or Bayesian. Keys that are left out have the
    value of ``preset``.

    Example:
        >>> AlignmentRecipe(method="ot", preset="paper").build().debias
        False
        >>> AlignmentRecipe(weight=0.1).build(seed=3)
        AlignmentAttention(method='ct', weight=0.1, ...)
    """

    method: Literal["ct", "ot", "gan", "mmd"] = Field(
        default="ct",
        description="`ct` (conditional transport), `ot` (optimal transport), `gan` (adversarial) or `mmd` (maximum "
        "mean discrepancy).",
    )
    preset: Literal["default", "paper"] = Field(
        default="default",
        description="Where the values of keys that are left out come from: this library's defaults, or the settings of "
        "Zhang et al. 2021 (they differ for `ot`).",
    )
    weight: float = Field(default=0.01, ge=0, description="Of the divergence in the objective.")
    learning_rate: float = Field(
        default=1e-3,
        gt=0,
        lt=10,
        description="Of the networks that `ct` and `gan` bring along: critic, navigator, discriminator.",
    )
    reduction: Literal["sum", "mean"] = Field(
        default="sum",
        description="Whether the divergence is summed over heads and layers, or averaged (that many times weaker).",
    )
    layers: Literal["all", "first", "last"] | Annotated[list[int], Field(min_length=1)] = Field(
        default="all",
        description="Layers of each stack to align; numbers count from 0, negative ones from the end.",
    )
    kind: Literal["all", "self", "cross"] = Field(default="all", description="Kind of attention to align.")
    max_tokens: int | None = Field(
        default=None,
        ge=2,
        description="Queries, and keys, of a text that are compared, drawn anew in each step; null for all.",
    )
    hidden: int | None = Field(
        default=None,
        ge=1,
        description="Width of critic, navigator and discriminator; null for the head size.",
    )
    discriminator: Literal["highway", "mlp"] = Field(
        default="highway", description="`gan`: the discriminator, or the paper's single MLP."
    )
    forward_weight: float = Field(
        default=0.5, ge=0, le=1, description="`ct`: share of the direction from queries to keys."
    )
    epsilon: float = Field(default=0.01, gt=0, description="`ot`: strength of the entropy.")
    debias: bool = Field(
        default=True,
        description="`ot`: the debiased divergence, 0 for equal sets; false gives the cost of the plan.",
    )
    scaling: float = Field(
        default=0.5, gt=0, lt=1, description="`ot`: ratio of successive distances in the annealing."
    )
    sweeps: int = Field(
        default=20,
        ge=0,
        description="`ot`: sweeps at each distance of the annealing; 0 is off by some per cent.",
    )
    bandwidth: Literal["median"] | Annotated[float, Field(gt=0)] = Field(
        default="median",
        description="`mmd`: of the kernel; `median` is each head's median distance in the first micro-batch, kept.",
    )

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, value: Any) -> Any:
        if not isinstance(value, dict) or value.get("preset") != "paper":
            return value
        paper, plain = AlignmentAttention.paper(), AlignmentAttention()
        changed = {
            field.name: getattr(paper, field.name)
            for field in fields(AlignmentAttention)
            if getattr(paper, field.name) != getattr(plain, field.name)
        }
        return changed | value

    @model_validator(mode="after")
    def _agree(self) -> AlignmentRecipe:
        self.build()
        return self

    def build(self, seed: int = 0) -> AlignmentAttention:
        """The options of the method.

        Args:
            seed: of the networks that it brings along.

        Raises:
            ValueError: options that exclude each other.
        """
        names = [name for name in type(self).model_fields if name not in OWN_KEYS]
        options = {name: getattr(self, name) for name in names}
        return AlignmentAttention(**options, attention=self.kind, seed=seed)
