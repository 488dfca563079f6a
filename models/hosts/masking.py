"""Taking single heads out of a network, and what that costs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from probattn.models.hosts.adapter import ATTRIBUTE, own_attention
from probattn.models.hosts.calls import AttentionCall, AttentionCalls
from probattn.models.hosts.capture import network_calls
from probattn.models.hosts.eager import Attended, HostCall
from probattn.models.hosts.interface import implementations, own_configurations, restore, switch
from probattn.models.hosts.undriven import IMPLEMENTATION


@dataclass(frozen=True)
class HeadRedundancy:
    """A metric with all heads, and without each.

    Attributes:
        whole: with all heads.
        masked: without head i, by attention call, one number a head.
    """

    whole: float
    masked: Mapping[str, tuple[float, ...]]

    @property
    def drops(self) -> dict[str, tuple[float, ...]]:
        """Drop of the metric without each head, by attention call; negative where it rises."""
        return {name: tuple(self.whole - value for value in values) for name, values in self.masked.items()}


@contextmanager
def masked_heads(net: PreTrainedModel, heads: Mapping[str, Sequence[int]]) -> Iterator[None]:
    """Sets the outputs of some heads to zero, before the output projection, as long as the context lasts.

    The bias of the output projection stays, and so does everything else: modes, gradients, Pyro's sites. A network of
    another attention implementation computes with eager attention meanwhile. Weights, and what
    :func:`~probattn.models.capture` keeps, are those of the whole network.

    Args:
        net: a Hugging Face network, converted or not.
        heads: numbers of the heads that are taken out, by attention call, as :func:`~probattn.models.inspect` lists
            the calls.

    Yields:
        Nothing.

    Raises:
        RuntimeError: inside another such context of the same network.
        TypeError: the network's attention is not within reach.
        ValueError: an unknown call, or a head that it does not have.

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
    """Drop of a metric when each head is masked, one at a time (An et al. 2020, Fig. 2; Michel et al. 2019).

    Args:
        net: a Hugging Face network, converted or not, in evaluation mode.
        measure: evaluates the network on the data, all of it, and gives the metric; called once for the whole network
            and once for each head.
        calls: whose heads; all by default.

    Returns:
        The metric with all heads and without each. Masking is that of :func:`masked_heads`.

    Raises:
        RuntimeError: the network is in training mode, where dropout would drown the differences.
        TypeError: the network's attention is not within reach.

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
        raise RuntimeError(
            f"masked_heads: {type(net).__name__} has masked heads already; name them all at once"
        )
    before = own_configurations(net)
    before = [*implementations(net), *before]
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
