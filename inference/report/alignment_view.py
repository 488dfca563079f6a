"""The section on queries and keys, ready for the template."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from markupsafe import Markup

from probattn.inference.report.alignment_records import Alignment, HeadCloud
from probattn.inference.report.charts.cloud import cloud_chart
from probattn.inference.report.markup import exact
from probattn.inference.report.measures import MINUS, MODEL_LABELS, MODEL_STYLES
from probattn.inference.report.record import ModelKey
from probattn.inference.report.results import Results
from probattn.inference.report.side_by_side import Layer, Panel
from probattn.inference.report.tables import site_labels

Total = Literal["mmd", "mmd_centred"]
Mean = Literal["query_norm", "key_norm", "auc", "auc_centred"]

TOTALS: tuple[tuple[Total, str, str], ...] = (
    ("mmd", "Discrepancy", "Squared MMD of queries and keys within a text, summed over heads and layers"),
    (
        "mmd_centred",
        "Discrepancy, means removed",
        "The same without a shift of all keys, which attention does not see",
    ),
)
MEANS: tuple[tuple[Mean, str, str], ...] = (
    ("query_norm", "Length of a query", "Mean over heads and layers; shrinking alone lowers the discrepancy"),
    ("key_norm", "Length of a key", "Likewise"),
    ("auc", "Told apart (AUC)", "How well nearest neighbours tell queries from keys; 0.5 is guessing"),
    ("auc_centred", "Told apart, means removed", "The same without a shift of all keys of a head"),
)


@dataclass(frozen=True)
class Quantity:
    """A row of the table: title, meaning, a value a model, and the first over the last."""

    title: str
    meaning: str
    values: tuple[Markup, ...]
    ratio: Markup


@dataclass(frozen=True)
class AlignmentView:
    """The section.

    Attributes:
        words: what was found.
        models: titles and styles of the columns.
        quantities: the first table.
        layers: the second.
        panels: the clouds.
        projection: how they came to two dimensions, in words.
        bandwidth: where the bandwidths come from, in words.
        texts: over how many texts.
    """

    words: str
    models: tuple[tuple[str, str], ...]
    quantities: tuple[Quantity, ...]
    layers: tuple[Layer, ...]
    panels: tuple[Panel, ...]
    projection: str
    bandwidth: str
    texts: int


def alignment_view(results: Results) -> AlignmentView | None:
    """The section's parts; None where nothing was measured."""
    found = results.alignment
    if found is None:
        return None
    models = found.models
    names = site_labels([site.site for site in found.sites])
    projections = {"pca": "their two principal components", "tsne": "t-SNE"}
    return AlignmentView(
        words=_words(found),
        models=tuple((_title(model), MODEL_STYLES[model]) for model in models),
        quantities=_quantities(found),
        layers=tuple(_layer(found, name, label) for name, label in names.items()),
        panels=_panels(found.clouds, names),
        projection=projections[found.projection],
        bandwidth=f"the {MODEL_LABELS[found.bandwidth_of]} network",
        texts=found.texts,
    )


def _title(model: ModelKey) -> str:
    """Queries and keys come from one pass, not from a mean over draws."""
    words = MODEL_LABELS[model]
    return words[0].upper() + words[1:]


def _words(found: Alignment) -> str:
    if "deterministic" not in found.models or len(found.models) < 2:
        (model,) = found.models
        return (
            f"The discrepancy of the {MODEL_LABELS[model]} network is {found.total(model, 'mmd'):.3g} in all."
        )
    own = next(model for model in found.models if model != "deterministic")
    raw, centred = (
        _times(found.total("deterministic", name), found.total(own, name)) for name, _, _ in TOTALS
    )
    lengths = [_change(found, own, name) for name in ("query_norm", "key_norm")]
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


def _change(found: Alignment, own: ModelKey, name: Literal["query_norm", "key_norm"]) -> str:
    before, after = found.mean("deterministic", name), found.mean(own, name)
    if not before or after is None:
        return "of no length"
    percent = 100 * (after / before - 1)
    if abs(percent) < 0.5:
        return "as long as they were"
    return f"{abs(percent):.0f}% {'longer' if percent > 0 else 'shorter'}"


def _quantities(found: Alignment) -> tuple[Quantity, ...]:
    rows: list[tuple[str, str, list[float | None]]] = [
        (title, meaning, [found.total(model, name) for model in found.models])
        for name, title, meaning in TOTALS
    ]
    rows += [
        (title, meaning, [found.mean(model, of) for model in found.models]) for of, title, meaning in MEANS
    ]
    return tuple(
        Quantity(title, meaning, tuple(_number(value) for value in values), _ratio(values))
        for title, meaning, values in rows
        if any(value is not None for value in values)
    )


def _number(value: float | None) -> Markup:
    return exact(value, "" if value is None else f"{value:.3g}".replace("-", MINUS))


def _ratio(values: Sequence[float | None]) -> Markup:
    first, last = values[0], values[-1]
    if len(values) < 2 or not first or not last or first < 0 or last < 0:
        return Markup("\N{EN DASH}")
    return Markup(f"{first / last:.3g}")


def _layer(found: Alignment, name: str, label: str) -> Layer:
    values = []
    for model in found.models:
        own = next((site for site in found.sites if (site.model, site.site) == (model, name)), None)
        totals = (None, None) if own is None else (sum(own.mmd), sum(own.mmd_centred))
        values.append((_number(totals[0]), _number(totals[1])))
    return Layer(name, label, tuple(values))


def _panels(found: Sequence[HeadCloud], names: dict[str, str]) -> tuple[Panel, ...]:
    groups: dict[tuple[str, int], list[HeadCloud]] = {}
    for cloud in found:
        groups.setdefault((cloud.site, cloud.head), []).append(cloud)
    panels = []
    for (site, head), members in groups.items():
        heading = f"{names.get(site, site)}, head {head}"
        ends = [abs(end) for cloud in members for point in (*cloud.query, *cloud.key) for end in point]
        reach = 1.05 * max(ends, default=0.0) or 1.0
        drawings = [
            (
                _title(cloud.model),
                Markup(
                    cloud_chart(
                        cloud.query,
                        cloud.key,
                        reach,
                        f"Queries and keys of {heading}, {MODEL_LABELS[cloud.model]} attention",
                    )
                ),
            )
            for cloud in members
        ]
        panels.append(Panel(heading, tuple(drawings)))
    return tuple(panels)
