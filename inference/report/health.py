"""The state of the posterior, site by site."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor

from probattn.inference.predictive import posterior_predict
from probattn.inference.records import RecordsError
from probattn.inference.report.measurements import SiteHealth
from probattn.sites.bayesian import KLReduction


def weight_spreads(
    model: Callable[[Mapping[str, Tensor]], Tensor],
    batches: Iterable[Mapping[str, Tensor]],
    num_samples: int = 20,
    *,
    seed: int = 0,
    chunk_size: int | None = None,
    mask_name: str = "attention_mask",
    label_name: str = "labels",
    device: torch.device | str | None = None,
) -> dict[str, float]:
    """Mean over valid pairs of the standard deviation over mean of the normalised weights W, per site.

    Pairs of weight 0 in every draw (masked keys) and padded queries are left out.

    Args:
        model: a Pyro model that maps a batch to logits.
        batches: some batches; a few are enough.
        num_samples: P, at least 2.
        seed: of the draws; every batch has its own.
        chunk_size: draws per pass; a pass holds the weights of all sites, ``[chunk * B, H, T, S]`` each.
        mask_name: key of the mask ``[B, T]`` (nonzero = a token), if any.
        label_name: key of the labels.
        device: where the batches go; they stay where they are by default.

    Returns:
        Spread by site.

    Raises:
        ValueError: no batch, or fewer than two draws.
    """
    if num_samples < 2:
        raise ValueError(f"weight_spreads: a spread needs at least 2 draws, got num_samples={num_samples}")
    totals: dict[str, float] = {}
    counts: dict[str, int] = {}
    for number, given in enumerate(batches):
        batch = given if device is None else {name: value.to(device) for name, value in given.items()}
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
            totals[site] = totals.get(site, 0.0) + ratio.double().sum().item()
            counts[site] = counts.get(site, 0) + ratio.numel()
    if not counts:
        raise ValueError("weight_spreads: expected at least one batch and one attention site, got none")
    return {site: totals[site] / max(counts[site], 1) for site in totals}


def _valid(mean: Tensor, mask: Tensor | None) -> Tensor:
    """Pairs [B, H, T, S] with any weight, of queries that are tokens."""
    taken = mean > 0
    if mask is not None and tuple(mask.shape) == (mean.shape[0], mean.shape[2]):
        taken = taken & mask.bool()[:, None, :, None]
    return taken


def site_health(
    spreads: Mapping[str, float], diagnostics: Mapping[str, Mapping[str, float]], reduction: KLReduction
) -> list[SiteHealth]:
    """Records of the sites.

    Args:
        spreads: from :func:`weight_spreads`.
        diagnostics: by site ``kl_nats`` and, for Weibull posteriors, ``concentration``, as
            :meth:`probattn.inference.AttentionELBO` gives them and ``metrics.jsonl`` keeps them under ``sites``;
            ``kl_reduced`` is taken over where it is there.
        reduction: of the KL in training.

    Returns:
        One record a site, in the order of ``spreads``.

    Raises:
        RecordsError: a site without diagnostics.

    Example:
        >>> site_health({"layer": 0.3}, {"layer": {"kl_nats": 12.0, "concentration": 1.5}}, "mean")[0].kl_nats
        12.0
    """
    missing = [site for site in spreads if diagnostics.get(site, {}).get("kl_nats") is None]
    if missing:
        known = ", ".join(diagnostics) or "none"
        raise RecordsError(
            f"site_health: expected diagnostics of the site {missing[0]!r} with kl_nats, got those of {known}"
        )
    return [
        SiteHealth(
            site=site,
            spread=spread,
            kl_nats=diagnostics[site]["kl_nats"],
            kl_reduced=diagnostics[site].get("kl_reduced"),
            concentration=diagnostics[site].get("concentration"),
            reduction=reduction,
        )
        for site, spread in spreads.items()
    ]
