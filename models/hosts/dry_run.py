"""Inputs for one short forward pass that shows every attention call of a network."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from transformers import PreTrainedModel

ENCODER_LENGTH = 7
DECODER_LENGTH = 5
"""Differs from the encoder's, so that cross attention does not look like self attention."""


def dry_inputs(net: PreTrainedModel) -> dict[str, Tensor]:
    """Two short rows, the second padded, for the network's base model.

    Args:
        net: a Hugging Face network for text, images or both.

    Returns:
        Keyword arguments of its forward pass.

    Raises:
        ValueError: its inputs are neither token ids nor pixels.
    """
    parameters = inspect.signature(net.forward).parameters
    device = net.device
    inputs: dict[str, Tensor] = {}
    if "pixel_values" in parameters:
        inputs["pixel_values"] = _pixels(net)
    if "input_ids" in parameters:
        inputs["input_ids"], inputs["attention_mask"] = _tokens(ENCODER_LENGTH, device)
    if "decoder_input_ids" in parameters:
        inputs["decoder_input_ids"], inputs["decoder_attention_mask"] = _tokens(DECODER_LENGTH, device)
    if not inputs:
        raise ValueError(
            f"{type(net).__name__}: expected a network of token ids or pixels, its forward takes {list(parameters)}"
        )
    return {name: value for name, value in inputs.items() if name in parameters}


def _tokens(length: int, device: torch.device) -> tuple[Tensor, Tensor]:
    ids = torch.arange(3, 3 + length, device=device).repeat(2, 1)
    mask = torch.ones_like(ids)
    mask[1, -2:] = 0
    return ids, mask


def _pixels(net: PreTrainedModel) -> Tensor:
    config = getattr(net.config, "vision_config", net.config)
    size = config.image_size
    height, width = (size, size) if isinstance(size, int) else size
    shape = (2, getattr(config, "num_channels", 3), height, width)
    return torch.linspace(
        -1, 1, steps=2 * shape[1] * height * width, device=net.device, dtype=net.dtype
    ).view(shape)


@contextmanager
def quiet_evaluation(net: PreTrainedModel) -> Iterator[None]:
    """Evaluation mode without gradients; modes and random generators are afterwards what they were."""
    training = [module for module in net.modules() if module.training]
    devices = [net.device] if net.device.type == "cuda" else []
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=devices):
            net.eval()
            yield
    finally:
        for module in training:
            module.training = True
