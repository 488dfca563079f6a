"""Joins the layers of a network into one belief network."""

from __future__ import annotations

from torch import nn

from probattn.sites.multihead import MultiheadAttention
from probattn.sites.site import LatentSite
from probattn.sites.upward import UpwardChain


def link(network: nn.Module, *, together: bool = True) -> nn.Module:
    """Joins all :class:`MultiheadAttention` layers of a network into one belief network, in place.

    The layers share one upward path in the order of ``network.modules()``, which must be the order in which the
    network calls them, each once per forward pass, with as many heads, queries and keys as the first. A
    ``torch.nn.TransformerEncoder`` or ``TransformerDecoder`` in the network has a path of its own, and so has the
    decoder's cross attention. Unnamed sites are named after their layers. Sites built with
    ``BayesianAttention(...).build(...)`` are joined too, where nothing has joined them yet.

    A pass with two calls that have not been linked is refused under :class:`probattn.inference.AttentionGuide` and by
    the functions that predict.

    Args:
        network: the container.
        together: False leaves each layer a path of its own, which is no belief network, and names the sites.

    Returns:
        The network.

    Raises:
        ValueError: it holds no such layer, or layers of one path differ in their number of heads.

    Example:
        >>> import torch
        >>> layers = torch.nn.ModuleList([MultiheadAttention(8, 2), MultiheadAttention(8, 2)])
        >>> [layer.site_name for layer in link(layers)]
        ['0', '1']
    """
    layers = {name: layer for name, layer in network.named_modules() if isinstance(layer, MultiheadAttention)}
    within = {id(layer.latent) for layer in layers.values()}
    sites = {
        name: site
        for name, site in network.named_modules()
        if isinstance(site, LatentSite) and (id(site) in within or site.chain.unlinked)
    }
    if not sites:
        raise ValueError(f"link: expected MultiheadAttention layers in {type(network).__name__}, found none")
    stacks: dict[object, dict[str, LatentSite]] = {}
    for name, site in sites.items():
        stacks.setdefault(_stack(network, name) if together else name, {})[name] = site
    for stack in stacks.values():
        _check_heads(stack)
    for stack in stacks.values():
        chain = UpwardChain()
        for site in stack.values():
            site.join(chain)
        if len(chain) > 1:
            network.register_forward_pre_hook(chain.begin)
            network.register_forward_hook(chain.clear, always_call=True)
    for name, layer in layers.items():
        if layer.site is None:
            layer.site = name or None
    return network


def _check_heads(stack: dict[str, LatentSite]) -> None:
    """Refuses sites of one path that differ in their number of heads."""
    (first, expected), *others = ((name, site.spec.num_heads) for name, site in stack.items())
    for name, number in others:
        if number != expected:
            raise ValueError(
                f"link: expected layers with as many heads, got {expected} in {first!r} and {number} in {name!r}; link "
                "parts of the network, or link(network, together=False)"
            )


def _stack(network: nn.Module, name: str) -> tuple[str, bool]:
    """Torch's own stack of layers that holds a site, "" for none, and whether the site is of cross attention."""
    parts = name.split(".")
    outer = (".".join(parts[:length]) for length in range(len(parts)))
    stacks = (nn.TransformerEncoder, nn.TransformerDecoder)
    stack = next((name for name in outer if isinstance(network.get_submodule(name), stacks)), "")
    return stack, "multihead_attn" in parts
