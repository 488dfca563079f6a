"""How far apart the queries and keys of each head lie: records, measures and the section of the page."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, Protocol

import torch
from markupsafe import Markup
from pydantic import Field, model_validator
from torch import Tensor
from torch.nn import functional as F

from probattn.divergences import mean_difference, median_bandwidth, mmd
from probattn.inference.records import Number
from probattn.inference.report.charts.svg import cloud_chart
from probattn.inference.report.markup import Layer, Panel, Section, exact, site_labels
from probattn.inference.report.measures import MINUS, MODEL_LABELS, MODEL_STYLES
from probattn.inference.report.record import Count, ModelKey, Probability, Record
from probattn.metrics.functional import ood_auroc

ByHead = tuple[Number, ...]
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
        auc: AUC of a nearest-neighbour classifier of queries against keys; empty for fewer than two texts.
        auc_centred: the same with the difference of the means removed.
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
    """Measures of queries and keys.

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


TEXTS_PER_PASS = 16
"""Texts whose pairs of tokens are held at once."""


class Tokens(Protocol):
    """Queries and keys of an attention call, and which of them are real."""

    @property
    def query(self) -> Tensor:
        """``[B, H, T, D]``."""

    @property
    def key(self) -> Tensor:
        """``[B, H, S, D]``."""

    @property
    def query_valid(self) -> Tensor:
        """Bool ``[B, T]``, True for a real token."""

    @property
    def key_valid(self) -> Tensor:
        """Bool ``[B, S]``, True for a real token."""


@dataclass(frozen=True, eq=False)
class TokenSample:
    """Queries and keys of one attention call over some texts.

    Attributes:
        query: ``[N, H, T, D]``, float32 or float64.
        key: ``[N, H, S, D]``.
        query_valid: bool ``[N, T]``.
        key_valid: bool ``[N, S]``.
    """

    query: Tensor
    key: Tensor
    query_valid: Tensor
    key_valid: Tensor


@dataclass(frozen=True, eq=False)
class HeadDistances:
    """Measures of one call, ``[H]`` each; see :func:`head_distances`."""

    mmd: Tensor
    mmd_centred: Tensor
    query_norm: Tensor
    key_norm: Tensor
    auc: Tensor
    auc_centred: Tensor


def gather(batches: Iterable[Mapping[str, Tokens]]) -> dict[str, TokenSample]:
    """Puts the attention calls of several batches together, padded to the longest, on the CPU.

    Args:
        batches: calls by name, as :func:`probattn.models.capture` gives them.

    Returns:
        Tokens by call.

    Raises:
        ValueError: no batch.
    """
    parts: dict[str, list[Tokens]] = {}
    for batch in batches:
        for name, tokens in batch.items():
            parts.setdefault(name, []).append(tokens)
    if not parts:
        raise ValueError("gather: expected at least one batch with an attention call, got none")
    return {name: _joined(found) for name, found in parts.items()}


def _joined(parts: Sequence[Tokens]) -> TokenSample:
    def padded(tensors: list[Tensor], valid: list[Tensor]) -> tuple[Tensor, Tensor]:
        length = max(tensor.shape[2] for tensor in tensors)
        whole = [F.pad(_full(tensor), (0, 0, 0, length - tensor.shape[2])) for tensor in tensors]
        marks = [F.pad(mark.cpu(), (0, length - mark.shape[1])) for mark in valid]
        return torch.cat(whole), torch.cat(marks)

    query, query_valid = padded([part.query for part in parts], [part.query_valid for part in parts])
    key, key_valid = padded([part.key for part in parts], [part.key_valid for part in parts])
    return TokenSample(query, key, query_valid, key_valid)


def _full(tensor: Tensor) -> Tensor:
    tensor = tensor.detach().cpu()
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def head_bandwidths(sample: TokenSample) -> Tensor:
    """Median distance between tokens of one text, queries and keys pooled, by head: ``[H]``.

    To be taken from the network that others are compared with, and kept: see
    :func:`probattn.divergences.median_bandwidth`.
    """
    marks = {"query_mask": sample.query_valid, "key_mask": sample.key_valid}
    heads = range(sample.query.shape[1])
    return torch.cat(
        [
            median_bandwidth(sample.query[:, head : head + 1], sample.key[:, head : head + 1], **marks)
            for head in heads
        ]
    )


