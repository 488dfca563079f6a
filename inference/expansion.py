"""Moments of predictions by a first-order expansion in the attention weights."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
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
from probattn.inference.moments import Moments, centred, moments_of_draws
from probattn.inference.posterior import Link
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
TRUSTED = 0.5
"""Relative variance of the weights that matter up to which the expansion goes unchecked."""
CHECKED_ROWS = 8
TOLERATED = 1.25
"""Ratio between the standard deviations of draws and of the expansion, either way, beyond which draws are taken."""
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

    over sites, heads, queries and keys. It takes one forward pass and a backward pass for each of K - 1 differences
    of leading logits, K numbers where the link is not "softmax": 2.3 to 2.7 plain passes for two classes, whatever the
    accuracy that draws would need. The summands, over their sum, are each weight's share of the variance.

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
        method: "expansion"; "draws", the moments of ``num_samples`` draws; or "auto": the expansion, unless draws cost
            less (a text with many tokens to predict) or the expansion is not to be trusted. Where the relative variance
            of the weights that matter exceeds 0.5 in some row, the 8 rows where it is largest are compared with draws;
            if their standard deviations differ by more than a factor of 1.25, the moments are those of draws, and a
            warning says so.
        num_samples: draws of "draws" and of the check, >= 2.
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
        >>> moments
        Moments(3 rows, softmax over 2, expansion, shares of 2 sites)
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
    if isinstance(batch, Mapping | Tensor):
        check_batch(OWNER, batch)
        return _of_batch(model, cast(Mapping[str, Tensor], batch), words, batch_keys, asked)
    parts = enumerate(batches_of(OWNER, batch))
    return Moments.together(
        [_of_batch(model, part, (*words, number), batch_keys, asked) for number, part in parts]
    )


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


def _of_batch(
    model: Any,
    batch: Mapping[str, Tensor],
    seed: tuple[int, ...],
    batch_keys: Sequence[str] | None,
    asked: _Asked,
) -> Moments:
    inputs, keys, rows = batched_inputs(OWNER, prepared_batch(model, batch), batch_keys, "labels")

    def some(places: Any) -> dict[str, Tensor]:
        return {name: value[places] if name in keys else value for name, value in inputs.items()}

    def drawn(places: Tensor | None = None, like: Moments | None = None, apart: bool = True) -> Moments:
        taken = inputs if places is None or not apart else some(places)
        posterior = posterior_predict(model, taken, asked.num_samples, seed=seed, batch_keys=sorted(keys))
        logits = at_positions(posterior.logits, 1, asked.positions)
        posterior = replace(posterior, logits=logits if places is None or apart else logits[:, places])
        mean = posterior.logits.float().mean(dim=0)
        classes = _chosen(mean, asked, posterior.link) if like is None else like.classes
        return moments_of_draws(posterior, classes)

    if asked.method == "draws":
        return drawn()
    size = asked.chunk_size or rows_per_pass(device_of(inputs))
    part = _expanded(model, some(slice(0, size)), asked)
    if part is None:
        return drawn()
    apart = rows == 1 or _is_apart(model, some(slice(0, 1)), part, asked)
    if apart:
        starts = range(size, rows, size)
        parts = [part, *(_expanded(model, some(slice(start, start + size)), asked) for start in starts)]
    else:
        parts = [_expanded(model, inputs, asked, dependent=True)]
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return drawn()
    found = Moments.together(known)
    return _checked(found, partial(drawn, apart=apart)) if asked.method == "auto" else found


def _is_apart(model: Any, row: Mapping[str, Tensor], found: Moments, asked: _Asked) -> bool:
    """Whether the first row has the same prediction without the others, up to rounding."""
    alone = at_positions(posterior_expectation(model, row), 0, asked.positions)
    own = found.logits[:1]
    tolerance = torch.finfo(own.dtype).eps ** 0.5 * float(own.abs().max())
    return alone.shape == own.shape and float((alone - own).abs().max()) <= tolerance


def _expanded(
    model: Any, inputs: Mapping[str, Tensor], asked: _Asked, dependent: bool = False
) -> Moments | None:
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
                numbers[:, place],
                expansion,
                attribution=asked.attribution is not False,
                keep=place + 1 < positions,
            )
            for place in range(positions)
        ]
    together = partial(_stacked, shape=(rows, *inner))
    covariance = together([one.covariance for one in each])
    return Moments(
        logits.detach(),
        classes,
        centred(covariance) if link == "softmax" else covariance,
        link,
        getattr(model, "noise", None) if link == "identity" else None,
        share={name: together([one.share[name] for one in each]) for name in each[0].share} or None,
        slope={name: together([one.slope[name] for one in each]) for name in each[0].slope} or None,
        relative_variance=together([one.relative_variance for one in each]),
    )


def _pays(derivatives: int, num_samples: int) -> bool:
    return derivatives <= COST_OF_A_DRAW * num_samples


def expansion_pays(logits: Tensor, num_samples: int, link: Link) -> bool:
    """Whether the expansion of predictions like draws ``[P, B, ..., C]`` costs less than ``num_samples`` draws."""
    numbers = logits.shape[-1] if link == "identity" else min(logits.shape[-1], LEADING)
    return _pays(math.prod(logits.shape[2:-1]) * (numbers - (link == "softmax")), num_samples)


def _stacked(parts: list[Tensor], shape: Sequence[int]) -> Tensor:
    """What is known of each position, ``[R, ...]``, as that of each row and position."""
    return torch.stack(parts, dim=1).reshape(*shape, *parts[0].shape[1:])


def _checked(found: Moments, drawn: Callable[..., Moments]) -> Moments:
    """The expansion, compared with draws where it is in doubt, or the draws."""
    assert found.relative_variance is not None
    doubt = found.relative_variance.reshape(len(found.logits), -1).amax(dim=1)
    if float(doubt.max()) <= TRUSTED:
        return found
    rows = doubt.topk(min(CHECKED_ROWS, len(doubt))).indices
    part = found.rows(rows)
    check = part.compared(drawn(rows, part))
    if 1 / TOLERATED <= check.ratio <= TOLERATED:
        return replace(found, check=check)
    warnings.warn(
        f"{OWNER}: the first-order expansion is not to be trusted here: over {check.rows} rows the standard deviation "
        f"of {check.draws} draws is {check.ratio:.2f} of its own; the moments are those of draws",
        stacklevel=4,
    )
    return replace(
        drawn(None, found),
        share=found.share,
        slope=found.slope,
        relative_variance=found.relative_variance,
        check=check,
    )


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
    if first and (len(set(first)) != expected or not all(0 <= each < known for each in first)):
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
    for place, each in enumerate(first):
        order[..., each] = torch.inf if place == 0 else torch.finfo(torch.float32).max
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

    ``covariance`` ``[R, D, D]``; of the first number ``share`` and ``slope`` by site and ``relative_variance`` ``[R]``.
    """

    covariance: Tensor
    share: dict[str, Tensor]
    slope: dict[str, Tensor]
    relative_variance: Tensor


