"""Where the noise of a posterior enters: sums of shares, leading pairs, other attention, and the deletion test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import torch
from pyro.poutine.runtime import Message
from torch import Tensor

from probattn.checks import check_batch, check_choice, check_integer, check_share
from probattn.distributions.log_space_distribution import carried_log, exp_carrying_log
from probattn.inference.expansion import posterior_moments
from probattn.inference.expansion_check import Expansion, LogMeans
from probattn.inference.moments import Moments
from probattn.inference.predictive import Model, batched_inputs, posterior_predict, prepared_batch, seed_words
from probattn.inference.session import derived_seed, evaluating
from probattn.sites.method import as_program

Part = Literal["site", "head", "query", "key"]
PARTS: tuple[Part, ...] = ("site", "head", "query", "key")


class Pair(NamedTuple):
    """An attention weight and its part in the variance of a prediction.

    Attributes:
        site: name of the attention call.
        head: index of the head.
        query: position that attends.
        key: position that is attended to.
        noise_share: the part of the variance that its noise brings in, in [0, 1].
        slope: derivative of the attributed number by the logarithm of the unnormalised weight.
    """

    site: str
    head: int
    query: int
    key: int
    noise_share: float
    slope: float


def share_by(maps: Mapping[str, Tensor], *dimensions: Part) -> Tensor:
    """Sums attributed maps over everything but the named parts.

    Args:
        maps: :attr:`Moments.noise_share`, or :attr:`Moments.slope`, whose sums are derivatives by a factor that the
            weights have in common; ``[B, ..., H, T, S]`` by site.
        *dimensions: what to keep, of "site", "head", "query" and "key"; none for the sum of all.

    Returns:
        ``[B, ...]`` and the kept dimensions, in the order site, head, query, key.

    Raises:
        ValueError: no maps, an unknown part, or maps whose kept dimensions differ in size: take some of the sites.

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


def leading_pairs(moments: Moments, number: int = 10) -> list[list[Pair]]:
    """The pairs of query and key that bring in most of the variance, by row.

    Args:
        moments: made with ``attribution``, of predictions of which each row has one.
        number: of pairs, at most.

    Returns:
        For each row its pairs, the largest share first.

    Raises:
        ValueError: moments without shares, or with several predictions a row: compute one with ``positions``.
    """
    check_integer("leading_pairs", "number", number, minimum=1)
    share, slope = moments.noise_share, moments.slope
    if share is None or slope is None:
        raise ValueError(
            "leading_pairs: expected shares, got none; call posterior_moments(..., attribution=True)"
        )
    rows = len(moments.logits)
    if any(item.dim() != 4 for item in share.values()):
        got = [list(item.shape) for item in share.values()]
        raise ValueError(f"leading_pairs: expected shares [B, H, T, S], got {got}; use positions=[one]")
    flat = torch.cat([item.reshape(rows, -1) for item in share.values()], dim=1)
    order = flat.topk(min(number, flat.shape[1])).indices
    ranked: list[list[tuple[int, Pair]]] = [[] for _ in range(rows)]
    first = 0
    for name, value in share.items():
        inside = (order >= first) & (order < first + value[0].numel())
        row, rank = inside.nonzero(as_tuple=True)
        head, query, key = torch.unravel_index(order[inside] - first, value.shape[1:])
        values = (value[row, head, query, key], slope[name][row, head, query, key])
        first += value[0].numel()
        columns = (column.tolist() for column in (row, rank, head, query, key, *values))
        for here, position, *numbers in zip(*columns, strict=True):
            ranked[here].append((position, Pair(name, *numbers)))
    return [[pair for _, pair in sorted(pairs)] for pairs in ranked]


