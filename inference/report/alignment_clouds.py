"""Queries and keys of attention heads in two dimensions."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from probattn.inference.report.alignment import TokenSample
from probattn.inference.report.alignment_records import HeadCloud
from probattn.inference.report.record import ModelKey

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
