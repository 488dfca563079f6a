"""The penalty on heads that are alike in a recipe."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from pydantic import Field, model_validator

from probattn.recipes.section import Section
from probattn.sites.disagreement import DisagreementAttention
from probattn.sites.repulsive import Projection


class DisagreementRecipe(Section):
    r"""What heads pay in training for being alike, the penalties that repulsive attention is compared with.

    It stands beside whatever the other sections ask for, and changes nothing but the objective: the network predicts as
    any other does.

    Example:
        >>> DisagreementRecipe(method="frobenius").build().looks_at
        'weights'
    """

    method: Literal["frobenius", "subspaces", "positions", "outputs", "parameters"] = Field(
        default="outputs",
        description="`frobenius` (attention weights that are no orthonormal rows), or likeness of heads by their "
        "values (`subspaces`), attention weights (`positions`), `outputs` or projection weights (`parameters`).",
    )
    weight: float = Field(default=0.1, ge=0, description="Of the penalty in the objective.")
    projections: list[Literal["query", "key", "value"]] = Field(
        default_factory=lambda: list(get_args(Projection)),
        min_length=1,
        description="`parameters`: weights whose heads pay.",
    )
    layers: (
        Literal["all", "first", "last", "encoder", "decoder", "cross"]
        | Annotated[list[int], Field(min_length=1)]
    ) = Field(
        default="all",
        description="Layers of each stack whose heads pay; numbers count from 0, negative ones from the end; or the "
        "calls of the `encoder`, of the `decoder` (its self-attention) or the `cross` attention.",
    )
    kind: Literal["all", "self", "cross"] = Field(
        default="all", description="Kind of attention whose heads pay."
    )

    @model_validator(mode="after")
    def _agree(self) -> DisagreementRecipe:
        self.build()
        return self

    def build(self, seed: int = 0) -> DisagreementAttention:
        """The options of the method, which draws nothing: ``seed`` is there because other sections have one.

        Raises:
            ValueError: options that exclude each other.
        """
        del seed
        return DisagreementAttention(
            self.method, self.weight, tuple(self.projections), self.layers, self.kind
        )
