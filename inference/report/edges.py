"""How attention over the edges of a graph looks: records, and the rows that show them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, NamedTuple

from markupsafe import Markup
from pydantic import Field

from probattn.inference.report.markup import exact
from probattn.inference.report.measures import MODEL_TITLES
from probattn.inference.report.record import ModelKey, Record

Size = Annotated[float, Field(ge=0)]
EDGE_MEASURES = {
    "from_uniform": "Distance from uniform",
    "query_norm": "Length of a query",
    "key_norm": "Length of a key",
    "value_norm": "Length of a value",
}
"""Fields of :class:`EdgeAttention` with their headings."""


class EdgeAttention(Record):
    """The attention of one layer over the edges of a graph, means over heads and over edges or nodes.

    Attributes:
        model: whose it is.
        site: name of the attention site.
        from_uniform: mean of ``|weight * degree - 1|``, 0 for uniform attention.
        query_norm: mean 2-norm of a query.
        key_norm: mean 2-norm of a key.
        value_norm: mean 2-norm of a value, the scale to see the other two at.
    """

    model: ModelKey
    site: str
    from_uniform: Size
    query_norm: Size
    key_norm: Size
    value_norm: Size


class EdgeRow(NamedTuple):
    """A row of the report's table."""

    site: str
    model: str
    values: list[Markup]


def edge_rows(records: Sequence[EdgeAttention]) -> list[EdgeRow]:
    """Rows by site, then by model."""
    sites = dict.fromkeys(record.site for record in records)
    return [
        EdgeRow(
            site,
            MODEL_TITLES[record.model],
            [exact(getattr(record, name), f"{getattr(record, name):.3f}") for name in EDGE_MEASURES],
        )
        for site in sites
        for record in records
        if record.site == site
    ]
