"""The attention function that converted networks call."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.jit._trace import is_tracing

from probattn.models.hosts.calls import AttentionCall
from probattn.models.hosts.eager import (
    Attended,
    HostCall,
    HostMask,
    as_tokens,
    call_windows_to_heads,
    count_windows,
    in_batch,
    own_keys,
    read_mask,
    read_traced,
    windows_to_heads,
)
from probattn.models.hosts.interface import register
from probattn.models.hosts.methods import AttendedCall, CallFactor
from probattn.models.hosts.passes import StackPass
from probattn.models.hosts.undriven import IMPLEMENTATION, attend_as_before, note_reached, refuse_stranger
from probattn.sites import AlignmentFactor, AttentionMask, AttentionSite
from probattn.sites.answers import Attending, can_flash
from probattn.sites.handlers import reads_weights, refuse_training
from probattn.sites.layout import PAIRS
from probattn.sites.traced import GraphPass, attend_in_graph, can_trace, graph_layout, graph_pass

ATTRIBUTE = "probattn"
"""Name of the submodule that a converted attention module holds."""


class HostedSite(nn.Module):
    """What conversion adds to an attention module: its site, factor and penalty, each or None, and their calls."""

    counts_calls: ClassVar[bool] = True
    """The calls of a pass are told apart by their order: none may be left out."""

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
        self.site, self.factor, self.penalty = site, factor, penalty
        self.calls, self.selected, self.aligned, self.state = calls, selected, aligned, state

    def extra_repr(self) -> str:
        """The names of the calls that a method concerns, for ``print(network)``."""
        penalised = () if self.penalty is None else self.penalty.calls
        touched = sorted({*self.selected, *self.aligned, *penalised})
        return ", ".join(self.calls[index].name for index in touched) or "deterministic"

    def attend(self, host: HostCall) -> Attended:
        """Attends with the methods of this call; an error if the module is called more often than at conversion."""
        note_reached(host.module, self.state, self.calls[0].module)
        call = self._call()
        if self.site is not None and (torch.compiler.is_exporting() or is_tracing()):
            raise RuntimeError(
                f"{call.name}: latent attention cannot be exported or traced; export the deterministic network, "
                "probattn.models.revert(copy.deepcopy(net)), and save the posterior with net.save_pretrained"
            )
        windows = count_windows(len(host.query), self.state.rows, call.name) if call.windowed else 1
        folded = call_windows_to_heads(host, windows)
        # A windowed family makes a mask for every layer: keeping them for the pass would only hold memory.
        read = read_mask(host.module, host.mask) if call.windowed else self.state.read(host.module, host.mask)
        # Read also where attention stays deterministic: a cross attention takes its real queries from it.
        validity = self._validity(call, read, host, windows)
        if self.factor is not None and call.index in self.aligned:
            # Over the tokens of a datum, those of all its windows together.
            tokens = as_tokens(folded.query, windows), as_tokens(folded.key, windows)
            masks = () if validity is None else (validity.query_valid, as_tokens(validity.key_valid, windows))
            self.factor(call.name, *tokens, *masks)
        latent = self.site is not None and call.index in self.selected
        attended = self._latent(call, folded, windows, validity, read.bias) if latent else host.eager()
        if self.penalty is not None and call.index in self.penalty.calls:
            self.penalty.announce(AttendedCall(call, host, attended, validity, windows, latent))
        return attended

    @property
    def traceable(self) -> bool:
        """True if its calls may be parts of a compiled graph."""
        plain = self.factor is None and self.penalty is None and not any(call.windowed for call in self.calls)
        supported = self.site is None or (isinstance(self.site, AttentionSite) and can_trace(self.site))
        return plain and supported and len(self.selected) in (0, len(self.calls))

    def attend_in_graph(self, host: HostCall, within: GraphPass) -> Attended:
        """:meth:`attend` as a part of a compiled graph."""
        within.reached.add((self.state, self.calls[0].module))
        valid, bias, options = *read_traced(host.module, host.mask), host.options
        cross = self.calls[0].kind == "cross"
        real: Tensor | None = options.get("query_mask")
        if real is None and cross:
            real = within.queries.get(self.state)
            real = None if real is None or real.shape != host.query.shape[::2][:2] else real
        elif real is None and valid is not None:
            real = own_keys(valid.expand(len(host.query), -1, -1, -1), host.query.shape[2])
        if not cross:
            within.queries[self.state] = real
        if self.site is None:
            return host.eager()
        index = next(number for number, call in enumerate(self.calls) if call.name not in within.calls)
        attending = _attending(host, graph_layout(valid, real, host.key), bias)
        # Hooks are asked last: on a CPU a graph has no need to read them.
        alone = within.draws is not None and can_flash(self.site.method, attending)
        alone = alone and not (within.shows_weights or self.state.needs_weights or _shown(host))
        name = self.calls[index].name
        output, weights = attend_in_graph(self.site, name, attending, within, index, alone=alone)
        return output.transpose(1, 2).contiguous(), weights

    def _call(self) -> AttentionCall:
        index = self.state.count(self.calls[0].module)
        if index >= len(self.calls):
            raise RuntimeError(
                f"{self.calls[0].module}: expected {len(self.calls)} calls in a forward pass, as when the network was "
                "converted, got another; revert and convert the network again"
            )
        return self.calls[index]

    def _validity(
        self, call: AttentionCall, read: HostMask, host: HostCall, windows: int
    ) -> AttentionMask | None:
        if call.windowed:
            return None if read.valid is None else AttentionMask(windows_to_heads(read.valid, windows))
        cross, real = call.kind == "cross", host.options.get("query_mask")
        return self.state.mask(read.valid, host.query, host.key.shape[2], cross=cross, real=real)

    def _latent(
        self,
        call: AttentionCall,
        folded: HostCall,
        windows: int,
        mask: AttentionMask | None,
        bias: Tensor | None,
    ) -> Attended:
        assert self.site is not None
        refuse_training(call.name, self)
        attending = _attending(folded, PAIRS if mask is None else mask, bias, windows)
        origin = self.state.origin(folded.query.shape[2], folded.key.shape[2], cross=call.kind == "cross")
        call_options: dict[str, Any] = {"call": self.selected.index(call.index), "origin": origin}
        weights: Tensor | None
        # A penalty, the caller of the network or a hook may look at the weights of this call.
        shown = self.penalty is not None and call.index in self.penalty.calls
        shown = shown or self.state.shows_weights or _shown(folded)
        if isinstance(self.site, AttentionSite) and not shown:
            output, weights = self.site.attend_alone(call.name, attending, **call_options)
        else:
            output, weights = self.site(call.name, *attending.tensors, **attending.options, **call_options)
        output = in_batch(output, windows).transpose(1, 2).contiguous()
        return output, None if weights is None else in_batch(weights, windows)


def _shown(host: HostCall) -> bool:
    """Whether the caller of a call, or a hook of its module, may look at the weights."""
    return bool(host.options.get("output_attentions")) or reads_weights(host.module)


def _attending(host: HostCall, layout: Any, bias: Tensor | None, windows: int = 1) -> Attending:
    """The arguments of a site, of queries, keys and values that are folded already; the family's biases are added."""
    options = host.options
    position: Tensor | None = options.get("position_bias")
    if position is not None:
        bias = position if bias is None else bias + position
    bias = None if bias is None else windows_to_heads(bias, windows)
    scale, softcap = options.get("scaling"), options.get("softcap")
    return Attending(host.query, host.key, host.value, layout, scale, bias, softcap)


def host_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: Any,
) -> Attended:
    """Attention of a converted network, as transformers calls it; no attention dropout of stochastic weights."""
    host = HostCall(module, query, key, value, attention_mask, options)
    within, hosted = graph_pass(), getattr(module, ATTRIBUTE, None)
    if within is not None and within.stacks:
        if hosted is None:
            return host.eager()
        if isinstance(hosted, HostedSite) and hosted.state in within.stacks:
            return hosted.attend_in_graph(host, within)
    return _attend(host, hosted)


@torch.compiler.disable(reason="a Pyro site cannot be a part of a compiled graph")
def _attend(host: HostCall, hosted: Any) -> Attended:
    undriven = attend_as_before(host)
    if undriven is not None:
        return undriven
    if hosted is None:
        refuse_stranger(host.module)
        return host.eager()
    return hosted.attend(host)


def own_attention(host: HostCall) -> Attended:
    """Output and weights of a module by itself, without the recorder that replaces its site."""
    hosted = host.module._modules.get(ATTRIBUTE)
    return hosted.attend(host) if isinstance(hosted, HostedSite) else host.eager()


# On import, so that an unpickled network finds its attention function.
register(IMPLEMENTATION, host_attention)
