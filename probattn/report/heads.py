"""Differences between heads and the importance of each: records, measures and the section of the page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Literal

import torch
from markupsafe import Markup
from pydantic import Field, model_validator
from torch import Tensor
from torch.nn import functional as F

from probattn.checks import grouped
from probattn.inference.records import Number
from probattn.metrics.functional import attention_overlap, head_distance, head_similarity
from probattn.report import markup
from probattn.report.lines import Line, line_chart, ticks
from probattn.report.measures import MODEL_LABELS, MODEL_STYLES, capital, signed
from probattn.report.record import Count, ModelKey, Probability, Record, check_matrix, mean_of
from probattn.report.svg import Axis, isolated

if TYPE_CHECKING:
    from probattn.models.hosts.capture import CapturedCall

HeadsKey = ModelKey | Literal["start"]
"""A model, or ``"start"`` for the network before training."""

Matrix = tuple[tuple[Number, ...], ...]
Quantity = Literal["distance", "relative", "cosine", "overlap"]


class SiteHeads(Record):
    """Diversity of the heads of one attention call of a network.

    Attributes:
        model: network that was measured.
        site: name of the attention call.
        distance: mean distance between the outputs of two heads (:func:`probattn.metrics.functional.head_distance`).
        relative: ``distance`` divided by the mean 2-norm of an output.
        overlap: mean overlap of the weights of two heads (:func:`probattn.metrics.functional.attention_overlap`); None
            if the network returns no attention weights.
        similarity: mean cosine between the outputs of every two heads.
        lengths: mean norm of a head's projection weights, by projection (query, key, value).
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
        size = len(self.similarity)
        check_matrix(f"similarity of {self.site}", self.similarity, size, size)
        return self

    @property
    def cosine(self) -> float:
        """Mean cosine between two different heads."""
        count = len(self.similarity)
        apart = [value for i, row in enumerate(self.similarity) for j, value in enumerate(row) if i != j]
        return sum(apart) / (count * (count - 1))


class HeadDrops(Record):
    """Accuracy without each head of one attention call.

    Attributes:
        model: network that was measured.
        site: name of the attention call.
        accuracy: accuracy without head i, for each i.
    """

    model: ModelKey
    site: str
    accuracy: tuple[Probability, ...]


class HeadRows(Record):
    """Attention weights of each head of one attention call in one text, averaged over the queries.

    Attributes:
        model: network that was measured.
        site: name of the attention call.
        text: the text.
        tokens: its tokens.
        weights: mean weights, one row per head and one column per token.
    """

    model: ModelKey
    site: str
    text: str
    tokens: tuple[str, ...]
    weights: Matrix

    @model_validator(mode="after")
    def _fits(self) -> HeadRows:
        check_matrix(f"weights of {self.site}", self.weights, len(self.weights), len(self.tokens))
        return self


class Heads(Record):
    """Diversity and importance of the attention heads of networks.

    Attributes:
        texts: number of texts of the first data set over which heads were compared.
        sites: diversity, one record per network and attention call.
        masked_texts: number of texts over which the accuracy without each head was measured.
        measure: name of the measure of accuracy.
        whole: accuracy on the ``masked_texts`` with all heads, by network.
        drops: accuracy without each head, one record per network and attention call.
        rows: attention of each head, one record per text, network and attention call.
    """

    texts: Annotated[int, Field(ge=1)]
    sites: Annotated[tuple[SiteHeads, ...], Field(min_length=1)]
    masked_texts: Count = 0
    measure: str = "accuracy"
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
        """The networks whose heads were compared, in order."""
        return tuple(dict.fromkeys(site.model for site in self.sites))

    def mean(self, model: HeadsKey, name: Quantity) -> float | None:
        """Mean of a measure over the attention calls of a network; None if it was not measured."""
        return mean_of(getattr(site, name) for site in self.sites if site.model == model)

    def mean_length(self, model: HeadsKey, part: str) -> float | None:
        """Mean over attention calls of the norm of a head's weights in one projection."""
        return mean_of(site.lengths.get(part) for site in self.sites if site.model == model)

    def falls(self, model: ModelKey) -> tuple[float, ...]:
        """Decrease of accuracy without each head of the network, in the order of calls and heads."""
        accuracies = [value for item in self.drops if item.model == model for value in item.accuracy]
        return tuple(self.whole[model] - value for value in accuracies)

    def removable(self, model: ModelKey) -> float | None:
        """Share of heads without which the accuracy does not fall; None if it was not measured."""
        return mean_of(fall <= 0 for fall in self.falls(model)) if model in self.whole else None

    def harmful(self, model: ModelKey) -> float | None:
        """Share of heads without which the accuracy rises; None if it was not measured."""
        return mean_of(fall < 0 for fall in self.falls(model)) if model in self.whole else None


