"""Tiny networks of every class of transformers that goes through its attention interface, and what became of each.

    python tests/benchmarks/every_family.py [NAME...]

prints the verdicts, of the classes or folders named or of all, and of all writes docs/data/families.json. Sizes of the
networks are in every_family.yaml.
"""

from __future__ import annotations

import copy
import inspect
import json
import math
import re
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import pyro
import torch
import transformers
import yaml
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor
from transformers import AutoConfig, PretrainedConfig, PreTrainedModel

from probattn import BayesianAttention
from probattn.inference import AttentionGuide
from probattn.models import convert, revert
from probattn.models.hosts.discovery import find_calls
from probattn.models.hosts.dry_run import dry_inputs
from probattn.models.hosts.eager import BRIDGES
from probattn.sites import AttentionSite

FILE = Path(__file__).resolve().parents[2] / "docs" / "data" / "families.json"
DECLARED = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8"))
Fields = Mapping[str, Any]
Tensors = Mapping[str, Tensor]
LARGEST, LONGEST = 30_000_000, 240  # parameters of a tiny network, characters of a reason
LOST = (AttributeError, ImportError, LookupError, NameError, OSError)
FAILURES = (*LOST, ArithmeticError, AssertionError, RuntimeError, StrictDataclassError, TypeError, ValueError)
"""What networks raise for configurations and inputs that do not suit them."""


class VerdictError(Exception):
    """A verdict and its reason.

    "wrong" is a converted network that is not its original, or a conversion that fails otherwise than by a refusal;
    "refused" a network that conversion refuses by name, left as it was.
    """


def tiny_config(cls: type[PretrainedConfig], changes: Fields, fill: Fields) -> PretrainedConfig:
    """A configuration of small sizes; ``changes`` by name, for parts as a mapping."""
    changes = dict(changes)
    defaults = {name: option.default for name, option in inspect.signature(cls).parameters.items()}
    options = {name: _tiny(name, value, fill) for name, value in defaults.items() if name not in changes}
    options = {name: value for name, value in options.items() if value is not defaults[name]}
    heads = "num_key_value_heads"
    if heads in options and defaults[heads] == defaults.get("num_attention_heads"):
        options[heads] = options.get("num_attention_heads", 4)
    for name, part in getattr(cls, "sub_configs", {}).items():
        given = changes.pop(name, {})
        kind = type(getattr(cls(), name, None)) if part is AutoConfig else part
        if "model_type" in given:
            options[name] = AutoConfig.for_model(**given)
        elif issubclass(kind, PretrainedConfig):
            options[name] = tiny_config(kind, given, fill)
    options |= changes
    config = cls(**options)
    listed = "layer_types" if getattr(config, "layer_types", None) else "layers_block_type"
    if (had := getattr(config, listed, None)) and listed not in options and "num_hidden_layers" in options:
        kinds = list(dict.fromkeys(getattr(cls(), listed) or ()))
        if not set(kinds) <= set(had):  # the first two layers leave kinds out
            with suppress(*FAILURES):  # of a family whose layers have a fixed order
                return cls(**options | {listed: kinds, "num_hidden_layers": len(kinds)})
    return config


def _tiny(name: str, default: Any, fill: Fields) -> Any:
    """The value of an option in a tiny configuration."""
    if name in fill:
        return copy.deepcopy(fill[name])
    if default is None:
        return {"pad_token_id": 0, "vocab_size": 96}.get(name)
    if not isinstance(default, int) or isinstance(default, bool):
        return default
    if re.search(r"token_(id|index)$", name):
        return default if default < 60 else 60 + sum(map(ord, name)) % 30
    return min(default, next((size for words, size in DECLARED["sizes"] if re.search(words, name)), default))


def model_classes(families: Collection[str] = ()) -> Iterator[type[PreTrainedModel]]:
    """The public model classes of files that go through the attention interface or have a bridge, of some folders."""
    for file in sorted((Path(transformers.__file__).parent / "models").glob("*/modeling_*.py")):
        module = f"transformers.models.{file.parent.name}.{file.stem}"
        if families and file.parent.name not in families:
            continue
        if module not in BRIDGES and "ALL_ATTENTION_FUNCTIONS" not in file.read_text(encoding="utf-8"):
            continue
        loaded = import_module(module)
        for cls in (getattr(loaded, name, None) for name in loaded.__all__):
            ours = isinstance(cls, type) and issubclass(cls, PreTrainedModel) and cls.__module__ == module
            if ours and not re.search(r"Pre[tT]rained|Wrapper$", cls.__name__):
                yield cls


