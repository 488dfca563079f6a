"""Attention calls of a network on a batch: their inputs, weights and outputs, and their heads masked."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from probattn.models.hosts.adapter import ATTRIBUTE, own_attention
from probattn.models.hosts.calls import AttentionCall, AttentionCalls
from probattn.models.hosts.convert import conversion
from probattn.models.hosts.discovery import find_calls, refuse_unsupported
from probattn.models.hosts.dry_run import untouched
from probattn.models.hosts.eager import Attended, HostCall, own_keys, read_mask
from probattn.models.hosts.interface import implementations, own_configurations, restore, switch
from probattn.models.hosts.undriven import IMPLEMENTATION
from probattn.sites import AttentionMask
from probattn.sites.scores import repeat_heads


@dataclass(frozen=True, eq=False)
class CapturedCall:
    """Tensors of one attention call, with B inputs, H query heads, G key heads, T queries and S keys.

    Attributes:
        query: queries, ``[B, H, T, D]``; in Swin, B is the number of windows of all inputs.
        key: keys, ``[B, H, S, D]``; keys that several query heads share are repeated.
        query_valid: bool ``[B, T]``, True for real tokens.
        key_valid: bool ``[B, S]``, True for keys that some real query may attend to.
        weights: attention weights, ``[B, H, T, S]``; at the posterior expectation if they are latent. None if the
            network does not compute them.
        value: values, ``[B, G, S, E]``.
        output: outputs of the attention heads before the output projection, ``[B, H, T, E]``.
    """

    query: Tensor
    key: Tensor
    query_valid: Tensor
    key_valid: Tensor
    weights: Tensor | None
    value: Tensor
    output: Tensor


def capture(
    net: PreTrainedModel, batch: Mapping[str, Tensor], calls: AttentionCalls | None = None
) -> dict[str, CapturedCall]:
    """Runs a network once in evaluation mode, without gradients, and returns the tensors of its attention calls.

    Args:
        net: a Hugging Face network, converted or not; it is not changed.
        batch: keyword arguments of its forward pass.
        calls: which calls to return, as :func:`~probattn.models.inspect` lists them. Default: all; in a network that is
            not converted, two extra forward passes over a short input find them.

    Returns:
        The tensors by the name of the call, in the order of the forward pass.

    Raises:
        TypeError: the family's attention cannot be replaced; see :func:`~probattn.models.inspect`.
        ValueError: one of ``calls`` did not take place in the forward pass.

    Example:
        >>> from transformers import BertConfig, BertModel
        >>> config = BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
        >>> found = capture(BertModel(config), {"input_ids": torch.ones(3, 5, dtype=torch.long)})
        >>> [(name, list(call.query.shape)) for name, call in found.items()]
        [('encoder.layer.0.attention.self', [3, 2, 5, 4])]
    """
    refuse_unsupported(net)
    selected = network_calls(net) if calls is None else calls
    recorder = _Recorder(net, selected)
    with untouched(net):
        switch(net, IMPLEMENTATION)
        for module in net.modules():
            # Next to a converted module's own submodule of that name, which it hides until the pass is over.
            vars(module)[ATTRIBUTE] = recorder
        net(**batch)
    missing = [call.name for call in selected if call.name not in recorder.captured]
    if missing:
        raise ValueError(
            f"{missing[0]}: expected this attention call in the forward pass, got {', '.join(recorder.seen) or 'none'}"
        )
    return {call.name: recorder.captured[call.name] for call in selected}


def network_calls(net: PreTrainedModel) -> AttentionCalls:
    """All attention calls of a network: a converted one's are on record, another's need a dry run."""
    record = conversion(net)
    return find_calls(net) if record is None else record.plan.calls


class _Recorder:
    """Replaces every module's site, lets the module attend, and keeps the wanted calls."""

    def __init__(self, net: PreTrainedModel, calls: AttentionCalls) -> None:
        self.captured: dict[str, CapturedCall] = {}
        self.seen: Counter[str] = Counter()
        self._names = {id(module): name for name, module in net.named_modules()}
        self._calls = {(call.module, call.index): call for call in calls}
        self._queries: dict[tuple[str, int], Tensor | None] = {
            call.query_source: None for call in calls if call.query_source is not None
        }

    def attend(self, host: HostCall) -> Attended:
        """Attends as the module would without a recorder."""
        attended = own_attention(host)
        name = self._names[id(host.module)]
        key = name, self.seen[name]
        self.seen[name] += 1
        call = self._calls.get(key)
        if call is None and key not in self._queries:
            return attended
        valid = read_mask(host.module, host.mask).valid
        real = self._real_queries(call, host, valid)
        self._queries[key] = real
        if call is not None:
            keys, valid_keys = repeat_heads(host.key, host.query.shape[1]), _valid_keys(valid, real, host.key)
            result = (attended[1], host.value, attended[0].transpose(1, 2))
            self.captured[call.name] = CapturedCall(host.query, keys, real, valid_keys, *result)
        return attended

    def _real_queries(self, call: AttentionCall | None, host: HostCall, valid: Tensor | None) -> Tensor:
        """Those the network names, those of a self attention's mask, or those of the self attention before."""
        named_queries: Tensor | None = host.options.get("query_mask")
        if named_queries is not None:
            return named_queries
        rows, _, length, _ = host.query.shape
        everything = host.query.new_ones(rows, length, dtype=torch.bool)
        if call is None or call.kind == "self":
            return everything if valid is None else own_keys(valid.expand(rows, -1, -1, -1), length)
        queries = None if call.query_source is None else self._queries.get(call.query_source)
        return everything if queries is None or queries.shape != everything.shape else queries


