"""Maximum mean discrepancy between queries and keys, and what measuring with it needs."""

from __future__ import annotations

import torch
from torch import Tensor

from probattn.checks import check_number
from probattn.divergences.tokens import TokenSets, compare, token_sets


def mmd(
    query: Tensor,
    key: Tensor,
    mask: Tensor | None = None,
    *,
    bandwidth: float | Tensor = 1.0,
    unbiased: bool = False,
    centred: bool = False,
    query_mask: Tensor | None = None,
    key_mask: Tensor | None = None,
) -> Tensor:
    r"""Squared maximum mean discrepancy with a Gaussian kernel (Gretton et al. 2012, Eq. 3 and 5).

    .. math::
        L = \mathbb E_{q, q'}\, \kappa(q, q') + \mathbb E_{k, k'}\, \kappa(k, k') - 2\, \mathbb E_{q, k}\, \kappa(q, k),
        \qquad \kappa(x, y) = \exp\left(-\frac{|x - y|^2}{2 \sigma^2}\right),

    with expectations over the tokens of one head and one example. By default they include the pairs of a token with
    itself, so L >= 0, and 0 for equal sets; minimise this value. To measure, use ``unbiased=True``, which omits these
    pairs: with n queries and n keys they add 2/n to L, nearly all of it if the bandwidth is small.

    Shrinking queries and keys lowers L. A shift of all keys of a head by the same vector may also lower it, although
    attention weights do not change; report the norms with L, and also L with ``centred=True``.

    Args:
        query: ``[B, H, T, D]``, floating-point.
        key: ``[B, H, S, D]``, floating-point.
        mask: bool ``[B, T]`` or ``[B, 1 | H, T]``, True for real tokens, for queries and keys at once; needs T = S.
        bandwidth: sigma > 0, a number or broadcastable to ``[B, H]``; :func:`median_bandwidth` gives one per head.
        unbiased: whether to omit the pairs of a token with itself. The value may be negative; it is 0 if either set has
            fewer than two tokens.
        centred: whether to subtract the :func:`mean_difference` of these queries and keys from the keys first.
        query_mask: bool ``[B, T]`` or ``[B, 1 | H, T]``, for queries alone; not together with ``mask``.
        key_mask: bool ``[B, S]`` or ``[B, 1 | H, S]``, for keys alone; not together with ``mask``.

    Returns:
        ``[B, H]``, at least float32; 0 if all queries or all keys are masked.

    Raises:
        TypeError: queries or keys are not floating-point, or a mask is not bool.
        ValueError: shapes do not fit, ``mask`` is given with another mask, or a bandwidth is not positive and finite.

    Example:
        >>> q = torch.zeros(1, 1, 4, 2)
        >>> mmd(q, q + 1.0, bandwidth=2.0)
        tensor([[0.4424]])
    """
    width = _checked_width(bandwidth, query)

    def measure(tokens: TokenSets) -> Tensor:
        query, key = tokens.query, tokens.key
        if centred:
            key = key - _mean_difference(tokens).unsqueeze(-2)
        centre = (query.detach() * tokens.query_weight.unsqueeze(-1)).sum(dim=2, keepdim=True)
        query, key = query - centre, key - centre  # distances are the same there and rounding errors smaller
        precision = (0.5 / width.to(query).square()).clamp_max(torch.finfo(query.dtype).max)
        factor = -precision.expand(query.shape[:2])[..., None, None]
        weights = tokens.query_weight, tokens.key_weight
        within = [_within(*side, factor, unbiased) for side in zip((query, key), weights, strict=True)]
        value = within[0] + within[1] - 2 * _mean(_kernel(query, key, factor), *weights)
        if not unbiased:
            return value
        counts = [(weight > 0).sum(dim=-1) for weight in weights]
        return value.masked_fill(~((counts[0] > 1) & (counts[1] > 1)), 0.0)

    return compare(measure, query, key, mask, query_mask, key_mask)


def mean_difference(
    query: Tensor,
    key: Tensor,
    mask: Tensor | None = None,
    *,
    query_mask: Tensor | None = None,
    key_mask: Tensor | None = None,
) -> Tensor:
    """Mean key minus mean query of each head, over all unmasked tokens of the batch.

    Subtracting it from the keys changes no attention weight, because it shifts all scores of a query by the same
    number. Arguments and errors are those of :func:`mmd`.

    Returns:
        ``[H, D]``; a mean over no tokens counts as 0.

    Example:
        >>> q = torch.randn(3, 2, 5, 4)
        >>> mean_difference(q, q + 1.0).round(decimals=3)
        tensor([[1., 1., 1., 1.],
                [1., 1., 1., 1.]])
    """
    return _mean_difference(token_sets(query, key, mask, query_mask, key_mask))


