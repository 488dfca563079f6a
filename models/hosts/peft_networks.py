"""Converted networks under the PEFT library: sites are trained beside adapters, and saved and loaded with them.

PEFT freezes every parameter that is not of an adapter, puts adapters into every module whose name matches, and saves
its adapters alone; it has no hook for modules of others. Several of its methods are therefore wrapped, and the one by
which transformers loads adapters itself. They do as before for networks without sites.
"""

from __future__ import annotations

import functools
import importlib.util
import inspect
import warnings
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from torch import nn
from transformers.integrations.peft import PeftAdapterMixin

from probattn.files.json_files import read_json
from probattn.files.manifest import MANIFEST, DamagedFolderError, Manifest, verify_folder
from probattn.models.hosts.adapter import ATTRIBUTE, HostedSite
from probattn.models.hosts.description import (
    ACCESS,
    FILE,
    Description,
    OutOfReachError,
    download,
    fill_sites,
    is_name,
)
from probattn.models.hosts.hosting import conversion, host_of
from probattn.models.hosts.pretrained import StoredNetworkError
from probattn.models.hosts.saving import save_over, without_sites, writer
from probattn.sites.particle_layers import particle_record

ADAPTERS = "adapter_config.json"
"""PEFT's description of adapters."""
PREFIX = "base_model.model."
"""What PEFT puts before the names of weights."""


@functools.cache
def set_up_peft() -> None:
    """Wraps PEFT's methods, where it is installed."""
    if importlib.util.find_spec("peft") is None:
        return
    from peft import PeftModel
    from peft.tuners.tuners_utils import BaseTuner

    for cls, name, wrap in (
        (BaseTuner, "inject_adapter", _injecting),
        (BaseTuner, "merge_adapter", _merging),
        (BaseTuner, "_unload_and_optionally_merge", _merging),
        (PeftModel, "save_pretrained", _saving),
        (PeftModel, "load_adapter", _loading),
        (PeftAdapterMixin, "load_adapter", _loading),
    ):
        original = getattr(cls, name)
        setattr(cls, name, functools.wraps(original)(wrap(original)))


def _injecting(original: Callable[..., Any]) -> Callable[..., Any]:
    def inject_adapter(tuner: Any, model: nn.Module, adapter_name: str, *args: Any, **options: Any) -> Any:
        if particle_record(model) is not None:
            raise ValueError(
                f"{type(model).__name__}: expected adapters before its layers became particles; revert(net), add them, "
                "and convert again"
            )
        copied = getattr(tuner.peft_config[adapter_name], "modules_to_save", None) or ()
        for name, module in model.named_modules():
            if isinstance(module._modules.get(ATTRIBUTE), HostedSite):
                refuse_copies(name, copied)
        with without_sites(model):
            return original(tuner, model, adapter_name, *args, **options)

    return inject_adapter


def _merging(original: Callable[..., Any]) -> Callable[..., Any]:
    def merge(tuner: Any, *args: Any, **options: Any) -> Any:
        if particle_record(tuner) is not None:
            raise ValueError(
                f"{type(host_of(tuner)).__name__}: expected one network to merge adapters into, got particles with "
                "adapters of their own; take one of them: probattn.models.particle(net, 0).merge_and_unload()"
            )
        return original(tuner, *args, **options)

    return merge


def _saving(original: Callable[..., Any]) -> Callable[..., Any]:
    def save_pretrained(net: Any, save_directory: str, *args: Any, **options: Any) -> None:
        host, record = host_of(net), conversion(net)
        if record is None or not options.get("is_main_process", True):
            original(net, save_directory, *args, **options)
            return
        state_dict = options.pop("state_dict", None)
        weights = {name.removeprefix(PREFIX): value for name, value in (state_dict or {}).items()}
        write, description = writer(net, *args, **options), Description.of(host, record, {})
        save_over(host, description, save_directory, write, None if state_dict is None else weights)

    return save_pretrained


def _loading(original: Callable[..., Any]) -> Callable[..., Any]:
    def load_adapter(net: Any, *args: Any, **options: Any) -> Any:
        call = inspect.signature(original).bind(net, *args, **options)
        identifier = "model_id" if "model_id" in call.arguments else "peft_model_id"
        model_id: Any = call.arguments.get(identifier)
        try:
            folder = None if model_id is None else _folder(model_id, _access(call.arguments))
        except OutOfReachError:
            loaded = original(net, *args, **options)
            if conversion(net) is not None:
                warnings.warn(
                    f"{model_id}: expected {FILE} in the cache or the hub within reach, which say whether attention "
                    "sites belong to these adapters, found neither; the sites keep the weights that they have; load "
                    "the adapters again with the hub within reach",
                    stacklevel=2,
                )
            return loaded
        if folder is None or model_id is None:
            return original(net, *args, **options)
        if conversion(net) is not None:
            try:
                verify_folder(folder)
            except DamagedFolderError as error:
                raise StoredNetworkError(f"{folder}: {error}; copy it again, or save it anew") from error
        if is_name(model_id):
            call.arguments[identifier] = str(folder)  # so that all files are of one commit
        loaded = original(*call.args, **call.kwargs)
        if conversion(net) is None:
            warnings.warn(
                f"{model_id}: these adapters were trained with probabilistic attention, which the base network lacks; "
                "load them with probattn.from_pretrained, or convert the base network first",
                stacklevel=2,
            )
        else:
            fill_sites(host_of(net), folder)
        return loaded

    return load_adapter


def _access(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Options about the hub among those of PEFT's ``load_adapter``, or of transformers'."""
    further = dict(getattr(parameters.get("load_config"), "download_kwargs", None) or {})
    further |= (parameters.get("adapter_kwargs") or {}) | parameters.get("kwargs", {}) | dict(parameters)
    return {name: further[name] for name in (*ACCESS, "revision") if further.get(name)}


def _folder(model_id: Any, access: Mapping[str, Any]) -> Path | None:
    """The folder with the sites of adapters, a local one or the hub's after its download; None of adapters alone."""
    if is_name(model_id):
        return download(model_id, **access)
    folder = Path(model_id).absolute()
    if (folder / FILE).exists():
        return folder
    if not (folder.parent / MANIFEST).exists():
        return None
    files = read_json(folder.parent / MANIFEST, TypeAdapter(Manifest)).files
    # PEFT writes adapters of other names than "default" into folders below.
    return folder.parent if f"{folder.name}/{ADAPTERS}" in files else None


def refuse_copies(name: str, copied: Collection[str]) -> None:
    """``ValueError`` for an attention module, by name, in a part that PEFT copies: one of ``modules_to_save``."""
    path = name.split(".")
    names = [".".join(path[: stop + 1]) for stop in range(len(path))]
    inside = {"modules_to_save", "original_module"} & {*path}
    if inside or any(prefix.endswith(tuple(copied)) for prefix in names):
        raise ValueError(
            f"{name}: expected modules_to_save of PEFT to name parts without attention sites, since PEFT trains copies "
            "of these parts and a copy has no site; leave the part out, or convert other layers"
        )
