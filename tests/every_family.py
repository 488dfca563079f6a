"""Tiny networks of every model class of transformers that goes through its attention interface, and what became of each.

python tests/every_family.py [NAME...]   # prints verdicts, and with no name writes docs/data/families.json
"""

from __future__ import annotations

import copy
import inspect
import json
import math
import re
import sys
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from probattn import BayesianAttention
from probattn.models import convert, revert
from probattn.models.hosts.bridges import BRIDGES
from probattn.models.hosts.discovery import find_calls
from probattn.models.hosts.dry_run import dry_inputs

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "docs" / "data" / "families.json"
TOLERANCE = 1e-5

SIZES: list[tuple[str, Any]] = [
    (r"(^|_)vocab_size$|vocab_size_or_config", 96),
    (r"vocab_size_per_layer_input", 96),
    (r"^(num_key_value_heads|num_kv_heads|n_head_kv)$", 2),
    (r"heads?$|num_heads|n_heads", 4),
    (r"head_dim$|head_size$|kv_channels|d_kv$", 16),
    (r"lora_rank$", 8),
    (r"max_position|n_positions|n_ctx|max_(source|target|seq)\w*|max_sequence_length", 64),
    (r"(^|_)(hidden_size|d_model|n_embd|embed_dim|embedding_size|hidden_dim|dim|embed_size|width)$", 64),
    (r"(intermediate|ffn|inner|d_ff|mlp|moe|feed_forward|projection|proj_dim|proj_size|out_hidden)", 64),
    (
        r"(num_hidden_layers|num_layers|n_layers?|encoder_layers|decoder_layers|depth|num_blocks|num_hidden_blocks)$",
        2,
    ),
    (r"experts_per_tok|top_?k|num_selected", 2),
    (r"(num|n)_\w*experts$|num_experts|n_group|topk_group", 4),
    (r"^image_size$|^img_size$|^input_size$", 32),
    (r"^patch_size$", 8),
]
"""Sizes of tiny networks, by the name of an integer of a configuration; the first match counts."""


ROTARY = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}}
HEADS = {"num_key_value_heads": 4, "head_dim": 16}
EXPERTS = {"num_experts_per_tok": 2, "topk_method": "greedy", "n_routed_experts": 4, "n_shared_experts": 1}
MIXED = {
    "attn_layer_indices": [1],
    "attn_layer_period": 2,
    "attn_layer_offset": 1,
    "full_attention_interval": 2,
    "layer_group_size": 2,
}
FILLS: tuple[dict[str, Any], ...] = (
    {},
    HEADS,
    ROTARY,
    EXPERTS,
    MIXED,
    {**HEADS, **EXPERTS},
    {**HEADS, **ROTARY, **EXPERTS, **MIXED},
)
"""What is set in configurations, and in parts of them, that have an option of the name; tried one after the other."""


def tiny_config(
    cls: type[PretrainedConfig], changes: Mapping[str, Any], fill: Mapping[str, Any]
) -> PretrainedConfig:
    """A configuration of small sizes; ``changes`` by name, for parts as a mapping."""
    changes = dict(changes)
    parameters = inspect.signature(cls).parameters
    defaults = {name: parameter.default for name, parameter in parameters.items()}
    options: dict[str, Any] = {}
    for name, default in defaults.items():
        if name in changes:
            continue
        if name in fill:
            options[name] = copy.deepcopy(fill[name])
        elif name == "vocab_size" and default is None:
            options[name] = 96
        elif re.search(r"token_(id|index)$", name):
            if name == "pad_token_id" and default is None:
                options[name] = 0
            elif isinstance(default, int) and not isinstance(default, bool) and default >= 60:
                options[name] = 60 + sum(map(ord, name)) % 30
        elif isinstance(default, int) and not isinstance(default, bool) and default > 1:
            size = next((size for pattern, size in SIZES if re.search(pattern, name)), None)
            if size is not None and size < default:
                options[name] = size
    if "num_key_value_heads" in options and defaults["num_key_value_heads"] == defaults.get(
        "num_attention_heads"
    ):
        options["num_key_value_heads"] = options.get("num_attention_heads", 4)
    for name, part in getattr(cls, "sub_configs", {}).items():
        given = changes.pop(name, {})
        if isinstance(given, PretrainedConfig):
            options[name] = given
        elif part is not transformers.AutoConfig:
            options[name] = tiny_config(part, given, fill)
        else:
            default = getattr(cls(), name, None)
            if isinstance(default, PretrainedConfig):
                options[name] = tiny_config(type(default), given, fill)
    config = cls(**options | changes)
    return _with_every_kind_of_layer(cls, config, options | changes)


def _with_every_kind_of_layer(
    cls: type[PretrainedConfig], config: PretrainedConfig, options: Mapping[str, Any]
) -> PretrainedConfig:
    """One layer of each kind, where a configuration lists them and the first two leave some out."""
    name = next((name for name in ("layer_types", "layers_block_type") if getattr(config, name, None)), None)
    if name is None or name in options:
        return config
    kinds = list(dict.fromkeys(getattr(cls(), name) or ()))
    if set(kinds) <= set(getattr(config, name)) or "num_hidden_layers" not in options:
        return config
    return cls(**{**options, name: kinds, "num_hidden_layers": len(kinds)})


