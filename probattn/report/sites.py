"""The state of attention sites: spread and KL of posteriors, and attention over the edges of a graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from probattn.inference.predictive import posterior_predict
from probattn.inference.records import RecordsError
from probattn.metrics.functional.inputs import widened
from probattn.report.markup import Section, site_labels
from probattn.report.record import ModelKey, Record
from probattn.report.svg import bar_glyph
from probattn.sites.bayesian import KLReduction


class SiteHealth(Record):
    """State of the posterior at one attention site.

    Attributes:
        site: name of the site.
        spread: posterior standard deviation of a normalised weight W divided by its mean, averaged over valid pairs.
        variation: standard deviation of this ratio over the pairs, divided by ``spread``; 0 if all ratios are equal.
        concentration: mean Weibull concentration k; None for other posteriors.
        kl_nats: Kullback-Leibler (KL) divergence from the prior, nats per example, summed over pairs and heads.
        kl_reduced: KL divergence after ``reduction``.
        reduction: reduction of the KL in training: "mean" or "keys" for averages, or "sum".
    """

    site: str
    spread: float
    kl_nats: float
    reduction: KLReduction
    concentration: float | None = None
    kl_reduced: float | None = None
    variation: float | None = None


class WeightSpread(NamedTuple):
    """Ratio of standard deviation to mean of a weight: its mean over pairs, and its coefficient of variation."""

    mean: float
    variation: float


COLLAPSED = 0.01
"""Mean std/mean of the weights below which a site's posterior counts as collapsed to a point."""


def posterior_words(health: Sequence[SiteHealth]) -> str:
    """Whether the posterior has collapsed, and how much its weights vary."""
    if not health:
        return ""
    spreads = [site.spread for site in health]
    collapsed = [site.site for site in health if site.spread < COLLAPSED]
    if len(collapsed) == len(spreads):
        return (
            "The posterior has collapsed: attention weights vary by less than 1% of their mean at every site, so the "
            "Bayesian network behaves like a deterministic one."
        )
    span = f"{min(spreads):.0%} to {max(spreads):.0%}" if len(spreads) > 1 else f"{spreads[0]:.0%}"
    words = f"Attention weights vary from draw to draw by {span} of their mean"
    if collapsed:
        return f"{words}; {len(collapsed)} of {len(spreads)} sites have collapsed to a point."
    return f"{words}: the posterior has not collapsed."


def weight_spreads(
    model: Callable[[Mapping[str, Tensor]], Tensor],
    batches: Iterable[Mapping[str, Tensor]],
    num_samples: int = 20,
    *,
    seed: int = 0,
    chunk_size: int | None = None,
    mask_name: str = "attention_mask",
    label_name: str = "labels",
) -> dict[str, WeightSpread]:
    """Ratio of posterior standard deviation to mean of the normalised weights W at each site, summarised over pairs.

    Query-key pairs whose weight is 0 in every draw (masked keys) and padded queries are left out.

    Args:
        model: a Pyro model that maps a batch to logits.
        batches: batches of inputs; a few are enough.
        num_samples: P, number of draws, at least 2.
        seed: seed of the draws; it is combined with the number of the batch.
        chunk_size: draws per forward pass, which holds the weights ``[chunk_size * B, H, T, S]`` of all sites.
        mask_name: key of the attention mask ``[B, T]`` (nonzero for a token) in a batch, if any.
        label_name: key of the labels in a batch.

    Returns:
        Mean ratio and its variation, by site.

    Raises:
        ValueError: there is no batch or no site, or there are fewer than two draws.
    """
    if num_samples < 2:
        raise ValueError(f"weight_spreads: a spread needs at least 2 draws, got num_samples={num_samples}")
    sums: dict[str, Tensor] = {}
    for number, batch in enumerate(batches):
        posterior = posterior_predict(
            model,
            batch,
            num_samples,
            seed=(seed, number),
            chunk_size=chunk_size,
            attention="all",
            streaming=True,
            label_name=label_name,
        )
        assert posterior.attention_mean is not None
        assert posterior.attention_std is not None
        for site, mean in posterior.attention_mean.items():
            taken = _valid(mean, batch.get(mask_name))
            ratio = posterior.attention_std[site][taken] / mean[taken]
            powers = torch.stack([widened(ratio).pow(power).sum() for power in (0, 1, 2)])
            sums[site] = sums.get(site, torch.zeros_like(powers)) + powers
    if not sums:
        raise ValueError("weight_spreads: expected at least one batch and one attention site, got none")
    return {site: _weight_spread(*powers.tolist()) for site, powers in sums.items()}


