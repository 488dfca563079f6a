"""Records of how far apart queries and keys lie."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from probattn.inference.records import Number
from probattn.inference.report.record import Count, ModelKey, Probability, Record

Heads = tuple[Number, ...]
"""One number a head."""


class SiteAlignment(Record):
    """Queries and keys of one attention call, by head; see :func:`~probattn.inference.report.alignment.head_distances`.

    Attributes:
        model: whose they are.
        site: name of the call.
        bandwidth: of the kernel.
        mmd: squared maximum mean discrepancy within a text, mean over texts; the estimate may be slightly negative.
        mmd_centred: the same with the difference of the means over all texts removed.
        query_norm: mean length of a query.
        key_norm: mean length of a key.
        auc: how well nearest neighbours tell queries from keys; empty for fewer than two texts.
        auc_centred: the same with the difference of the means removed.
    """

    model: ModelKey
    site: str
    bandwidth: Heads
    mmd: Heads
    mmd_centred: Heads
    query_norm: Heads
    key_norm: Heads
    auc: tuple[Probability, ...] = ()
    auc_centred: tuple[Probability, ...] = ()

    @model_validator(mode="after")
    def _same_heads(self) -> SiteAlignment:
        sizes = {
            len(self.bandwidth),
            len(self.mmd),
            len(self.mmd_centred),
            len(self.query_norm),
            len(self.key_norm),
        }
        if len(sizes) > 1:
            raise ValueError(f"{self.site}: expected one number a head throughout, got {sorted(sizes)}")
        return self


class HeadCloud(Record):
    """Some queries and keys of a head in two dimensions."""

    model: ModelKey
    site: str
    head: Count
    query: tuple[tuple[Number, Number], ...]
    key: tuple[tuple[Number, Number], ...]


class Alignment(Record):
    """What was measured of queries and keys.

    Attributes:
        texts: over how many texts of the first data set.
        bandwidth_of: the model whose tokens the bandwidths come from.
        sites: by model and call.
        projection: how the clouds came to two dimensions.
        clouds: by model, call and head.
    """

    texts: Annotated[int, Field(ge=1)]
    bandwidth_of: ModelKey
    sites: Annotated[tuple[SiteAlignment, ...], Field(min_length=1)]
    projection: Literal["pca", "tsne"] = "pca"
    clouds: tuple[HeadCloud, ...] = ()

    def total(self, model: ModelKey, name: Literal["mmd", "mmd_centred"]) -> float:
        """Sum over calls and heads."""
        return sum(sum(getattr(site, name)) for site in self.sites if site.model == model)

    def mean(
        self, model: ModelKey, name: Literal["query_norm", "key_norm", "auc", "auc_centred"]
    ) -> float | None:
        """Mean over calls and heads; None where there is no number."""
        found = [value for site in self.sites if site.model == model for value in getattr(site, name)]
        return sum(found) / len(found) if found else None

    @property
    def models(self) -> tuple[ModelKey, ...]:
        """The models measured, in order."""
        return tuple(dict.fromkeys(site.model for site in self.sites))