def head_distances(sample: TokenSample, bandwidth: Tensor) -> HeadDistances:
    r"""Measures of how far queries and keys lie apart.

    The maximum mean discrepancy is the unbiased estimate (Gretton et al. 2012, Eq. 3) within each text, averaged over
    texts. It also falls where queries and keys shrink, so their mean norms stand beside it; and where all keys of a
    head move alike, which attention does not see, so it is also taken with the difference of the means over all texts
    removed. The classifier has no bandwidth: k nearest neighbours (k the root of the number of tokens) among the tokens
    of one half of the texts classify queries against keys in the other half (Lopez-Paz & Oquab 2017); 0.5 is chance.

    Args:
        sample: the tokens.
        bandwidth: ``[H]``, see :func:`head_bandwidths`.

    Returns:
        Discrepancies, norms and areas under the ROC curve. The areas are NaN for fewer than two texts.
    """
    marks = {"query_mask": sample.query_valid, "key_mask": sample.key_valid}
    shift = mean_difference(sample.query, sample.key, **marks)  # [H, D]
    centred = TokenSample(sample.query, sample.key - shift[:, None], sample.query_valid, sample.key_valid)
    return HeadDistances(
        mmd=_mmd(sample, bandwidth),
        mmd_centred=_mmd(centred, bandwidth),
        query_norm=_mean_norm(sample.query, sample.query_valid),
        key_norm=_mean_norm(sample.key, sample.key_valid),
        auc=_neighbour_auc(sample),
        auc_centred=_neighbour_auc(centred),
    )


def _mmd(sample: TokenSample, bandwidth: Tensor) -> Tensor:
    total = torch.zeros_like(bandwidth, dtype=torch.float64)
    for start in range(0, len(sample.query), TEXTS_PER_PASS):
        rows = slice(start, start + TEXTS_PER_PASS)
        found = mmd(
            sample.query[rows],
            sample.key[rows],
            bandwidth=bandwidth,
            unbiased=True,
            query_mask=sample.query_valid[rows],
            key_mask=sample.key_valid[rows],
        )
        total += found.double().sum(dim=0)
    return total / len(sample.query)


def _mean_norm(tokens: Tensor, valid: Tensor) -> Tensor:
    norms = tokens.double().norm(dim=-1) * valid[:, None]  # [N, H, T]
    return norms.sum(dim=(0, 2)) / valid.sum().clamp_min(1)


def _neighbour_auc(sample: TokenSample) -> Tensor:
    heads = sample.query.shape[1]
    half = len(sample.query) // 2
    if not half:
        return torch.full((heads,), float("nan"), dtype=torch.float64)
    known, asked = _labelled(sample, slice(half)), _labelled(sample, slice(half, None))
    return torch.stack(
        [_auc((known[0][:, head], known[1]), (asked[0][:, head], asked[1])) for head in range(heads)]
    )


def _labelled(sample: TokenSample, rows: slice) -> tuple[Tensor, Tensor]:
    """Real tokens ``[n, H, D]`` and whether each is a key."""
    sides = ((sample.query, sample.query_valid), (sample.key, sample.key_valid))
    points = [tokens[rows].transpose(1, 2)[valid[rows]] for tokens, valid in sides]
    marks = [torch.full((len(found),), float(side)) for side, found in enumerate(points)]
    return torch.cat(points), torch.cat(marks)


def _auc(known: tuple[Tensor, Tensor], asked: tuple[Tensor, Tensor]) -> Tensor:
    neighbours = max(1, round(len(known[0]) ** 0.5))
    nearest = torch.cdist(asked[0], known[0]).topk(neighbours, largest=False).indices
    score = known[1][nearest].mean(dim=-1)  # share of keys among the neighbours
    return ood_auroc(score[asked[1] == 0], score[asked[1] == 1]).double()


def site_alignments(
    samples: Mapping[str, TokenSample], bandwidths: Mapping[str, Tensor], model: ModelKey
) -> tuple[SiteAlignment, ...]:
    """Records of a network's calls.

    Args:
        samples: tokens by call.
        bandwidths: by call, ``[H]``.
        model: whose they are.

    Returns:
        One record a call, numbers by head.

    Raises:
        ValueError: a call without bandwidth.
    """
    records = []
    for name, sample in samples.items():
        if name not in bandwidths:
            raise ValueError(
                f"site_alignments: expected a bandwidth of {name!r}, got those of {', '.join(bandwidths) or 'none'}"
            )
        found = head_distances(sample, bandwidths[name])
        numbers = {name: tuple(value.tolist()) for name, value in vars(found).items()}
        auc = {
            name: () if any(map(math.isnan, numbers[name])) else numbers[name]
            for name in ("auc", "auc_centred")
        }
        records.append(
            SiteAlignment(
                model=model, site=name, bandwidth=tuple(bandwidths[name].tolist()), **(numbers | auc)
            )
        )
    return tuple(records)


