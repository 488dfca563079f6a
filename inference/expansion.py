"""Moments of predictions by a first-order expansion in the attention weights."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from probattn.checks import check_choice, check_integer
from probattn.distributions.log_space import computing_dtype
from probattn.inference.configuration import check_sites
from probattn.inference.ensembles.ensemble import ParticleEnsemble
from probattn.inference.expansion_check import (
    DOUBT,
    FAR,
    LAST,
    LOCAL,
    MORE,
    NEAR,
    OWNER,
    WIDE,
    Expansion,
    PredictedModel,
    Residuals,
    SiteSlopes,
    deviations,
    differentiate,
)
from probattn.inference.guide import differentiated, has_rows_apart, moved_rows, predictions
from probattn.inference.moments import Moments, centred, moments_of_draws
from probattn.inference.posterior import Link, Posterior, link_of
from probattn.inference.predictive import (
    Model,
    batched_inputs,
    check_call,
    device_of,
    differentiable,
    posterior_expectation,
    posterior_predict,
    prepared_batch,
    rows_per_pass,
    seeded_batches,
)
from probattn.inference.session import evaluating
from probattn.sites.method import as_program
from probattn.sites.particle_layers import particle_count

Method = Literal["auto", "expansion", "draws"]
LEADING = 6
"""Leading classes whose covariance is computed, unless asked otherwise."""
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

    Given its scores, an attention call draws independent unnormalised weights :math:`S_j` with relative variance
    :math:`c_j^2 = \mathrm{Var}[S_j] / \mathrm E[S_j]^2`. With :math:`S_j = \mathrm E[S_j] e^{u_j}`, the delta method
    gives for the logits (or numbers) z, with derivatives through the whole network at u = 0,

    .. math:: \mathrm{Cov}[z_a, z_b] \approx \sum_j c_j^2\, \frac{\partial z_a}{\partial u_j}
        \frac{\partial z_b}{\partial u_j}, \qquad
        c^2 = \frac{\Gamma(1 + 2/k)}{\Gamma(1 + 1/k)^2} - 1 \;\text{(Weibull)}, \quad
        e^{s^2} - 1 \;\text{(log-normal)}

    summed over attention calls, heads, queries and keys (k is the concentration, s the log-normal scale). If the
    normalised weight :math:`W_j` is not small, :math:`\mathrm{Var}[f_j]` replaces :math:`c_j^2`, with :math:`f_j = (x -
    1) / (1 + W_j (x - 1))` and :math:`x = S_j / \mathrm E[S_j]`. The summands, divided by their sum, are the noise
    shares of the weights. The cost is a forward pass and K backward passes (K - 1 for "softmax"): for two classes the
    time of 2.4 to 2.7 forward passes on a CPU. The check of "auto" adds that of 2.3 to 2.8.

    "auto" decides for each row whether the expansion holds for one number, the one of ``attribution`` (by default the
    difference of the two leading logits), with mean :math:`z_0` and standard deviation :math:`\sigma` in closed form:

    1. With a relative variance above 10 (concentration below 0.4, scale above 1.5) the row gets the moments of draws.
    2. z is computed at the points :math:`u = \pm 2 c^2 \nabla z / \sigma`, where the expansion gives
       :math:`z_0 \pm 2 \sigma`. If both results differ from these by at most :math:`0.3 \sigma`, and the relative
       variance is at most 2 (concentration 0.72, scale 1.05), the row keeps the expansion, unless :math:`\sigma = 0`.
    3. Otherwise ``num_samples`` draws z are compared with what the expansion predicts for them, :math:`z_0 + l` with
       :math:`l = \sum_j f_j\, \partial z / \partial u_j`, by four measures (ratios below 1 are inverted). A row keeps
       the expansion if none exceeds its first limit, and gets the moments of draws if one exceeds the second; else
       three times as many new draws decide, by the third, and give the moments. Limits of the variance of
       :math:`z - z_0 - l` over :math:`\sigma^2`: 0.2, 0.6, 0.4; of |its mean| over :math:`\sigma`: 1.5, 3, 1.5; of
       sd(z) over sd(l): 1.25, 1.8, 1.3; with 20 draws or more, of sd(z) over :math:`\sigma`: 1.4, 2, 1.4.

    Rows that depend on each other (nodes of a graph, pictures scored against all texts of a batch) are differentiated
    separately. They are detected by running the first row alone, with "expansion" also by derivatives. Networks that
    classify texts, tokens or images and consist of modules of transformers, peft, torch and this package have none.

    Args:
        model: as in :func:`posterior_predict`, but without particles.
        batch: as in :func:`posterior_predict`; "labels" are ignored.
        attribution: whether to compute :attr:`Moments.noise_share` and :attr:`Moments.slope`, for one number per row
            (and position). True: the difference of the two leading logits, for "sigmoid" the least certain label, for
            "identity" the first number. Or the number to use: a pair of classes, a label, an output.
        classes: K >= 2 (1 for "sigmoid"), number of leading classes whose covariance is computed; default 6, or all if
            there are fewer. For "sigmoid" these are the least certain labels and, if K > 1, the most probable one. In
            regression K is the number of outputs.
        positions: positions, from 0, of the predictions to compute if a row has several (such as one per token).
            Default: all.
        method: "expansion"; "draws" for the moments of ``num_samples`` draws; or "auto": the expansion, but draws for
            all rows if they cost less (such as for many predictions per row), and for rows for which the expansion
            does not hold. A warning gives the number of these rows.
        num_samples: number of draws for "draws" and "auto", >= 2.
        seed: seed of the draws.
        chunk_size: number of rows in a pass; bounds memory (of a training step). Default: about 256, on a CPU 16.
        batch_keys: inputs whose first dimension is the batch. Default: all of them.

    Returns:
        The moments. Positions that a shorter batch of a loader does not have are NaN.

    Raises:
        TypeError: the model is not a model of a batch, or has particles; the batch is not a mapping of tensors.
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
        >>> moments.noise_share["bert.encoder.layer.0.attention.self"].shape
        torch.Size([3, 2, 4, 4])
    """
    model = as_program(model)
    if isinstance(model, ParticleEnsemble) or particle_count(model) is not None:
        raise TypeError(
            f"{OWNER}: expected one network, got particles, which differ by more than a first-order term; use "
            "posterior_predict"
        )
    check_call(OWNER, model)
    check_choice(OWNER, "method", method, Method)
    check_integer(OWNER, "num_samples", num_samples, minimum=2)
    for name, number in (("classes", classes), ("chunk_size", chunk_size)):
        if number is not None:
            check_integer(OWNER, name, number, minimum=1)
    request = _Request(attribution, classes, positions, method, num_samples, chunk_size)

    def of_batch(inputs: Mapping[str, Tensor], seed: tuple[int, ...]) -> Moments:
        prepared = batched_inputs(OWNER, prepared_batch(model, inputs), batch_keys, "labels")
        return _Batch(model, *prepared, seed, request).moments()

    moments = [of_batch(*seeded) for seeded in seeded_batches(OWNER, batch, seed)]
    result = moments[0] if len(moments) == 1 else Moments.together(moments)
    if result.check is not None and result.drawn.any():
        warnings.warn(
            f"{OWNER}: the first-order expansion does not hold for {int(result.drawn.sum())} of {len(result.drawn)} "
            f"rows (residual variance up to {result.check.residual:.2f}); they have the moments of draws",
            stacklevel=2,
        )
    return result


