"""Derivatives by the logarithms of attention weights, and whether the first-order expansion holds, row by row."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any, ClassVar, NamedTuple

import torch
from pyro.poutine.messenger import Messenger
from pyro.poutine.runtime import Message
from torch import Tensor, nn

from probattn.checks import grouped
from probattn.distributions.log_space_distribution import carried_log
from probattn.host import on_cpu
from probattn.inference.guide import gradients, predictions, refuse_second_call, site_posterior
from probattn.inference.moments import MomentCheck, Moments, attributed
from probattn.inference.predictive import Answering
from probattn.sites.posterior import MeanPoint, SitePosterior, mean_variances, stacked_maps

OWNER = "posterior_moments"
WIDE = 10.0
"""Relative variance of the weights that matter beyond which the expansion is not taken, whatever draws say."""
STEP = 2.0
"""Standard deviations, along the steepest direction of a prediction, at which its expansion is compared with it."""
DOUBT = 0.3
"""Standard deviations between the two beyond which draws decide."""
LOCAL = 2.0
"""Relative variance beyond which draws decide whatever the two are: effects of wide weights depend on one another."""
ENOUGH = 20
"""Draws, which know a standard deviation to 16%; fewer are not compared with that of the closed form."""
MORE = 3
"""Times as many draws of rows for which the first ones are not clear."""


class Limits(NamedTuple):
    """Of what draws differ by from what the expansion predicts of them; see :class:`Residuals`."""

    variance: float
    bias: float
    ratio: float
    deviation: float


NEAR = Limits(0.2, 1.5, 1.25, 1.4)
"""Rows within them are kept."""
FAR = Limits(0.6, 3.0, 1.8, 2.0)
"""Rows beyond them are left to draws; more draws of the others decide,"""
LAST = Limits(0.4, 1.5, 1.3, 1.4)
"""by these."""


class SiteSlopes(NamedTuple):
    """Slopes by log S ``[N, R, M]``, weights ``[R, M]``, likeliest change of log S by one deviation ``[N, ...]``."""

    slopes: Tensor
    weights: Tensor
    steepest: Tensor


class _FirstOrder(Messenger):
    """Sums slope times f(x) over the weights that are drawn inside; see :mod:`probattn.sites.main_effects`."""

    def __init__(self, sites: Mapping[str, tuple[Tensor, Tensor]]) -> None:
        super().__init__()
        self._sites = sites
        self._log_means: dict[str, Tensor] = {}
        self.total: Any = 0.0

    def _pyro_sample(self, msg: Message) -> None:
        posterior = site_posterior(msg)
        if posterior is not None:  # before the draw, which may overwrite the scores
            self._log_means[str(msg["name"])] = posterior.log_mean.clone()

    def _pyro_post_sample(self, msg: Message) -> None:
        name = str(msg["name"])
        if name not in self._log_means:
            return
        slopes, weights = self._sites[name]
        value = msg["value"]
        assert isinstance(value, Tensor)
        log_factors = carried_log(value).to(slopes.dtype) - self._log_means.pop(name).to(slopes.dtype)
        excess = torch.expm1(log_factors).reshape(-1, *weights.shape)
        effect = (excess / (1 + weights * excess)).nan_to_num_(0.0, 0.0, 0.0)  # of forbidden pairs
        self.total = self.total + torch.einsum("prm,nrm->prn", effect, slopes)


class PredictedModel(nn.Module):
    """A model that notes what the expansion predicts of each draw: ``predicted`` ``[P, R, N]`` of each pass."""

    def __init__(self, model: Any, sites: Mapping[str, tuple[Tensor, Tensor]]) -> None:
        super().__init__()
        self.model, self._sites = model, sites
        self.link, self.noise = getattr(model, "link", "softmax"), getattr(model, "noise", None)
        self.draws_per_pass: int | None = getattr(model, "draws_per_pass", None)
        self.predicted: list[Tensor] = []

    def forward(self, batch: Mapping[str, Tensor]) -> Tensor:
        """The model's predictions."""
        with _FirstOrder(self._sites) as first_order:
            logits = predictions(OWNER, self.model, batch)
        self.predicted.append(first_order.total)
        return logits