def reweighted_expectation(
    model: Model,
    batch: Mapping[str, Tensor],
    factors: Mapping[str, Tensor],
    *,
    batch_keys: Sequence[str] | None = None,
) -> Tensor:
    r"""The prediction at the posterior expectation with more or less attention in some places.

    .. math:: z(W'), \qquad W'_j = \frac{f_j\, \mathrm E[S_j]}{\sum_i f_i\, \mathrm E[S_i]}

    through the whole network: what follows from the changed weights, in later layers too, changes with them.

    Args:
        model: as in :func:`posterior_moments`.
        batch: its inputs.
        factors: f by site, positive, broadcastable to ``[B, H, T, S]``: 2 in a column gives a key twice its weight.
        batch_keys: inputs whose first dimension is the batch. Default: all of them.

    Returns:
        Predictions ``[B, ..., C]``.

    Raises:
        ValueError: an unknown site, or a factor that is not positive and finite.

    Example:
        >>> from transformers import BertConfig, BertForSequenceClassification
        >>> import probattn
        >>> from probattn.models import convert
        >>> config = BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
        >>> net = convert(BertForSequenceClassification(config), probattn.BayesianAttention())
        >>> twice = torch.tensor([1.0, 1.0, 2.0, 1.0])
        >>> inputs = {"input_ids": torch.arange(8).view(2, 4)}
        >>> reweighted_expectation(net, inputs, {"bert.encoder.layer.0.attention.self": twice}).shape
        torch.Size([2, 2])
    """
    owner = "reweighted_expectation"
    check_batch(owner, batch)
    wrong = [name for name, factor in factors.items() if not bool(((factor > 0) & factor.isfinite()).all())]
    if wrong:
        raise ValueError(f"{owner}: {wrong[0]}: expected factors above 0 and finite")
    program: Any = as_program(model)
    inputs, _, _ = batched_inputs(owner, prepared_batch(program, batch), batch_keys, "labels")
    logs = {name: factor.log() for name, factor in factors.items()}
    with evaluating(program), Expansion(logs) as expansion:
        logits: Tensor = program(inputs)
    unknown = sorted(set(factors) - set(expansion.points))
    if unknown:
        raise ValueError(
            f"{owner}: expected sites of this model, got {unknown[0]!r}; it has {', '.join(expansion.points)}"
        )
    return logits


OWNER = "variance_removed"
Ranking = Literal["share", "spread", "random"]


def variance_removed(
    model: Model,
    batch: Mapping[str, Tensor],
    *,
    fraction: float = 0.01,
    by: Ranking = "share",
    num_samples: int = 100,
    seed: int | Sequence[int] = 0,
    chunk_size: int | None = None,
    batch_keys: Sequence[str] | None = None,
) -> Tensor:
    r"""The part of a prediction's variance that goes when some attention weights are held at their expectations.

    Of all weights of a row, over sites, heads, queries and keys, the ``fraction`` that ranks first is held at E[S],
    while the others are drawn as before, by the same noise. The variance is of the two leading logits' difference.

    .. math:: 1 - \mathrm{Var}[z \mid S_j = \mathrm E[S_j],\, j \in \text{held}] \,/\, \mathrm{Var}[z]

    Args:
        model: as in :func:`posterior_moments`, with one prediction a row and a learned scale at none of its sites.
        batch: its inputs.
        fraction: of the weights, in (0, 1].
        by: "share", :attr:`Moments.noise_share`; "spread", the standard deviation of S over its mean, where equal
            spreads, such as all of a constant concentration, are ordered at random; or "random".
        num_samples: draws, with and without.
        seed: of the draws, and of the random ranking.
        chunk_size: draws per pass; as in :func:`posterior_predict`.
        batch_keys: inputs whose first dimension is the batch. Default: all of them.

    Returns:
        ``[B]``; near 1 where the held weights make the prediction unsure, negative where the others vary more then.

    Raises:
        ValueError: a fraction out of its range, more than one prediction a row, or a site with a learned scale.

    Example:
        >>> from transformers import BertConfig, BertForSequenceClassification
        >>> import probattn
        >>> from probattn.models import convert
        >>> config = BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
        >>> net = convert(BertForSequenceClassification(config), probattn.BayesianAttention())
        >>> inputs = {"input_ids": torch.ones(3, 4, dtype=torch.long)}
        >>> variance_removed(net, inputs, fraction=1.0, num_samples=3)
        tensor([1., 1., 1.])
    """
    check_batch(OWNER, batch)
    check_choice(OWNER, "by", by, Ranking)
    check_share(OWNER, "fraction", fraction, zero=False)
    program: Any = as_program(model)
    inputs, keys, rows = batched_inputs(OWNER, prepared_batch(program, batch), batch_keys, "labels")
    moments = posterior_moments(
        program, inputs, classes=2, method="expansion", attribution=by == "share", batch_keys=sorted(keys)
    )
    if moments.classes.dim() != 2 or moments.link != "softmax":
        raise ValueError(f"{OWNER}: expected one class a row, got logits {list(moments.logits.shape)}")
    masks = _leading(_ranking(program, inputs, by, seed, moments.noise_share), fraction, rows)

    def masked_program(chunk: Mapping[str, Tensor]) -> Tensor:
        with Holding(masks):
            logits: Tensor = program(chunk)
        return logits

    def variance(network: Any) -> Tensor:
        drawn = posterior_predict(
            network, inputs, num_samples, seed=seed, chunk_size=chunk_size, batch_keys=sorted(keys)
        )
        pair = drawn.logits.gather(-1, moments.classes.expand(num_samples, rows, 2))
        return (pair[..., 0] - pair[..., 1]).var(dim=0)

    with evaluating(program):
        return 1 - variance(masked_program) / variance(program)


