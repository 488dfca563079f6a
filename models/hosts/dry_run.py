"""One short forward pass that shows every attention call of a network and leaves no trace."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from pyro.util import get_rng_state, set_rng_state
from torch import Tensor, nn
from transformers import PreTrainedModel

from probattn.models.hosts.interface import implementations, restore

ENCODER_LENGTH = 7
DECODER_LENGTH = 5
"""Differs from the source's, so that cross attention does not look like self attention."""


def dry_inputs(net: PreTrainedModel) -> dict[str, Tensor]:
    """Two short rows, the second padded, for a network of token ids, pixels or both; ``ValueError`` for any other."""
    if net.device.type == "meta":
        raise ValueError(f"{type(net).__name__}: expected a network with weights, got one on the meta device")
    parameters = inspect.signature(net.forward).parameters
    inputs: dict[str, Tensor] = {}
    if "pixel_values" in parameters:
        inputs["pixel_values"] = _pixels(net)
    if "input_ids" in parameters:
        inputs["input_ids"], inputs["attention_mask"] = _tokens(net, ENCODER_LENGTH)
    if "decoder_input_ids" in parameters:
        inputs["decoder_input_ids"], inputs["decoder_attention_mask"] = _tokens(net, DECODER_LENGTH)
    if not inputs:
        raise ValueError(
            f"{type(net).__name__}: expected a network of token ids or pixels, its forward takes {list(parameters)}"
        )
    if getattr(net.config, "add_cross_attention", False):
        inputs["encoder_hidden_states"], inputs["encoder_attention_mask"] = _encoded(net)
    return {name: value for name, value in inputs.items() if name in parameters}


def _tokens(net: PreTrainedModel, length: int) -> tuple[Tensor, Tensor]:
    config = next(
        part
        for name in ("text_config", "encoder", "")
        if hasattr(part := getattr(net.config, name, net.config), "vocab_size")
    )
    special = {getattr(config, name, None) for name in ("pad_token_id", "bos_token_id", "eos_token_id")}
    plain = [token for token in range(min(config.vocab_size, 2 * length + 3)) if token not in special]
    ids = torch.tensor([plain[place % len(plain)] for place in range(length)], device=net.device).repeat(2, 1)
    mask = torch.ones_like(ids)
    mask[1, -2:] = 0
    return ids, mask


def _pixels(net: PreTrainedModel) -> Tensor:
    config = getattr(net.config, "vision_config", net.config)
    size = config.image_size
    height, width = (size, size) if isinstance(size, int) else size
    shape = (2, getattr(config, "num_channels", 3), height, width)
    count = 2 * shape[1] * height * width
    return torch.linspace(-1, 1, steps=count, device=net.device).to(net.dtype).view(shape)


def _encoded(net: PreTrainedModel) -> tuple[Tensor, Tensor]:
    mask = torch.ones(2, ENCODER_LENGTH + 2, dtype=torch.long, device=net.device)
    states = torch.linspace(-1, 1, steps=net.config.hidden_size, device=net.device).to(net.dtype)
    return states.expand(2, ENCODER_LENGTH + 2, -1), mask


@contextmanager
def untouched(net: PreTrainedModel) -> Iterator[None]:
    """Evaluation mode without gradients; afterwards, also after an error, everything is as before.

    That is: every module's attributes (modes, hooks, buffers with their contents), the attention implementation in
    every configuration, and the random generators of Python, numpy and torch.
    """
    attributes = [(module, dict(vars(module)), _copied_dicts(module)) for module in net.modules()]
    buffers = [(buffer, buffer.clone()) for buffer in net.buffers()]
    before, generators = implementations(net), get_rng_state()
    devices = sorted({p.device.index or 0 for p in net.parameters() if p.device.type == "cuda"})
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=devices):
            net.eval()
            yield
    finally:
        set_rng_state(generators)
        restore(before)
        with torch.no_grad():
            for buffer, content in buffers:
                if not torch.equal(buffer, content):
                    buffer.copy_(content)
        for module, values, dicts in attributes:
            _restore_module(module, values, dicts)


def _copied_dicts(module: nn.Module) -> dict[str, dict[Any, Any]]:
    return {name: dict(value) for name, value in vars(module).items() if isinstance(value, dict)}


def _restore_module(module: nn.Module, values: dict[str, Any], dicts: dict[str, dict[Any, Any]]) -> None:
    vars(module).clear()
    vars(module).update(values)
    for name, content in dicts.items():
        mapping = values[name]
        if mapping.keys() != content.keys() or any(mapping[key] is not content[key] for key in content):
            mapping.clear()
            mapping.update(content)
