"""Loading saved networks, from folders and from the hub."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, cast

import transformers
from pydantic import TypeAdapter
from safetensors import SafetensorError, safe_open
from torch import nn
from transformers import CONFIG_MAPPING, AutoConfig, PretrainedConfig, PreTrainedModel

from probattn.checks import shown
from probattn.files.json_files import JSON_OBJECT, JSONError, read_json
from probattn.files.manifest import MANIFEST, DamagedFolderError, verify_folder
from probattn.models.hosts.convert import conversion, convert
from probattn.models.hosts.description import (
    FILE,
    NOTES,
    WEIGHTS,
    Description,
    fetched,
    fill_sites,
    read_description,
)
from probattn.models.hosts.hosting import add_scale, host_of
from probattn.models.hosts.peft_networks import ADAPTERS
from probattn.models.hosts.pretrained import (
    StoredNetworkError,
    check_classes,
    check_folder,
    check_patterns,
    network_class,
    open_pretrained,
    reading,
    register_system,
)
from probattn.models.hosts.saving import give_exits
from probattn.sites.particle_layers import STACK, ParticleLayers

LAYERS_PER_WEIGHT = 100
"""Layers may share weights, but not that many."""


def load(folder: Path | str, auto_class: Any = None, *, revision: str | None = None, **options: Any) -> Any:
    """Loads a network that :func:`save` or ``save_pretrained`` of a converted network wrote, with its methods.

    Files are compared with the SHA-256 sums in ``manifest.json``; a folder without this file, which an earlier version
    wrote, is loaded unchecked. Code in the folder is not run. If the folder holds adapters of the PEFT library, their
    base network is loaded by the name in ``adapter_config.json`` and wrapped again.

    Args:
        folder: the folder, or a name on the hub.
        auto_class: class whose ``from_pretrained`` reads the network, for classes that are not in transformers.
        revision: branch, tag or commit on the hub.
        **options: options of ``from_pretrained``, such as ``dtype``; ``token``, ``cache_dir``, ``local_files_only`` and
            ``force_download`` apply to the download. With ``ignore_mismatched_sizes=True`` the classification head may
            have another size than the saved one; weights that the folder lacks are then initialised at random, as
            transformers reports. Parameters of attention methods must have the saved sizes.

    Returns:
        The network in evaluation mode; with ``output_loading_info=True`` a pair of network and transformers' report.

    Raises:
        StoredNetworkError: the folder, its description or its weights are missing, damaged or do not fit each other, or
            the hub has no such network.

    Example:
        >>> import tempfile
        >>> from probattn import BayesianAttention
        >>> from probattn.models import save
        >>> from transformers import BertConfig, BertModel
        >>> config = BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
        >>> net = convert(BertModel(config), BayesianAttention.bam())
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     again = load(save(net, folder))
        >>> conversion(again).method.concentration
        10.0
    """
    source, report = fetched(folder, revision, options), options.pop("output_loading_info", False)
    check_folder(source)
    described = read_description(source)
    verify_network(source)
    if (source / ADAPTERS).exists():
        loaded, info = _with_adapters(source, described, auto_class, options)
    else:
        _check_layers(source)
        cls = auto_class or _network_class(source, described.name, _config(source, described))
        loaded, info = _host(source, cls, options)
        _restore(loaded, described, source)
        if described.methods or described.noise:
            fill_sites(loaded, source)
    return (loaded.eval(), info) if report else loaded.eval()


def from_pretrained(auto_class: Any, folder: Path | str, **options: Any) -> Any:
    """Loads a network as :func:`probattn.models.load` does, but refuses a network without attention methods.

    Args:
        auto_class: class that reads the network, such as ``AutoModelForSequenceClassification``.
        folder: a folder, or a name on the hub.
        **options: options of :func:`probattn.models.load`.

    Returns:
        The network in evaluation mode, or what ``output_loading_info=True`` of :func:`probattn.models.load` returns.

    Raises:
        StoredNetworkError: for the reasons of :func:`probattn.models.load`, or the network has no attention method.

    Example:
        >>> import tempfile, probattn
        >>> from transformers import AutoModel, BertConfig, BertModel
        >>> config = BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
        >>> net = convert(BertModel(config), probattn.BayesianAttention.bam())
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     net.save_pretrained(folder)
        ...     again = probattn.from_pretrained(AutoModel, folder)
        >>> type(again).__name__
        'BertModel'
    """
    loaded = load(folder, auto_class, **options)
    net = loaded[0] if isinstance(loaded, tuple) else loaded
    if conversion(net) is None:
        raise StoredNetworkError(
            f"{folder}: expected a network with probabilistic attention, {FILE} names no method; "
            "probattn.models.load reads it as it is, and probattn.models.convert makes it probabilistic"
        )
    return loaded


def verify_network(folder: Path) -> None:
    """Compares the files of a saved network with their sums, if saved; ``StoredNetworkError`` where they differ."""
    if not (folder / FILE).exists():
        return
    try:
        verify_folder(folder)
    except DamagedFolderError as error:
        raise StoredNetworkError(
            f"{folder}: {error}; copy the folder again from where it was saved, or save the network anew (if the "
            f"change is meant, delete {MANIFEST})"
        ) from error


def _check_layers(source: Path) -> None:
    """Refuses a damaged number of layers, which would be built one after the other without an end."""
    tensors = 0
    with reading(source, JSONError, OSError, SafetensorError):
        config = read_json(source / "config.json", JSON_OBJECT)
        for file in source.glob("*.safetensors"):
            with safe_open(file, framework="pt") as opened:
                tensors += len(opened.keys())
    limit = LAYERS_PER_WEIGHT * max(tensors, 1)
    for name, value in config.items():
        if "layers" in name and isinstance(value, int) and value > limit:
            raise StoredNetworkError(
                f"{source}: expected {name} of config.json to fit {tensors} weights, got {shown(value)}; save it again"
            )


def _config(source: Path, described: Description) -> PretrainedConfig:
    """The configuration of a network, or of the base network of adapters."""
    if described.config is None:  # also beside adapters of earlier versions
        return cast(PretrainedConfig, open_pretrained(AutoConfig, source))
    check_classes(described.config, source / FILE)
    register_system(described.config)
    with reading(source / FILE):  # errors of every kind: the content decides
        kind = CONFIG_MAPPING[str(described.config.get("model_type"))]
        return kind.from_dict(dict(described.config))


def _network_class(source: Path, name: str, config: PretrainedConfig) -> type[PreTrainedModel]:
    """The class that :func:`save` named: one of transformers, or one that its auto classes were told of."""
    cls = network_class(name, config)
    if cls is None:
        raise StoredNetworkError(
            f"{source / FILE}: transformers {transformers.__version__} has no network class {name!r}; pass auto_class"
        )
    if cls.config_class is not None and not isinstance(config, cls.config_class):
        raise StoredNetworkError(
            f"{source}: {FILE} names a {name}, config.json describes a {config.model_type}; they do not fit together"
        )
    return cls


def _host(source: Path, cls: Any, options: dict[str, Any]) -> tuple[PreTrainedModel, dict[str, Any]]:
    """The network before its conversion, with its weights from the folder, and the report of transformers."""
    loaded: Any = open_pretrained(cls, source, output_loading_info=True, **options)
    net: PreTrainedModel = loaded[0]
    report: dict[str, Any] = loaded[1]
    for problem in ("missing_keys", "mismatched_keys", "unexpected_keys"):
        keys = sorted(map(str, report[problem]))
        if keys and not options.get("ignore_mismatched_sizes"):
            raise StoredNetworkError(
                f"{source}: weights do not fit config.json: {len(keys)} {problem.replace('_', ' ')}, {keys[0]} first "
                "(ignore_mismatched_sizes=True takes the others, for another head)"
            )
    return net, report


def _restore(net: PreTrainedModel, described: Description, source: Path) -> None:
    """Notes for the card, methods and noise of observed numbers; adapters are never without a method."""
    vars(net)[NOTES] = described.card
    with reading(source, KeyError, TypeError, ValueError):
        methods, noise = described.built(), described.built_noise()
        if methods or (source / ADAPTERS).exists():
            layers, attention = described.layers or "all", described.attention or "all"
            particles = any(isinstance(method, ParticleLayers) for method in methods)
            with stored_particles(net, source) if particles else nullcontext():
                convert(net, *methods, layers=layers, attention=attention)
    if noise is not None:
        add_scale(net, *noise)
        if not methods:
            give_exits(net, None)


@contextmanager
def stored_particles(net: nn.Module, source: Path) -> Iterator[None]:
    """Lets those parameters alone learn that were particles when the network was saved."""
    with safe_open(source / WEIGHTS, "pt") as stored:
        keys = stored.keys()  # of no mapping: what safe_open gives cannot be iterated itself
        names = {name.replace(f".{STACK}.", ".") for name in keys}
    before = {name: parameter for name, parameter in net.named_parameters() if parameter.requires_grad}
    for name, parameter in net.named_parameters():
        parameter.requires_grad_(name in names)
    try:
        yield
    finally:
        for name, parameter in before.items():
            parameter.requires_grad_(name not in names)


def _with_adapters(
    source: Path, described: Description, auto_class: Any, options: dict[str, Any]
) -> tuple[Any, Any]:
    """The base network that adapters name, converted, with the adapters and the sites."""
    try:
        from peft import PeftModel
    except ImportError as error:
        raise StoredNetworkError(f"{source}: holds adapters of the PEFT library; pip install peft") from error
    with reading(source, JSONError, OSError):
        adapters = read_json(source / ADAPTERS, TypeAdapter(dict[str, Any]))
    base = adapters.get("base_model_name_or_path")
    if not isinstance(base, (str, type(None))):
        raise StoredNetworkError(
            f"{source / ADAPTERS}: expected the name of a base network in base_model_name_or_path, got {shown(base)}"
        )
    if not base:
        raise StoredNetworkError(
            f"{source}: {ADAPTERS} names no base network; build it, convert it with the same methods, and call "
            "PeftModel.from_pretrained(net, folder)"
        )
    config = _config(source, described)
    cls = auto_class or _network_class(source, described.name, config)
    net, info = open_pretrained(cls, base, config=config, output_loading_info=True, **options)
    later = any(isinstance(method, ParticleLayers) for method in described.built())  # particles are adapters
    if not later:
        _restore(net, described, source)
    check_patterns(adapters, net, source / ADAPTERS)
    check_folder(source)
    with reading(source), warnings.catch_warnings():
        if later:
            warnings.filterwarnings("ignore", message=".*which the base network lacks")
        loaded = PeftModel.from_pretrained(net, str(source))
    if later:
        _restore(host_of(loaded), described, source)
        fill_sites(host_of(loaded), source)
    return loaded, info