def _weight_spread(count: float, total: float, squares: float) -> WeightSpread:
    """Of the number of pairs, the sum of std/mean over them and that of its squares; zeros without any."""
    mean = total / max(count, 1)
    return WeightSpread(mean, max(squares / count - mean**2, 0.0) ** 0.5 / mean if mean else 0.0)


def _valid(mean: Tensor, mask: Tensor | None) -> Tensor:
    """Pairs [B, H, T, S] with any weight, of queries that are tokens."""
    taken = mean > 0
    if mask is not None and tuple(mask.shape) == (mean.shape[0], mean.shape[2]):
        taken = taken & mask.bool()[:, None, :, None]
    return taken


def site_health(
    spreads: Mapping[str, WeightSpread],
    diagnostics: Mapping[str, Mapping[str, float]],
    reduction: KLReduction,
) -> list[SiteHealth]:
    """Records of the state of the posterior at all sites.

    Args:
        spreads: result of :func:`weight_spreads`.
        diagnostics: by site, ``kl_nats`` and optionally ``concentration`` and ``kl_reduced``, as
            :class:`probattn.inference.AttentionELBO` computes them and ``metrics.jsonl`` stores them under ``sites``.
        reduction: reduction of the KL in training.

    Returns:
        One record per site, in the order of ``spreads``.

    Raises:
        RecordsError: a site has no diagnostics.

    Example:
        >>> spreads = {"layer": WeightSpread(0.3, 0.2)}
        >>> site_health(spreads, {"layer": {"kl_nats": 12.0, "concentration": 1.5}}, "mean")[0].kl_nats
        12.0
    """
    missing = [site for site in spreads if diagnostics.get(site, {}).get("kl_nats") is None]
    if missing:
        raise RecordsError(
            f"site_health: expected diagnostics of the site {missing[0]!r} with kl_nats, got those of "
            f"{', '.join(diagnostics) or 'none'}"
        )
    records = []
    for site, spread in spreads.items():
        names = ("kl_nats", "kl_reduced", "concentration")
        figures: dict[str, Any] = {name: diagnostics[site].get(name) for name in names}
        figures |= {"spread": spread.mean, "variation": spread.variation}
        records.append(SiteHealth(site=site, reduction=reduction, **figures))
    return records


Size = Annotated[float, Field(ge=0)]
EDGE_MEASURES = {
    "from_uniform": "Distance from uniform",
    "query_norm": "Query norm",
    "key_norm": "Key norm",
    "value_norm": "Value norm",
}
"""Headings of the measures of :class:`EdgeAttention`, by field."""


class EdgeAttention(Record):
    """Attention of one layer over the edges of a graph, averaged over heads and over edges or nodes.

    Attributes:
        model: network that was measured.
        site: name of the attention site.
        from_uniform: mean over edges of ``|weight * degree - 1|``, 0 for uniform attention.
        query_norm: mean 2-norm of a query.
        key_norm: mean 2-norm of a key.
        value_norm: mean 2-norm of a value, for comparison with the other two norms.
    """

    model: ModelKey
    site: str
    from_uniform: Size
    query_norm: Size
    key_norm: Size
    value_norm: Size


def edges_section(records: Sequence[EdgeAttention], *, latent: bool) -> Section | None:
    """The section on attention over edges, rows by layer; None for networks that are not of graphs."""
    if not records:
        return None
    order = list(dict.fromkeys(record.site for record in records))
    rows = sorted(records, key=lambda record: order.index(record.site))
    context = {"rows": rows, "measures": EDGE_MEASURES, "latent": latent}
    return Section("edges", "Edges", "Does attention tell neighbours apart?", "edges.html", context)


def posterior_section(health: Sequence[SiteHealth]) -> Section | None:
    """The section on the posterior of each site; None where there is none."""
    if not health:
        return None
    labels = site_labels([site.site for site in health])
    top = max(site.spread for site in health)
    context = {
        "words": posterior_words(health),
        "rows": [
            (site, labels[site.site], bar_glyph(site.spread, top, f"spread {site.spread:.3f}"))
            for site in health
        ],
        "collapsed": COLLAPSED,
        "reductions": ", ".join(dict.fromkeys(site.reduction for site in health)),
        "reduced": any(site.kl_reduced is not None for site in health),
    }
    return Section("posterior", "Posterior", "Has the posterior collapsed?", "posterior.html", context)
