"""The attention of a recipe of translation."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from probattn.recipes.attention import AttentionKeys


class TranslationAttentionRecipe(AttentionKeys):
    """The attention method, which calls it replaces, and its options.

    Keys that are left out have the value of `preset` and `method`. With `deterministic` the other keys are kept and
    have no effect, so that one word makes the baseline of a recipe; `variational` has `estimator` and `prediction`
    alone.

    Example:
        >>> TranslationAttentionRecipe(method="variational").estimator
        'enumerate'
        >>> TranslationAttentionRecipe(method="bam").build().concentration
        10.0
    """

    method: Literal["deterministic", "babn", "bam", "variational"] = Field(
        default="babn",
        description="`deterministic` (the network's own attention), `babn` (Bayesian attention belief networks), "
        "`bam` (Bayesian attention modules: one fixed concentration) or `variational` (Deng et al. 2018: one latent "
        "source token for each target token), which is for an `lstm` of one head and whose divergence has weight 1 "
        "from the start where `training` says nothing else.",
    )
    estimator: Literal["enumerate", "sample"] = Field(
        default="enumerate",
        description="How `variational` sums over source tokens in training: `enumerate` all of them, exactly, or "
        "`sample` one, with a score-function gradient and a baseline.",
    )
    prediction: Literal["mixture", "soft"] = Field(
        default="mixture",
        description="What `variational` translates with: the `mixture` over source tokens, which is exact, or `soft` "
        "attention, the mean of their states.",
    )