class Residuals(NamedTuple):
    """Draws less their predictions, by row ``[R]``, in units of the closed form; ``ratio`` and ``deviation`` >= 1."""

    variance: Tensor
    bias: Tensor
    ratio: Tensor
    deviation: Tensor
    narrower: Tensor

    @classmethod
    def of(cls, expanded: Moments, logits: Tensor, predicted: Tensor) -> Residuals:
        """Of draws ``[P, R, ..., C]`` and predictions ``[P, R, ...]`` of one number; rounding is no evidence."""
        mean, variance = expanded.attributed()
        drawn = attributed(logits, expanded.classes, expanded.link)
        rounding = rounding_of(expanded).square().clamp_min(torch.finfo(mean.dtype).tiny)
        residuals = drawn - mean - predicted

        def relative(squares: Tensor) -> Tensor:
            excess = (squares - rounding).clamp_min(0)
            return torch.where(excess == 0, 0.0, excess / variance).nan_to_num(torch.inf, torch.inf)

        def by_row(values: Tensor) -> Tensor:
            return values.reshape(len(values), -1).mean(dim=1)

        def log_ratio(reference: Tensor) -> Tensor:
            ratio = (drawn.var(dim=0) + rounding) / (reference + rounding)
            return (ratio.log() / 2).nan_to_num(torch.inf)

        of_predicted = log_ratio(predicted.var(dim=0))
        of_closed = log_ratio(variance if len(drawn) >= ENOUGH else drawn.var(dim=0))
        ratios = by_row(of_predicted.abs()).exp(), by_row(of_closed.abs()).exp(), by_row(of_predicted) < 0
        bias = relative(residuals.mean(dim=0).square())
        bias = by_row(torch.where(variance == 0, 0.0, bias)).sqrt()  # without a deviation it has no unit
        return cls(by_row(relative(residuals.var(dim=0))), bias, *ratios)

    def beyond(self, limits: Limits) -> Tensor:
        """Bool ``[R]``: rows beyond one of the limits."""
        residual = (self.variance > limits.variance) | (self.bias > limits.bias)
        return residual | (self.ratio > limits.ratio) | (self.deviation > limits.deviation)

    def check(self, draws: int) -> MomentCheck:
        """The row with the largest residual variance."""
        row = int(self.variance.argmax())
        ratio = float(self.ratio[row])
        ratio = 1 / ratio if self.narrower[row] else ratio
        return MomentCheck(ratio, float(self.bias[row]), len(self.bias), draws, float(self.variance[row]))


def rounding_of(expanded: Moments) -> Tensor:
    """Size of the rounding of predictions, by row and position."""
    return expanded.logits.abs().amax(dim=-1).to(expanded.covariance) * torch.finfo(expanded.logits.dtype).eps


def deviations(
    expanded: Moments, sites: Mapping[str, SiteSlopes], predict: Callable[[Mapping[str, Tensor]], Tensor]
) -> Tensor:
    """How far predictions are from their expansion along its steepest direction: the worst, ``[R]``, in deviations."""
    mean, variance = expanded.attributed()
    scale = variance.sqrt()
    numbers = len(next(iter(sites.values())).steepest)
    worst = torch.zeros_like(mean)
    for sign, number in product((-STEP, STEP), range(numbers)):
        moved = predict({name: sign * site.steepest[number] for name, site in sites.items()})
        gap = attributed(moved, expanded.classes, expanded.link) - mean - sign * scale
        gap = (gap.abs() - rounding_of(expanded)).clamp_min(0)
        gap = torch.where(gap == 0, 0.0, gap / scale).nan_to_num(torch.inf).reshape(-1, numbers)
        worst.view(-1, numbers)[:, number] = torch.maximum(worst.view(-1, numbers)[:, number], gap[:, number])
    return worst.reshape(len(worst), -1).amax(dim=1)


NEGLIGIBLE = 1e-3
"""Pairs whose squared slopes are below this part of their mean over a call count as 0: together less than that part."""


class Expansion(Answering):
    """Pyro handler that gives sites E[S], times factors with these logarithms, and keeps what derivatives need."""

    owner: ClassVar[str] = OWNER
    predicts: ClassVar[bool] = True
    needs_prior: ClassVar[bool] = False

    def __init__(self, log_factors: Mapping[str, Tensor] | None = None) -> None:
        super().__init__()
        self._log_factors = log_factors or {}
        self.points: dict[str, MeanPoint] = {}

    def _value(self, name: str, posterior: SitePosterior) -> Tensor:
        refuse_second_call(OWNER, name, self.points)
        self._paths.add(name, posterior.call)
        self.points[name] = posterior.at_mean(self._log_factors.get(name))
        return self.points[name].value


