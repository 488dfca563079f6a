"""Converted networks under the PEFT library: sites are trained beside adapters, and saved and loaded with them.

PEFT freezes every parameter that is not of an adapter, puts adapters into every module whose name matches, and saves
its adapters alone; it has no hook for modules of others. Three of its methods are therefore wrapped. They do as before
for networks without sites.
"""

from __future__ import annotations

import functools
import importlib.util
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn

from probattn.files.manifest import DamagedFolderError, verify_folder
from probattn.models.hosts.adapter import ATTRIBUTE, HostedSite
from probattn.models.hosts.description import FILE, Description
from probattn.models.hosts.hub import ACCESS, OutOfReachError, download, is_name
from probattn.models.hosts.pretrained import StoredNetworkError
from probattn.models.hosts.record import conversion, host_of
from probattn.models.hosts.saving import adapter_writer, save_over
from probattn.models.hosts.weights import fill_sites

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
        (PeftModel, "save_pretrained", _saving),
        (PeftModel, "load_adapter", _loading),
    ):
        original = getattr(cls, name)
        setattr(cls, name, functools.wraps(original)(wrap(original)))


def _injecting(original: Callable[..., Any]) -> Callable[..., Any]:
    def inject_adapter(tuner: Any, model: nn.Module, *args: Any, **options: Any) -> Any:
        with _without_sites(model):
            return original(tuner, model, *args, **options)

    return inject_adapter


def _saving(original: Callable[..., Any]) -> Callable[..., Any]:
    def save_pretrained(net: Any, save_directory: str, *args: Any, **options: Any) -> None:
        host, record = host_of(net), conversion(net)
        if record is None or not options.get("is_main_process", True):
            original(net, save_directory, *args, **options)
            return
        given = options.pop("state_dict", None)
        weights = None if given is None else {name.removeprefix(PREFIX): each for name, each in given.items()}
        save_over(
            host,
            Description.of(host, record, {}),
            save_directory,
            adapter_writer(net, *args, **options),
            weights,
        )

    return save_pretrained


def _loading(original: Callable[..., Any]) -> Callable[..., Any]:
    def load_adapter(net: Any, model_id: Any, adapter_name: str, *args: Any, **options: Any) -> Any:
        try:
            folder = _folder(model_id, options)
        except OutOfReachError:
            loaded = original(net, model_id, adapter_name, *args, **options)
            if conversion(net) is not None:
                warnings.warn(
                    f"{model_id}: expected {FILE} in the cache or the hub within reach, which say whether attention "
                    "sites belong to these adapters, found neither; the sites keep the weights that they have; load "
                    "the adapters again with the hub within reach",
                    stacklevel=2,
                )
            return loaded
        if folder is None:
            return original(net, model_id, adapter_name, *args, **options)
        if conversion(net) is not None:
            try:
                verify_folder(folder)
            except DamagedFolderError as error:
                raise StoredNetworkError(f"{folder}: {error}; copy it again, or save it anew") from error
        loaded = original(net, str(folder), adapter_name, *args, **options)
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


def _folder(model_id: Any, options: Mapping[str, Any]) -> Path | None:
    """The folder of adapters with sites, a local one or the hub's after its download; None of adapters alone."""
    if is_name(model_id):
        return download(
            model_id, **{name: options[name] for name in (*ACCESS, "revision") if name in options}
        )
    folder = Path(model_id)
    return folder if (folder / FILE).exists() else None


@contextmanager
def _without_sites(net: nn.Module) -> Iterator[None]:
    """Sets the sites aside, so that what is done to the modules of a network is done to the host's own."""
    held = [
        (module, site)
        for module in list(net.modules())
        if isinstance(site := module._modules.get(ATTRIBUTE), HostedSite)
    ]
    for module, _ in held:
        del module._modules[ATTRIBUTE]
    try:
        yield
    finally:
        for module, site in held:
            module._modules[ATTRIBUTE] = site
