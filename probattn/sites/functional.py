"""The functional primitive: attention with latent weights inside any Pyro model."""

from __future__ import annotations

import pyro
from torch import Tensor

from probattn.sites.bayesian import BayesianAttention
from probattn.sites.handlers import is_handled
from probattn.sites.masks import AttentionMask
from probattn.sites.site import AttentionSite, SiteSpec, refuse_tracing


def attention(
    name: str,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: AttentionMask | Tensor | None = None,
    *,
    method: AttentionSite | BayesianAttention,
    scale: float | None = None,
    bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    r"""Attends with latent unnormalised weights S, the Pyro sample site ``name``.

    :math:`O = W V` with :math:`W = S / \sum_{keys} S`; S is the site's value, ``[B, H, T, S]``, batch dimension B, so
    the call belongs into one plate over B. Under :class:`probattn.inference.AttentionGuide` S is drawn from its
    posterior, under other Pyro handlers it follows prior, ``condition`` or ``replay``, and under none, plates aside,
    the posterior expectation answers.

    Args:
        name: name of the site.
        query: ``[B, H, T, D]``.
        key: ``[B, H, S, D]`` (or fewer heads that divide H).
        value: ``[B, H, S, E]``.
        mask: True = attend: bool ``[B, S]`` over keys, anything broadcastable to ``[B, H, T, S]`` with four
            dimensions, or an :class:`AttentionMask`.
        method: a site built with ``BayesianAttention(...).build(num_heads, head_dim)`` (its parameters are
            registered with ``pyro.module(name, ...)``), or options that need no parameters, such as
            ``BayesianAttention.bam(prior="constant")``.
        scale: factor of the scores, default ``D ** -0.5``.
        bias: additive scores, broadcastable to ``[B, H, T, S]``.

    Returns:
        Output ``[B, H, T, E]`` and weights ``[B, H, T, S]``.

    Raises:
        RuntimeError: the pass is traced, by a Jit ELBO of Pyro for instance.
        TypeError: the method needs parameters but was not built.
        ValueError: shapes do not fit.

    Example:
        >>> import torch
        >>> q, k, v = torch.randn(3, 2, 4, 5, 8)
        >>> method = BayesianAttention.bam(prior="constant").build(num_heads=4, head_dim=8).eval()
        >>> output, weights = attention("attend", q, k, v, method=method)
        >>> output.shape, weights.shape
        (torch.Size([2, 4, 5, 8]), torch.Size([2, 4, 5, 5]))
    """
    refuse_tracing(name)
    _check_shapes(name, query, key, value)
    site = _site(name, method, query, key)
    valid = _mask(name, mask, query, key)
    result: tuple[Tensor, Tensor] = site(name, query, key, value, valid, scale=scale, bias=bias)
    return result


def _site(name: str, method: AttentionSite | BayesianAttention, query: Tensor, key: Tensor) -> AttentionSite:
    if isinstance(method, AttentionSite):
        spec = method.spec
        if (query.shape[1], key.shape[-1]) != (spec.num_heads, spec.head_dim):
            raise ValueError(
                f"site {name!r}: built for {spec.num_heads} heads of size {spec.head_dim}, got queries with "
                f"{query.shape[1]} heads and keys of size {key.shape[-1]}"
            )
        if is_handled():
            pyro.module(name, method)
        return method
    if method.has_parameters:
        raise TypeError(
            f"site {name!r}: these options need parameters of their own; build them once, outside the model: "
            f"method = BayesianAttention(...).build(num_heads={query.shape[1]}, head_dim={key.shape[-1]})"
        )
    return AttentionSite(method, SiteSpec(query.shape[1], key.shape[-1]))


def _check_shapes(name: str, query: Tensor, key: Tensor, value: Tensor) -> None:
    for role, tensor in (("query", query), ("key", key), ("value", value)):
        if tensor.dim() != 4:
            raise ValueError(
                f"site {name!r}: expected {role} [B, H, T or S, D], got shape {list(tensor.shape)}"
            )
    if key.shape[:3] != value.shape[:3]:
        raise ValueError(
            f"site {name!r}: expected keys and values alike in [B, H, S], got {list(key.shape)}, {list(value.shape)}"
        )
    if query.shape[0] != key.shape[0] or query.shape[3] != key.shape[3]:
        raise ValueError(
            f"site {name!r}: expected queries and keys alike in B and D, got {list(query.shape)}, {list(key.shape)}"
        )


def _mask(name: str, mask: AttentionMask | Tensor | None, query: Tensor, key: Tensor) -> AttentionMask | None:
    if mask is None or isinstance(mask, AttentionMask):
        return mask
    batch, keys = key.shape[0], key.shape[2]
    if mask.shape == (batch, keys):
        mask = mask[:, None, None, :]
    expected = [batch, query.shape[1], query.shape[2], keys]
    fits = mask.dim() == 4 and all(have in (1, want) for have, want in zip(mask.shape, expected, strict=True))
    if not fits:
        raise ValueError(
            f"site {name!r}: expected a mask [B, S] or broadcastable to {expected}, got shape {list(mask.shape)}"
        )
    return AttentionMask(mask.expand(batch, -1, -1, keys))
