"""Records of how heads differ, and what each is good for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, model_validator

from probattn.inference.records import Number
from probattn.inference.report.record import Count, ModelKey, Probability, Record

HeadsKey = ModelKey | Literal["start"]
"""A model, or the network before its training."""

Matrix = tuple[tuple[Number, ...], ...]
Quantity = Literal["distance", "relative", "cosine", "overlap"]


class SiteHeads(Record):
    """The heads of one attention call of a network; see :mod:`probattn.metrics.functional`.

    Attributes:
        model: whose they are.
        site: name of the call.
        distance: Dist, the mean distance between the outputs of two heads.
        relative: the same over the mean length of an output.
        overlap: share of attention that two heads spend on the same keys, mean over pairs; None where the network's
            attention gives no weights.
        similarity: mean cosine between the outputs of every two heads.
        lengths: mean length of a head's weights by projection.
    """

    model: HeadsKey
    site: str
    distance: Annotated[float, Field(ge=0)]
    relative: Annotated[float, Field(ge=0)]
    overlap: Probability | None
    similarity: Annotated[Matrix, Field(min_length=2)]
    lengths: Mapping[str, float] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _square(self) -> SiteHeads:
        sizes = {len(self.similarity), *(len(row) for row in self.similarity)}
        if len(sizes) > 1:
            raise ValueError(
                f"{self.site}: expected a square matrix of similarity, got sides {sorted(sizes)}"
            )
        return self

    @property
    def cosine(self) -> float:
        """Mean cosine between two different heads."""
        count = len(self.similarity)
        apart = [value for i, row in enumerate(self.similarity) for j, value in enumerate(row) if i != j]
        return sum(apart) / (count * (count - 1))


class HeadDrops(Record):
    """What accuracy is without each head of one attention call.

    Attributes:
        model: whose they are.
        site: name of the call.
        accuracy: without head i.
    """

    model: ModelKey
    site: str
    accuracy: tuple[Probability, ...]


class HeadRows(Record):
    """Where each head of one call looks in one text, averaged over its queries.

    Attributes:
        model: whose heads.
        site: name of the call.
        text: the text.
        tokens: its tokens.
        weights: a row a head, a column a token.
    """

    model: ModelKey
    site: str
    text: str
    tokens: tuple[str, ...]
    weights: Matrix

    @model_validator(mode="after")
    def _fits(self) -> HeadRows:
        if any(len(row) != len(self.tokens) for row in self.weights):
            raise ValueError(
                f"{self.site}: expected a weight for each of {len(self.tokens)} tokens in every row"
            )
        return self


class Heads(Record):
    """What was measured of heads.

    Attributes:
        texts: over how many texts of the first data set heads were compared.
        sites: by model and call.
        masked_texts: over how many of them accuracy without each head was measured.
        whole: accuracy over these with all heads, by model.
        drops: accuracy without each head, by model and call.
        rows: where heads look, by text and model.
    """

    texts: Annotated[int, Field(ge=1)]
    sites: Annotated[tuple[SiteHeads, ...], Field(min_length=1)]
    masked_texts: Count = 0
    whole: Mapping[ModelKey, Probability] = Field(default_factory=dict)
    drops: tuple[HeadDrops, ...] = ()
    rows: tuple[HeadRows, ...] = ()

    @model_validator(mode="after")
    def _known_models(self) -> Heads:
        unknown = {item.model for item in self.drops} - set(self.whole)
        if unknown:
            raise ValueError(f"expected the accuracy with all heads of {min(unknown)!r}")
        return self

    @property
    def models(self) -> tuple[HeadsKey, ...]:
        """The models whose heads were compared, in order."""
        return tuple(dict.fromkeys(site.model for site in self.sites))

    def mean(self, model: HeadsKey, name: Quantity) -> float | None:
        """Mean over calls; None where there is no number."""
        return _mean([getattr(site, name) for site in self.sites if site.model == model])

    def mean_length(self, model: HeadsKey, part: str) -> float | None:
        """Mean over calls of the length of a head's weights in one projection."""
        return _mean([site.lengths.get(part) for site in self.sites if site.model == model])

    def falls(self, model: ModelKey) -> tuple[float, ...]:
        """How far accuracy falls without each head of the network, in the order of calls and heads."""
        found = [value for item in self.drops if item.model == model for value in item.accuracy]
        return tuple(self.whole[model] - value for value in found)


def _mean(values: list[float | None]) -> float | None:
    found = [value for value in values if value is not None]
    return sum(found) / len(found) if found else None
