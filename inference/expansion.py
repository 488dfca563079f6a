"""Moments of predictions by a first-order expansion in the attention weights."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations_with_replacement
from typing import Any, Literal, NamedTuple, cast

import torch
from pyro.poutine.messenger import Messenger
from pyro.poutine.runtime import Message
from torch import Tensor, nn

from probattn.checks import check_batch, check_choice, check_integer
from probattn.inference.contract import check_output, link_of, naming_contract, refuse_latent
from probattn.inference.ensembles.ensemble import ParticleEnsemble
from probattn.inference.expansion_check import (
    DOUBT,
    FAR,
    LAST,
    MORE,
    NEAR,
    WIDE,
    PredictedModel,
    Residuals,
    SiteSlopes,
    deviations,
)
from probattn.inference.moments import Moments, centred, moments_of_draws
from probattn.inference.posterior import Link, Posterior
from probattn.inference.predictive import (
    Model,
    batched_inputs,
    batches_of,
    check_call,
    device_of,
    posterior_expectation,
    posterior_predict,
    predict_label,
    prepared_batch,
    rows_per_pass,
    seed_words,
)
from probattn.inference.session import evaluating
from probattn.sites.building import as_program
from probattn.sites.posterior import MeanPoint, SitePosterior
from probattn.sites.scores import without_cudnn
from probattn.sites.site import INFER_KEY
from probattn.sites.upward import LinkedPaths

OWNER = "posterior_moments"
Method = Literal["auto", "expansion", "draws"]
LEADING = 6
"""Leading classes whose covariance is computed, unless asked otherwise."""
NEGLIGIBLE = 1e-3
"""Pairs whose squared slopes are below this part of their mean over a call count as 0: together less than that part."""
COST_OF_A_DRAW = 1.5
"""In passes; a derivative costs one."""


def posterior_moments(
    model: Model,
    batch: Mapping[str, Tensor] | Iterable[Any],
    *,
    attribution: bool | int | tuple[int, int] = False,
    classes: int | None = None,
    positions: Sequence[int] | None = None,
    method: Method = "auto",
    num_samples: int = 20,
    seed: int | Sequence[int] = 0,
    chunk_size: int | None = None,
    batch_keys: Sequence[str] | None = None,
) -> Moments:
    r"""Mean and covariance of predictions under the posterior of attention, in closed form to first order.

    A site draws unnormalised weights :math:`S_j` independently given its scores, with relative variance
    :math:`c_j^2 = \mathrm{Var}[S_j] / \mathrm E[S_j]^2`. With :math:`S_j = \mathrm E[S_j] e^{u_j}` and all derivatives
    at u = 0, through the whole network (the delta method),

    .. math:: \mathrm{Cov}[z_a, z_b] \approx \sum_j c_j^2\, \frac{\partial z_a}{\partial u_j}
        \frac{\partial z_b}{\partial u_j}, \qquad
        c^2 = \frac{\Gamma(1 + 2/k)}{\Gamma(1 + 1/k)^2} - 1 \;\text{(Weibull)}, \quad
        e^{s^2} - 1 \;\text{(log-normal)}

    over sites, heads, queries and keys; where a weight is not small, :math:`\mathrm{Var}[f]` replaces c^2, with f what
    S alone does to a query's weighted sum (:mod:`probattn.sites.main_effects`). It takes a forward pass, and a backward
    pass for each of K - 1 differences of leading logits, K numbers where the link is not "softmax": 2.3 to 2.7 plain
    passes for two classes, whatever the accuracy that draws would need; "auto" takes two forward passes more. The
    summands, over their sum, are each weight's share of the variance.

    "auto" decides row by row, by the number that is attributed, whose mean and standard deviation are :math:`z_0` and
    :math:`\sigma`:

    1. A row whose weights have a relative variance above 10 (a concentration below 0.4, a log-normal scale above 1.5)
       is left to draws.
    2. The prediction is computed at the two points :math:`u = \pm 2 c^2 \nabla z / \sigma`, the likeliest ones at two
       standard deviations. If both are within :math:`0.3 \sigma` of :math:`z_0 \pm 2 \sigma`, the row is kept.
    3. Else ``num_samples`` draws decide. The expansion predicts each of them, :math:`l = \sum_j f_j\, \partial z /
       \partial u_j`, from the weights that were drawn. Compared are the variance of the residuals :math:`z - z_0 - l`
       over :math:`\sigma^2`, the size of their mean over :math:`\sigma`, and the ratio of the standard deviations of z
       and l, either way. A row within 0.2, 1.5 and 1.25 is kept, one beyond 0.6, 3 or 1.8 is left to draws. Of others
       three times as many new draws are taken; those beyond 0.4, 1.5 or 1.3 are left to draws.

    The standard deviation of z is between :math:`\sigma` times 1 minus and 1 plus the root of the residual variance.
    With normal residuals, which 20 draws know to 32% and 60 to 18%, the third step gives up a row with a residual
    variance of 0.25 in 0.2% of cases, and keeps one with 0.5 in 11% and one with 0.66 in 0.5%. Residuals with rare
    large values, as of a saturated softmax, are missed more often.

    Rows that depend on one another (the nodes of a graph, pictures scored against all texts of a batch) are
    differentiated one by one; whether they do, the first row tells, which also runs alone.

    Args:
        model: as in :func:`posterior_predict`, but no :class:`ParticleEnsemble`.
        batch: likewise; "labels" are dropped, and a data set or a loader goes batch by batch.
        attribution: keep :attr:`Moments.share` and :attr:`Moments.slope` of one number a row (and position): of the
            difference of the two leading logits, the least certain label under "sigmoid", the first number under
            "identity" (True), or of the named one: a pair of classes, a label, a number.
        classes: K >= 2 (1 under "sigmoid"), the leading classes whose covariance is computed; 6 by default, or all of
            fewer. Under "sigmoid" the least certain labels, and of two or more always the most probable one. Of numbers
            always all.
        positions: places, from 0, of the predictions that a row holds beside one another (tokens; nodes and texts have
            one): only these are computed. All by default.
        method: "expansion"; "draws", the moments of ``num_samples`` draws; or "auto": the expansion, but draws for all
            rows if they cost less (a text with many tokens to predict), and for rows where the expansion does not hold,
            by the rule above; a warning says for how many.
        num_samples: draws of "draws" and "auto", >= 2.
        seed: of the draws.
        chunk_size: rows of a pass; bounds memory, which is that of a training step. Default: about 256, 16 on a CPU.
        batch_keys: inputs whose first dimension is the batch. Default: all of them.

    Returns:
        The moments; rows of a loader's batches that are shorter than others are filled up, predictions with NaN.

    Raises:
        TypeError: the model is none, an ensemble, or the batch is no mapping of tensors.
        ValueError: no attention site, a number out of its range, or a class or position that does not exist.

    Example:
        >>> from transformers import BertConfig, BertForSequenceClassification
        >>> import probattn
        >>> from probattn.models import convert
        >>> config = BertConfig(hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=8)
        >>> net = convert(BertForSequenceClassification(config), probattn.BayesianAttention())
        >>> moments = posterior_moments(net, {"input_ids": torch.ones(3, 4, dtype=torch.long)}, attribution=True)
        >>> moments.source, moments.mean.shape, moments.std.shape
        ('expansion', torch.Size([3, 2]), torch.Size([3, 2]))
        >>> moments.share["bert.encoder.layer.0.attention.self"].shape
        torch.Size([3, 2, 4, 4])
    """
    model = as_program(model)
    if isinstance(model, ParticleEnsemble):
        raise TypeError(
            f"{OWNER}: expected one network, got a ParticleEnsemble, whose particles differ by more than a first-order "
            "term; use posterior_predict"
        )
    check_call(OWNER, model, None)
    check_choice(OWNER, "method", method, Method)
    check_integer(OWNER, "num_samples", num_samples, least=2)
    for name, number in (("classes", classes), ("chunk_size", chunk_size)):
        if number is not None:
            check_integer(OWNER, name, number, least=1)
    asked = _Asked(attribution, classes, positions, method, num_samples, chunk_size)
    words = seed_words(seed)

    def of_batch(part: Mapping[str, Tensor], seed: tuple[int, ...]) -> Moments:
        return _Batch(
            model, *batched_inputs(OWNER, prepared_batch(model, part), batch_keys, "labels"), seed, asked
        ).moments()

    if isinstance(batch, Mapping | Tensor):
        check_batch(OWNER, batch)
        result = of_batch(cast(Mapping[str, Tensor], batch), words)
    else:
        parts = enumerate(batches_of(OWNER, batch))
        result = Moments.together([of_batch(part, (*words, number)) for number, part in parts])
    if result.check is not None and result.drawn.any():
        warnings.warn(
            f"{OWNER}: the first-order expansion does not hold for {int(result.drawn.sum())} of {len(result.drawn)} "
            f"rows (residual variance up to {result.check.residual:.2f}); they have the moments of {num_samples} draws",
            stacklevel=2,
        )
    return result


class _Asked(NamedTuple):
    """Arguments of :func:`posterior_moments`."""

    attribution: bool | int | tuple[int, int]
    classes: int | None
    positions: Sequence[int] | None
    method: Method
    num_samples: int
    chunk_size: int | None

    @property
    def first(self) -> tuple[int, ...]:
        """The classes that are attributed, if they are named."""
        if isinstance(self.attribution, bool):
            return ()
        return self.attribution if isinstance(self.attribution, tuple) else (self.attribution,)


class _Expanded(NamedTuple):
    """The expansion of some rows and, where it is to be checked, its derivatives by site."""

    moments: Moments
    sites: dict[str, SiteSlopes]


@dataclass(frozen=True)
class _Batch:
    """The rows of one batch, and what is requested of them."""

    model: Any
    inputs: dict[str, Tensor]
    keys: set[str]
    rows: int
    seed: tuple[int, ...]
    asked: _Asked

    def some(self, places: Any) -> dict[str, Tensor]:
        """Inputs of some rows."""
        return {name: value[places] if name in self.keys else value for name, value in self.inputs.items()}

    def drawn(
        self, model: Any, inputs: Mapping[str, Tensor], number: int, seed: tuple[int, ...], apart: bool = True
    ) -> Posterior:
        """Draws of the requested positions; where rows depend on one another, those of two draws must not meet."""
        size = None if apart else 1
        posterior = posterior_predict(
            model, inputs, number, seed=seed, chunk_size=size, batch_keys=sorted(self.keys)
        )
        return replace(posterior, logits=at_positions(posterior.logits, 1, self.asked.positions))

    def moments(self) -> Moments:
        """As requested."""
        asked = self.asked
        size = asked.chunk_size or rows_per_pass(device_of(self.inputs))
        part = None if asked.method == "draws" else _expanded(self.model, self.some(slice(0, size)), asked)
        if part is None:
            posterior = self.drawn(self.model, self.inputs, asked.num_samples, self.seed)
            classes = _chosen(posterior.logits.float().mean(dim=0), asked, posterior.link)
            return moments_of_draws(posterior, classes)
        apart = self.rows == 1 or _is_apart(self.model, self.some(slice(0, 1)), part.moments, asked)
        parts = []
        for start in range(0, self.rows, size) if apart else [0]:
            stop = min(start + size, self.rows) if apart else self.rows
            indices = torch.arange(start, stop, device=device_of(self.inputs))
            if start or not apart:
                part = _expanded(self.model, self.some(indices), asked, dependent=not apart)
            if part is None:  # the same for all parts
                return replace(self, asked=asked._replace(method="draws")).moments()
            seed = (*self.seed, start) if start else self.seed
            parts.append(self.checked(part, indices, seed, apart) if asked.method == "auto" else part.moments)
        return Moments.together(parts)

    def checked(self, part: _Expanded, places: Tensor, seed: tuple[int, ...], apart: bool) -> Moments:
        """The expansion of some rows, with the moments of draws where it does not hold."""
        moments, samples = part.moments, self.asked.num_samples

        def compared(rows: Tensor, number: int, seed: tuple[int, ...]) -> tuple[Posterior, Residuals]:
            """Draws of some rows, of which those that depend on others are drawn with all."""
            sites = {
                name: (site.slopes[:, rows], site.weights[rows]) if apart else (site.slopes, site.weights)
                for name, site in part.sites.items()
            }
            model = PredictedModel(self.model, sites)
            posterior = self.drawn(model, self.some(places[rows] if apart else places), number, seed, apart)
            logits = posterior.logits if apart else posterior.logits[:, rows]
            predicted = torch.cat(model.predicted).reshape(posterior.logits.shape[:-1])
            predicted = predicted if apart else predicted[:, rows]
            return replace(posterior, logits=logits), Residuals.of(moments.rows(rows), logits, predicted)

        def predict(factors: Mapping[str, Tensor]) -> Tensor:
            with evaluating(self.model), Expansion(factors):
                return at_positions(self.model(self.some(places)), 0, self.asked.positions)

        assert moments.relative_variance is not None
        relative = moments.relative_variance.reshape(len(places), -1).amax(dim=1)
        wide = ~(relative <= WIDE)
        rows = (wide | (deviations(moments, part.sites, predict) > DOUBT)).nonzero().squeeze(1)
        if not len(rows):
            return moments
        posterior, residuals = compared(rows, samples, seed)
        failed = residuals.beyond(NEAR) | wide[rows]
        unclear = (failed & ~residuals.beyond(FAR) & ~wide[rows]).nonzero().squeeze(1)
        if len(unclear):
            failed[unclear] = compared(rows[unclear], MORE * samples, (*seed, 1))[1].beyond(LAST)
        drawn = moments_of_draws(posterior, moments.classes[rows]).rows(failed.nonzero().squeeze(1))
        return replace(moments.replaced(rows[failed], drawn), check=residuals.check(samples))


def _is_apart(model: Any, row: Mapping[str, Tensor], found: Moments, asked: _Asked) -> bool:
    """Whether the first row has the same prediction without the others, up to rounding."""
    alone = at_positions(posterior_expectation(model, row), 0, asked.positions)
    own = found.logits[:1]
    tolerance = torch.finfo(own.dtype).eps ** 0.5 * float(own.abs().max())
    return alone.shape == own.shape and float((alone - own).abs().max()) <= tolerance


def _expanded(
    model: Any, inputs: Mapping[str, Tensor], asked: _Asked, dependent: bool = False
) -> _Expanded | None:
    """The expansion of some rows, which may depend on one another; None where draws cost less and may be taken."""
    # Tensors made in inference mode cannot be saved for a backward pass.
    parts = model.modules() if isinstance(model, nn.Module) else ()
    recurrent = without_cudnn() if any(isinstance(part, nn.RNNBase) for part in parts) else nullcontext()
    with (
        evaluating(model),
        recurrent,
        torch.inference_mode(False),
        torch.enable_grad(),
        Expansion() as expansion,
    ):
        own = {name: value.clone() if value.is_inference() else value for name, value in inputs.items()}
        with naming_contract(OWNER, model, own):
            output = model(own)
        check_output(OWNER, output)
        logits = at_positions(output, 0, asked.positions)
        points = expansion.points.values()
        if not points:
            raise ValueError(f"{OWNER}: the model has no attention site; convert the network first")
        if not logits.requires_grad:
            raise ValueError(
                f"{OWNER}: the prediction has no derivative by the attention weights: the model computes it under "
                "torch.no_grad or detaches it; use method='draws'"
            )
        link = link_of(OWNER, model)
        classes = _chosen(logits.detach(), asked, link)
        leading = logits.gather(-1, classes)
        leading = leading if leading.dtype == torch.float64 else leading.float()
        numbers = leading[..., :1] - leading[..., 1:] if link == "softmax" else leading
        rows, inner = len(logits), logits.shape[1:-1]
        # Rows that share their sites, as the nodes of a graph do, are positions of one row.
        shared = dependent or any(len(point.log_mean) % rows for point in points)
        numbers = numbers.reshape(1 if shared else rows, -1, numbers.shape[-1])
        _, positions, size = numbers.shape
        if asked.method == "auto" and not _pays(positions * size, asked.num_samples):
            return None
        each = [
            differentiate(
                numbers[:, index],
                expansion,
                attribution=asked.attribution is not False,
                slopes=asked.attribution is not False or asked.method == "auto",
                keep=index + 1 < positions,
            )
            for index in range(positions)
        ]
    together = partial(_stacked, shape=(rows, *inner))
    covariance = together([one.covariance for one in each])
    sites = {
        name: SiteSlopes(
            torch.stack([one.slope[name].reshape(len(numbers), -1) for one in each]).to(covariance.dtype),
            point.weights.reshape(len(numbers), -1).to(covariance.dtype),
            torch.stack([one.steepest[name].view(point.weights.shape) for one in each]).to(point.weights),
        )
        for name, point in expansion.points.items()
        if asked.method == "auto"
    }
    moments = Moments(
        logits.detach(),
        classes,
        centred(covariance) if link == "softmax" else covariance,
        link,
        getattr(model, "noise", None) if link == "identity" else None,
        share={name: together([one.share[name] for one in each]) for name in each[0].share} or None,
        slope={name: together([one.slope[name] for one in each]) for name in each[0].share} or None,
        relative_variance=together([one.relative_variance for one in each]),
    )
    return _Expanded(moments, sites)


def _pays(derivatives: int, num_samples: int) -> bool:
    return derivatives <= COST_OF_A_DRAW * num_samples


def expansion_pays(logits: Tensor, num_samples: int, link: Link) -> bool:
    """Whether the expansion of predictions like draws ``[P, B, ..., C]`` costs less than ``num_samples`` draws."""
    numbers = logits.shape[-1] if link == "identity" else min(logits.shape[-1], LEADING)
    return _pays(math.prod(logits.shape[2:-1]) * (numbers - (link == "softmax")), num_samples)


def _stacked(parts: list[Tensor], shape: Sequence[int]) -> Tensor:
    """What is known of each position, ``[R, ...]``, as that of each row and position."""
    return torch.stack(parts, dim=1).reshape(*shape, *parts[0].shape[1:])


def at_positions(logits: Tensor, rows: int, positions: Sequence[int] | None) -> Tensor:
    """Predictions ``[..., B, N, C]`` at some of the N positions; ``rows`` is the place of B among the dimensions."""
    if positions is None:
        return logits
    flat = logits.flatten(rows + 1, -2) if logits.dim() > rows + 2 else logits
    known = flat.shape[rows + 1] if flat.dim() == rows + 3 else 0
    if not len(positions) or not all(0 <= place < known for place in positions):
        have = f"0..{known - 1}" if known else "none, for a row has a single prediction"
        raise ValueError(f"{OWNER}: expected positions among {have}, got {list(positions)}")
    return flat.index_select(rows + 1, torch.tensor(list(positions), device=logits.device))


def _chosen(logits: Tensor, asked: _Asked, link: Link) -> Tensor:
    """The leading classes of each prediction, those that are attributed first: int64 ``[B, ..., K]``."""
    known = logits.shape[-1]
    first = asked.first
    expected = 2 if link == "softmax" else 1
    if first and (len(set(first)) != expected or not all(0 <= item < known for item in first)):
        what = "a pair of different classes" if expected == 2 else "one label or number"
        raise ValueError(
            f"{OWNER}: expected attribution of {what} among 0..{known - 1}, got {asked.attribution!r}"
        )
    if asked.classes is not None and asked.classes < expected:
        raise ValueError(f"{OWNER}: expected classes >= {expected}, got {asked.classes}")
    number = known if link == "identity" else min(known, asked.classes or LEADING)
    if number < expected:
        raise ValueError(f"{OWNER}: expected two classes or more, got logits of shape {list(logits.shape)}")
    score = {"softmax": logits, "sigmoid": -logits.abs(), "identity": torch.arange(known, 0, -1).to(logits)}[
        link
    ]
    order = score.float().expand(logits.shape).clone()
    for index, item in enumerate(first):
        order[..., item] = torch.inf if index == 0 else torch.finfo(torch.float32).max
    chosen = order.topk(number, dim=-1).indices
    if link == "sigmoid" and number > 1:
        best = logits.argmax(dim=-1, keepdim=True)
        missing = (chosen != best).all(dim=-1)
        chosen[..., -1] = torch.where(missing, best[..., 0], chosen[..., -1])
    return chosen


class Expansion(Messenger):
    """Pyro handler that gives every attention site E[S] and keeps what derivatives at it need, by site.

    Args:
        log_factors: logarithms of factors of E[S], by site, broadcastable to ``[B, H, T, S]``.
    """

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
            refuse_latent(OWNER, msg)
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


class _Derivatives(NamedTuple):
    """Derivatives of D numbers, scaled by standard deviations: their inner products are covariances.

    ``covariance`` ``[R, D, D]``; of the first number ``relative_variance`` ``[R]`` and by site, where they are asked
    for, ``share``, ``slope`` and ``steepest``.
    """

    covariance: Tensor
    share: dict[str, Tensor]
    slope: dict[str, Tensor]
    steepest: dict[str, Tensor]
    relative_variance: Tensor


def differentiate(
    numbers: Tensor, expansion: Expansion, *, attribution: bool, slopes: bool, keep: bool
) -> _Derivatives:
    """Differentiates numbers ``[R, D]``, each row of which depends on its own part of every site's first dimension.

    ``attribution`` asks for shares, ``slopes`` for the rest by site; ``keep`` leaves the graph for another call.
    """
    rows, size = numbers.shape
    points = [point.log_mean for point in expansion.points.values()]
    gradients = [
        torch.autograd.grad(
            numbers[:, item].sum(), points, retain_graph=keep or item + 1 < size, materialize_grads=True
        )
        for item in range(size)
    ]
    dtype = torch.float64 if numbers.dtype == torch.float64 else torch.float32
    covariance = numbers.new_zeros(rows, size, size, dtype=dtype)
    relative = numbers.new_zeros(rows, dtype=dtype)
    slope, steepest = {}, {}
    for (name, point), found in zip(expansion.points.items(), zip(*gradients, strict=True), strict=True):
        flat = (
            torch.stack([item.reshape(rows, -1) for item in found])
            if size > 1
            else found[0].view(1, rows, -1)
        )
        squares = flat[0].square() if size == 1 else flat.square().sum(dim=0)
        matter = squares > NEGLIGIBLE * squares.mean(dim=1, keepdim=True)
        indices, counts = matter.view(-1).nonzero().squeeze(1), matter.sum(dim=1)
        first, effect = point.variances(indices)
        scaled = flat.flatten(1)[:, indices].to(dtype) * effect.sqrt()

        def by_row(values: Tensor, counts: Tensor = counts) -> Tensor:
            return torch.segment_reduce(values, "sum", lengths=counts, unsafe=True, initial=0)

        for one, other in combinations_with_replacement(range(size), 2):
            part = by_row(scaled[one] * scaled[other])
            covariance[:, one, other] += part
            if one != other:
                covariance[:, other, one] += part
        relative += by_row(scaled[0].square() * first)
        if slopes:
            rest = (
                found[0].shape[1:] if len(found[0]) == rows else (len(found[0]) // rows, *found[0].shape[1:])
            )
            slope[name] = found[0].view(rows, *rest)
            changes = torch.zeros_like(squares, dtype=dtype).view(-1)
            steepest[name] = changes.index_put_((indices,), scaled[0] * effect.sqrt()).view(rows, *rest)
    total = torch.where(covariance[:, 0, 0] > 0, covariance[:, 0, 0], 1.0)
    unit = total.sqrt()

    def by_unit(values: Tensor) -> Tensor:
        return values / unit.view(-1, *[1] * (values.dim() - 1))

    steepest = {name: by_unit(changes) for name, changes in steepest.items()}
    share = {name: by_unit(changes * slope[name]) for name, changes in steepest.items() if attribution}
    return _Derivatives(covariance, share, slope, steepest, relative / total)