def site_heads(
    batches: Iterable[Mapping[str, CapturedCall]], model: HeadsKey, lengths: Mapping[str, Mapping[str, float]]
) -> tuple[SiteHeads, ...]:
    """Compares the heads of each attention call over the queries of all batches, without padding.

    Args:
        batches: for each batch the attention calls by name, as :func:`probattn.models.capture` returns them.
        model: the network.
        lengths: mean norm of a head's weights, by attention call and projection; calls may be missing.

    Returns:
        One record per attention call with at least two heads, in order.

    Raises:
        ValueError: there is no batch, or no query that is not padding.
    """
    outputs: dict[str, list[Tensor]] = {}
    weights: dict[str, list[Tensor] | None] = {}
    for batch in batches:
        for name, call in batch.items():
            if call.output.shape[1] < 2:
                continue
            valid = call.query_valid
            outputs.setdefault(name, []).append(_queries(call.output, valid))
            recorded = weights.setdefault(name, [])
            if call.weights is None or recorded is None:
                weights[name] = None
            else:
                recorded.append(_queries(call.weights, valid))
    if not outputs:
        raise ValueError("site_heads: expected a batch with an attention call of two heads or more, got none")
    return tuple(
        _record(name, model, tensors, weights[name], lengths.get(name, {}))
        for name, tensors in outputs.items()
    )


def _queries(tensor: Tensor, valid: Tensor) -> Tensor:
    """The real queries ``[N, H, ...]``, on the CPU."""
    return tensor.detach().transpose(1, 2)[valid].float().cpu()


def _record(
    name: str,
    model: HeadsKey,
    outputs: Sequence[Tensor],
    weights: Sequence[Tensor] | None,
    lengths: Mapping[str, float],
) -> SiteHeads:
    output = _as_one_text(outputs)
    distance = head_distance(output)
    overlap = None
    if weights is not None:
        longest = max(tensor.shape[-1] for tensor in weights)
        padded = [F.pad(tensor, (0, longest - tensor.shape[-1])) for tensor in weights]
        overlap = min(1.0, attention_overlap(_as_one_text(padded)).item())
    similarity = head_similarity(output).tolist()
    return SiteHeads(
        model=model,
        site=name,
        distance=distance.distance.item(),
        relative=distance.relative.item(),
        overlap=overlap,
        similarity=tuple(tuple(round(value, 4) for value in row) for row in similarity),
        lengths=dict(lengths),
    )


def _as_one_text(batches: Sequence[Tensor]) -> Tensor:
    """Queries of several batches as those of one text, ``[1, H, N, ...]``."""
    return torch.cat(list(batches)).transpose(0, 1).unsqueeze(0)


QUANTITIES: tuple[tuple[Quantity, str, str], ...] = (
    ("distance", "Distance", "Dist: between the outputs of two heads; longer outputs lie farther apart"),
    ("relative", "Distance, relative", "Over the length of an output; \N{SQUARE ROOT}2 for orthogonal heads"),
    ("cosine", "Cosine", "Between the outputs of two heads; 0 for orthogonal heads"),
    ("overlap", "Overlap of attention", "Share of attention that two heads spend on the same tokens"),
)
PARTS = ("query", "key", "value")
LEAST_FALL = 0.02
"""An axis of falls spans at least this on both sides."""

ROOM = 1.1
"""It ends beyond the largest value by this factor."""


def heads_section(heads: Heads | None, unit: str = "texts") -> markup.Section | None:
    """The section on heads, over examples in ``unit``; None where nothing was measured."""
    if heads is None:
        return None
    measure = heads.measure
    names = markup.site_labels([site.site for site in heads.sites])
    shown = heads.rows[0].site if heads.rows else heads.sites[-1].site
    context = {
        "heads": heads,
        "words": _words(heads),
        "rows": _rows(heads),
        "layers": markup.by_call(heads, names, lambda site: (site.relative, site.overlap), _number),
        "falls": _falls(heads, measure),
        "fallen": " ".join(_fallen(heads, model, measure) for model in heads.whole if heads.falls(model)),
        "similarity": [
            _similarity(heads, name, label)
            for name, label in names.items()
            if name in (shown, next(iter(names)))
        ],
        "rows_of_heads": _heads_of_texts(heads),
        "site": names.get(shown, shown),
        "unit": unit,
        "measure": measure,
    }
    return markup.Section("heads", "Heads", "Do the heads differ?", "heads.html", context)


