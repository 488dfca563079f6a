"""p values of several comparisons, corrected for their number."""

from __future__ import annotations

from collections.abc import Sequence


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    r"""Adjusted p values of Holm's step-down method.

    With the m values in ascending order,

    .. math:: \tilde p_{(i)} = \min\left(1, \max_{j \le i} (m - j + 1)\, p_{(j)}\right)

    (Holm 1979). If the comparisons whose adjusted value is at most :math:`\alpha` are claimed, the chance of any wrong
    claim among the m is at most :math:`\alpha`, however the comparisons depend on each other.

    Args:
        p_values: m >= 0 values in [0, 1].

    Returns:
        The adjusted values, in the order given.

    Raises:
        ValueError: a value outside [0, 1].

    Example:
        >>> [round(p, 3) for p in holm([0.01, 0.04, 0.03, 0.005])]
        [0.03, 0.06, 0.06, 0.02]
    """
    outside = [p for p in p_values if not 0 <= p <= 1]
    if outside:
        raise ValueError(f"holm: expected p values in [0, 1], got {outside[0]}")
    adjusted = [1.0] * len(p_values)
    largest = 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=lambda index: p_values[index])):
        largest = min(1.0, max(largest, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = largest
    return tuple(adjusted)
