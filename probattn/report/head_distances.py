"""Distances between the queries and keys of each head, and their projections to two dimensions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from probattn.divergences import mean_difference, median_bandwidth, mmd
from probattn.metrics.functional import ood_auroc
from probattn.report.alignment import HeadCloud, SiteAlignment
from probattn.report.record import ModelKey

TEXTS_PER_PASS = 16
"""Texts whose pairs of tokens are held at once."""


class _Call(Protocol):
    """Queries ``[B, H, T, D]`` and keys ``[B, H, S, D]`` of a call; bool ``[B, T]`` and ``[B, S]``: the real ones."""

    @property
    def query(self) -> Tensor: ...
    @property
    def key(self) -> Tensor: ...
    @property
    def query_valid(self) -> Tensor: ...
    @property
    def key_valid(self) -> Tensor: ...


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


def gather(batches: Iterable[Mapping[str, _Call]]) -> dict[str, TokenSample]:
    """Puts the attention calls of several batches together, padded to the longest, on the CPU.

    Args:
        batches: calls by name, as :func:`probattn.models.capture` gives them.

    Returns:
        Tokens by call.

    Raises:
        ValueError: no batch.
    """
    by_name: dict[str, list[_Call]] = {}
    for batch in batches:
        for name, tokens in batch.items():
            by_name.setdefault(name, []).append(tokens)
    if not by_name:
        raise ValueError("gather: expected at least one batch with an attention call, got none")
    return {name: _joined(calls) for name, calls in by_name.items()}


def _joined(calls: Sequence[_Call]) -> TokenSample:
    def padded(tensors: list[Tensor], valid: list[Tensor]) -> tuple[Tensor, Tensor]:
        length = max(tensor.shape[2] for tensor in tensors)
        padded = [F.pad(_full(tensor), (0, 0, 0, length - tensor.shape[2])) for tensor in tensors]
        marks = [F.pad(mark.cpu(), (0, length - mark.shape[1])) for mark in valid]
        return torch.cat(padded), torch.cat(marks)

    query, query_valid = padded([call.query for call in calls], [call.query_valid for call in calls])
    key, key_valid = padded([call.key for call in calls], [call.key_valid for call in calls])
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
    heads = zip(sample.query.split(1, dim=1), sample.key.split(1, dim=1), strict=True)
    return torch.cat([median_bandwidth(query, key, **marks) for query, key in heads])


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
    """Real tokens ``[n, H, D]`` and whether each is a key."""
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
