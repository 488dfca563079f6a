"""The attention of a recipe."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from probattn.recipes.section import Section
from probattn.sites.bayesian import BayesianAttention

Method = Literal["deterministic", "babn", "bam"]


class AttentionKeys(Section):
    """What the attention of recipes of every kind has in common; the method is one of its own words."""

    method: str
    preset: Literal["default", "paper"] = Field(
        default="default",
        description="Where the values of keys that are left out come from: this library's defaults, or the settings of "
        "Zhang et al. 2021.",
    )
    layers: Literal["all", "first", "last"] | Annotated[list[int], Field(min_length=1)] = Field(
        default="all",
        description="Layers of each stack to replace; numbers count from 0, negative ones from the end.",
    )
    kind: Literal["all", "self", "cross"] = Field(default="all", description="Kind of attention to replace.")
    posterior: Literal["weibull", "lognormal"] = Field(
        default="weibull", description="Family of the posterior of the unnormalised weights."
    )
    concentration: Literal["learned"] | Annotated[float, Field(gt=0)] = Field(
        default="learned",
        description="Concentration k of the Weibull posterior: `learned` with `babn`, a number with `bam` (10 where it "
        "is left out). Unused by `lognormal`.",
    )
    rho: float = Field(default=4.0, ge=0, description="Weight of the upward path in the concentration.")
    sigma: float = Field(
        default=0.0,
        ge=0,
        description="Weight of the upward path in the scale; 0 keeps the network's predictions at the start.",
    )
    upward: Literal["heads", "positions"] = Field(
        default="heads", description="Axis that the upward path mixes; `positions` not in causal networks."
    )
    prior: Literal["contextual", "constant"] = Field(
        default="contextual",
        description="Whether the prior's concentration is a function of the keys or one number.",
    )
    prior_hidden: int = Field(default=20, ge=1, description="Hidden width of the contextual prior's network.")
    prior_concentration: float = Field(default=1.0, gt=0, description="Concentration of the constant prior.")
    rate: float = Field(default=1.0, gt=0, description="Rate of the gamma prior.")
    scores: Literal["normalised", "raw"] = Field(
        default="normalised",
        description="`normalised` scores keep their exponential bounded; `raw` ones are the paper's.",
    )
    noise: Literal["exact", "truncated"] = Field(
        default="exact",
        description="Uniform noise of the draws: `exact`, or from (0.1, 0.9) as in the paper.",
    )
    kl_reduction: Literal["mean", "keys", "sum"] = Field(
        default="mean",
        description="How a site's divergence enters the objective: `mean` over pairs, `keys` (sum over keys, mean over "
        "queries and heads) or `sum` (the exact evidence lower bound).",
    )
    floor: float = Field(default=0.05, ge=0, description="Added to the concentration.")
    max_positions: int | None = Field(
        default=None, ge=1, description="Longest query of `upward: positions`; null for the network's own."
    )
    scale: float = Field(
        default=0.5, gt=0, description="Standard deviation of the log-normal posterior's logarithm."
    )
    prior_scale: float = Field(
        default=1.0, gt=0, description="Standard deviation of the log-normal prior's logarithm."
    )

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        preset = BayesianAttention.paper() if value.get("preset") == "paper" else BayesianAttention()
        options = asdict(preset)
        if value.get("method") == "bam":
            options["concentration"] = BayesianAttention.bam().concentration
        return options | value

    @model_validator(mode="after")
    def _agree(self) -> AttentionKeys:
        if self.method == "babn" and self.concentration != "learned" and self.posterior == "weibull":
            raise ValueError(
                f"concentration: expected 'learned' with method 'babn', got {self.concentration}; "
                "a fixed one is method 'bam'"
            )
        if self.method == "bam" and self.concentration == "learned" and self.posterior == "weibull":
            raise ValueError("concentration: expected a number > 0 with method 'bam', got 'learned'")
        self.build()
        return self

    def build(self) -> BayesianAttention | None:
        """The options of latent attention weights; None for another method.

        Raises:
            ValueError: options that exclude each other.
        """
        if self.method not in ("babn", "bam"):
            return None
        names = [field.name for field in fields(BayesianAttention)]
        return BayesianAttention(**{name: getattr(self, name) for name in names})


class AttentionRecipe(AttentionKeys):
    r"""The attention method, which calls it replaces, and its options.

    Keys that are left out have the value of ``preset`` and ``method``. With ``deterministic`` the other keys are kept
    and have no effect, so that one word makes the baseline of a recipe.

    Example:
        >>> AttentionRecipe(method="bam").build().concentration
        10.0
        >>> AttentionRecipe(preset="paper").sigma
        1e-06
        >>> AttentionRecipe(method="deterministic").build() is None
        True
    """

    method: Method = Field(
        default="babn",
        description="`deterministic` (the network's own attention), `babn` (Bayesian attention belief networks) or "
        "`bam` (Bayesian attention modules: one fixed concentration).",
    )