class _Request(NamedTuple):
    """Arguments of :func:`posterior_moments`."""

    attribution: bool | int | tuple[int, int]
    classes: int | None
    positions: Sequence[int] | None
    method: Method
    num_samples: int
    chunk_size: int | None


@dataclass(frozen=True)
class _Batch:
    """The rows of one batch, and what is requested of them."""

    model: Any
    inputs: dict[str, Tensor]
    keys: set[str]
    rows: int
    seed: tuple[int, ...]
    request: _Request

    def some(self, indices: Any) -> dict[str, Tensor]:
        """Inputs of some rows."""
        return {name: value[indices] if name in self.keys else value for name, value in self.inputs.items()}

    def draws(
        self, model: Any, inputs: Mapping[str, Tensor], number: int, seed: Sequence[int], apart: bool = True
    ) -> Posterior:
        """Draws of the requested positions; where rows depend on one another, those of two draws must not meet."""
        size = None if apart else 1
        keys = sorted(self.keys)
        posterior = posterior_predict(model, inputs, number, seed=seed, chunk_size=size, batch_keys=keys)
        return replace(posterior, logits=at_positions(posterior.logits, 1, self.request.positions))

    def of_draws(self) -> Moments:
        """The moments of draws of all rows."""
        posterior = self.draws(self.model, self.inputs, self.request.num_samples, self.seed)
        classes = _leading(posterior.logits.float().mean(dim=0), self.request, posterior.link)
        return moments_of_draws(posterior, classes)

    def moments(self) -> Moments:
        """As requested."""
        request = self.request
        if request.method == "draws":
            return self.of_draws()
        size = request.chunk_size or rows_per_pass(device_of(self.inputs))
        expanded = _expanded(self.model, self.some(slice(0, size)), min(size, self.rows), request)
        apart = expanded is None or self._is_apart(expanded[0].logits[:1])
        results = []
        indices = torch.arange(self.rows, device=device_of(self.inputs))
        for number, rows in enumerate(indices.split(size if apart else self.rows)):
            if number or not apart:
                expanded = _expanded(self.model, self.some(rows), len(rows), request, not apart)
            if expanded is None:  # the same for all rows
                return self.of_draws()
            seed = (*self.seed, number * size) if number else self.seed
            checked = request.method == "auto"
            results.append(self.checked(*expanded, rows, seed, apart) if checked else expanded[0])
        return Moments.together(results)

    def _is_apart(self, first: Tensor) -> bool:
        """Whether the first row has this prediction without the others too, up to rounding."""
        if self.rows == 1 or has_rows_apart(self.model):
            return True
        alone = posterior_expectation(self.model, self.some(slice(0, 1)))
        alone = at_positions(alone, 0, self.request.positions)
        tolerance = torch.finfo(first.dtype).eps ** 0.5 * float(first.abs().max())
        return alone.shape == first.shape and float((alone - first).abs().max()) <= tolerance

    def checked(
        self,
        moments: Moments,
        slopes: Mapping[str, SiteSlopes],
        indices: Tensor,
        seed: Sequence[int],
        apart: bool,
    ) -> Moments:
        """The expansion of some rows, with the moments of draws where it does not hold."""
        samples = self.request.num_samples
        shared = any(len(site.weights) < len(indices) for site in slopes.values())

        def compared(rows: Tensor, number: int, seed: Sequence[int]) -> tuple[Posterior, Residuals]:
            """Draws of some rows; rows that share sites are drawn with all others."""
            before, after = (slice(None), rows) if shared else (rows, slice(None))
            sites = {name: (one.slopes[:, before], one.weights[before]) for name, one in slopes.items()}
            model = PredictedModel(self.model, sites)
            posterior = self.draws(model, self.some(indices[before]), number, seed, apart)
            predicted = torch.cat(model.predicted)[:number].detach()  # without a pass that checks equal draws
            predicted = predicted.reshape(posterior.logits.shape[:-1])[:, after]
            posterior = replace(posterior, logits=posterior.logits[:, after])
            return posterior, Residuals.of(moments.rows(rows), posterior.logits, predicted)

        def predict(factors: Mapping[str, Tensor]) -> Tensor:
            with evaluating(self.model), Expansion(factors):
                return at_positions(
                    predictions(OWNER, self.model, self.some(indices)), 0, self.request.positions
                )

        assert moments.relative_variance is not None
        relative = moments.relative_variance.reshape(len(indices), -1).amax(dim=1)
        wide = ~(relative <= WIDE)
        variance = moments.attributed()[1].reshape(len(indices), -1).amin(dim=1)
        doubtful = ~(relative <= LOCAL) | (variance == 0) | (deviations(moments, slopes, predict) > DOUBT)
        rows = doubtful.nonzero().squeeze(1)
        if not len(rows):
            return moments
        posterior, residuals = compared(rows, samples, seed)
        failed = residuals.beyond(NEAR) | wide[rows]
        unclear = (failed & ~residuals.beyond(FAR) & ~wide[rows]).nonzero().squeeze(1)
        drawn = moments_of_draws(posterior, moments.classes[rows])
        if len(unclear):
            more, last = compared(rows[unclear], MORE * samples, (*seed, 1))
            failed[unclear] = last.beyond(LAST)
            drawn = drawn.replaced(unclear, moments_of_draws(more, moments.classes[rows[unclear]]))
        drawn = drawn.rows(failed.nonzero().squeeze(1))
        return replace(moments.replaced(rows[failed], drawn), check=residuals.check(samples))