def _words(heads: Heads) -> str:
    model = heads.models[-1]
    relative, overlap = heads.mean(model, "relative"), heads.mean(model, "overlap")
    assert relative is not None
    name = MODEL_LABELS[model]
    sentence = (
        f"Relative to their length, the outputs of two heads of the {name} network lie {relative:.2f} apart"
    )
    if overlap is not None:
        sentence += f", and two heads spend {overlap:.0%} of their attention on the same tokens"
    if "deterministic" not in heads.models or model == "deterministic":
        return f"{sentence}."
    before, shared = heads.mean("deterministic", "relative"), heads.mean("deterministic", "overlap")
    if overlap is None or shared is None:
        return f"{sentence}. In the deterministic network it is {before:.2f}."
    return f"{sentence}. In the deterministic network these are {before:.2f} and {shared:.0%}."


def _rows(heads: Heads) -> list[tuple[str, str, list[Markup]]]:
    rows = [
        (title, meaning, [heads.mean(model, name) for model in heads.models])
        for name, title, meaning in QUANTITIES
    ]
    for projection in PARTS:
        lengths = [heads.mean_length(model, projection) for model in heads.models]
        rows.append((f"Length of a head, {projection}", "Of its slice of the weight", lengths))
    return [
        (title, meaning, [_number(value) for value in values])
        for title, meaning, values in rows
        if any(value is not None for value in values)
    ]


def _number(value: float | None) -> Markup:
    words = "" if value is None else f"{value:.2f}" if abs(value) >= 1 else f"{value:.3f}"
    return markup.exact(value, signed(words))


def _falls(heads: Heads, measure: str) -> list[markup.Figure]:
    if not heads.drops:
        return []
    lines = []
    for model in heads.whole:
        ordered = sorted(heads.falls(model), reverse=True)
        points = tuple((float(rank), value) for rank, value in enumerate(ordered, 1))
        lines.append(Line(MODEL_LABELS[model], MODEL_STYLES[model], points))
    last = max(2, *(len(line.points) for line in lines))
    values = [value for line in lines for _, value in line.points]
    low, high = min(-LEAST_FALL, ROOM * min(values)), max(LEAST_FALL, ROOM * max(values))
    x = Axis(1, last, "heads, the most needed first", ticks(1, last, 4))
    marks = tuple((value / 100, label) for value, label in ticks(100 * low, 100 * high, 5))
    y = Axis(low, high, f"{measure} lost (points)", marks)
    chart = line_chart(lines, x, y, f"{capital(measure)} lost without each head")
    return [markup.Figure(f"{capital(measure)} lost without a head", chart, note="one at a time, sorted")]


def _fallen(heads: Heads, model: ModelKey, measure: str) -> str:
    """Numbers of heads without which accuracy stays the same, and rises."""
    falls, name = heads.falls(model), MODEL_LABELS[model]
    if not any(falls):
        return f"Each of the {len(falls)} heads of the {name} network can be taken out without any change of {measure}."
    idle, harmful = sum(value == 0 for value in falls), sum(value < 0 for value in falls)
    return (
        f"Of the {len(falls)} heads of the {name} network, {idle} can be taken out without any change of {measure}, "
        f"{harmful} with a gain, and the most needed one costs {100 * max(falls):.1f} points."
    )


def _similarity(heads: Heads, name: str, label: str) -> markup.Panel:
    drawings = []
    for record in (site for site in heads.sites if site.site == name):
        labels = [str(head) for head in range(len(record.similarity))]
        # from -1 to 1 onto the ramp's 0 to 1
        values = [[min(1.0, max(0.0, (value + 1) / 2)) for value in row] for row in record.similarity]
        title = f"Cosine between heads, {label}, {MODEL_LABELS[record.model]}"
        drawings.append((record.model, markup.heatmap(labels, labels, values, 1.0, "cosine", title)))
    return label, drawings


def _heads_of_texts(heads: Heads) -> list[markup.Panel]:
    panels = []
    for text, members in grouped((item.text, item) for item in heads.rows).items():
        top = max((value for item in members for row in item.weights for value in row), default=1.0)
        drawings = []
        for item in members:
            names = [f"head {head}" for head in range(len(item.weights))]
            title = f"Attention of each head, {MODEL_LABELS[item.model]}: {isolated(item.text)}"
            drawings.append(
                (item.model, markup.heatmap(names, item.tokens, item.weights, top, "mean", title))
            )
        panels.append((markup.shortened(text), drawings))
    return panels