def tiny_network(cls: type[PreTrainedModel]) -> PreTrainedModel:
    """The class with random weights, in evaluation mode with eager attention, which runs if any does."""
    names = (cls.__name__, cls.config_class.__name__, family(cls))
    overrides = next((DECLARED["overrides"][name] for name in names if name in DECLARED["overrides"]), {})
    failures: list[Exception] = []
    networks: list[PreTrainedModel] = []
    for fill in DECLARED["fills"]:
        try:
            config = tiny_config(cls.config_class, overrides, fill)
            with torch.device("meta"), suppress(RuntimeError):  # of what needs the values of its weights
                size = sum(weights.numel() for weights in cls(copy.deepcopy(config)).parameters())
                if size > LARGEST:
                    raise ValueError(f"{size} parameters, of which the options known here make no fewer")
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


def judge(cls: type[PreTrainedModel]) -> dict[str, Any]:
    """What becomes of a class: "equal", "refused", "wrong" or "not built", why, and the kinds of its calls."""
    verdict, reason, kinds = "equal", "", []
    try:
        kinds = check(tiny_network(cls))
    except VerdictError as error:
        verdict, reason = error.args
    except FAILURES as error:
        verdict, reason = "not built", f"{type(error).__name__}: {error}"
    names = {"name": cls.__name__, "family": family(cls)}
    return {**names, "verdict": verdict, "reason": " ".join(reason.split())[:LONGEST], "kinds": kinds}


def check(net: PreTrainedModel) -> list[str]:
    """The kinds of a network's attention calls, after making sure that converting it changes nothing it answers."""
    before, classes = copy.deepcopy(net.state_dict()), [type(module) for module in net.modules()]
    try:
        calls = list(find_calls(net))
    except FAILURES as error:
        _check_untouched(net, before, classes)
        last = traceback.extract_tb(error.__traceback__)[-1].filename
        if isinstance(error, (TypeError, ValueError)) and "models/hosts" in last:
            raise VerdictError("refused", str(error)) from error
        raise VerdictError("wrong", f"{type(error).__name__}: {error}") from error
    _check_untouched(net, before, classes)
    inputs = list(_padded(net))
    expected = [outputs(net, each) for each in inputs]
    try:
        convert(net, BayesianAttention())
        converted = [(outputs(net, each), draw(net, each)) for each in inputs]
        revert(net)
        again = [outputs(net, each) for each in inputs]
    except FAILURES as error:
        raise VerdictError("wrong", f"{type(error).__name__}: {error}") from error
    for each, old, (new, sample), last in zip(inputs, expected, converted, again, strict=True):
        if not (worst := _difference(each, old, new)) <= 1e-5:
            raise VerdictError("wrong", f"outputs differ by {worst:.1e}")
        if not 0 < _difference(each, old, sample) < math.inf:
            raise VerdictError("wrong", "a draw is the expectation, or not finite")
        if _difference(each, old, last) != 0:
            raise VerdictError("wrong", "reverted, it answers otherwise")
    _check_untouched(net, before, classes)
    kinds = {call.kind for call in calls} | {"causal" for call in calls if call.causal}
    return sorted(kinds | {"windows" for call in calls if call.window is not None or call.windowed})


def _check_untouched(net: PreTrainedModel, before: Tensors, classes: list[type]) -> None:
    state, modules = net.state_dict(), list(net.modules())
    changed = state.keys() != before.keys() or not all(
        torch.equal(state[name], before[name]) for name in state
    )
    left = net.config._attn_implementation != "eager" or any("probattn" in vars(module) for module in modules)
    if changed or left or [type(module) for module in modules] != classes:
        raise VerdictError("wrong", "its modules or weights changed, or something of the dry run was left")


def draw(net: PreTrainedModel, inputs: Tensors) -> dict[str, Tensor]:
    """One draw; :class:`VerdictError` if a padded key has weight."""

    def model() -> dict[str, Tensor]:
        with pyro.plate("data", 2):
            return outputs(net, inputs)

    def look(site: AttentionSite, _: object, attended: tuple[Tensor, Tensor]) -> None:
        for mask in (value for name, value in inputs.items() if name.endswith("attention_mask")):
            matching = mask.dim() == 2 and mask.shape == attended[1].shape[::3]
            if matching and attended[1].movedim(-1, 1)[mask == 0].any():
                raise VerdictError("wrong", "a padded key has weight")

    hooks = []
    # What a decoder makes its words of may be padding; sounds and pictures may have as many keys as texts.
    made = net.config.is_encoder_decoder and "decoder_attention_mask" not in inputs
    if not made and not any(value.is_floating_point() for value in inputs.values()):
        sites = [module for module in net.modules() if isinstance(module, AttentionSite)]
        hooks = [site.register_forward_hook(look) for site in sites]
    try:
        with torch.no_grad(), AttentionGuide(model):
            return model()
    finally:
        for hook in hooks:
            hook.remove()


