"""Switching a network's attention implementation, and back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from transformers import AttentionInterface, PretrainedConfig, PreTrainedModel
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface

from probattn.models.hosts.bridges import bridge, has_bridge, is_bridge

Implementations = list[tuple[Any, str, Any]]
"""Attributes that :func:`switch` sets, each with its owner and its value."""
CONFIGURED = "_attn_implementation_internal"
"""Where a configuration has the name of its attention implementation."""


def register(name: str, function: Callable[..., Any]) -> None:
    """Registers an attention function together with the eager mask: without it padding would vanish silently.

    The name must not contain flash, sdpa or flex, which transformers treats specially.
    """
    AttentionInterface.register(name, function)
    AttentionMaskInterface.register(name, ALL_MASK_ATTENTION_FUNCTIONS["eager"])


def implementations(net: PreTrainedModel) -> Implementations:
    """The attention implementation of every configuration in the network, nested ones included, and bridged classes."""
    configs = {id(config): config for config in _configs(net)}
    named = [(config, CONFIGURED, getattr(config, CONFIGURED, None)) for config in configs.values()]
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
    for config in {id(config): config for config in _configs(net)}.values():
        setattr(config, CONFIGURED, name)
    for module in net.modules():
        cls = bridge(module)
        if cls is not None:
            module.__class__ = cls


def _configs(net: PreTrainedModel) -> Iterator[Any]:
    configs: Sequence[Any] = [
        config
        for module in net.modules()
        if isinstance(config := vars(module).get("config"), PretrainedConfig)
    ]
    for config in configs:
        yield from _nested(config)


def _nested(config: Any) -> Iterator[Any]:
    yield config
    for name in getattr(config, "sub_configs", {}):
        part = getattr(config, name, None)
        if isinstance(part, PretrainedConfig):
            yield from _nested(part)
