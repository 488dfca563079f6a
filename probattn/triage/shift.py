"""Distribution shift: whether inputs differ from those that a policy was calibrated on."""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, Self

import numpy as np
import scipy
import torch
from pydantic import model_validator
from torch import Tensor

from probattn.report.record import Count, Probability, Record

KEPT = 1000
"""Most uncertainties that are kept, evenly spaced among the sorted ones."""
FEW = 100
"""Most inputs for which the distribution of D is exact; of many, scipy may fail at it."""
TABLES = 20_000
"""Random tables for the probability of predicted classes."""
PART = 1_000
"""Tables that are held at once."""
LEVEL = 0.001
"""Level of the test: probability with which in-domain inputs are called shifted."""
LEAST = 0.05
"""Smallest difference of shares that is worth a word, however many inputs show it."""


class Seen(Record):
    """Uncertainty and predicted class of inputs.

    Attributes:
        scores: uncertainties, ascending; of more than 1,000 as many quantiles.
        predicted: number of inputs by predicted class; of an empty name where answers are of no classes.
        distances: from the training data, like the scores; none where they are not known.
    """

    scores: tuple[float, ...]
    predicted: Mapping[str, Count]
    distances: tuple[float, ...] = ()

    @model_validator(mode="after")
    def _lengths(self) -> Self:
        expected = min(self.size, KEPT)
        if len(self.scores) != expected or len(self.distances) not in (0, expected):
            raise ValueError(
                f"expected {expected} scores, and as many distances or none, of {self.size} inputs, got "
                f"{len(self.scores)} and {len(self.distances)}"
            )
        return self

    @classmethod
    def of(
        cls, scores: Sequence[float] | Tensor, labels: Iterable[str], distances: Sequence[float] | Tensor = ()
    ) -> Seen:
        """What is kept of inputs with these uncertainties, predicted classes and distances."""
        return cls(
            scores=_kept(scores), predicted=dict(sorted(Counter(labels).items())), distances=_kept(distances)
        )

    @property
    def size(self) -> int:
        """Number of inputs."""
        return sum(self.predicted.values())


class Shift(Record):
    r"""How inputs differ from held-out ones, by what the network makes of them (Rabanser et al. 2019).

    .. math:: D = \max_\lambda |\hat F(\lambda) - \hat F_0(\lambda)|, \qquad
        V = \tfrac12 \sum_c |\hat p(c) - \hat p_0(c)|

    with the distributions of uncertainty and of the predicted class. So D is the most by which the answered shares can
    differ, whatever the threshold. Where the distances from the training data are known, D is taken of them too.

    Attributes:
        uncertainty: D, 0 to 1.
        uncertainty_p: of the Kolmogorov-Smirnov test: probability of such a D between in-domain inputs.
        classes: V, 0 to 1; between in-domain inputs it is the larger the more classes and the fewer inputs there are;
            None where answers are of no classes.
        classes_p: of the chi-square statistic, among 20,000 random tables of the same totals; so it is 5e-5 or more.
        distance: D of the distances; None where they are not known.
        distance_p: of the same test of them.
    """

    uncertainty: Probability
    uncertainty_p: Probability
    classes: Probability | None
    classes_p: Probability | None
    distance: Probability | None = None
    distance_p: Probability | None = None

    @property
    def differences(self) -> tuple[str, ...]:
        """Differences of five points or more; in-domain inputs have some in fewer than one of 1,000 samples."""
        tested = (
            ("uncertainty", self.uncertainty, self.uncertainty_p),
            ("predicted classes", self.classes, self.classes_p),
            ("distance from the training data", self.distance, self.distance_p),
        )
        measured = [(name, value, p) for name, value, p in tested if value is not None and p is not None]
        return tuple(
            f"{name} by {100 * value:.0f} points ({'p < 0.0001' if p < 1e-4 else f'p = {p:.1g}'})"
            for name, value, p in measured
            if p < LEVEL / len(measured) and value >= LEAST  # Bonferroni
        )