def median_bandwidth(
    query: Tensor,
    key: Tensor,
    mask: Tensor | None = None,
    *,
    query_mask: Tensor | None = None,
    key_mask: Tensor | None = None,
) -> Tensor:
    """The median heuristic: per head, the median distance between two tokens of one example, queries and keys pooled.

    Of an even number of distances it is the lower one in the middle.

    Compute the bandwidth once, before alignment: a bandwidth that is measured again shrinks with queries and keys and
    hides that they shrink. Arguments and other errors are those of :func:`mmd`.

    Returns:
        ``[H]``, without gradient.

    Raises:
        ValueError: the median distance of a head is 0, or there are no two tokens.

    Example:
        >>> q = torch.tensor([[[[0.0], [3.0]]]])
        >>> median_bandwidth(q, torch.full((1, 1, 1, 1), 7.0))
        tensor([4.])
    """
    medians = median_distances(query, key, mask, query_mask=query_mask, key_mask=key_mask)
    if not bool((medians > 0).all()):
        head = int((medians <= 0).nonzero()[0])
        raise ValueError(
            f"median_bandwidth: head {head} has no two tokens at a distance; give a bandwidth instead"
        )
    return medians


def median_distances(
    query: Tensor, key: Tensor, mask: Tensor | None = None, **masks: Tensor | None
) -> Tensor:
    """The values of :func:`median_bandwidth`, 0 for a head that has no two tokens at a distance."""
    tokens = token_sets(query, key, mask, **masks)
    batch, heads = tokens.query.shape[:2]
    with torch.no_grad(), torch.autocast(query.device.type, enabled=False):
        pooled = tokens.both()
        weights = [weight.expand(batch, heads, -1) for weight in (tokens.query_weight, tokens.key_weight)]
        valid = torch.cat(weights, dim=-1) > 0
        # One by one: all at once is much memory.
        medians = [_median(pooled[:, head], valid[:, head]) for head in range(heads)]
    return torch.stack(medians)


def _median(points: Tensor, valid: Tensor) -> Tensor:
    """Median distance of two different points ``[B, N, D]`` of one sample; 0 where there are none."""
    pairs = (valid.unsqueeze(-1) & valid.unsqueeze(-2)).triu(diagonal=1)
    # Without matrix products, which cancel where points lie far from the origin.
    distances = torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist")[pairs]
    return distances.median() if distances.numel() else points.new_zeros(())


def _checked_width(bandwidth: float | Tensor, query: Tensor) -> Tensor:
    if not isinstance(bandwidth, Tensor):
        check_number("mmd", "bandwidth", bandwidth, positive=True)
        return torch.tensor(bandwidth, dtype=torch.float64)
    if not bool(((bandwidth > 0) & bandwidth.isfinite()).all()):
        raise ValueError(f"mmd.bandwidth: expected finite numbers > 0, got {bandwidth}")
    sizes = zip(reversed(bandwidth.shape), reversed(query.shape[:2]), strict=False)
    if bandwidth.dim() > 2 or any(size not in (1, full) for size, full in sizes):
        raise ValueError(
            f"mmd.bandwidth: expected a shape that broadcasts to [B, H] = {list(query.shape[:2])}, got "
            f"{list(bandwidth.shape)}"
        )
    return bandwidth


def _mean_difference(tokens: TokenSets) -> Tensor:
    """``[H, D]``, with gradient."""
    means = []
    for points, mask in ((tokens.key, tokens.key_mask), (tokens.query, tokens.query_mask)):
        batch, _, length, _ = points.shape
        count = points.new_full((1,), batch * length) if mask is None else mask.sum(dim=(0, 2)).to(points)
        means.append(points.sum(dim=(0, 2)) / count.clamp_min(1).unsqueeze(-1))
    return means[0] - means[1]


def _kernel(x: Tensor, y: Tensor, factor: Tensor) -> Tensor:
    squares = x.square().sum(dim=-1).unsqueeze(-1) + y.square().sum(dim=-1).unsqueeze(-2)
    distances = squares - 2 * torch.matmul(x, y.transpose(-1, -2))  # [B, H, T, S]
    return (distances.clamp_min(0) * factor).exp()


def _mean(kernel: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    weighted = torch.matmul(kernel, columns.unsqueeze(-1)).squeeze(-1)
    return (weighted * rows).sum(dim=-1)


def _within(points: Tensor, weight: Tensor, factor: Tensor, unbiased: bool) -> Tensor:
    centre = (points.detach() * weight.unsqueeze(-1)).sum(dim=2, keepdim=True)
    points = points - centre  # of this set, which may lie far from the other
    kernel = _kernel(points, points, factor)
    mean = _mean(kernel, weight, weight)
    if not unbiased:
        return mean
    squared = weight.square()
    count = squared.sum(dim=-1)  # 1 / n
    alone = (kernel.diagonal(dim1=-2, dim2=-1) * squared).sum(dim=-1)
    return (mean - alone) / (1 - count).clamp_min(torch.finfo(mean.dtype).eps)
