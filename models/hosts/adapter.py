"""The attention function that converted networks call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from probattn.models.hosts.calls import AttentionCall
from probattn.models.hosts.eager import eager_attention
from probattn.models.hosts.interface import register
from probattn.models.hosts.masks import HostMask, read_mask
from probattn.models.hosts.passes import StackPass
from probattn.models.hosts.penalty import CallFactor, HostCall
from probattn.models.hosts.windows import as_tokens, beside_heads, count_windows, in_batch
from probattn.sites import AlignmentFactor, AttentionMask, AttentionSite

IMPLEMENTATION = "probattn"
"""Name under which the attention function is registered with transformers."""

ATTRIBUTE = "probattn"
"""Name of the submodule that a converted attention module holds."""

Attended = tuple[Tensor, Tensor | None]


class HostedSite(nn.Module):
    """A site with its place in the host; the submodule that conversion adds to an attention module.

    Args:
        site: the latent attention; None where the whole module stays deterministic.
        calls: all calls of the module in a forward pass, in order.
        selected: those of them that are latent, by index; the site's own numbering follows this order.
        state: what the module's stack shares in a forward pass.
        factor: what draws queries and keys together; None where nothing does.
        aligned: the calls that it concerns, by index.
        penalty: what makes heads pay for being alike; None where they do not.
    """

    def __init__(
        self,
        site: AttentionSite | None,
        calls: tuple[AttentionCall, ...],
        selected: tuple[int, ...],
        state: StackPass,
        factor: AlignmentFactor | None = None,
        aligned: tuple[int, ...] = (),
        penalty: CallFactor | None = None,
    ) -> None:
        super().__init__()
        self.site = site
        self.factor = factor
        self.penalty = penalty
        self.calls = calls
        self.selected = selected
        self.aligned = aligned
        self.state = state

    def extra_repr(self) -> str:
        """The names of the calls that a method concerns, for ``print(network)``."""
        penalised = () if self.penalty is None else self.penalty.calls
        touched = sorted({*self.selected, *self.aligned, *penalised})
        return ", ".join(self.calls[index].name for index in touched) or "deterministic"

    def attend(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        options: Mapping[str, Any],
    ) -> Attended:
        """Attends as the host asks; arguments and results are those of :func:`host_attention`.

        Raises:
            RuntimeError: the module is called more often in a forward pass than when the network was converted.
        """
        index = self.state.count(self.calls[0].module)
        if index >= len(self.calls):
            raise RuntimeError(
                f"{self.calls[0].module}: expected {len(self.calls)} calls in a forward pass, as when the network was "
                "converted, got another; revert and convert the network again"
            )
        call = self.calls[index]
        # A windowed family makes a mask for every layer: keeping them for the pass would only hold memory.
        read = read_mask(module, mask) if call.windowed else self.state.read(module, mask)
        # Read also where attention stays deterministic: a cross attention learns from it which queries are real.
        validity = self._validity(call, read, query, key, options.get("query_mask"))
        if self.factor is not None and index in self.aligned:
            self._align(self.factor, call, query, key, validity)
        latent = self.site is not None and index in self.selected
        if latent:
            bias, position = read.bias, options.get("position_bias")
            if position is not None:
                bias = position if bias is None else bias + position
            output, weights = self._latent(call, query, key, value, validity, bias, options)
        else:
            output, weights = eager_attention(module)(module, query, key, value, mask, **options)
        if self.penalty is not None and index in self.penalty.calls:
            given = (call, module, query, key, value, mask, options, validity)
            self.penalty.announce(HostCall(*given, self._windows(call, query), latent, output, weights))
        return output, weights

    def _validity(
        self, call: AttentionCall, read: HostMask, query: Tensor, key: Tensor, real: Tensor | None
    ) -> AttentionMask | None:
        if not call.windowed:
            return self.state.mask(read.valid, query, key.shape[2], cross=call.kind == "cross", real=real)
        if read.valid is None:
            return None
        return AttentionMask(beside_heads(read.valid, self._windows(call, query)))

    def _windows(self, call: AttentionCall, query: Tensor) -> int:
        return count_windows(len(query), self.state.rows, call.name) if call.windowed else 1

    def _align(
        self,
        factor: AlignmentFactor,
        call: AttentionCall,
        query: Tensor,
        key: Tensor,
        mask: AttentionMask | None,
    ) -> None:
        """Announces the factor over the tokens of a datum, those of all its windows together."""
        windows = self._windows(call, query)
        tokens = (as_tokens(beside_heads(tensor, windows), windows) for tensor in (query, key))
        if mask is None:
            factor(call.name, *tokens)
        else:
            factor(call.name, *tokens, mask.query_valid, as_tokens(mask.key_valid, windows))

    def _latent(
        self,
        call: AttentionCall,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: AttentionMask | None,
        bias: Tensor | None,
        options: Mapping[str, Any],
    ) -> Attended:
        assert self.site is not None
        rows, windows = len(query), self._windows(call, query)
        output, weights = self.site(
            call.name,
            *(beside_heads(tensor, windows) for tensor in (query, key, value)),
            mask,
            scale=options.get("scaling"),
            bias=None if bias is None else beside_heads(bias, windows),
            softcap=options.get("softcap"),
            call=self.selected.index(call.index),
        )
        output, weights = in_batch(output, rows), in_batch(weights, rows)
        return output.transpose(1, 2).contiguous(), weights


def host_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: Any,
) -> Attended:
    """Attention of a converted network, with the signature of transformers' attention functions.

    Modules without a site attend as their family's eager function does. The host's attention dropout is not applied
    to stochastic weights.

    Args:
        module: the host's attention module.
        query: ``[B, H, T, D]``.
        key: ``[B, G, S, D]``, G dividing H.
        value: ``[B, G, S, E]``.
        attention_mask: additive, ``[B | 1, 1 | H, T, S]``, or None.
        **options: ``scaling``, ``dropout`` and what families add: ``position_bias``, ``softcap``, ``query_mask``
            (bool ``[B, T]``, the real queries, from a network without self attention that would tell them).

    Returns:
        Output ``[B, T, H, E]``, contiguous, and weights ``[B, H, T, S]``.
    """
    hosted = getattr(module, ATTRIBUTE, None)
    if hosted is None:
        return eager_attention(module)(module, query, key, value, attention_mask, **options)
    attended: Attended = hosted.attend(module, query, key, value, attention_mask, options)
    return attended


def own_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    options: Mapping[str, Any],
) -> Attended:
    """What a module gives by itself, whatever stands before its site; arguments as for :func:`host_attention`."""
    hosted = module._modules.get(ATTRIBUTE)
    if isinstance(hosted, HostedSite):
        return hosted.attend(module, query, key, value, mask, options)
    return eager_attention(module)(module, query, key, value, mask, **options)


# On import, so that an unpickled network finds its attention function.
register(IMPLEMENTATION, host_attention)
