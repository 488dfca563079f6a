"""The methods that a recipe's sections ask for."""

from __future__ import annotations

from collections.abc import Iterable

from probattn.recipes.alignment import AlignmentRecipe
from probattn.recipes.attention import AttentionKeys
from probattn.recipes.disagreement import DisagreementRecipe
from probattn.recipes.repulsion import RepulsionRecipe
from probattn.sites.alignment import AlignmentAttention
from probattn.sites.bayesian import BayesianAttention
from probattn.sites.disagreement import DisagreementAttention
from probattn.sites.repulsive import RepulsiveAttention

Method = BayesianAttention | AlignmentAttention | RepulsiveAttention | DisagreementAttention
"""What a network may be converted with."""


def build_methods(
    attention: AttentionKeys,
    beside: Iterable[AlignmentRecipe | RepulsionRecipe | DisagreementRecipe | None],
    seed: int,
) -> tuple[Method, ...]:
    """What a network is converted with; empty where its attention stays as it is.

    Args:
        attention: the attention method.
        beside: sections beside it, None for what is not asked for.
        seed: of the networks and of the noise that they bring along.

    Example:
        >>> from probattn.recipes import AttentionRecipe
        >>> build_methods(AttentionRecipe(method="deterministic"), [None, RepulsionRecipe()], seed=0)[0].repulsion
        0.01
    """
    bayesian = attention.build()
    built = [part.build(seed) for part in beside if part is not None]
    return (*(() if bayesian is None else (bayesian,)), *built)
