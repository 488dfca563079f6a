"""Distances between the queries and keys of each head, and their projections to two dimensions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from probattn.checks import grouped, optional
from probattn.divergences import mean_difference, median_bandwidth, mmd
from probattn.host import at_least_float32
from probattn.metrics.functional import ood_auroc
from probattn.report.alignment import HeadCloud, SiteAlignment
from probattn.report.record import ModelKey

if TYPE_CHECKING:
    from probattn.models.hosts.capture import CapturedCall

TEXTS_PER_PASS = 16
"""Texts whose pairs of tokens are held at once."""


@dataclass(frozen=True, eq=False)
class TokenSample:
    """Queries and keys of one attention call over N texts.

    Attributes:
        query: queries ``[N, H, T, D]``, float32 or float64.
        key: keys ``[N, H, S, D]``.
        query_valid: bool ``[N, T]``, False at padding.
        key_valid: bool ``[N, S]``, False at padding.
    """

    query: Tensor
    key: Tensor
    query_valid: Tensor
    key_valid: Tensor


@dataclass(frozen=True, eq=False)
class HeadDistances:
    """Measures of one attention call, ``[H]`` each, with the names of :class:`~probattn.report.SiteAlignment`."""

    mmd: Tensor
    mmd_centred: Tensor
    query_norm: Tensor
    key_norm: Tensor
    auc: Tensor
    auc_centred: Tensor


def gather(batches: Iterable[Mapping[str, CapturedCall]]) -> dict[str, TokenSample]:
    """Concatenates the queries and keys of several batches, padded to the longest text, on the CPU.

    Args:
        batches: for each batch the attention calls by name, as :func:`probattn.models.capture` returns them.

    Returns:
        Queries and keys by name of the attention call.

    Raises:
        ValueError: there is no batch with an attention call.
    """
    by_name = grouped(item for batch in batches for item in batch.items())
    if not by_name:
        raise ValueError("gather: expected at least one batch with an attention call, got none")
    return {name: _joined(calls) for name, calls in by_name.items()}


def _joined(calls: Sequence[CapturedCall]) -> TokenSample:
    def padded(tensors: list[Tensor], valid: list[Tensor]) -> tuple[Tensor, Tensor]:
        length = max(tensor.shape[2] for tensor in tensors)
        full = [at_least_float32(tensor.detach().cpu()) for tensor in tensors]
        padded = [F.pad(tensor, (0, 0, 0, length - tensor.shape[2])) for tensor in full]
        marks = [F.pad(mark.cpu(), (0, length - mark.shape[1])) for mark in valid]
        return torch.cat(padded), torch.cat(marks)

    query, query_valid = padded([call.query for call in calls], [call.query_valid for call in calls])
    key, key_valid = padded([call.key for call in calls], [call.key_valid for call in calls])
    return TokenSample(query, key, query_valid, key_valid)


def head_bandwidths(sample: TokenSample) -> Tensor:
    """Kernel bandwidth of each head, ``[H]``: the median distance within a text, queries and keys pooled.

    Compute it once, for the baseline, and use it for all networks that are compared; see
    :func:`probattn.divergences.median_bandwidth`.
    """
    marks = {"query_mask": sample.query_valid, "key_mask": sample.key_valid}
    heads = zip(sample.query.split(1, dim=1), sample.key.split(1, dim=1), strict=True)
    return torch.cat([median_bandwidth(query, key, **marks) for query, key in heads])


def head_distances(sample: TokenSample, bandwidth: Tensor) -> HeadDistances:
    r"""Measures of the distance between queries and keys in each head.

    The squared maximum mean discrepancy is estimated without bias (Gretton et al. 2012, Eq. 3) within each text and
    averaged over texts. It also falls if queries and keys shrink, so their mean norms are reported too. A common shift
    of all keys of a head changes it but no attention weight; ``mmd_centred`` and ``auc_centred`` therefore subtract
    from the keys the difference of the means over all texts. The classifier needs no bandwidth: k nearest neighbours (k
    the root of the number of queries and keys) in one half of the texts classify queries against keys in the other half
    (Lopez-Paz & Oquab 2017); an area of 0.5 under its ROC curve is chance.

    Args:
        sample: queries and keys.
        bandwidth: bandwidth of each head, ``[H]``, see :func:`head_bandwidths`.

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
        masks: Any = {"query_mask": sample.query_valid[rows], "key_mask": sample.key_valid[rows]}
        distances = mmd(sample.query[rows], sample.key[rows], bandwidth=bandwidth, unbiased=True, **masks)
        total += distances.double().sum(dim=0)
    return total / len(sample.query)


def _mean_norm(tokens: Tensor, valid: Tensor) -> Tensor:
    norms = tokens.double().norm(dim=-1) * valid[:, None]  # [N, H, T]
    return norms.sum(dim=(0, 2)) / valid.sum().clamp_min(1)


