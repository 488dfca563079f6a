"""The configuration that a checkpoint carries and a resumed run must match."""

from __future__ import annotations

import hashlib
import logging
import warnings
from collections.abc import Collection, Mapping
from dataclasses import asdict, is_dataclass
from inspect import signature
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from probattn.checks import shortened
from probattn.sites.alignment import AlignmentFactor
from probattn.sites.disagreement import DisagreementFactor
from probattn.sites.multihead import MultiheadAttention
from probattn.sites.particle_layers import particle_count, particle_record
from probattn.sites.repulsive import repulsive_heads
from probattn.sites.site import LatentSite

LOGGER = logging.getLogger("probattn")


def model_configuration(model: nn.Module) -> dict[str, Any]:
    """Class, sites with their options, and a digest of the parameters' names, shapes, types and trainability."""
    digest = hashlib.sha256()
    for name, parameter in model.named_parameters():
        line = f"{name} {tuple(parameter.shape)} {parameter.dtype} {parameter.requires_grad}\n"
        digest.update(line.encode())
    described = {
        "class": _qualified_name(type(model)),
        "parameters": digest.hexdigest()[:16],
        "sites": {name: repr(site.method) for name, site in attention_sites(model).items()},
    }
    layers = particle_record(model)
    further = {
        "alignment": _described(model, AlignmentFactor),
        "disagreement": _described(model, DisagreementFactor),
        "repulsive": {name: repr(method) for name, (method, _) in repulsive_heads(model).items()},
        "particles": {} if layers is None else {"layers": repr(layers[1])},
    }
    return described | {key: modules for key, modules in further.items() if modules}


def _described(model: nn.Module, kind: type[nn.Module]) -> dict[str, str]:
    return {name: repr(module) for name, module in model.named_modules() if isinstance(module, kind)}


def optimizer_configuration(optimizer: Optimizer) -> dict[str, Any]:
    """Class and hyper-parameters of every group, before a scheduler; ``fused`` is None: it changes no number."""
    groups = {}
    for number, group in enumerate(optimizer.param_groups):
        plain = {key: value for key, value in group.items() if _is_plain(value)}
        plain |= ({"fused": None} if "fused" in group else {}) | {"parameters": len(group["params"])}
        groups[str(group.get("name", number))] = plain
    return {"class": _qualified_name(type(optimizer)), "groups": groups}


def options_configuration(options: Any) -> Any:
    """A dataclass as a dictionary; of any other object its name, since nothing else can be compared."""
    if options is None or _is_plain(options):
        return options
    if is_dataclass(options) and not isinstance(options, type):
        return asdict(options)
    return _qualified_name(options if hasattr(options, "__qualname__") else type(options))


def described_object(value: Any) -> dict[str, Any]:
    """The class of an object, with those of its attributes that are numbers or texts, and of objects among them."""
    described: dict[str, Any] = {"class": _qualified_name(type(value))}
    for name, attribute in getattr(value, "__dict__", {}).items():
        described[name] = attribute if _is_plain(attribute) else described_object(attribute)
    return described


def attention_sites(model: nn.Module) -> dict[str, LatentSite]:
    """The model's attention sites by module name."""
    return {name: module for name, module in model.named_modules() if isinstance(module, LatentSite)}


def check_sites(owner: str, model: object, met: Collection[str]) -> None:
    """``ValueError`` where a pass of a model met no attention site, a warning where it left some layers out."""
    network = model if isinstance(model, nn.Module) else nn.Module()
    if not met:
        names = ", ".join(name.removesuffix(".latent") for name in attention_sites(network))
        called = f"the pass called none of the model's attention sites, {shortened(names, 200)}; call them in forward"
        none = "the model has no attention site; convert the network first"
        raise ValueError(f"{owner}: {called if names else none}")
    layers = {layer.site_name for layer in network.modules() if isinstance(layer, MultiheadAttention)}
    if layers - set(met):
        listed = shortened(", ".join(sorted(layers - set(met))), 200)
        warnings.warn(
            f"{owner}: the pass did not call the attention layers {listed}; they add no uncertainty to the prediction",
            stacklevel=3,
        )


def warn_of_frozen_sites(model: nn.Module) -> None:
    """Warns once, by name, of attention sites whose posterior cannot learn because all their parameters are frozen."""
    frozen = []
    for name, site in attention_sites(model).items():
        parameters = list(site.parameters())
        if parameters and not any(parameter.requires_grad for parameter in parameters):
            frozen.append(name)
    if frozen:
        warnings.warn(
            f"{len(frozen)} attention sites have no trainable parameter, so that their posterior stays as it is: "
            f"{shortened(', '.join(frozen), 200)}; set requires_grad for their parameters, unless this is meant",
            stacklevel=3,
        )