def _expanded(
    model: Any, inputs: Mapping[str, Tensor], rows: int, request: _Request, dependent: bool = False
) -> tuple[Moments, dict[str, SiteSlopes]] | None:
    """The expansion of rows, which may depend on one another, and slopes by site; None where draws are to be taken."""
    attribute = request.attribution is not False
    training = torch.inference_mode(False)
    with evaluating(model), differentiated(model), training, torch.enable_grad(), Expansion() as expansion:
        output = predictions(OWNER, model, differentiable(inputs), rows)
        logits, points = at_positions(output, 0, request.positions), expansion.points
        check_sites(OWNER, model, points)
        link = link_of(OWNER, model)
        classes = _leading(logits.detach(), request, link)
        numbers = logits.gather(-1, classes).to(computing_dtype(logits))
        numbers = numbers[..., :1] - numbers[..., 1:] if link == "softmax" else numbers
        shape = logits.shape[:-1]
        # Rows that share their sites, as the nodes of a graph do, are positions of one row.
        log_means = {name: point.log_mean for name, point in points.items()}
        shared = dependent or any(len(log_mean) % len(logits) for log_mean in log_means.values())
        if request.method == "expansion" and not shared:
            shared = bool(moved_rows(model, numbers.flatten(1).sum(dim=1), log_means))
        numbers = numbers.reshape(1 if shared else len(logits), -1, numbers.shape[-1])
        if request.method == "auto" and numbers[0].numel() > COST_OF_A_DRAW * request.num_samples:
            return None
        derivatives = differentiate(numbers, points, slopes=attribute or request.method == "auto")
    covariance = derivatives.covariance.reshape(*shape, *derivatives.covariance.shape[2:])
    share, slope = derivatives.maps(shape) if attribute else (None, None)
    covariance = centred(covariance) if link == "softmax" else covariance
    noise = getattr(model, "noise", None) if link == "identity" else None
    moments = Moments(logits.detach(), classes, covariance, link, noise, noise_share=share, slope=slope)
    relative = derivatives.relative_variance.reshape(shape)
    return replace(moments, relative_variance=relative), derivatives.sites


