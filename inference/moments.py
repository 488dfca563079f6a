"""Mean and covariance of predictions, and what follows from them: probabilities, entropies, shares of attention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import scipy
import torch
from torch import Tensor

from probattn.checks import check_integer
from probattn.host import at_least_float32
from probattn.inference.posterior import REPR_ROWS, Link, Posterior, entropy_of, row_lines
from probattn.inference.predictive import joined, joined_maps
from probattn.metrics.functional import welch_p_value
from probattn.sites.observation import ObservedNoise

POINTS = 512
"""Points of the normal distribution over which probabilities of three classes or more are averaged."""

HERMITE = 40
"""Nodes of Gauss-Hermite quadrature, for two classes."""

IMPOSSIBLE = 1000.0
"""Nats below the greatest logit from which a class has no probability, that of a logit of -inf for one."""

Part = Literal["site", "head", "query", "key"]
PARTS: tuple[Part, ...] = get_args(Part)


class MomentCheck(NamedTuple):
    """Comparison of draws with what the expansion predicts for each of them, in the row where they differ most.

    The residual is the result of a draw minus the prediction from its attention weights.

    Attributes:
        ratio: standard deviation of the results of the draws, divided by that of the predictions.
        bias: absolute value of the mean residual, in standard deviations of the closed form.
        rows: number of rows that were compared.
        draws: number of draws per row.
        residual: variance of the residuals, divided by the variance of the closed form; 0 if predictions are exact.
    """

    ratio: float
    bias: float
    rows: int
    draws: int
    residual: float = 0.0


class _Summary(NamedTuple):
    """Averages over the normal distribution of the logits; ``[B, ..., C]`` and ``[B, ...]``."""

    mean: Tensor
    std: Tensor
    expected_entropy: Tensor


@dataclass(frozen=True, eq=False, repr=False)
class Moments:
    r"""Normal distributions over the predictions of B rows, from an expansion in closed form or from draws.

    For "softmax" the covariance is that of the logits of the K leading classes minus their mean; probabilities depend
    on these differences only. Every other logit has a fixed distance to the mean of the K. For "sigmoid" and "identity"
    it is the covariance of the K predictions; other labels have no variance.

    Attributes:
        logits: predictions at the posterior expectation, or their mean over draws, ``[B, ..., C]``.
        classes: numbers of the K leading classes, int64 ``[B, ..., K]``: the most probable ones; for "sigmoid" the
            least certain labels and the most probable one; for "identity" all outputs.
        covariance: covariance of the leading classes, ``[B, ..., K, K]``.
        link: function from logits to probabilities, as in :class:`Posterior`.
        noise: distribution of an observed number around its prediction, as in :class:`Posterior`.
        source: "expansion", "draws", or "mixed" if some rows are from the expansion and others from draws.
        noise_share: share of the variance of one number that the noise of each attention weight contributes, by site,
            ``[B, ..., H, T, S]``; the sum over sites, heads, queries and keys is 1. None unless requested. It does not
            tell which words make a network uncertain; :func:`attention_effects` does.
        slope: derivative of that number by the log of each unnormalised attention weight, as ``noise_share``.
        relative_variance: mean of :math:`\mathrm{Var}[S] / \mathrm E[S]^2` over attention weights, weighted by their
            noise shares, ``[B, ...]``; None if ``source`` is "draws".
        check: comparison with draws; None if no row was compared.
        num_samples: number of draws of each row, int64 ``[B]`` (0 for the expansion), or one number for all rows; None
            if all rows are from the expansion.

    Example:
        >>> import torch
        >>> covariance = torch.tensor([[[1.0, -1.0], [-1.0, 1.0]]])
        >>> moments = Moments(torch.tensor([[0.0, 2.0]]), torch.tensor([[1, 0]]), covariance)
        >>> moments
        Moments(1 row, softmax over 2, expansion)
          row 0: class 1 0.775 ± 0.249, class 0 0.225 ± 0.249
    """

    logits: Tensor
    classes: Tensor
    covariance: Tensor
    link: Link = "softmax"
    noise: ObservedNoise | None = None
    source: Literal["expansion", "draws", "mixed"] = "expansion"
    noise_share: dict[str, Tensor] | None = None
    slope: dict[str, Tensor] | None = None
    relative_variance: Tensor | None = None
    check: MomentCheck | None = None
    num_samples: int | Tensor | None = None

    @property
    def drawn(self) -> Tensor:
        """Bool ``[B]``, True for rows whose moments are from draws."""
        return self._counts() > 0

    def _counts(self) -> Tensor:
        """Draws of each row, int64 ``[B]``."""
        if isinstance(self.num_samples, Tensor):
            return self.num_samples
        return self.classes.new_full((len(self.logits),), self.num_samples or 0)

    @cached_property
    def _summary(self) -> _Summary:
        with torch.autocast(self.logits.device.type, enabled=False):  # of the caller, who reads it later
            return self._summarised()

    def _summarised(self) -> _Summary:
        if self.link == "identity":
            deviations = self.covariance.diagonal(dim1=-2, dim2=-1).clamp_min(0).sqrt()
            std = torch.zeros_like(self.logits, dtype=deviations.dtype).scatter_(-1, self.classes, deviations)
            return _Summary(self.logits, std, torch.zeros_like(self.logits[..., 0]))
        return _sigmoid_summary(self) if self.link == "sigmoid" else _softmax_summary(self)

    @property
    def mean(self) -> Tensor:
        """Mean of the probabilities, or of the numbers in regression, ``[B, ..., C]``."""
        return self._summary.mean

    @property
    def std(self) -> Tensor:
        """Standard deviation of the probabilities, or of the numbers in regression, ``[B, ..., C]``."""
        return self._summary.std

    @property
    def mean_probabilities(self) -> Tensor:
        """Posterior predictive probabilities ``[B, ..., C]``; ``ValueError`` if the head predicts numbers."""
        self._refuse_numbers("mean_probabilities")
        return self._summary.mean

    @property
    def entropy(self) -> Tensor:
        r"""Entropy of the mean probabilities in nats: ``[B, ...]``, or ``[B, ..., C]`` of each label for "sigmoid"."""
        self._refuse_numbers("entropy")
        return entropy_of(self._summary.mean, self.link)

    @property
    def mutual_information(self) -> Tensor:
        r"""Mutual information of label and attention, nats, in the shape of :attr:`entropy` (Depeweg et al. 2018)."""
        return (self.entropy - self._summary.expected_entropy).clamp_min(0)

    def difference_std(self, first: int = 0, second: int = 1) -> Tensor:
        """Standard deviation ``[B, ...]`` of the difference of two leading logits, by their index in ``classes``."""
        covariance = self.covariance
        variance = covariance[..., first, first] + covariance[..., second, second]
        return (variance - 2 * covariance[..., first, second]).clamp_min(0).sqrt()

    def top_two_p_value(self, num_samples: int = 20) -> Tensor:
        r"""p-values ``[N]`` of equal probability of the two most probable classes; N is B, or B times positions.

        Welch's test for PAvPU (accuracy versus uncertainty, Fan et al. 2020) for ``num_samples`` draws, with the means
        and variances of this distribution instead of those of draws.
        """
        self._refuse_numbers("top_two_p_value")
        check_integer("Moments.top_two_p_value", "num_samples", num_samples, minimum=2)
        mean, std = self._summary.mean.flatten(0, -2), self._summary.std.flatten(0, -2)
        top = mean.topk(2, dim=-1).indices
        # Two points at the mean and one deviation to each side, as often as makes num_samples, have these moments.
        signs = mean.new_tensor([1.0, -1.0]).repeat(-(-num_samples // 2))[:num_samples]
        signs = (signs - signs.mean()) / (signs - signs.mean()).std()
        first, second = (mean.gather(-1, top) + signs[:, None, None] * std.gather(-1, top)).unbind(dim=-1)
        return welch_p_value(first, second)

    def draws(self, num_samples: int = 100) -> Posterior:
        """Returns points of this distribution as a :class:`Posterior`, for functions that take draws.

        The points are a quasi-random sequence, the same for every row, shifted and scaled to the mean and covariance
        (divisor P - 1) of this distribution.

        Args:
            num_samples: P, number of points, more than K - 1 for "softmax" and more than K otherwise.

        Returns:
            Predictions ``[P, B, ..., C]``.
        """
        factor = _factor(self.covariance, self.link)
        check_integer("Moments.draws", "num_samples", num_samples, minimum=factor.shape[-1] + 1)
        points = _points(num_samples, factor.shape[-1])
        points = points - points.mean(dim=0)
        root = torch.linalg.cholesky(torch.atleast_2d(points.T.cov()), upper=True)
        whitened = torch.linalg.solve_triangular(root, points, upper=True, left=False)
        offsets = _offsets(factor, whitened.to(factor))
        leading = self.logits.gather(-1, self.classes) + offsets
        logits = self.logits.expand(num_samples, *self.logits.shape).clone()
        logits.scatter_(-1, self.classes.expand_as(leading), leading.to(logits))
        return Posterior(logits, link=self.link, noise=self.noise)

    def rows(self, places: Tensor) -> Moments:
        """Returns the moments of the rows with the numbers ``places``, int64 ``[R]``."""
        names = ("logits", "classes", "covariance", "relative_variance")
        tensors = {name: getattr(self, name) for name in names}
        some: dict[str, Any] = {name: None if one is None else one[places] for name, one in tensors.items()}
        for name, maps in (("noise_share", self.noise_share), ("slope", self.slope)):
            some[name] = None if maps is None else {site: value[places] for site, value in maps.items()}
        return replace(self, **some)._counted(self._counts()[places])

    def replaced(self, places: Tensor, drawn: Moments) -> Moments:
        """Returns a copy with the moments ``drawn``, for the same leading classes, in the rows ``places``, ``[R]``."""
        logits = self.logits.index_copy(0, places, drawn.logits.to(self.logits))
        covariance = self.covariance.index_copy(0, places, drawn.covariance.to(self.covariance))
        counts = self._counts().index_copy(0, places, drawn._counts())
        return replace(self, logits=logits, covariance=covariance)._counted(counts)

    def _counted(self, counts: Tensor) -> Moments:
        """With these numbers of draws by row."""
        if not counts.any():
            return replace(self, source="expansion", num_samples=None)
        return replace(self, source="draws" if counts.all() else "mixed", num_samples=counts)

    @classmethod
    def together(cls, parts: Sequence[Moments]) -> Moments:
        """Joins the rows of several objects; missing positions are padded, logits with NaN.

        Raises:
            ValueError: ``parts`` is empty, or its objects have different numbers of leading classes.
        """
        if not parts:
            raise ValueError("Moments.together: expected at least one part, got none")
        first = parts[0]
        if len({moments.classes.shape[-1] for moments in parts}) > 1:
            raise ValueError(
                "Moments.together: expected parts with as many leading classes, got "
                f"{sorted({moments.classes.shape[-1] for moments in parts})}; take fewer (classes=...)"
            )
        relative = [moments.relative_variance for moments in parts]
        variances = [item for item in relative if item is not None]
        checks = [moments.check for moments in parts if moments.check]
        return Moments(
            joined([moments.logits for moments in parts], 0, torch.nan),
            joined([moments.classes for moments in parts], 0, 0),
            joined([moments.covariance for moments in parts], 0, 0.0),
            first.link,
            first.noise,
            noise_share=joined_maps([moments.noise_share for moments in parts], 0),
            slope=joined_maps([moments.slope for moments in parts], 0),
            relative_variance=joined(variances, 0, 0.0) if len(variances) == len(parts) else None,
            check=max(checks, key=lambda check: check.residual, default=None),
        )._counted(torch.cat([moments._counts() for moments in parts]))

    def attributed(self) -> tuple[Tensor, Tensor]:
        """Mean and variance ``[B, ...]`` of the number that ``noise_share`` and ``slope`` are about."""
        softmax = self.link == "softmax"
        variance = self.difference_std().square() if softmax else self.covariance[..., 0, 0]
        return attributed(self.logits, self.classes, self.link), variance

    def _refuse_numbers(self, name: str) -> None:
        if self.link == "identity":
            raise ValueError(
                f"Moments.{name}: expected a head that predicts classes, got one that predicts numbers; use mean, std "
                "and draws()"
            )

    def __repr__(self) -> str:
        rows, *inner, classes = self.logits.shape
        positions = f" at {'x'.join(map(str, inner))} positions" if inner else ""
        what = f"{classes} numbers" if self.link == "identity" else f"{self.link} over {classes}"
        sites = f", shares of {len(self.noise_share)} sites" if self.noise_share else ""
        draws = f" ({int(self.drawn.sum())} of draws)" if self.source == "mixed" else ""
        head = f"Moments({rows} row{'s' * (rows != 1)}, {what}{positions}, {self.source}{draws}{sites})"
        lines = [head]
        if self.covariance.numel():
            at: Any = (slice(REPR_ROWS), *[0] * len(inner))
            some = Moments(self.logits[at], self.classes[at], self.covariance[at], self.link)
            finite = bool(some.covariance.isfinite().all())
            shown = (
                row_lines(some.classes, some.mean, some.std, self.link, inner) if finite else ["  not finite"]
            )
            lines += shown
        return "\n".join(lines + ["  ..."] * (rows > REPR_ROWS))


def share_by(maps: Mapping[str, Tensor], *dimensions: Part) -> Tensor:
    """Sums noise shares or slopes of attention weights over all dimensions except the named ones.

    Args:
        maps: :attr:`Moments.noise_share` or :attr:`Moments.slope` (a sum of slopes is the derivative by the log of a
            common factor of the weights), ``[B, ..., H, T, S]`` by site.
        *dimensions: dimensions to keep, of "site", "head", "query" and "key"; none to sum over all.

    Returns:
        ``[B, ...]`` and the remaining dimensions, in the order site, head, query, key.

    Raises:
        ValueError: ``maps`` is empty, a dimension is unknown, or its size differs by site (then pass fewer sites).

    Example:
        >>> maps = {"layer.0": torch.full((1, 2, 3, 3), 0.01), "layer.1": torch.full((1, 2, 3, 3), 0.04)}
        >>> share_by(maps, "site"), share_by(maps, "site", "key").shape
        (tensor([[0.1800, 0.7200]]), torch.Size([1, 2, 3]))
    """
    unknown = [dimension for dimension in dimensions if dimension not in PARTS]
    if unknown or not maps:
        got = repr(unknown[0]) if unknown else "no maps; call posterior_moments(..., attribution=True)"
        listed = ", ".join(PARTS)
        raise ValueError(f"share_by: expected parts among {listed} and maps of some site, got {got}")
    summed = [index - 3 for index, dimension in enumerate(PARTS[1:]) if dimension not in dimensions]
    sums = [one.sum(dim=summed) if summed else one for one in maps.values()]
    shapes = sorted({tuple(one.shape) for one in sums})
    if len(shapes) > 1:
        raise ValueError(
            f"share_by: expected sites whose maps agree in what is kept ({', '.join(dimensions)}), got shapes "
            f"{shapes}; take the sites that belong together"
        )
    sites = next(iter(maps.values())).dim() - 3
    stacked = torch.stack(sums, dim=sites)
    return stacked if "site" in dimensions else stacked.sum(dim=sites)


def attributed(logits: Tensor, classes: Tensor, link: Link) -> Tensor:
    """The number that is attributed, of predictions ``[..., C]`` with these leading classes; at least float32."""
    first = at_least_float32(logits.gather(-1, classes[..., :2].expand(*logits.shape[:-1], -1)))
    return first[..., 0] - first[..., 1] if link == "softmax" else first[..., 0]


def moments_of_draws(posterior: Posterior, classes: Tensor) -> Moments:
    """Sample moments of draws, for given leading classes ``[B, ..., K]``."""
    logits = at_least_float32(posterior.logits)
    leading = logits.gather(-1, classes.expand(len(logits), *classes.shape))
    if posterior.link == "softmax":
        leading = leading - leading.mean(dim=-1, keepdim=True)
    deviations = leading - leading.mean(dim=0)
    covariance = torch.einsum("p...a,p...b->...ab", deviations, deviations) / (len(logits) - 1)
    mean, counts = logits.mean(dim=0), classes.new_full((len(classes),), len(logits))
    return Moments(mean, classes, covariance, posterior.link, posterior.noise, "draws", num_samples=counts)


def centred(differences: Tensor) -> Tensor:
    """The covariance of K numbers less their mean, from that of the differences between the first and the others."""
    size = differences.shape[-1] + 1
    maps = torch.full((size, size - 1), 1 / size).to(differences)
    maps[1:] -= torch.eye(size - 1).to(differences)
    return maps @ differences @ maps.T


def _softmax_summary(moments: Moments) -> _Summary:
    """Averages over the leading classes and the rest of them as one."""
    logits = at_least_float32(moments.logits)
    logits = logits.masked_fill(logits.isnan(), -torch.inf)  # positions that a shorter batch does not have
    leading = logits.gather(-1, moments.classes)
    leading = torch.maximum(leading, leading.amax(dim=-1, keepdim=True) - IMPOSSIBLE)
    centre = leading.mean(dim=-1, keepdim=True)
    others = (logits - centre).scatter(-1, moments.classes, -torch.inf)
    rest = others.logsumexp(dim=-1)  # -inf where there is none
    factor = _factor(moments.covariance.to(logits), moments.link)
    points, weights = _nodes(factor.shape[-1], logits)
    values = leading - centre + _offsets(factor, points)  # [M, B, ..., K]
    joined = torch.cat([values, rest.expand(len(values), *rest.shape).unsqueeze(-1)], dim=-1)
    probabilities = joined.softmax(dim=-1)
    within = torch.where(rest.isfinite().unsqueeze(-1), others.softmax(dim=-1), 0.0).nan_to_num(0.0)
    average = partial(torch.tensordot, weights, dims=1)
    mean = probabilities[0] + average(probabilities - probabilities[0])  # exactly that of equal ones
    variance = average((probabilities - mean).square())
    inner_entropy = torch.special.entr(within).sum(dim=-1)
    expected = average(torch.special.entr(probabilities).sum(dim=-1)) + mean[..., -1] * inner_entropy
    means = (within * mean[..., -1:]).scatter(-1, moments.classes, mean[..., :-1])
    deviations = (within * variance[..., -1:].sqrt()).scatter(-1, moments.classes, variance[..., :-1].sqrt())
    return _Summary(means, deviations, expected)


def _sigmoid_summary(moments: Moments) -> _Summary:
    """Averages of each label by itself."""
    logits = at_least_float32(moments.logits)
    points, weights = _nodes(1, logits)
    variances = moments.covariance.diagonal(dim1=-2, dim2=-1).clamp_min(0).to(logits)
    deviations = torch.zeros_like(logits).scatter(-1, moments.classes, variances.sqrt())
    values = (logits + points.view(-1, *[1] * logits.dim()) * deviations).sigmoid()
    average = partial(torch.tensordot, weights, dims=1)
    mean = values[0] + average(values - values[0])
    variance = average((values - mean).square())
    return _Summary(mean, variance.sqrt(), average(entropy_of(values, "sigmoid")))


def _factor(covariance: Tensor, link: Link) -> Tensor:
    """F ``[..., K, R]`` with F F' the covariance; R is K, and K - 1 for centred logits, which add to 0."""
    values, vectors = torch.linalg.eigh(covariance)
    factor = vectors * values.clamp_min(0).sqrt().unsqueeze(-2)
    return factor[..., 1:] if link == "softmax" else factor


def _offsets(factor: Tensor, points: Tensor) -> Tensor:
    """Points ``[M, R]`` of a standard normal distribution as those of another, ``[M, ..., K]``."""
    return torch.tensordot(points, factor, dims=([1], [factor.dim() - 1]))


def _nodes(size: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Points and weights for averages over a standard normal distribution of this dimension."""
    if size == 1:
        nodes, weights = np.polynomial.hermite_e.hermegauss(HERMITE)
        weights = weights / weights.sum()
    else:
        nodes, weights = _points(POINTS, size).numpy(), np.full(POINTS, 1 / POINTS)
    as_tensors = (torch.from_numpy(values).to(like) for values in (nodes.reshape(-1, size), weights))
    return next(as_tensors), next(as_tensors)


def _points(number: int, size: int) -> Tensor:
    """Quasi-random points of a standard normal distribution, float64 ``[M, size]``."""
    if size == 1:
        uniform = (np.arange(number)[:, None] + 0.5) / number
    else:
        power = 1 << (number - 1).bit_length()
        uniform = scipy.stats.qmc.Sobol(size, seed=0).random(power)[:number]
    return torch.special.ndtri(torch.from_numpy(uniform))
