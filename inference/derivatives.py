"""Derivatives of predictions by the logarithms of unnormalised attention weights, at their expectations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from pyro.poutine.messenger import Messenger
from pyro.poutine.runtime import Message
from torch import Tensor

from probattn.inference.expansion_check import SiteSlopes
from probattn.inference.guide import refuse_latent
from probattn.inference.predictive import predict_label
from probattn.sites.posterior import MeanPoint, SitePosterior
from probattn.sites.site import INFER_KEY
from probattn.sites.upward import LinkedPaths

NEGLIGIBLE = 1e-3
"""Pairs whose squared slopes are below this part of their mean over a call count as 0: together less than that part."""


class Expansion(Messenger):
    """Pyro handler that gives sites E[S], times factors with these logarithms, and keeps what derivatives need."""

    def __init__(self, log_factors: Mapping[str, Tensor] | None = None) -> None:
        super().__init__()
        self._log_factors = log_factors or {}
        self.points: dict[str, MeanPoint] = {}
        self._paths = LinkedPaths()

    def _pyro_sample(self, msg: Message) -> None:
        infer: Mapping[str, Any] = msg["infer"] or {}
        posterior = infer.get(INFER_KEY)
        if not isinstance(posterior, SitePosterior) or msg["value"] is not None:
            predict_label(msg)
            refuse_latent("posterior_moments", msg)
            return
        name = str(msg["name"])
        if name in self.points:
            raise RuntimeError(
                f"posterior_moments: two attention calls of one pass are named {name!r}; give each a name of its own "
                "(probattn.link(network) does)"
            )
        self._paths.add(name, posterior.call)
        self.points[name] = posterior.at_mean(self._log_factors.get(name))
        msg["value"] = self.points[name].value


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


def differentiate(numbers: Tensor, points: Mapping[str, MeanPoint], *, slopes: bool) -> Derivatives:
    """Differentiates numbers ``[R, N, D]``, each row of its own part of the sites' first dimension."""
    rows, positions, size = numbers.shape
    log_means = [point.log_mean for point in points.values()]
    covariance = numbers.new_zeros(rows, positions, size, size)
    relative = numbers.new_zeros(rows, positions)
    by_site: dict[str, list[tuple[Tensor, Tensor]]] = {name: [] for name in points}
    for position in range(positions):
        gradients = [
            torch.autograd.grad(
                numbers[:, position, item].sum(),
                log_means,
                retain_graph=(position, item) != (positions - 1, size - 1),
                materialize_grads=True,
            )
            for item in range(size)
        ]
        for (name, point), *of_site in zip(points.items(), *gradients, strict=True):
            flat = [one.reshape(rows, -1) for one in of_site]
            squares = sum((one.square() for one in flat[1:]), start=flat[0].square())
            matter = squares > NEGLIGIBLE * squares.mean(dim=1, keepdim=True)
            indices, counts = matter.view(-1).nonzero().squeeze(1), matter.sum(dim=1)
            first, effect = point.variances(indices)
            # By standard deviations: inner products are covariances.
            scaled = torch.stack([one.view(-1)[indices] for one in flat], dim=1) * effect.sqrt()[:, None]
            products = scaled.to(numbers.dtype)[:, :, None] * scaled[:, None]
            by_row = partial(torch.segment_reduce, reduce="sum", lengths=counts, unsafe=True, initial=0)
            covariance[:, position] += by_row(products)
            relative[:, position] += by_row(products[:, 0, 0] * first)
            if slopes:
                change = torch.zeros_like(flat[0], dtype=numbers.dtype).view(-1)
                change.index_put_((indices,), scaled[:, 0] * effect.sqrt())
                by_site[name].append((flat[0], change.view(rows, -1)))
    result = Derivatives(covariance, relative, {})
    for name, point in points.items() if slopes else ():
        slope, change = (torch.stack(values) for values in zip(*by_site.pop(name), strict=True))  # [N, R, M]
        steepest = (change / result.deviation.T.unsqueeze(-1)).view(positions, *point.weights.shape)
        weights = point.weights.reshape(rows, -1).to(numbers.dtype)
        result.sites[name] = SiteSlopes(slope.to(numbers.dtype), weights, steepest.to(point.weights))
    return result._replace(relative_variance=relative / result.deviation.square())