def expansion_pays(logits: Tensor, num_samples: int, link: Link) -> bool:
    """Whether the expansion of predictions like draws ``[P, B, ..., C]`` costs less than ``num_samples`` draws."""
    numbers = logits.shape[-1] if link == "identity" else min(logits.shape[-1], LEADING)
    derivatives = math.prod(logits.shape[2:-1]) * (numbers - (link == "softmax"))
    return derivatives <= COST_OF_A_DRAW * num_samples


def at_positions(logits: Tensor, rows: int, positions: Sequence[int] | None) -> Tensor:
    """Predictions ``[..., B, N, C]`` at some of the N positions; ``rows`` is the place of B among the dimensions."""
    if positions is None:
        return logits
    flat = logits.flatten(rows + 1, -2) if logits.dim() > rows + 2 else logits
    count = flat.shape[rows + 1] if flat.dim() == rows + 3 else 0
    if not len(positions) or not all(0 <= position < count for position in positions):
        have = f"0..{count - 1}" if count else "none, for a row has a single prediction"
        raise ValueError(f"{OWNER}: expected positions among {have}, got {list(positions)}")
    return flat.index_select(rows + 1, torch.tensor(list(positions), device=logits.device))


def _leading(logits: Tensor, request: _Request, link: Link) -> Tensor:
    """The leading classes of each prediction, those that are attributed first: int64 ``[B, ..., K]``."""
    count = logits.shape[-1]
    named = () if isinstance(request.attribution, bool) else request.attribution
    first = named if isinstance(named, tuple) else (named,)
    expected = 2 if link == "softmax" else 1
    if first and (len(set(first)) != expected or not all(0 <= item < count for item in first)):
        what = "a pair of different classes" if expected == 2 else "one label or number"
        raise ValueError(
            f"{OWNER}: expected attribution of {what} among 0..{count - 1}, got {request.attribution!r}"
        )
    if request.classes is not None and request.classes < expected:
        raise ValueError(f"{OWNER}: expected classes >= {expected}, got {request.classes}")
    number = count if link == "identity" else min(count, request.classes or LEADING)
    if number < expected:
        raise ValueError(f"{OWNER}: expected two classes or more, got logits of shape {list(logits.shape)}")
    scores = {"softmax": logits, "sigmoid": -logits.abs(), "identity": torch.arange(count, 0, -1).to(logits)}
    order = scores[link].float().expand(logits.shape).clone()
    for index, item in enumerate(first):
        order[..., item] = torch.inf if index == 0 else torch.finfo(torch.float32).max
    leading = order.topk(number, dim=-1).indices
    if link == "sigmoid" and number > 1:
        best = logits.argmax(dim=-1, keepdim=True)
        missing = (leading != best).all(dim=-1)
        leading[..., -1] = torch.where(missing, best[..., 0], leading[..., -1])
    return leading