def _ranking(
    model: Any,
    inputs: Mapping[str, Tensor],
    by: Ranking,
    seed: int | Sequence[int],
    share: Mapping[str, Tensor] | None,
) -> dict[str, Tensor]:
    """A number for each weight of each site, ``[B, H, T, S]``; -inf at forbidden pairs."""
    with evaluating(model), torch.no_grad(), Expansion() as expansion:
        model(inputs)
    generator = torch.Generator().manual_seed(derived_seed(*seed_words(seed)))
    ranking = {}
    for name, point in expansion.points.items():
        if point.inputs.method.learns_scale:
            raise ValueError(f"{OWNER}: {name}: expected sigma 0, got {point.inputs.method.sigma}")
        weights = point.weights
        # Ties, such as all weights of a constant concentration, are broken at random.
        chance = torch.rand(weights.shape, generator=generator, dtype=torch.float64).to(weights.device)
        score = chance
        if share is not None:
            score = share[name] + chance * torch.finfo(torch.float32).tiny
        elif by == "spread":
            first = point.variances(torch.arange(weights.numel(), device=weights.device)).first
            score = first.expand(weights.numel()).view_as(weights) * (1 + 1e-6 * chance)
        ranking[name] = torch.where(weights > 0, score, -torch.inf)
    return ranking


def _leading(scores: Mapping[str, Tensor], fraction: float, rows: int) -> dict[str, Tensor]:
    """Bool ``[B, H, T, S]``, by site: the weights of each row that rank first, a fraction of all that are allowed."""
    flat = torch.cat([score.reshape(rows, -1) for score in scores.values()], dim=1)
    allowed = (flat > -torch.inf).sum(dim=1)
    number = (allowed * fraction).round().long().clamp_min(1)
    order = flat.argsort(dim=1, descending=True).argsort(dim=1)
    leading = order < number[:, None]
    sizes = [score[0].numel() * len(score) // rows for score in scores.values()]
    masks = leading.split(sizes, dim=1)
    return {name: mask.view(score.shape) for (name, score), mask in zip(scores.items(), masks, strict=True)}


class Holding(LogMeans):
    """Pyro handler within the one that draws: gives held weights their expectation after the draw."""

    def __init__(self, masks: Mapping[str, Tensor]) -> None:
        super().__init__()
        self._masks = masks

    def _pyro_post_sample(self, msg: Message) -> None:
        name = str(msg["name"])
        if name not in self.log_means:
            return
        value = msg["value"]
        assert isinstance(value, Tensor)
        log_mean = self.log_means.pop(name)
        mask = self._masks[name]
        mask = mask.repeat(len(value) // len(mask), *[1] * (mask.dim() - 1))
        log_value = carried_log(value)
        msg["value"] = exp_carrying_log(torch.where(mask, log_mean, log_value))
