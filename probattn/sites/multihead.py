"""A drop-in for ``torch.nn.MultiheadAttention`` whose weights are latent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

import torch
from pyro.nn import PyroModule
from torch import Tensor, nn
from torch._compile import _disable_dynamo
from torch.nn import functional as F

from probattn.sites.alignment import AlignmentAttention
from probattn.sites.answers import Attending
from probattn.sites.bayesian import BayesianAttention
from probattn.sites.handlers import refuse_repeated, refuse_training
from probattn.sites.layout import PAIRS
from probattn.sites.masks import AttentionMask
from probattn.sites.repulsive import RepulsiveAttention
from probattn.sites.site import AttentionSite, LatentSite, SiteSpec, refuse_tracing
from probattn.sites.upward import UpwardChain

_ELSEWHERE: Mapping[type, str] = {
    RepulsiveAttention: "keep torch.nn.MultiheadAttention and move what probattn.particles.head_slices gives, or ",
    AlignmentAttention: "call AlignmentAttention(...).build(num_heads, head_dim) with queries and keys, or ",
}
"""What to do in your own module for another method."""


class MultiheadAttention(nn.MultiheadAttention, PyroModule):
    r"""``torch.nn.MultiheadAttention`` with Bayesian attention weights.

    Forward signature, masks and state dict are torch's, and so are the arguments ``bias`` to ``dtype``, which are not
    listed below. A state dict of torch's module can be loaded (the parameters of the posterior then keep their values).
    Without a Pyro handler, and with sigma 0 in ``method``, the output is that of torch's module in evaluation mode,
    except that a query without any key gives zeros before the output projection, not NaN, and that ``dropout`` is not
    applied. Call the layer inside ``pyro.plate("data", B)``. Without a handler the weights are at their posterior
    expectation; plates, ``pyro.poutine.scale`` and ``pyro.poutine.mask`` do not count as handlers. Under
    ``pyro.poutine.trace`` alone they are drawn from the prior; :func:`probattn.inference.posterior_predict` draws
    predictions from the posterior.

    If a network has several layers, call :func:`probattn.link`, which joins them into one belief network and names
    them; otherwise a forward pass under a guide raises an error. The layer works inside the containers of
    ``torch.nn``, also with nested tensors of ``torch.nn.TransformerEncoder``.

    Args:
        embed_dim: size of queries and outputs.
        num_heads: H, number of attention heads.
        dropout: not used; it is only there for torch's signature.
        method: options of the attention weights.
        site: name of the Pyro site. Default: the module's name inside its parent ``PyroModule``, else "attention".

    Example:
        >>> import torch
        >>> layer = MultiheadAttention(16, 4, batch_first=True, method=BayesianAttention()).eval()
        >>> x = torch.randn(2, 5, 16)
        >>> output, weights = layer(x, x, x)
        >>> output.shape, weights.shape
        (torch.Size([2, 5, 16]), torch.Size([2, 5, 5]))
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        method: BayesianAttention | None = None,
        site: str | None = None,
    ) -> None:
        extra = add_bias_kv, add_zero_attn
        super().__init__(embed_dim, num_heads, dropout, bias, *extra, kdim, vdim, batch_first, device, dtype)
        options = BayesianAttention() if method is None else method
        if not isinstance(options, BayesianAttention):
            raise TypeError(
                f"MultiheadAttention: expected method=BayesianAttention(...), got {type(options).__name__}; "
                f"{_ELSEWHERE.get(type(options), '')}convert a network of transformers with it: convert(net, method)"
            )
        site_spec = SiteSpec(num_heads, self.head_dim)
        self.latent = AttentionSite(options, site_spec).to(device=device, dtype=dtype)
        self.site = site
        self.named_by_link = False
        self._pyro_name = site or ""  # of its parameters, as long as no parent gives it another
        # A hook also keeps torch.nn.TransformerEncoderLayer from its fused path, which would go round the site.
        self.register_forward_pre_hook(_start_alone)
        self.register_load_state_dict_pre_hook(_keep_latent)

    @property
    def site_name(self) -> str:
        """Name of the Pyro site."""
        return self.site or str(self._pyro_name) or "attention"

    @_disable_dynamo  # Pyro's sites and parameters cannot be parts of a compiled graph
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs :meth:`forward` with its hooks."""
        return super().__call__(*args, **kwargs)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Computes attention, with arguments and results of ``torch.nn.MultiheadAttention.forward``.

        Args:
            query: queries, ``[T, B, E]``, ``[B, T, E]`` with ``batch_first``, or ``[T, E]``.
            key: keys, of the same form with S instead of T.
            value: values, of the same form with S instead of T.
            key_padding_mask: ``[B, S]``; bool: True = ignore this key; float: added to the scores.
            need_weights: whether to return the weights.
            attn_mask: ``[T, S]`` or ``[B * H, T, S]``; bool: True = forbidden; float: added to the scores.
            average_attn_weights: whether the returned weights are averaged over heads.
            is_causal: whether ``attn_mask`` is the causal mask; ``attn_mask`` must be given too.

        Returns:
            Output in the shape of the query, and weights ``[B, T, S]`` (``[B, H, T, S]`` if not averaged) or None.

        Raises:
            RuntimeError: in training mode with gradients, outside Pyro's handlers; or in a traced forward pass, for
                instance by a Jit ELBO of Pyro.
            ValueError: ``is_causal`` without ``attn_mask``, or a mask of the wrong shape.
        """
        refuse_tracing(self.site_name)
        refuse_training(self.site_name, self)
        if is_causal and attn_mask is None:
            raise ValueError("MultiheadAttention: is_causal is a hint; expected attn_mask too, got None")
        if any(tensor.is_nested for tensor in (query, key, value)):
            alike = query is key is value and key_padding_mask is attn_mask is None
            return self._forward_nested(query, alike, need_weights, average_attn_weights)
        if self.site is None and not self._pyro_name:
            refuse_repeated(self.site_name)
        batched = query.dim() == 3
        self_padding = query is key and key_padding_mask is not None
        if not batched:
            query, key, value = (tensor.unsqueeze(0) for tensor in (query, key, value))
            key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
        elif not self.batch_first:
            query, key, value = (tensor.transpose(0, 1) for tensor in (query, key, value))
        q, k, v = self._project(query, key, value)  # [B, T or S, E]
        masks = {"key_padding_mask": key_padding_mask, "attn_mask": attn_mask}
        mask, bias = self._masks(masks, q, k, self_padding)
        q, k, v = (self._split(tensor) for tensor in (q, k, v))
        weights: Tensor | None = None
        if need_weights:
            output, weights = self.latent(self.site_name, q, k, v, mask, bias=bias)
        else:
            attending = Attending(q, k, v, PAIRS if mask is None else mask, bias=bias)
            output, _ = self.latent.attend_alone(self.site_name, attending)
        output = self.out_proj(output.transpose(1, 2).flatten(2))
        if not batched:
            output, weights = output.squeeze(0), None if weights is None else weights.squeeze(0)
        elif not self.batch_first:
            output = output.transpose(0, 1)
        return output, weights.mean(dim=-3) if weights is not None and average_attn_weights else weights

    def _forward_nested(
        self, query: Tensor, alike: bool, need_weights: bool, average: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Attends within the rows of a nested tensor, which torch's encoder makes of a padded batch in evaluation."""
        if not alike or not self.batch_first:
            raise ValueError(
                "MultiheadAttention: expected a nested tensor as query, key and value alike, with batch_first and "
                "without masks; give padded tensors (torch.nn.TransformerEncoder(enable_nested_tensor=False))"
            )
        lengths = torch.tensor([len(row) for row in query.unbind()], device=query.device)
        padded = torch.nested.to_padded_tensor(query, 0.0)  # [B, T, E]
        padding = torch.arange(padded.shape[1], device=query.device) >= lengths[:, None]
        tokens = (padded,) * 3
        output, weights = self.forward(*tokens, padding, need_weights, average_attn_weights=average)
        rows = [row[:length] for row, length in zip(output, lengths.tolist(), strict=True)]
        return torch.nested.as_nested_tensor(rows), weights

    def _project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if self.in_proj_weight is not None:
            weights = self.in_proj_weight.chunk(3)
        else:
            weights = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        biases = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        q, k, v = (F.linear(*items) for items in zip((query, key, value), weights, biases, strict=True))
        if self.bias_k is not None and self.bias_v is not None:
            k = torch.cat([k, self.bias_k.expand(len(k), -1, -1)], dim=1)
            v = torch.cat([v, self.bias_v.expand(len(v), -1, -1)], dim=1)
        if self.add_zero_attn:
            k, v = F.pad(k, (0, 0, 0, 1)), F.pad(v, (0, 0, 0, 1))
        return q, k, v

    def _split(self, tensor: Tensor) -> Tensor:
        return tensor.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)  # [B, H, T, D]

    def _masks(
        self, masks: Mapping[str, Tensor | None], query: Tensor, key: Tensor, self_padding: bool
    ) -> tuple[AttentionMask | None, Tensor | None]:
        """Torch's masks (True or -inf = forbidden) as validity and a finite bias, padded for appended keys."""
        batch, queries, keys = query.shape[0], query.shape[1], key.shape[1]
        num_keys = keys - (self.bias_k is not None) - self.add_zero_attn
        valid: Tensor | None = None
        bias: Tensor | None = None
        for name, mask in masks.items():
            if mask is None:
                continue
            if mask.dtype != torch.bool and not mask.is_floating_point():
                raise TypeError(
                    f"MultiheadAttention: expected {name} of bool, True where a key is ignored, or floats to add, got "
                    f"{mask.dtype}; of an attention_mask of transformers give attention_mask == 0"
                )
            shaped = self._shape_mask(name, mask, batch, queries, num_keys)
            allowed = F.pad(_allowed(shaped), (0, keys - num_keys), value=True)
            valid = allowed if valid is None else valid & allowed
            if shaped.dtype != torch.bool:
                added = F.pad(shaped.masked_fill(shaped == -torch.inf, 0.0), (0, keys - num_keys))
                bias = added if bias is None else bias + added
        if valid is None:
            return None, bias
        padding = masks["key_padding_mask"] if self_padding else None  # a float mask in containers of torch
        real = None if padding is None else _allowed(padding)
        return AttentionMask(valid.expand(batch, -1, -1, -1), real), bias

    def _shape_mask(self, name: str, mask: Tensor, batch: int, queries: int, keys: int) -> Tensor:
        if name == "key_padding_mask" and mask.shape == (batch, keys):
            return mask[:, None, None, :]
        if name == "attn_mask" and mask.shape == (queries, keys):
            return mask[None, None]
        if name == "attn_mask" and mask.shape == (batch * self.num_heads, queries, keys):
            return mask.unflatten(0, (batch, self.num_heads))
        shapes = f"[{batch}, {keys}]"
        if name == "attn_mask":
            shapes = f"[{queries}, {keys}] or [{batch * self.num_heads}, {queries}, {keys}]"
        raise ValueError(f"MultiheadAttention: expected {name} of shape {shapes}, got {list(mask.shape)}")