def dataset_shift(seen: Seen, reference: Seen) -> Shift | None:
    """Compares inputs with held-out ones, without labels.

    The test detects what changes uncertainty, predicted classes or distances. It cannot detect inputs on which a
    network is as confident as usual, and wrong.

    Args:
        seen: the inputs.
        reference: those that a policy was calibrated on, :attr:`Policy.held`.

    Returns:
        The differences; None where there are no inputs.

    Example:
        >>> held = Seen.of([each / 500 for each in range(500)], ["yes"] * 400 + ["no"] * 100)
        >>> shift = dataset_shift(Seen.of([0.5 + each / 200 for each in range(100)], ["yes"] * 70 + ["no"] * 30), held)
        >>> shift.differences
        ('uncertainty by 50 points (p < 0.0001)',)
        >>> round(shift.classes, 2), 0.01 < shift.classes_p < 0.1
        (0.1, True)
    """
    if not seen.size or not reference.size:
        return None
    uncertainty, uncertainty_p = _kolmogorov(seen.scores, reference.scores)
    pair = seen.distances, reference.distances
    distance, distance_p = _kolmogorov(*pair) if all(pair) else (None, None)
    names = reference.predicted.keys() | seen.predicted.keys()
    rows = [[item.predicted.get(name, 0) for name in names] for item in (seen, reference)]
    apart = sum(abs(a / seen.size - b / reference.size) for a, b in zip(*rows, strict=True)) / 2
    return Shift(
        uncertainty=uncertainty,
        uncertainty_p=uncertainty_p,
        classes=min(apart, 1.0) if any(names) else None,
        classes_p=_same_classes(*rows) if any(names) else None,
        distance=distance,
        distance_p=distance_p,
    )


def _kept(values: Sequence[float] | Tensor) -> tuple[float, ...]:
    """Values in rising order, infinite ones as the largest number; of more than 1,000 as many quantiles."""
    ordered = torch.as_tensor(values, dtype=torch.float64).sort().values.clamp(max=sys.float_info.max)
    if len(ordered) > KEPT:
        ordered = ordered[torch.linspace(0, len(ordered) - 1, KEPT).round().long()]
    return tuple(ordered.tolist())


def _kolmogorov(seen: Sequence[float], reference: Sequence[float]) -> tuple[float, float]:
    """Statistic and p-value of the Kolmogorov-Smirnov test."""
    few = min(len(seen), len(reference)) <= FEW
    with warnings.catch_warnings():  # of the exact p-value where rounding alone differs
        warnings.simplefilter("ignore", RuntimeWarning)
        test = scipy.stats.ks_2samp(seen, reference, method="exact" if few else "asymp")
    return float(test.statistic), min(float(test.pvalue), 1.0)


def _same_classes(one: Sequence[int], other: Sequence[int]) -> float:
    """P-value of two rows of counts by class, of the chi-square statistic among random tables of the same margins."""
    rows = np.array([one, other])
    rows = rows[:, rows.sum(axis=0) > 0]
    totals = rows.sum(axis=0)
    expected = totals * (rows[0].sum() / rows.sum())
    generator = np.random.default_rng(0)

    def distances(counts: Any) -> Any:
        return ((counts - expected) ** 2 / totals).sum(axis=-1)  # the statistic, but for a factor

    few = rows.sum(axis=1).min() < 4 * len(totals)  # inputs cost time with "count", classes with "marginals"
    method: Literal["count", "marginals"] = "count" if few else "marginals"
    statistic, reached = distances(rows[0]) * (1 - 1e-12), 0  # equal but for rounding
    for _ in range(TABLES // PART):
        drawn = generator.multivariate_hypergeometric(totals, rows[0].sum(), size=PART, method=method)
        reached += int((distances(drawn) >= statistic).sum())
    return (1 + reached) / (1 + TABLES)
