"""Distribution shift: whether inputs differ from those that a policy was calibrated on."""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Self

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
    """Uncertainties and predicted classes of inputs.

    Attributes:
        scores: uncertainties in ascending order; 1,000 quantiles of them if there are more.
        predicted: number of inputs by predicted class; the name is "" if predictions are not single classes.
        distances: distances from the training data, in the same form; empty if they are not known.
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
        """Makes the object from the uncertainty, predicted class and, if known, distance of each input."""
        return cls(
            scores=_kept(scores), predicted=dict(sorted(Counter(labels).items())), distances=_kept(distances)
        )

    @property
    def size(self) -> int:
        """Number of inputs."""
        return sum(self.predicted.values())


class Shift(Record):
    r"""Difference between new and held-out inputs in the network's predictions (Rabanser et al. 2019).

    .. math:: D = \max_\lambda |\hat F(\lambda) - \hat F_0(\lambda)|, \qquad
        V = \tfrac12 \sum_c |\hat p(c) - \hat p_0(c)|

    with the distribution functions F of the uncertainty and the shares p of the predicted classes of new and held-out
    (index 0) inputs. At any threshold :math:`\lambda` the shares of answered inputs differ by at most D.

    Attributes:
        uncertainty: D of the uncertainty, in [0, 1].
        uncertainty_p: p-value of D in the Kolmogorov-Smirnov test.
        classes: V, in [0, 1]; without a shift it is larger for more classes and fewer inputs. None if predictions are
            not single classes.
        classes_p: p-value of the chi-square statistic among 20,000 random tables with the same totals, >= 5e-5.
        distance: D of the distances from the training data; None if they are not known.
        distance_p: p-value of this D.
    """

    uncertainty: Probability
    uncertainty_p: Probability
    classes: Probability | None
    classes_p: Probability | None
    distance: Probability | None = None
    distance_p: Probability | None = None

    @property
    def differences(self) -> tuple[str, ...]:
        """Texts of the differences of 0.05 or more that are significant at level 0.001 (Bonferroni-corrected)."""
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
    """Tests new inputs for a distribution shift against held-out inputs, without labels.

    The test detects changes of uncertainty, predicted classes or distances. It cannot detect inputs on which the
    network is wrong but as confident as on others.

    Args:
        seen: the new inputs.
        reference: the inputs that a policy was calibrated on, :attr:`Policy.held`.

    Returns:
        The differences; None if there are no inputs.

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
    names = sorted(reference.predicted.keys() | seen.predicted.keys())  # in one order in all processes
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
    method = scipy.stats.MonteCarloMethod(n_resamples=TABLES, batch=PART, rng=np.random.default_rng(0))
    return float(scipy.stats.chi2_contingency(rows, correction=False, method=method).pvalue)