def _allowed(mask: Tensor) -> Tensor:
    """Where a mask of torch's, bool or added to scores, forbids nothing."""
    return ~mask if mask.dtype == torch.bool else mask > -torch.inf


def _start_alone(module: nn.Module, _: Iterable[Any]) -> None:
    """Forgets what an interrupted pass left in a chain that this layer has to itself."""
    latent = cast(AttentionSite, module.latent)
    if len(latent.chain) <= 1:
        latent.chain.clear()


def _keep_latent(module: nn.Module, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
    """Fills in the site's parameters where a state dict, being torch's, has none of them."""
    latent = cast(AttentionSite, module.latent)
    latent_state = {f"{prefix}latent.{name}": tensor for name, tensor in latent.state_dict().items()}
    if not latent_state.keys() & state_dict.keys():
        state_dict.update(latent_state)


def link(network: nn.Module, *, together: bool = True) -> nn.Module:
    """Joins all :class:`MultiheadAttention` layers of a network into one belief network, in place; returns the network.

    In a belief network the posteriors of all attention calls depend on the scores of the first, through an upward path
    of small learned layers. The order of ``network.modules()`` must be the order in which the network calls the layers,
    each once per forward pass, with equal numbers of heads, queries and keys. A ``torch.nn.TransformerEncoder`` or
    ``TransformerDecoder`` has a separate path, and so has the decoder's cross-attention. Unnamed sites are named after
    their layers. Sites made by ``BayesianAttention(...).build(...)`` are joined too, unless they are linked already.

    A forward pass with two calls that are not linked raises an error under :class:`probattn.inference.AttentionGuide`
    and in functions that predict.

    Args:
        network: the network.
        together: whether to join the layers; False only names the sites, and each layer has a separate path.

    Raises:
        ValueError: the network has no such layer, or layers of one path have different numbers of heads.

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
        if layer.site is None or layer.named_by_link:  # also by that of a part of the network
            layer.site, layer.named_by_link = name or None, True
        layer._pyro_name = layer._pyro_name or name
    return network


def _check_heads(stack: dict[str, LatentSite]) -> None:
    """Refuses sites of one path that differ in their number of heads."""
    (first, expected), *others = ((name, site.spec.num_heads) for name, site in stack.items())
    for name, number in others:
        if number != expected:
            raise ValueError(
                f"link: expected layers with as many heads, got {expected} in {first!r} and {number} in {name!r}; link "
                "parts of the network whose layers have names (site=...), or link(network, together=False)"
            )


def _stack(network: nn.Module, name: str) -> tuple[str, bool]:
    """Torch's own stack of layers that holds a site, "" for none, and whether the site is of cross attention."""
    path = name.split(".")
    outer = (".".join(path[:length]) for length in range(len(path)))
    stacks = (nn.TransformerEncoder, nn.TransformerDecoder)
    stack = next((name for name in outer if isinstance(network.get_submodule(name), stacks)), "")
    return stack, "multihead_attn" in path
