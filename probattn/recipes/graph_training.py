"""The training of a recipe of a graph."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from probattn.recipes.section import Section
from probattn.recipes.training import EarlyStoppingRecipe


class GraphTrainingRecipe(Section):
    """How the network is trained: all labelled nodes at once, one update an epoch (Velickovic et al. 2018)."""

    epochs: int = Field(default=2000, ge=1, description="Updates, unless early stopping ends the run before.")
    learning_rate: float = Field(default=0.005, gt=0, lt=10, description="Of Adam; 0.01 for Pubmed.")
    site_learning_rate: float | None = Field(
        default=None,
        gt=0,
        lt=10,
        description="Of the parameters that latent attention brings along; null for `learning_rate`.",
    )
    weight_decay: float = Field(
        default=5e-4, ge=0, description="L2 penalty of everything but biases; 1e-3 for Pubmed."
    )
    gradient_clip: float | None = Field(
        default=None, gt=0, description="Norm at which gradients are clipped; null for never."
    )
    device: Literal["auto", "cpu"] = Field(
        default="auto", description="`auto` takes an accelerator where there is one."
    )
    seed: int = Field(default=0, ge=0, le=2**31 - 1, description="Of all parameters, noise and dropout.")
    kl_weight: float = Field(default=1.0, ge=0, description="Weight of the divergence after its warm-up.")
    kl_schedule: Literal["constant", "linear", "sigmoid"] = Field(
        default="linear", description="Course of that weight while it warms up, from 0."
    )
    kl_warmup_steps: int = Field(default=100, ge=0, description="Updates in which that weight rises.")
    log_every: int = Field(default=10, ge=1, description="Updates between records.")
    checkpoint_every: int = Field(default=100, ge=1, description="Updates between checkpoints.")
    keep: int = Field(default=2, ge=1, description="Newest checkpoints that are kept.")
    early_stopping: EarlyStoppingRecipe | None = Field(
        default=EarlyStoppingRecipe(
            metric="log_likelihood", mode="max", patience=100, also={"accuracy": "max"}
        ),
        description="When to stop before the end, evaluated after every update; null for never.",
    )
