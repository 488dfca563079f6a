"""Short forward passes that show every attention call of a network and leave no trace."""

from __future__ import annotations

import inspect
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from pyro.util import get_rng_state, set_rng_state
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from probattn.models.hosts.interface import implementations, own_configurations, restore
from probattn.sites.scores import exact_products

ENCODER_LENGTH = 7
DECODER_LENGTH = 5
"""Differs from the source's, so that cross attention does not look like self attention."""
PICTURE_SIZE = 64
"""Height and width where a configuration names none."""
SAMPLES = 3200
"""Length of a wave."""
FRAMES = 64
"""Length of a wave's features where a configuration names none."""
FREQUENCIES: tuple[str, ...] = ("num_mel_bins", "input_feat_per_channel", "feature_projection_input_dim")
FREQUENCIES += ("feature_size", "input_dim")
"""Names in configurations for the number of features of a frame."""


class UnknownInputError(ValueError):
    """A network that takes neither token ids nor pixels nor audio."""


def dry_inputs(net: PreTrainedModel) -> Iterator[dict[str, Tensor]]:
    """Two short rows, the second padded, in the forms that a network may take; its own ``dry_inputs`` comes first."""
    declared: Any = getattr(net, "dry_inputs", None)
    if callable(declared):
        yield declared()
        return
    parameters = inspect.signature(net.forward).parameters
    text: dict[str, Tensor] = {}
    if "input_ids" in parameters:
        text |= _tokens(net, ENCODER_LENGTH, "")
    if "decoder_input_ids" in parameters:
        text |= _tokens(net, DECODER_LENGTH, "decoder_")
    if getattr(net.config, "add_cross_attention", False):
        text["encoder_hidden_states"], text["encoder_attention_mask"] = _encoded(net)
    forms = [*_pictures(net, parameters), *_sounds(net, parameters)]
    if "input_ids" in text or not forms:
        forms.append({})
    accepted = False
    for form in forms:
        inputs = {name: value for name, value in (form | text).items() if name in parameters}
        if inputs.keys() - {name for name in text if name.startswith("decoder_")}:
            accepted = True
            yield inputs
    if not accepted:
        raise UnknownInputError(
            f"{type(net).__name__}: expected a network of token ids, pixels or audio, its forward takes "
            f"{list(parameters)}"
        )


def _part(config: Any, names: Sequence[str], holds: str) -> Any:
    """The configuration itself, or the first part of it by name, that has an integer of this name; None without."""
    for name in names:
        nested = getattr(config, name, None) if name else config
        if isinstance(getattr(nested, holds, None), int):
            return nested
    return None


def _tokens(net: PreTrainedModel, length: int, prefix: str) -> dict[str, Tensor]:
    config = _part(net.config, ("text_config", "encoder", "decoder", "decoder_config", ""), "vocab_size")
    if config is None:
        return {}
    special: set[int] = set()
    for name in dir(config):
        if name.endswith(("_token_id", "_token_index")):
            number = getattr(config, name)
            special |= {*number} if isinstance(number, (list, tuple)) else {number}
    candidates = range(min(config.vocab_size, 2 * length + 3 + len(special)))
    plain = [token for token in candidates if token not in special] or [0]
    ids = torch.tensor([plain[index % len(plain)] for index in range(length)], device=net.device).repeat(2, 1)
    return {f"{prefix}input_ids": ids, f"{prefix}attention_mask": _mask(net, length)}


def _mask(net: PreTrainedModel, length: int) -> Tensor:
    """Two rows, the second padded."""
    mask = torch.ones(2, length, dtype=torch.long, device=net.device)
    mask[1, -2:] = 0
    return mask


def _pictures(net: PreTrainedModel, parameters: Collection[str]) -> Iterator[dict[str, Tensor]]:
    """Two pictures, each also as a row of frames."""
    name = next((name for name in ("pixel_values", "pixel_values_videos") if name in parameters), None)
    if name is None:
        return
    configs = list(_parts(net.config))
    size = next((size for config in configs if (size := getattr(config, "image_size", None))), PICTURE_SIZE)
    size = [size["height"], size["width"]] if isinstance(size, dict) else size
    height, width = (size, size) if isinstance(size, int) else size
    channels = next(iter(_integers(configs, ("num_channels", "in_channels", "in_chans"))), 3)
    frames = next(iter(_integers(configs, ("num_frames", "frames_per_clip"))), 2)
    if name == "pixel_values":
        yield {name: _ramp(net, 2, channels, height, width)}
    yield {name: _ramp(net, 2, frames, channels, height, width)}