def _valid_keys(valid: Tensor | None, real: Tensor, key: Tensor) -> Tensor:
    rows, _, length, _ = key.shape
    if valid is None:
        return key.new_ones(rows, length, dtype=torch.bool)
    return AttentionMask(valid.expand(rows, -1, -1, -1), real).key_valid.any(dim=1)


@dataclass(frozen=True)
class HeadRedundancy:
    """A metric of a network with all attention heads, and without each of them.

    Attributes:
        whole: metric with all heads.
        masked: by the name of the attention call, the metric without head i at index i.
    """

    whole: float
    masked: Mapping[str, tuple[float, ...]]

    @property
    def drops(self) -> dict[str, tuple[float, ...]]:
        """``whole`` minus ``masked``, by the name of the attention call: negative if the metric rises."""
        return {name: tuple(self.whole - value for value in values) for name, values in self.masked.items()}


@contextmanager
def masked_heads(net: PreTrainedModel, heads: Mapping[str, Sequence[int]]) -> Iterator[None]:
    """Context in which the outputs of some attention heads are zero before the output projection.

    The projection's bias, training mode, gradients and Pyro's sites are not affected. Attention modules that are not
    converted use eager attention in the context. The attention weights that the network returns include those of masked
    heads; :func:`~probattn.models.capture` runs the network without the masks.

    Args:
        net: a Hugging Face network, converted or not.
        heads: numbers of the masked heads, from 0, by the name of the attention call as
            :func:`~probattn.models.inspect` lists it.

    Yields:
        None.

    Raises:
        RuntimeError: the network is in such a context already.
        TypeError: the family's attention cannot be replaced.
        ValueError: an unknown call or head.

    Example:
        >>> from transformers import BertConfig, BertModel
        >>> config = BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
        >>> net, words = BertModel(config).eval(), torch.ones(1, 3, dtype=torch.long)
        >>> whole = net(words).last_hidden_state
        >>> with masked_heads(net, {"encoder.layer.0.attention.self": [1]}):
        ...     torch.equal(net(words).last_hidden_state, whole)
        False
    """
    with _masking(net) as masks:
        masks.set(heads)
        yield


