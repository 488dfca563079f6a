"""The deletion test of shares of the variance: weights are held at their expectations while the others are drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from pyro.poutine.runtime import Message
from torch import Tensor

from probattn.checks import check_batch, check_choice, check_share
from probattn.distributions.log_space_distribution import carried_log, exp_carrying_log
from probattn.inference.expansion import posterior_moments
from probattn.inference.expansion_check import Expansion, LogMeans
from probattn.inference.predictive import Model, batched_inputs, posterior_predict, prepared_batch, seed_words
from probattn.inference.session import derived_seed, evaluating
from probattn.sites.method import as_program

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