RESNET = {
    "use_timm_backbone": False,
    "backbone": None,
    "backbone_config": transformers.ResNetConfig(
        embedding_size=8,
        hidden_sizes=[8, 8, 16, 16],
        depths=[1, 1, 1, 1],
        layer_type="basic",
        out_features=["stage2", "stage3", "stage4"],
    ),
}
WAVES = {
    "conv_dim": [16] * 7,
    "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2,
    "xvector_output_dim": 8,
}
WAVES |= {"tdnn_dim": [8, 8], "tdnn_kernel": [3, 1], "tdnn_dilation": [1, 1]}
OVERRIDES: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("detr", "conditional_detr", "deformable_detr"), RESNET),
    **dict.fromkeys(("wav2vec2", "hubert", "unispeech", "unispeech_sat", "wav2vec2_conformer"), WAVES),
    "Data2VecAudioConfig": WAVES,
    "xmod": {"languages": ["en_XX"], "default_language": "en_XX"},
    "informer": {"prediction_length": 4},
    "time_series_transformer": {"prediction_length": 4},
    "vjepa2": {"crop_size": 32, "frames_per_clip": 4},
    "swin": {"embed_dim": 12, "depths": [2, 2], "num_heads": [2, 4], "window_size": 2},
    "bridgetower": {"contrastive_hidden_size": 32},
}
"""Options of configurations that no rule gives, by name of the folder, the class or its configuration."""


def model_classes() -> Iterator[type[PreTrainedModel]]:
    """Every public model class of a file that goes through the attention interface, or has a bridge."""
    root = Path(transformers.__file__).parent / "models"
    for file in sorted(root.glob("*/modeling_*.py")):
        module = f"transformers.models.{file.parent.name}.{file.stem}"
        if module not in BRIDGES and "ALL_ATTENTION_FUNCTIONS" not in file.read_text(encoding="utf-8"):
            continue
        loaded = import_module(module)
        for name in loaded.__all__:
            cls = getattr(loaded, name, None)
            if (
                isinstance(cls, type)
                and issubclass(cls, PreTrainedModel)
                and cls.__module__ == module
                and "PreTrained" not in name
                and "Pretrained" not in name
                and not name.endswith("Wrapper")
            ):
                yield cls


def tiny_network(cls: type[PreTrainedModel]) -> PreTrainedModel:
    """The class with random weights, in evaluation mode with eager attention, which runs if any does."""
    names = (cls.__name__, cls.config_class.__name__, family(cls))
    changes = next((OVERRIDES[name] for name in names if name in OVERRIDES), {})
    failures: list[Exception] = []
    networks: list[PreTrainedModel] = []
    for fill in FILLS:
        try:
            config = tiny_config(cls.config_class, changes, fill)
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                net = cls(config)
                for parameter in net.parameters():
                    if parameter.is_floating_point():
                        parameter.data += 0.05 * torch.randn_like(parameter)
            net.set_attn_implementation("eager")
            networks.append(net.eval())
            taken(net)
        except Exception as error:
            failures.append(error)
        else:
            return net
    if networks:
        return networks[0]
    raise failures[0]


def family(cls: type) -> str:
    """The folder of a class."""
    return cls.__module__.split(".")[-2]


@dataclass(frozen=True)
class Verdict:
    """What became of a class: "equal", "refused", "wrong" or "not built", why, and what its attention calls are."""

    name: str
    family: str
    verdict: str
    reason: str = ""
    kinds: tuple[str, ...] = ()


def judge(cls: type[PreTrainedModel]) -> Verdict:
    """Makes a tiny network of a class, converts it and compares the outputs."""

    def verdict(word: str, reason: object = "", kinds: tuple[str, ...] = ()) -> Verdict:
        text = f"{type(reason).__name__}: {reason}" if isinstance(reason, Exception) else str(reason)
        return Verdict(cls.__name__, family(cls), word, " ".join(text.split())[:300], kinds)

    try:
        net = tiny_network(cls)
        taken(net)
    except Exception as error:
        return verdict("not built", error)
    try:
        calls = find_calls(net)
    except (TypeError, ValueError) as error:
        import traceback

        own = "models/hosts" in traceback.extract_tb(error.__traceback__)[-1].filename
        return verdict("refused" if own else "wrong", error)
    except Exception as error:
        return verdict("wrong", error)
    kinds = tuple(sorted({kind for call in calls for kind in _kinds(call)}))
    inputs = list(_padded(net))
    try:
        expected = [outputs(net, each) for each in inputs]
    except Exception as error:
        return verdict("wrong", error)
    try:
        convert(net, BayesianAttention())
        found = [outputs(net, each) for each in inputs]
    except Exception as error:
        return verdict("wrong", error)
    worst = 0.0
    for each, old, new in zip(inputs, expected, found, strict=True):
        worst = max(worst, _difference(each, old, new))
    if not worst <= TOLERANCE:
        return verdict("wrong", f"outputs differ by {worst:.1e}", kinds)
    return verdict("equal", f"{worst:.1e}", kinds)