def head_redundancy(
    net: PreTrainedModel, measure: Callable[[], float], calls: AttentionCalls | None = None
) -> HeadRedundancy:
    """Measures a metric without each attention head, one at a time (An et al. 2020, Fig. 2; Michel et al. 2019).

    Args:
        net: a Hugging Face network, converted or not, in evaluation mode.
        measure: function that evaluates the network on the whole data set and returns the metric. It is called once
            with all heads and once for each head, which :func:`masked_heads` masks.
        calls: attention calls whose heads are masked, as :func:`~probattn.models.inspect` lists them. Default: all.

    Returns:
        The metric with all heads, and without each.

    Raises:
        RuntimeError: the network is in training mode, in which dropout makes the metric noisy.
        TypeError: the family's attention cannot be replaced.

    Example:
        >>> from transformers import BertConfig, BertForSequenceClassification
        >>> size = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 8}
        >>> net, words = BertForSequenceClassification(BertConfig(**size)).eval(), torch.arange(12).view(4, 3)
        >>> found = head_redundancy(net, lambda: net(words).logits[:, 0].mean().item())
        >>> {name: len(drops) for name, drops in found.drops.items()}
        {'bert.encoder.layer.0.attention.self': 2, 'bert.encoder.layer.1.attention.self': 2}
    """
    if net.training:
        raise RuntimeError(f"head_redundancy: expected {type(net).__name__} in evaluation mode; call .eval()")
    with _masking(net) as masks, torch.no_grad():
        baseline = float(measure())
        masked: dict[str, tuple[float, ...]] = {}
        for call in masks.calls if calls is None else calls:
            values = []
            for head in range(call.num_heads):
                masks.set({call.name: [head]})
                values.append(float(measure()))
            masked[call.name] = tuple(values)
    return HeadRedundancy(baseline, masked)


@contextmanager
def _masking(net: PreTrainedModel) -> Iterator[_Masks]:
    """Replaces every attention module's site, with no head masked at first."""
    masks = _Masks(net, network_calls(net))
    modules = [net.get_submodule(name) for name in masks.modules]
    if any(ATTRIBUTE in vars(module) for module in modules):
        network = type(net).__name__
        raise RuntimeError(f"masked_heads: {network} has masked heads already; name them all at once")
    configurations = own_configurations(net)
    before = [*implementations(net), *configurations]
    try:
        switch(net, IMPLEMENTATION)
        for module in modules:
            # Next to a converted module's own submodule of that name, which it hides until the context ends.
            vars(module)[ATTRIBUTE] = masks
        yield masks
    finally:
        for module in modules:
            vars(module).pop(ATTRIBUTE, None)
        restore(before)


class _Masks:
    """Lets modules attend, and sets the outputs of masked heads to zero."""

    def __init__(self, net: PreTrainedModel, calls: AttentionCalls) -> None:
        self.calls = calls
        self.modules: dict[str, list[AttentionCall]] = defaultdict(list)
        for call in calls:
            self.modules[call.module].append(call)
        self._names = {id(net.get_submodule(name)): name for name in self.modules}
        self._dropped: dict[str, tuple[int, ...]] = {}
        self._seen: Counter[str] = Counter()

    def set(self, heads: Mapping[str, Sequence[int]]) -> None:
        """Masks these heads from now on, and no others."""
        calls = {call.name: call for call in self.calls}
        for name, numbers in heads.items():
            if name not in calls:
                raise ValueError(f"masked_heads: expected one of {', '.join(calls)}, got {name!r}")
            count = calls[name].num_heads
            wrong = [head for head in numbers if isinstance(head, bool) or head not in range(count)]
            if wrong:
                raise ValueError(f"masked_heads, {name}: expected heads in 0..{count - 1}, got {wrong[0]!r}")
        self._dropped = {name: tuple(numbers) for name, numbers in heads.items() if len(numbers)}
        self._seen.clear()

    def attend(self, host: HostCall) -> Attended:
        """Attends as the module would, without the heads that are masked."""
        output, weights = own_attention(host)
        name = self._names[id(host.module)]
        calls = self.modules[name]
        call = calls[self._seen[name] % len(calls)]  # a pass calls a module as often as the dry run did
        self._seen[name] += 1
        dropped = self._dropped.get(call.name)
        if dropped is None:
            return output, weights
        masked = torch.zeros(output.shape[2], dtype=torch.bool, device=output.device)
        masked[list(dropped)] = True
        return output.masked_fill(masked[:, None], 0.0), weights  # [B, T, H, E]
