"""Tiny networks of every class of transformers that goes through its attention interface, and what became of each.

    python tests/benchmarks/every_family.py [NAME...]

prints the verdicts, of the classes or folders named or of all, and of all writes docs/data/families.json.
"""

from __future__ import annotations

import copy
import inspect
import json
import math
import re
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import pyro
import torch
import transformers
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel

from probattn import BayesianAttention
from probattn.inference import AttentionGuide
from probattn.models import convert, revert
from probattn.models.hosts.discovery import find_calls
from probattn.models.hosts.dry_run import dry_inputs
from probattn.models.hosts.eager import BRIDGES
from probattn.sites import AttentionSite

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "docs" / "data" / "families.json"
TOLERANCE = 1e-5
LARGEST = 30_000_000
"""Parameters of a tiny network."""
LONGEST = 240
"""Characters of a reason."""

FAILURES = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    NameError,
    OSError,
    RuntimeError,
    StrictDataclassError,
    TypeError,
    ValueError,
)
"""What networks raise for configurations and inputs that do not suit them."""

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
KEEP = object()
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
    defaults = {name: parameter.default for name, parameter in inspect.signature(cls).parameters.items()}
    options = {name: _tiny(name, default, fill) for name, default in defaults.items() if name not in changes}
    options = {name: value for name, value in options.items() if value is not KEEP}
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


def _tiny(name: str, default: Any, fill: Mapping[str, Any]) -> Any:
    """The value of an option in a tiny configuration; ``KEEP`` for its default."""
    if name in fill:
        return copy.deepcopy(fill[name])
    if default is None:
        return {"pad_token_id": 0, "vocab_size": 96}.get(name, KEEP)
    if not isinstance(default, int) or isinstance(default, bool):
        return KEEP
    if re.search(r"token_(id|index)$", name):
        return KEEP if default < 60 else 60 + sum(map(ord, name)) % 30
    size = next((size for pattern, size in SIZES if re.search(pattern, name)), default)
    return size if size < default else KEEP


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
    try:
        return cls(**{**options, name: kinds, "num_hidden_layers": len(kinds)})
    except FAILURES:  # a family that has its layers in an order of its own
        return config


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
    "yolos": {"image_size": [32, 32]},
    "xmod": {"languages": ["en_XX"], "default_language": "en_XX"},
    "informer": {"prediction_length": 4},
    "time_series_transformer": {"prediction_length": 4},
    **{name: {"decoder_start_token_id": 0} for name in ("t5", "mt5", "umt5")},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "dbrx": {"attn_config": {"rope_theta": 10000.0}},
    "granite_speech5": {"context_size": 16},
    "deepseek_ocr2": {"text_config": {"mlp_layer_types": ["dense", "sparse"]}},
    "DeepseekOcr2TextConfig": {"mlp_layer_types": ["dense", "sparse"]},
    "recurrent_gemma": {"num_hidden_layers": 3},
    "zamba": {"num_hidden_layers": 3, "layers_block_type": ["mamba", "mamba", "hybrid"]},
    "zamba2": {"num_hidden_layers": 3, "layers_block_type": ["mamba", "mamba", "hybrid"]},
    "chameleon": {"vocabulary_map": {"<image>": 5}},
    "vjepa2": {"crop_size": 32, "frames_per_clip": 4},
    "swin": {"embed_dim": 12, "depths": [2, 2], "num_heads": [2, 4], "window_size": 2},
    "bridgetower": {"contrastive_hidden_size": 32, "logit_scale_init_value": 2.0},
}
"""Options of configurations that no rule gives, by name of the folder, the class or its configuration."""


def model_classes(families: Collection[str] = ()) -> Iterator[type[PreTrainedModel]]:
    """The public model classes of files that go through the attention interface or have a bridge, of some folders."""
    root = Path(transformers.__file__).parent / "models"
    for file in sorted(root.glob("*/modeling_*.py")):
        module = f"transformers.models.{file.parent.name}.{file.stem}"
        if families and file.parent.name not in families:
            continue
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


def _check_size(cls: type[PreTrainedModel], config: PretrainedConfig) -> None:
    with torch.device("meta"):
        try:
            size = sum(parameter.numel() for parameter in cls(copy.deepcopy(config)).parameters())
        except RuntimeError:  # what needs the values of its weights
            return
    if size > LARGEST:
        raise ValueError(f"{size} parameters, of which the options known here make no fewer")


def tiny_network(cls: type[PreTrainedModel]) -> PreTrainedModel:
    """The class with random weights, in evaluation mode with eager attention, which runs if any does."""
    names = (cls.__name__, cls.config_class.__name__, family(cls))
    changes = next((OVERRIDES[name] for name in names if name in OVERRIDES), {})
    failures: list[Exception] = []
    networks: list[PreTrainedModel] = []
    for fill in FILLS:
        try:
            config = tiny_config(cls.config_class, changes, fill)
            _check_size(cls, config)
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                net = cls(config)
                for parameter in net.parameters():
                    if parameter.is_floating_point():
                        parameter.data += 0.05 * torch.randn_like(parameter)
            net.set_attn_implementation("eager")
            networks.append(net.eval())
            taken(net)
        except FAILURES as error:
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


class WrongError(Exception):
    """A converted network that is not its original, or a conversion that fails otherwise than by a refusal."""