def _sounds(net: PreTrainedModel, parameters: Collection[str]) -> Iterator[dict[str, Tensor]]:
    """Two recordings: waves, or their features by frame or by frequency; with a mask of frames and without."""
    waves = {(SAMPLES,): SAMPLES, (1, SAMPLES): SAMPLES}
    forms: dict[tuple[int, ...], int] = {}
    configs = list(_parts(net.config))
    frames = [2 * count for count in _integers(configs, ("max_source_positions",))]
    for count in (*frames, *_integers(configs, ("max_length",)), FRAMES):
        for size in _integers(configs, FREQUENCIES):
            forms |= {(size, count): count, (count, size): count}
    for name in ("input_features", "input_values"):
        if name not in parameters:
            continue
        for shape, length in ((waves | forms) if name == "input_values" else forms).items():
            sound = {name: _ramp(net, 2, *shape)}
            if "attention_mask" in parameters and "input_ids" not in parameters:
                yield sound | {"attention_mask": _mask(net, length)}
            yield sound


def _integers(configs: Sequence[Any], names: Sequence[str]) -> list[int]:
    """The integers of these names, each once."""
    values = [getattr(config, name, None) for config in configs for name in names]
    return [*dict.fromkeys(number for number in values if isinstance(number, int) and number > 0)]


def _parts(config: Any) -> Iterator[Any]:
    """The parts of a configuration for what is not text, then itself."""
    for name in ("vision_config", "audio_config", "encoder_config", "encoder"):
        nested = getattr(config, name, None)
        if isinstance(nested, PretrainedConfig):
            yield nested
    yield config


def _ramp(net: PreTrainedModel, *shape: int) -> Tensor:
    return torch.linspace(-1, 1, steps=math.prod(shape), device=net.device).to(net.dtype).view(shape)


def _encoded(net: PreTrainedModel) -> tuple[Tensor, Tensor]:
    mask = torch.ones(2, ENCODER_LENGTH + 2, dtype=torch.long, device=net.device)
    states = torch.linspace(-1, 1, steps=net.config.hidden_size, device=net.device).to(net.dtype)
    return states.expand(2, ENCODER_LENGTH + 2, -1), mask


def tensors(answer: Any) -> list[Tensor]:
    """The floating-point tensors of an output, in order."""
    if isinstance(answer, Tensor):
        return [answer] if answer.is_floating_point() else []
    if isinstance(answer, Mapping):
        answer = answer.values()
    elif not isinstance(answer, (tuple, list)):
        return []
    return [tensor for item in answer for tensor in tensors(item)]


@contextmanager
def kept_generators(net: nn.Module) -> Iterator[None]:
    """The generators of Python, numpy, torch and the net's devices are afterwards where they were."""
    before = get_rng_state()
    devices = sorted({p.device.index or 0 for p in net.parameters() if p.device.type == "cuda"})
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        set_rng_state(before)


@contextmanager
def untouched(net: PreTrainedModel) -> Iterator[None]:
    """Evaluation without gradients, products exact; attributes, buffers and generators are put back, always."""
    attributes = []
    for module in net.modules():
        dicts = {name: dict(value) for name, value in vars(module).items() if isinstance(value, dict)}
        attributes.append((module, dict(vars(module)), dicts))
    buffers = [(buffer, buffer.clone()) for buffer in net.buffers()]
    before = implementations(net)
    try:
        with torch.no_grad(), exact_products(), kept_generators(net):
            own_configurations(net)
            net.eval()
            yield
    finally:
        restore(before)
        with torch.no_grad():
            for buffer, content in buffers:
                if not torch.equal(buffer, content):
                    buffer.copy_(content)
        for module, values, dicts in attributes:
            _restore_module(module, values, dicts)


def _restore_module(module: nn.Module, values: dict[str, Any], dicts: dict[str, dict[Any, Any]]) -> None:
    vars(module).clear()
    vars(module).update(values)
    for name, content in dicts.items():
        mapping = values[name]
        if mapping.keys() != content.keys() or any(mapping[key] is not content[key] for key in content):
            mapping.clear()
            mapping.update(content)