def taken(net: PreTrainedModel) -> dict[str, Tensor]:
    """The first form of input that the network takes; those of several choices, and of one text for both stacks."""
    failure: Exception | None = None
    for inputs in dry_inputs(net):
        forms = [inputs]
        if type(net).__name__.endswith("MultipleChoice"):
            forms.append({name: value[:, None] for name, value in inputs.items()})
        forms.append({name: value for name, value in inputs.items() if not name.startswith("decoder_")})
        texts = [form for form in forms if "input_ids" in form]
        forms += [form | {"input_ids": _ended(net, form["input_ids"], "")} for form in texts]
        for form in forms:
            try:
                outputs(net, form)
            except FAILURES as error:
                failure = failure or error
            else:
                return form
    raise RuntimeError(f"takes no known form: {failure}")


def _padded(net: PreTrainedModel) -> Iterator[dict[str, Tensor]]:
    inputs, generator = taken(net), torch.Generator().manual_seed(1)
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
    if ends and ends[0] < 96:
        words = words.clone()
        words[..., -1] = words[..., 0]
        words[0, ..., -1] = words[1, ..., -3 if side == "right" else -1] = ends[0]
    return words


def outputs(net: PreTrainedModel, inputs: Tensors) -> dict[str, Tensor]:
    """Every floating tensor of the output by its place."""
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return _tensors("", net(**inputs))


def _tensors(place: str, value: Any) -> dict[str, Tensor]:
    if isinstance(value, Tensor):
        return {place: value} if value.is_floating_point() else {}
    parts = dict(enumerate(value)) if isinstance(value, (tuple, list)) else value
    found: dict[str, Tensor] = {}
    for name, part in parts.items() if isinstance(parts, Mapping) else ():
        found |= _tensors(f"{place}.{name}", part)
    return found


def _spread(mask: Tensor, tensor: Tensor) -> Tensor | None:
    """Which places of a tensor hail from no padding: also of one that is longer or shorter than the mask."""
    if tensor.shape[: mask.dim()] == mask.shape:
        return mask
    if tensor.dim() < 3 or len(tensor) != len(mask) or tensor.shape[1] < 3 or mask.dim() != 2:
        return None
    scale, real = mask.shape[1] / tensor.shape[1], torch.ones(tensor.shape[:2], dtype=torch.bool)
    for place in range(tensor.shape[1]):
        low, high = math.floor(place * scale) - 1, math.ceil((place + 1) * scale) + 1
        real[:, place] = mask[:, max(low, 0) : high].all(dim=1)
    return real


def _difference(inputs: Tensors, old: Tensors, new: Tensors) -> float:
    if old.keys() != new.keys():
        return math.nan
    masks = [value.bool() for name, value in inputs.items() if name.endswith("attention_mask")]
    worst = 0.0
    for name in old:
        if re.search("cache|past_key_values|attentions", name) or not old[name].numel():
            continue
        error = (old[name] - new[name]).abs() / (1 + old[name].abs().max())
        exact = [mask for mask in masks if mask.shape == error.shape[: mask.dim()]]
        real = next((real for mask in exact or masks if (real := _spread(mask, error)) is not None), None)
        error = error if real is None else error[real]
        worst = max(worst, error.max().item()) if bool(error.isfinite().all()) else math.nan
    return worst


def main(names: list[str]) -> None:
    """Prints verdicts, and writes the file if all classes are asked for."""
    transformers.logging.set_verbosity_error()
    warnings.simplefilter("ignore")
    classes = []
    for cls in model_classes():
        if not names or {cls.__name__, family(cls)} & set(names):
            classes.append(judge(cls))
            print(*classes[-1].values(), flush=True)
    print(dict(Counter(each["verdict"] for each in classes)))
    if not names:
        classes.sort(key=lambda each: (each["family"], each["name"]))
        content = {"transformers": transformers.__version__, "classes": classes}
        FILE.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