def judge(cls: type[PreTrainedModel]) -> Verdict:
    """Makes a tiny network of a class, converts it and compares."""
    verdict, reason, kinds = "equal", "", ()
    try:
        net = tiny_network(cls)
        kinds = check(net)
    except WrongError as error:
        verdict, reason = "wrong", str(error)
    except RefusedError as error:
        verdict, reason = "refused", str(error)
    except FAILURES as error:
        verdict, reason = "not built", f"{type(error).__name__}: {error}"
    return Verdict(cls.__name__, family(cls), verdict, " ".join(reason.split())[:LONGEST], kinds)


class RefusedError(Exception):
    """A network that conversion refuses by name, left as it was."""


def check(net: PreTrainedModel) -> tuple[str, ...]:
    """The kinds of a network's attention calls, after making sure that converting it changes nothing it answers."""
    before, classes = copy.deepcopy(net.state_dict()), [type(module) for module in net.modules()]
    kinds: set[str] = set()
    try:
        kinds |= {kind for call in find_calls(net) for kind in _kinds(call)}
        refusal = None
    except (TypeError, ValueError) as error:
        refusal = error
    except FAILURES as error:
        raise WrongError(f"{type(error).__name__}: {error}") from error
    _check_untouched(net, before, classes)
    if refusal is not None:
        if "models/hosts" not in traceback.extract_tb(refusal.__traceback__)[-1].filename:
            raise WrongError(f"{type(refusal).__name__}: {refusal}")
        raise RefusedError(str(refusal))
    inputs = list(_padded(net))
    expected = [outputs(net, each) for each in inputs]
    try:
        convert(net, BayesianAttention())
        found = [outputs(net, each) for each in inputs]
        drawn = [draw(net, each) for each in inputs]
        revert(net)
        again = [outputs(net, each) for each in inputs]
    except FAILURES as error:
        raise WrongError(f"{type(error).__name__}: {error}") from error
    for each, old, new, sample, last in zip(inputs, expected, found, drawn, again, strict=True):
        worst = _difference(each, old, new)
        if not worst <= TOLERANCE:
            raise WrongError(f"outputs differ by {worst:.1e}")
        if not 0 < _difference(each, old, sample) < math.inf:
            raise WrongError("a draw is the expectation, or not finite")
        if not _difference(each, old, last) == 0:
            raise WrongError("reverted, it answers otherwise")
    _check_untouched(net, before, classes)
    return tuple(sorted(kinds))


def _check_untouched(net: PreTrainedModel, before: Mapping[str, Tensor], classes: list[type]) -> None:
    state = net.state_dict()
    if state.keys() != before.keys() or [type(module) for module in net.modules()] != classes:
        raise WrongError("its modules changed")
    if not all(torch.equal(value, before[name]) for name, value in state.items()):
        raise WrongError("its weights changed")
    if net.config._attn_implementation != "eager" or any(
        "probattn" in vars(module) for module in net.modules()
    ):
        raise WrongError("something of the dry run was left")


def draw(net: PreTrainedModel, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """One draw; :class:`WrongError` if a padded key has weight."""

    def model() -> dict[str, Tensor]:
        with pyro.plate("data", 2):
            return outputs(net, inputs)

    def look(site: AttentionSite, _: object, attended: tuple[Tensor, Tensor]) -> None:
        weights = attended[1]
        if net.config.is_encoder_decoder and "decoder_attention_mask" not in inputs:
            return  # what the decoder makes its words of may be padding
        if any(value.is_floating_point() for value in inputs.values()):
            return  # sounds and pictures may have as many keys as texts
        for name, mask in inputs.items():
            if name.endswith("attention_mask") and mask.dim() == 2 and mask.shape == weights.shape[::3]:
                alone = weights.movedim(-1, 1)[mask == 0]
                if alone.any():
                    raise WrongError("a padded key has weight")

    hooks = [
        module.register_forward_hook(look) for module in net.modules() if isinstance(module, AttentionSite)
    ]
    try:
        with torch.no_grad(), AttentionGuide(model):
            return model()
    finally:
        for hook in hooks:
            hook.remove()


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
        forms += [
            form | {"input_ids": _ended(net, form["input_ids"], "")} for form in forms if "input_ids" in form
        ]
        for form in forms:
            try:
                outputs(net, form)
            except FAILURES as error:
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
    words[..., -1] = words[..., 0]
    words[0, ..., -1] = words[1, ..., -3 if side == "right" else -1] = ends[0]
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
        if "cache" in name or "past_key_values" in name or "attentions" in name or not old[name].numel():
            continue
        error = (old[name] - new[name]).abs() / (1 + old[name].abs().max())
        exact = [mask for mask in masks if mask.shape == error.shape[: mask.dim()]]
        real = next((real for mask in exact or masks if (real := _spread(mask, error)) is not None), None)
        if real is not None:
            error = error[real]
        worst = max(worst, error.max().item()) if bool(error.isfinite().all()) else float("nan")
    return worst


def studied(classes: Iterable[type[PreTrainedModel]]) -> dict[str, Any]:
    """The content of the file."""
    verdicts = []
    for cls in classes:
        started = time.perf_counter()
        verdicts.append(judge(cls))
        print(*asdict(verdicts[-1]).values(), f"{time.perf_counter() - started:.1f} s", flush=True)
    return {
        "transformers": transformers.__version__,
        "classes": [asdict(each) for each in sorted(verdicts, key=lambda each: (each.family, each.name))],
    }


def main(names: list[str]) -> None:
    """Prints verdicts, and writes the file if all classes are asked for."""
    transformers.logging.set_verbosity_error()
    warnings.simplefilter("ignore")
    asked = (cls for cls in model_classes() if not names or {cls.__name__, family(cls)} & set(names))
    content = studied(asked)
    print(dict(Counter(each["verdict"] for each in content["classes"])))
    if not names:
        FILE.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
