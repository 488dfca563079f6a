"""Distances between the queries and keys of each head: records and the section of the page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from markupsafe import Markup
from pydantic import Field, model_validator

from probattn.checks import grouped
from probattn.inference.records import Number
from probattn.report.markup import Panel, Section, by_call, exact, site_labels
from probattn.report.measures import MODEL_LABELS, signed
from probattn.report.record import Count, ModelKey, Probability, Record, mean_of
from probattn.report.svg import cloud_chart

ByHead = tuple[Number, ...]
"""One number a head."""

Total = Literal["mmd", "mmd_centred"]
Mean = Literal["query_norm", "key_norm", "auc", "auc_centred"]


class SiteAlignment(Record):
    """Distances between queries and keys of one attention call; see :func:`~probattn.report.head_distances`.

    Attributes:
        model: network that was measured.
        site: name of the attention call; all further fields have one number per head.
        bandwidth: bandwidth of the kernel.
        mmd: squared maximum mean discrepancy within a text, mean over texts; the estimate may be slightly negative.
        mmd_centred: ``mmd`` after subtracting the difference of the mean key and the mean query from the keys.
        query_norm: mean 2-norm of a query.
        key_norm: mean 2-norm of a key.
        auc: area under the ROC curve of a nearest-neighbour classifier of queries against keys; empty for one text.
        auc_centred: ``auc`` after the same subtraction.
    """

    model: ModelKey
    site: str
    bandwidth: ByHead
    mmd: ByHead
    mmd_centred: ByHead
    query_norm: ByHead
    key_norm: ByHead
    auc: tuple[Probability, ...] = ()
    auc_centred: tuple[Probability, ...] = ()

    @model_validator(mode="after")
    def _same_heads(self) -> SiteAlignment:
        columns = (self.bandwidth, self.mmd, self.mmd_centred, self.query_norm, self.key_norm)
        sizes = set(map(len, columns))
        if len(sizes) > 1:
            raise ValueError(f"{self.site}: expected one number a head throughout, got {sorted(sizes)}")
        return self


class HeadCloud(Record):
    """Some queries and keys of attention head ``head``, projected to two dimensions."""

    model: ModelKey
    site: str
    head: Count
    query: tuple[tuple[Number, Number], ...]
    key: tuple[tuple[Number, Number], ...]


class Alignment(Record):
    """Distances between the queries and keys of networks.

    Attributes:
        texts: number of texts of the first data set over which they were measured.
        bandwidth_of: network whose queries and keys determined the bandwidths.
        sites: measures, one record per network and attention call.
        projection: projection of ``clouds`` to two dimensions.
        clouds: projected queries and keys, one record per network, attention call and head.
    """

    texts: Annotated[int, Field(ge=1)]
    bandwidth_of: ModelKey
    sites: Annotated[tuple[SiteAlignment, ...], Field(min_length=1)]
    projection: Literal["pca", "tsne"] = "pca"
    clouds: tuple[HeadCloud, ...] = ()

    def total(self, model: ModelKey, name: Total) -> float:
        """Sum of a measure over the attention calls and heads of a network."""
        return sum(sum(getattr(site, name)) for site in self.sites if site.model == model)

    def mean(self, model: ModelKey, name: Mean) -> float | None:
        """Mean of a measure over the attention calls and heads of a network; None if it was not measured."""
        return mean_of(value for site in self.sites if site.model == model for value in getattr(site, name))

    @property
    def models(self) -> tuple[ModelKey, ...]:
        """The networks that were measured, in order."""
        return tuple(dict.fromkeys(site.model for site in self.sites))


TOTALS: tuple[tuple[Total, str, str], ...] = (
    ("mmd", "Discrepancy", "Squared MMD of queries and keys within a text, summed over heads and layers"),
    (
        "mmd_centred",
        "Discrepancy, means removed",
        "The same without a shift of all keys, which attention does not see",
    ),
)
MEANS: tuple[tuple[Mean, str, str], ...] = (
    ("query_norm", "Query norm", "Mean over heads and layers; shrinking alone lowers the discrepancy"),
    ("key_norm", "Key norm", "Mean over heads and layers"),
    (
        "auc",
        "Separability (AUC)",
        "AUC of a nearest-neighbour classifier of queries against keys; 0.5 is chance",
    ),
    ("auc_centred", "Separability, means removed", "The same without a shift of all keys of a head"),
)


def alignment_section(alignment: Alignment | None, unit: str = "texts") -> Section | None:
    """The section on queries and keys; None where nothing was measured. ``unit`` is what ``alignment.texts`` counts."""
    if alignment is None:
        return None
    names = site_labels([site.site for site in alignment.sites])
    context = {
        "alignment": alignment,
        "words": _words(alignment),
        "quantities": _quantities(alignment),
        "layers": by_call(alignment, names, lambda site: (sum(site.mmd), sum(site.mmd_centred)), _number),
        "panels": _panels(alignment.clouds, names),
        "unit": unit,
        "projection": {"pca": "their two principal components", "tsne": "t-SNE"}[alignment.projection],
    }
    return Section(
        "alignment", "Queries and keys", "How far apart are queries and keys?", "alignment.html", context
    )


def _words(alignment: Alignment) -> str:
    if "deterministic" not in alignment.models or len(alignment.models) < 2:
        (model,) = alignment.models
        return f"The discrepancy of the {MODEL_LABELS[model]} network is {alignment.total(model, 'mmd'):.3g} in all."
    compared = next(model for model in alignment.models if model != "deterministic")
    raw, centred = (
        _times(alignment.total("deterministic", name), alignment.total(compared, name))
        for name, _, _ in TOTALS
    )
    lengths = [_change(alignment, compared, name) for name in ("query_norm", "key_norm")]
    return (
        f"Against deterministic attention the discrepancy between queries and keys is {raw}, and {centred} once a "
        f"shift of all keys of a head is taken off. Queries are {lengths[0]} and keys {lengths[1]}."
    )


def _times(before: float, after: float) -> str:
    if before <= 0 or after <= 0:
        return "too small to compare"
    if 0.995 < before / after < 1.005:
        return "the same"
    return f"{before / after:.3g} times smaller" if before > after else f"{after / before:.3g} times larger"


def _change(alignment: Alignment, compared: ModelKey, name: Literal["query_norm", "key_norm"]) -> str:
    before, after = alignment.mean("deterministic", name), alignment.mean(compared, name)
    if not before or after is None:
        return "of no length"
    percent = 100 * (after / before - 1)
    if abs(percent) < 0.5:
        return "as long as they were"
    return f"{abs(percent):.0f}% {'longer' if percent > 0 else 'shorter'}"


def _quantities(alignment: Alignment) -> list[tuple[str, str, list[Markup], Markup]]:
    """Rows of the table: title, meaning, a value a model, and the first over the last."""
    rows: list[tuple[str, str, list[float | None]]] = [
        (title, meaning, [alignment.total(model, name) for model in alignment.models])
        for name, title, meaning in TOTALS
    ]
    rows += [
        (title, meaning, [alignment.mean(model, of) for model in alignment.models])
        for of, title, meaning in MEANS
    ]
    return [
        (title, meaning, [_number(value) for value in values], _ratio(values))
        for title, meaning, values in rows
        if any(value is not None for value in values)
    ]


def _number(value: float | None) -> Markup:
    return exact(value, "" if value is None else signed(f"{value:.3g}"))


def _ratio(values: Sequence[float | None]) -> Markup:
    first, last = values[0], values[-1]
    if len(values) < 2 or not first or not last or first < 0 or last < 0:
        return Markup("\N{EN DASH}")
    return Markup(f"{first / last:.3g}")


def _panels(clouds: Sequence[HeadCloud], names: dict[str, str]) -> list[Panel]:
    panels = []
    for (site, head), members in grouped(((cloud.site, cloud.head), cloud) for cloud in clouds).items():
        heading = f"{names.get(site, site)}, head {head}"
        ends = [abs(end) for cloud in members for point in (*cloud.query, *cloud.key) for end in point]
        reach = 1.05 * max(ends, default=0.0) or 1.0
        drawings = []
        for cloud in members:
            title = f"Queries and keys of {heading}, {MODEL_LABELS[cloud.model]} attention"
            drawings.append((cloud.model, cloud_chart(cloud.query, cloud.key, reach, title)))
        panels.append((heading, drawings))
    return panels