def log_latent(owner: str, model: nn.Module, *, guided: bool = False) -> None:
    """Logs what a training takes as latent, that nothing is as a warning; ``guided`` if a guide may draw more."""
    sites, heads, layers = attention_sites(model), repulsive_heads(model), particle_count(model)
    particles = getattr(model, "num_particles", 0)
    descriptions = {
        f"the attention weights of {len(sites)} sites": bool(sites),
        f"the heads of {len(heads)} projections, as particles": bool(heads),
        f"the model itself, as {particles} particles": bool(particles),
        f"layers, as {layers} particles": layers is not None,
        "what the guide draws": guided,
    }
    latent = [description for description, holds in descriptions.items() if holds]
    if latent:
        LOGGER.info("%s: latent: %s", owner, "; ".join(latent))
    else:
        words = (
            "%s: nothing is latent in %s: it has no attention site and no particles, and its weights are fitted to the "
            "data alone; probattn.convert(net, probattn.BayesianAttention()) makes attention weights latent (after "
            "probattn.models.revert(net), if other methods converted it), unless this is meant"
        )
        LOGGER.warning(words, owner, type(getattr(model, "net", model)).__name__)


def kl_reduction_label(model: nn.Module) -> str:
    """KL reduction of the sites: "mean", "keys", "sum", several joined by "+", or "none" without sites."""
    reductions = {str(site.method.kl_reduction) for site in attention_sites(model).values()}
    return "+".join(sorted(reductions)) or "none"


def refuse_unsupported(model: nn.Module) -> None:
    """Refuses modules around which a Pyro site is silently wrong, and names the way out."""
    refuse_sharded(model, nn.Module)  # a driver averages gradients itself
    for name, module in model.named_modules():
        if isinstance(module, nn.DataParallel):
            raise ValueError(
                f"{name or 'the model'} is a torch.nn.DataParallel, whose threads share Pyro's handlers; launch one "
                "process per device instead (accelerate launch, torchrun)"
            )


WHOLE = (LatentSite, AlignmentFactor, DisagreementFactor)
"""Modules whose parameters must be whole while an objective is computed."""


def refuse_sharded(module: nn.Module, whole: Any = WHOLE) -> None:
    """Refuses parameters of some kinds of modules that FSDP2 shards, and networks that FSDP1 or DeepSpeed gathers."""
    if not (dist.is_available() and dist.is_initialized()):
        return
    by = ""
    if any(hasattr(parameter, "ds_id") for parameter in module.parameters()):
        by = "DeepSpeed"
    elif any(
        hasattr(child, "_fsdp_wrapped_module")
        or (isinstance(child, whole) and any(hasattr(item, "full_tensor") for item in child.parameters()))
        for child in module.modules()
    ):
        by = "FSDP"
    if by:
        raise ValueError(
            f"AttentionELBO: the model's parameters are sharded by {by}, which gathers those of one layer at a time, "
            "and the first site of an upward path reads the maps of all layers; train in data-parallel processes with "
            "whole parameters (DistributedDataParallel: torchrun, accelerate launch --multi_gpu), or let this library "
            "shard them: shard=True of drivers and ProbabilisticTrainer, probattn.inference.shard in your own loop"
        )


def refuse_unwrapped(model: nn.Module, owner: str = "SVIDriver") -> None:
    """Refuses a network of transformers, which takes the parts of a batch by name and not the batch."""
    if getattr(model, "main_input_name", None) in signature(model.forward).parameters:
        raise TypeError(
            f"{owner}: expected a model that takes a whole batch, got {type(model).__name__}, which takes its parts by "
            "name; wrap it first: probattn.models.Classifier(net), probattn.models.Translator(net, ...) or your own "
            "module"
        )


def _qualified_name(definition: Any) -> str:
    return f"{definition.__module__}.{definition.__qualname__}"


def _is_plain(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(_is_plain(item) for item in value.values())
    if isinstance(value, (list, tuple)):
        return all(_is_plain(item) for item in value)
    return value is None or isinstance(value, (bool, int, float, str))


def network_name(model: object) -> str:
    """The class of a model's network, or the name of a function, for messages."""
    network = getattr(model, "net", model)
    network = getattr(network, "_orig_mod", network)  # of a compiled one
    return str(getattr(network, "__name__", type(network).__name__))