Projection = Literal["pca", "tsne"]


def clouds(
    sample: TokenSample,
    model: ModelKey,
    site: str,
    *,
    projection: Projection = "pca",
    points: int = 60,
    seed: int = 0,
) -> tuple[HeadCloud, ...]:
    """Queries and keys of each head in two dimensions.

    Args:
        sample: the tokens.
        model: whose they are.
        site: name of the call.
        projection: "pca", the two directions of largest variance of both together; or "tsne" (van der Maaten & Hinton
            2008), which needs scikit-learn.
        points: most queries, and most keys, of a head: spread evenly over the texts.
        seed: of t-SNE.

    Returns:
        One record a head.

    Raises:
        ImportError: t-SNE without scikit-learn.
    """
    sides = ((sample.query, sample.query_valid), (sample.key, sample.key_valid))
    chosen = [_spread(tokens.transpose(1, 2)[valid], points) for tokens, valid in sides]  # [n, H, D] each
    records = []
    for head in range(sample.query.shape[1]):
        both = torch.cat([side[:, head] for side in chosen]).double()
        flat = _tsne(both, seed) if projection == "tsne" else _pca(both)
        query, key = flat[: len(chosen[0])], flat[len(chosen[0]) :]
        records.append(HeadCloud(model=model, site=site, head=head, query=_rounded(query), key=_rounded(key)))
    return tuple(records)


def _spread(tokens: Tensor, most: int) -> Tensor:
    places = torch.linspace(0, len(tokens) - 1, min(most, len(tokens))).round().long()
    return tokens[places]


def _pca(points: Tensor) -> Tensor:
    """Principal components, the sign such that the largest entry of a direction is positive."""
    middle = points - points.mean(dim=0)
    directions = torch.linalg.svd(middle, full_matrices=False).Vh[:2]
    largest = directions.gather(1, directions.abs().argmax(dim=1, keepdim=True))
    flat = middle @ (directions * largest.sign()).T
    return F.pad(flat, (0, 2 - flat.shape[1]))


def _tsne(points: Tensor, seed: int) -> Tensor:
    try:
        from sklearn.manifold import TSNE
    except ImportError:
        raise ImportError(
            "t-SNE: expected the package scikit-learn, got no such package; install it: pip install "
            "'probattn[figures]', or take projection 'pca'"
        ) from None
    perplexity = min(30.0, max(1.0, (len(points) - 1) / 3))
    flat = TSNE(perplexity=perplexity, init="pca", random_state=seed).fit_transform(points.numpy())
    return torch.from_numpy(flat).double()


def _rounded(points: Tensor) -> tuple[tuple[float, float], ...]:
    return tuple((round(x, 3), round(y, 3)) for x, y in points.tolist())


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
    ("query_norm", "Query norm", "Mean over heads and layers; shrinking alone lowers the discrepancy"),
    ("key_norm", "Key norm", "Mean over heads and layers"),
    (
        "auc",
        "Separability (AUC)",
        "AUC of a nearest-neighbour classifier of queries against keys; 0.5 is chance",
    ),
    ("auc_centred", "Separability, means removed", "The same without a shift of all keys of a head"),
)
Quantity = tuple[str, str, tuple[Markup, ...], Markup]
"""A row of the table: title, meaning, a value a model, and the first over the last."""


def alignment_section(found: Alignment | None) -> Section | None:
    """The section on queries and keys; None where nothing was measured."""
    if found is None:
        return None
    names = site_labels([site.site for site in found.sites])
    context = {
        "words": _words(found),
        "models": [(_title(model), MODEL_STYLES[model]) for model in found.models],
        "quantities": _quantities(found),
        "layers": [_layer(found, name, label) for name, label in names.items()],
        "panels": _panels(found.clouds, names),
        "projection": {"pca": "their two principal components", "tsne": "t-SNE"}[found.projection],
        "bandwidth": f"the {MODEL_LABELS[found.bandwidth_of]} network",
        "texts": found.texts,
    }
    return Section(
        "alignment", "Queries and keys", "How far apart are queries and keys?", "alignment.html", context
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
        (title, meaning, tuple(_number(value) for value in values), _ratio(values))
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
    return name, label, tuple(values)


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
