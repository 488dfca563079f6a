"""Repulsive heads in a recipe."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from pydantic import Field, model_validator

from probattn.recipes.section import Section
from probattn.sites.inverse_temperature import without_inverse_temperature
from probattn.sites.repulsive import Projection, RepulsiveAttention


class RepulsionRecipe(Section):
    r"""What makes the heads of each projection particles of one posterior that repel each other in training.

    It stands beside whatever `attention` and `alignment` ask for, and changes nothing but gradients: the network
    predicts as any other does.

    Example:
        >>> RepulsionRecipe(sampler="sgld").build().couples
        False
        >>> RepulsionRecipe(weight=0.1).build().repulsion
        0.1
    """

    sampler: Literal["svgd", "spos", "sgld"] = Field(
        default="svgd",
        description="`svgd` (Stein variational gradient descent), `spos` (the same with Langevin noise) or `sgld` "
        "(noise without repulsion).",
    )
    projections: list[Literal["query", "key", "value"]] = Field(
        default_factory=lambda: list(get_args(Projection)),
        min_length=1,
        description="Weights whose heads repel each other; each is a set of particles of its own.",
    )
    layers: (
        Literal["all", "first", "last", "encoder", "decoder", "cross"]
        | Annotated[list[int], Field(min_length=1)]
    ) = Field(
        default="all",
        description="Layers of each stack with repulsive heads; numbers count from 0, negative ones from the end; or "
        "the calls of the `encoder`, of the `decoder` (its self-attention) or the `cross` attention.",
    )
    kind: Literal["all", "self", "cross"] = Field(default="all", description="Kind of attention to repel in.")
    weight: float = Field(
        default=0.01,
        ge=0,
        description="Of the repulsion, a in Eq. 4 of An et al. 2020; unused by `sgld`. The loss is a mean over the "
        "batch, so 1 is far too much.",
    )
    step_size: float = Field(
        default=0.1,
        gt=0,
        description="What multiplies the direction of a head; `adam` and `adamw`, which divide by the size of a "
        "gradient, undo it. The noise of `spos` and `sgld` is smaller beside the gradient the larger it is.",
    )
    kernel: Literal[
        "median_rbf", "marginal_rbf", "sliced_rbf", "inverse_multiquadric", "linear", "cosine", "identity"
    ] = Field(
        default="median_rbf",
        description="Between heads: `median_rbf` is the paper's, `identity` couples none.",
    )
    bandwidth: float | None = Field(
        default=None,
        gt=0,
        description="Of the kernel; null for its own rule. Not for `sliced_rbf`, `cosine` and `identity`.",
    )
    prior: Literal["uniform"] | Annotated[float, Field(gt=0)] = Field(
        default="uniform",
        description="`uniform`, or the standard deviation of a normal prior of every weight of a head.",
    )
    temperature: Literal["datum"] | Annotated[float, Field(gt=0)] = Field(
        default=1.0,
        description="Of the noise of `spos` and `sgld`: 1 is that of the posterior of all training data, "
        "`datum` that of one datum, as in Eq. 5 of An et al. 2020 with the mean loss for U. The noise's standard "
        "deviation goes with the square root.",
    )
    langevin: float = Field(
        default=1.0,
        gt=0,
        description="Of `spos`: weight of Langevin's part beside that of `svgd`, 1/b in Eq. 5 of An et al. 2020.",
    )
    smoothing: bool = Field(
        default=True,
        description="Whether each head also follows the others' gradients, weighted by the kernel, or its own alone.",
    )

    @model_validator(mode="before")
    @classmethod
    def _migrate(cls, value: Any) -> Any:
        """Reads ``inverse_temperature`` of an earlier version."""
        return without_inverse_temperature(value, None) if isinstance(value, dict) else value

    @model_validator(mode="after")
    def _agree(self) -> RepulsionRecipe:
        self.build()
        return self

    def build(self, seed: int = 0) -> RepulsiveAttention:
        """The options of the method.

        Args:
            seed: of the noise and of random directions.

        Raises:
            ValueError: options that exclude each other.
        """
        return RepulsiveAttention(
            sampler=self.sampler,
            projections=tuple(self.projections),
            layers=self.layers,
            attention=self.kind,
            step_size=self.step_size,
            repulsion=self.weight,
            kernel=self.kernel,
            bandwidth=self.bandwidth,
            prior=self.prior,
            temperature=self.temperature,
            langevin=self.langevin,
            smoothing=self.smoothing,
            seed=seed,
        )