class Derivatives(NamedTuple):
    """Covariance ``[R, N, D, D]``, relative variance of the first number ``[R, N]``, and sites if requested."""

    covariance: Tensor
    relative_variance: Tensor
    sites: dict[str, SiteSlopes]

    @property
    def deviation(self) -> Tensor:
        """Standard deviation of the first number, 1 where it does not vary, ``[R, N]``."""
        variance = self.covariance[..., 0, 0]
        return torch.where(variance > 0, variance, 1.0).sqrt()

    def maps(self, shape: Sequence[int]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Shares and slopes by site, ``[B, ..., H, T, S]``, of predictions of this shape, ``[B, ...]``."""
        unit = self.deviation.T.unsqueeze(-1)
        share, slope = {}, {}
        for name, site in self.sites.items():
            _, calls, *pairs = site.steepest.shape
            rest = pairs if calls == len(unit[0]) else [calls // len(unit[0]), *pairs]
            shares = site.steepest.view_as(site.slopes) * site.slopes / unit  # [N, R, M]
            share[name] = shares.transpose(0, 1).reshape(*shape, *rest)
            slope[name] = site.slopes.transpose(0, 1).reshape(*shape, *rest)
        return share, slope


def _alike(points: Mapping[str, MeanPoint]) -> list[list[str]]:
    """Names of sites whose maps are computed together: all alike where launching kernels costs, else one by one."""
    kinds = ((name if on_cpu(point.log_mean) else point.kind, name) for name, point in points.items())
    return list(grouped(kinds).values())


def differentiate(numbers: Tensor, points: Mapping[str, MeanPoint], *, slopes: bool) -> Derivatives:
    """Differentiates numbers ``[R, N, D]``, each row of its own part of the sites' first dimension."""
    rows, positions, size = numbers.shape
    log_means = {name: point.log_mean for name, point in points.items()}
    covariance = numbers.new_zeros(rows, positions, size, size)
    relative = numbers.new_zeros(rows, positions)
    by_site: dict[str, list[tuple[Tensor, Tensor]]] = {name: [] for name in points}
    for position in range(positions):
        grads = []
        for item in range(size):
            total, again = numbers[:, position, item].sum(), (position, item) != (positions - 1, size - 1)
            grads.append(gradients(OWNER, total, log_means, "use method='draws'", retain=again))
        for names in _alike(points):
            sites = [points[name] for name in names]
            # [R, L, M], by item
            flat = [stacked_maps([of_item[name].reshape(rows, -1) for name in names]) for of_item in grads]
            squares = sum((one.square() for one in flat[1:]), start=flat[0].square())
            matter = squares > NEGLIGIBLE * squares.mean(dim=-1, keepdim=True)
            indices, counts = matter.view(-1).nonzero().squeeze(1), matter.flatten(1).sum(dim=1)
            first, effect = mean_variances(sites, rows, indices)
            # By standard deviations: inner products are covariances.
            scaled = torch.stack([one.view(-1)[indices] for one in flat], dim=1) * effect.sqrt()[:, None]
            products = scaled.to(numbers.dtype)[:, :, None] * scaled[:, None]
            by_row = partial(torch.segment_reduce, reduce="sum", lengths=counts, unsafe=True, initial=0)
            covariance[:, position] += by_row(products)
            relative[:, position] += by_row(products[:, 0, 0] * first)
            if slopes:
                change = torch.zeros_like(flat[0], dtype=numbers.dtype)
                change.view(-1).index_put_((indices,), scaled[:, 0] * effect.sqrt())
                for number, name in enumerate(names):
                    by_site[name].append((flat[0][:, number], change[:, number]))
    result = Derivatives(covariance, relative, {})
    for name, point in points.items() if slopes else ():
        slope_maps, change = (
            torch.stack(values) for values in zip(*by_site.pop(name), strict=True)
        )  # [N, R, M]
        steepest = (change / result.deviation.T.unsqueeze(-1)).view(positions, *point.weights.shape)
        weights = point.weights.reshape(rows, -1).to(numbers.dtype)
        result.sites[name] = SiteSlopes(slope_maps.to(numbers.dtype), weights, steepest.to(point.weights))
    return result._replace(relative_variance=relative / result.deviation.square())