def _kinds(call: Any) -> Iterator[str]:
    yield call.kind
    if call.causal:
        yield "causal"
    if call.window is not None or call.windowed:
        yield "windows"


def taken(net: PreTrainedModel) -> dict[str, Tensor]:
    """The first form of input that the network takes; those of several choices, and of one text for both stacks."""
    failure: Exception | None = None
    for inputs in dry_inputs(net):
        forms = [inputs]
        if type(net).__name__.endswith("MultipleChoice"):
            forms.append({name: value[:, None] for name, value in inputs.items()})
        forms.append({name: value for name, value in inputs.items() if not name.startswith("decoder_")})
        for form in forms:
            try:
                outputs(net, form)
            except Exception as error:
                failure = failure or error
            else:
                return form
    raise RuntimeError(f"takes no known form: {failure}")


def _padded(net: PreTrainedModel) -> Iterator[dict[str, Tensor]]:
    inputs = taken(net)
    generator = torch.Generator().manual_seed(1)
    masks = [name for name in inputs if name.endswith("attention_mask")]
    for name, value in inputs.items():
        if value.is_floating_point():
            inputs[name] = value + torch.randn(value.shape, generator=generator).to(value)
    for side in ("left", "right") if masks else ("none",):
        padded = dict(inputs)
        for name in masks:
            padded[name] = mask = torch.ones_like(inputs[name])
            if mask.shape[-1] > 2:
                mask[1, ..., (slice(0, 2) if side == "left" else slice(-2, None))] = 0
            words = name.replace("attention_mask", "input_ids")
            if words in inputs:
                padded[words] = _ended(net, inputs[words], side)
        yield padded


def _ended(net: PreTrainedModel, words: Tensor, side: str) -> Tensor:
    """Token ids whose last one that is no padding is that of the end, which some networks pool."""
    configs = (getattr(net.config, "text_config", net.config), net.config)
    ends = [end for config in configs if isinstance(end := getattr(config, "eos_token_id", None), int)]
    if not ends or ends[0] >= 96:
        return words
    words = words.clone()
    words[0, ..., -1] = words[1, ..., -1 if side == "left" else -3] = ends[0]
    return words


def outputs(net: PreTrainedModel, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Every floating tensor of the output by its place."""
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return dict(_tensors("", net(**inputs)))


def _tensors(place: str, value: Any) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        if value.is_floating_point():
            yield place, value
    elif isinstance(value, Mapping):
        for name, part in value.items():
            yield from _tensors(f"{place}.{name}", part)
    elif isinstance(value, (tuple, list)):
        for number, part in enumerate(value):
            yield from _tensors(f"{place}.{number}", part)


def _spread(mask: Tensor, tensor: Tensor) -> Tensor | None:
    """Which places of a tensor hail from no padding: also of one that is longer or shorter than the mask."""
    if tensor.shape[: mask.dim()] == mask.shape:
        return mask
    if tensor.dim() < 3 or len(tensor) != len(mask) or tensor.shape[1] < 3 or mask.dim() != 2:
        return None
    length, places = mask.shape[1], tensor.shape[1]
    real = torch.ones(tensor.shape[:2], dtype=torch.bool)
    for place in range(places):
        low, high = math.floor(place * length / places) - 1, math.ceil((place + 1) * length / places) + 1
        real[:, place] = mask[:, max(low, 0) : high].all(dim=1)
    return real


def _difference(inputs: Mapping[str, Tensor], old: Mapping[str, Tensor], new: Mapping[str, Tensor]) -> float:
    if old.keys() != new.keys():
        return float("nan")
    masks = [value.bool() for name, value in inputs.items() if name.endswith("attention_mask")]
    worst = 0.0
    for name in old:
        if "past_key_values" in name or "attentions" in name or not old[name].numel():
            continue
        error = (old[name] - new[name]).abs() / (1 + old[name].abs().max())
        for mask in masks:
            real = _spread(mask, error)
            if real is not None:
                error = error[real]
                break
        worst = max(worst, error.max().item()) if bool(error.isfinite().all()) else float("nan")
    return worst


def main(names: list[str]) -> None:
    import time
    import signal

    def alarm(*_):
        raise RuntimeError("too slow")

    signal.signal(signal.SIGALRM, alarm)
    rows = []
    for cls in model_classes():
        if names and cls.__name__ not in names and family(cls) not in names:
            continue
        t = time.time()
        signal.alarm(20)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                v = judge(cls)
        except Exception as e:
            v = Verdict(cls.__name__, family(cls), "wrong", "OUTER " + repr(e)[:200])
        signal.alarm(0)
        rows.append(asdict(v) | {"t": round(time.time() - t, 2)})
        print(v.name, v.verdict, v.reason, v.kinds, rows[-1]["t"], flush=True)
    import collections

    print(collections.Counter(r["verdict"] for r in rows), sum(r["t"] for r in rows))
    json.dump(rows, open("/tmp/families/rows.json", "w"), indent=1)


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    main(sys.argv[1:])
