"""Switching a network's attention implementation, and back."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor
from transformers import AttentionInterface, PretrainedConfig, PreTrainedModel
from transformers.masking_utils import (
    ALL_MASK_ATTENTION_FUNCTIONS,
    AttentionMaskInterface,
    bidirectional_mask_function,
)

from probattn.host import on_cpu
from probattn.models.hosts.eager import bridge, has_bridge, is_bridge, without_bias
from probattn.models.hosts.undriven import CONFIGURED, Implementations, former_implementation


def register(name: str, function: Callable[..., Any]) -> None:
    """Registers an attention function with its mask; transformers treats names with flash, sdpa or flex specially."""
    AttentionInterface.register(name, function)
    AttentionMaskInterface.register(name, _mask)


def _mask(**options: Any) -> Tensor | None:
    """The eager mask, one row for all queries alike; outside a driver that of the former implementation."""
    # Whether a mask forbids nothing is not asked of an accelerator, which would have to finish its work first.
    former = former_implementation(options.get("config"))
    if former is not None:
        make: Callable[..., Tensor | None] = ALL_MASK_ATTENTION_FUNCTIONS[former]
        return make(**options)
    eager: Callable[..., Tensor | None] = ALL_MASK_ATTENTION_FUNCTIONS["eager"]
    padding = options.get("attention_mask")
    if padding is not None and not on_cpu(padding):
        options["allow_is_bidirectional_skip"] = False
    if options.get("mask_function") is not bidirectional_mask_function:
        return without_bias(eager(**options))
    positions = options.get("cache_position")  # in older releases; newer ones have the number of queries
    one = {"q_length": 1} if positions is None else {"cache_position": positions[:1]}
    queries = options["q_length"] if positions is None else len(positions)
    row = eager(**options | one)
    return None if row is None else without_bias(row.expand(-1, -1, queries, -1))


def own_configurations(net: PreTrainedModel) -> Implementations:
    """Gives a network copies of its configurations, which others may share; the originals, for :func:`restore`."""
    memo: dict[int, Any] = {}  # keeps what is one object within the network one object
    attributes = ((module, *item) for module in net.modules() for item in vars(module).items())
    before = [attribute for attribute in attributes if isinstance(attribute[2], PretrainedConfig)]
    for module, name, config in before:
        setattr(module, name, copy.deepcopy(config, memo))
    return before


def implementations(net: PreTrainedModel) -> Implementations:
    """The attention implementation of every configuration in the network, nested ones included, and bridged classes."""
    named = [(config, CONFIGURED, getattr(config, CONFIGURED, None)) for config in _configs(net)]
    bridged = [module for module in net.modules() if is_bridge(module) or bridge(module) is not None]
    return [*named, *((module, "__class__", type(module)) for module in bridged)]


def restore(before: Implementations) -> None:
    """Sets the attributes that :func:`implementations` listed."""
    for owner, name, value in before:
        setattr(owner, name, value)


def switch(net: PreTrainedModel, name: str) -> None:
    """Sets the attention implementation of the network and all its parts; a ``TypeError`` where a part ignores it."""
    for module in net.modules():
        if not isinstance(module, PreTrainedModel) or has_bridge(module):
            continue
        module.set_attn_implementation(name)
        if module.config._attn_implementation != name:
            raise TypeError(
                f"{type(module).__name__}: setting the attention implementation has no effect in this family, so its "
                "weights cannot be made latent"
            )
    # In composed networks attention modules may hold configurations of their own.
    for config in _configs(net):
        setattr(config, CONFIGURED, name)
    for module in net.modules():
        cls = bridge(module)
        if cls is not None:
            module.__class__ = cls


def _configs(net: PreTrainedModel) -> list[Any]:
    """All configurations in a network, nested ones included, each once."""
    configs = (vars(module).get("config") for module in net.modules())
    nested = [item for config in configs if isinstance(config, PretrainedConfig) for item in _nested(config)]
    return list({id(config): config for config in nested}.values())


def _nested(config: Any) -> Iterator[Any]:
    yield config
    for name in getattr(config, "sub_configs", {}):
        nested = getattr(config, name, None)
        if isinstance(nested, PretrainedConfig):
            yield from _nested(nested)