def differentiate(numbers: Tensor, expansion: Expansion, *, attribution: bool, keep: bool) -> _Derivatives:
    """Differentiates numbers ``[R, D]``, each row of which depends on its own part of every site's first dimension.

    ``keep`` leaves the graph for another call.
    """
    rows, size = numbers.shape
    points = [point.log_mean for point in expansion.points.values()]
    gradients = [
        torch.autograd.grad(
            numbers[:, each].sum(), points, retain_graph=keep or each + 1 < size, materialize_grads=True
        )
        for each in range(size)
    ]
    dtype = torch.float64 if numbers.dtype == torch.float64 else torch.float32
    covariance = numbers.new_zeros(rows, size, size, dtype=dtype)
    relative = numbers.new_zeros(rows, dtype=dtype)
    share, slope = {}, {}
    for (name, point), found in zip(expansion.points.items(), zip(*gradients, strict=True), strict=True):
        slopes = (
            torch.stack([each.reshape(rows, -1) for each in found])
            if size > 1
            else found[0].view(1, rows, -1)
        )
        squares = slopes[0].square() if size == 1 else slopes.square().sum(dim=0)
        matter = squares > NEGLIGIBLE * squares.mean(dim=1, keepdim=True)
        places, counts = matter.view(-1).nonzero().squeeze(1), matter.sum(dim=1)
        first, effect = point.variances(places)
        scaled = slopes.flatten(1)[:, places].to(dtype) * effect.sqrt()

        def by_row(values: Tensor, counts: Tensor = counts) -> Tensor:
            return torch.segment_reduce(values, "sum", lengths=counts, unsafe=True, initial=0)

        for one, other in combinations_with_replacement(range(size), 2):
            part = by_row(scaled[one] * scaled[other])
            covariance[:, one, other] += part
            if one != other:
                covariance[:, other, one] += part
        summands = scaled[0].square()
        relative += by_row(summands * first)
        if attribution:
            shape = (
                found[0].shape
                if len(found[0]) == rows
                else (rows, len(found[0]) // rows, *found[0].shape[1:])
            )
            share[name] = (
                torch.zeros_like(squares, dtype=dtype).view(-1).index_put_((places,), summands).view(shape)
            )
            slope[name] = found[0].view(shape)
    total = torch.where(covariance[:, 0, 0] > 0, covariance[:, 0, 0], 1.0)
    share = {name: each / total.view(-1, *[1] * (each.dim() - 1)) for name, each in share.items()}
    return _Derivatives(covariance, share, slope, relative / total)
