"""Tiny networks of every model class of transformers that goes through its attention interface, and what became of each.

    python tests/every_family.py [NAME...]   # prints verdicts, and with no name writes docs/data/families.json
"""

from __future__ import annotations

import copy
import inspect
import json
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
from probattn.models.hosts.dry_run import _parts, dry_inputs

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
    (r"(num_hidden_layers|num_layers|n_layers?|encoder_layers|decoder_layers|depth|num_blocks|num_hidden_blocks)$", 2),
    (r"experts_per_tok|top_?k|num_selected", 2),
    (r"(num|n)_\w*experts$|num_experts|n_group|topk_group", 4),
    (r"^image_size$|^img_size$|^input_size$", 32),
    (r"^patch_size$", 8),
]
"""Sizes of tiny networks, by the name of an integer of a configuration; the first match counts."""


def tiny_config(cls: type[PretrainedConfig], changes: Mapping[str, Any] | None = None) -> PretrainedConfig:
    """A configuration of small sizes; ``changes`` by name, for parts as a mapping."""
    changes = dict(changes or {})
    options: dict[str, Any] = {}
    for name, parameter in inspect.signature(cls).parameters.items():
        default = parameter.default
        if name in changes:
            continue
        if re.search(r"token_(id|index)$", name):
            if isinstance(default, int) and not isinstance(default, bool) and default >= 60:
                options[name] = 60 + sum(map(ord, name)) % 30
        elif isinstance(default, int) and not isinstance(default, bool) and default > 1:
            size = next((size for pattern, size in SIZES if re.search(pattern, name)), None)
            if size is not None and size < default:
                options[name] = size
    for name, part in getattr(cls, "sub_configs", {}).items():
        given = changes.pop(name, {})
        if part is not transformers.AutoConfig:
            options[name] = tiny_config(part, given)
        else:
            default = getattr(cls(), name, None)
            if isinstance(default, PretrainedConfig):
                options[name] = tiny_config(type(default), given)
    return cls(**options | changes)


OVERRIDES: dict[str, dict[str, Any]] = {}


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
                and not name.endswith("PreTrainedModel")
            ):
                yield cls


def tiny_network(cls: type[PreTrainedModel]) -> PreTrainedModel:
    """The class with random weights, in evaluation mode with eager attention."""
    config = tiny_config(cls.config_class, OVERRIDES.get(cls.__name__) or OVERRIDES.get(family(cls)))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = cls(config)
        size = sum(parameter.numel() for parameter in net.parameters())
        if size > 12_000_000:
            raise ValueError(f"{size} parameters are not tiny")
        for parameter in net.parameters():
            if parameter.is_floating_point():
                parameter.data += 0.05 * torch.randn_like(parameter)
    net.set_attn_implementation("eager")
    return net.eval()


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
    except Exception as error:
        return verdict("not built", error)
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
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


def _taken(net: PreTrainedModel) -> dict[str, Tensor]:
    """The first form of input that the network takes."""
    failure: Exception | None = None
    for inputs in dry_inputs(net):
        try:
            outputs(net, inputs)
        except Exception as error:
            failure = failure or error
        else:
            return inputs
    raise RuntimeError(f"takes no known form: {failure}")


def _padded(net: PreTrainedModel) -> Iterator[dict[str, Tensor]]:
    inputs = _taken(net)
    generator = torch.Generator().manual_seed(1)
    masks = [name for name in inputs if name.endswith("attention_mask")]
    for name, value in inputs.items():
        if value.is_floating_point():
            inputs[name] = value + torch.randn(value.shape, generator=generator).to(value)
    for side in ("left", "right") if masks else ("none",):
        padded = dict(inputs)
        for name in masks:
            padded[name] = mask = torch.ones_like(inputs[name])
            if mask.shape[1] > 2:
                mask[1, (slice(0, 2) if side == "left" else slice(-2, None))] = 0
            words = inputs.get(name.replace("attention_mask", "input_ids"))
            end = next((n for part in (net.config, *_parts(net.config)) if isinstance(n := getattr(part, "eos_token_id", None), int)), None)
            if words is not None and end is not None:
                words = words.clone()
                words[0, -1] = words[1, -1 if side == "left" else -3] = end
                padded[name.replace("attention_mask", "input_ids")] = words
        yield padded


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
            if error.shape[:2] == mask.shape:
                error = error[mask]
                break
        worst = max(worst, error.max().item()) if bool(error.isfinite().all()) else float("nan")
    return worst


def main(names: list[str]) -> None:
    import time
    import signal
    def alarm(*_): raise RuntimeError("too slow")
    signal.signal(signal.SIGALRM, alarm)
    rows=[]
    for cls in model_classes():
        if names and cls.__name__ not in names and family(cls) not in names: continue
        t=time.time()
        signal.alarm(20)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                v=judge(cls)
        except Exception as e:
            v=Verdict(cls.__name__,family(cls),"wrong","OUTER "+repr(e)[:200])
        signal.alarm(0)
        rows.append(asdict(v)|{"t":round(time.time()-t,2)})
        print(v.name,v.verdict,v.reason,v.kinds,rows[-1]["t"],flush=True)
    import collections
    print(collections.Counter(r["verdict"] for r in rows), sum(r["t"] for r in rows))
    json.dump(rows,open("/tmp/families/rows.json","w"),indent=1)


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    main(sys.argv[1:])