def _neighbour_auc(sample: TokenSample) -> Tensor:
    heads = sample.query.shape[1]
    half = len(sample.query) // 2
    if not half:
        return torch.full((heads,), float("nan"), dtype=torch.float64)
    train, test = _labelled(sample, slice(half)), _labelled(sample, slice(half, None))
    return torch.stack(
        [_auc((train[0][:, head], train[1]), (test[0][:, head], test[1])) for head in range(heads)]
    )


def _labelled(sample: TokenSample, rows: slice) -> tuple[Tensor, Tensor]:
    """Queries and keys without padding, ``[n, H, D]``, and whether each is a key."""
    sides = ((sample.query, sample.query_valid), (sample.key, sample.key_valid))
    points = [tokens[rows].transpose(1, 2)[valid[rows]] for tokens, valid in sides]
    marks = [torch.full((len(group),), float(side)) for side, group in enumerate(points)]
    return torch.cat(points), torch.cat(marks)


def _auc(train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor]) -> Tensor:
    neighbours = max(1, round(len(train[0]) ** 0.5))
    nearest = torch.cdist(test[0], train[0]).topk(neighbours, largest=False).indices
    score = train[1][nearest].mean(dim=-1)  # share of keys among the neighbours
    return ood_auroc(score[test[1] == 0], score[test[1] == 1]).double()


def site_alignments(
    samples: Mapping[str, TokenSample], bandwidths: Mapping[str, Tensor], model: ModelKey
) -> tuple[SiteAlignment, ...]:
    """Records of :func:`head_distances` for all attention calls of a network.

    Args:
        samples: queries and keys by attention call.
        bandwidths: bandwidths ``[H]`` by attention call.
        model: the network.

    Returns:
        One record per attention call.

    Raises:
        ValueError: an attention call has no bandwidth.
    """
    records = []
    for name, sample in samples.items():
        if name not in bandwidths:
            raise ValueError(
                f"site_alignments: expected a bandwidth of {name!r}, got those of {', '.join(bandwidths) or 'none'}"
            )
        distances = head_distances(sample, bandwidths[name])
        numbers = {key: tuple(value.tolist()) for key, value in vars(distances).items()}
        numbers |= {key: () for key in ("auc", "auc_centred") if any(map(math.isnan, numbers[key]))}
        bandwidth = tuple(bandwidths[name].tolist())
        records.append(SiteAlignment(model=model, site=name, bandwidth=bandwidth, **numbers))
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
    """Queries and keys of each head, projected together to two dimensions.

    Args:
        sample: queries and keys.
        model: the network.
        site: name of the attention call.
        projection: "pca", the two principal components; or "tsne" (van der Maaten & Hinton 2008), which needs
            scikit-learn.
        points: maximum number of queries, and of keys, per head, spread evenly over the texts.
        seed: seed of t-SNE.

    Returns:
        One record per head.

    Raises:
        ImportError: ``"tsne"`` without scikit-learn.
    """
    sides = ((sample.query, sample.query_valid), (sample.key, sample.key_valid))
    sampled = [_spread(tokens.transpose(1, 2)[valid], points) for tokens, valid in sides]  # [n, H, D] each
    records = []
    for head in range(sample.query.shape[1]):
        both = torch.cat([side[:, head] for side in sampled]).double()
        flat = _tsne(both, seed) if projection == "tsne" else _pca(both)
        query, key = flat[: len(sampled[0])], flat[len(sampled[0]) :]
        records.append(HeadCloud(model=model, site=site, head=head, query=_rounded(query), key=_rounded(key)))
    return tuple(records)


def _spread(tokens: Tensor, count: int) -> Tensor:
    indices = torch.linspace(0, len(tokens) - 1, min(count, len(tokens))).round().long()
    return tokens[indices]


def _pca(points: Tensor) -> Tensor:
    """Principal components, the sign such that the largest entry of a direction is positive."""
    middle = points - points.mean(dim=0)
    directions = torch.linalg.svd(middle, full_matrices=False).Vh[:2]
    largest = directions.gather(1, directions.abs().argmax(dim=1, keepdim=True))
    flat = middle @ (directions * largest.sign()).T
    return F.pad(flat, (0, 2 - flat.shape[1]))


def _tsne(points: Tensor, seed: int) -> Tensor:
    manifold = optional("t-SNE (or take projection 'pca')", "sklearn.manifold", "figures")
    perplexity = min(30.0, max(1.0, (len(points) - 1) / 3))
    flat = manifold.TSNE(perplexity=perplexity, init="pca", random_state=seed).fit_transform(points.numpy())
    return torch.from_numpy(flat).double()


def _rounded(points: Tensor) -> tuple[tuple[float, float], ...]:
    return tuple((round(x, 3), round(y, 3)) for x, y in points.tolist())
