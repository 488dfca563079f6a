"""The weights of sites in state dicts and in their file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from probattn.models.hosts.adapter import ATTRIBUTE
from probattn.models.hosts.description import FILE
from probattn.models.hosts.pretrained import StoredNetworkError, unreadable

WEIGHTS = "probattn.safetensors"
"""The sites' weights, apart from the host's own: transformers reads the folder as a plain network."""


def is_site(name: str) -> bool:
    """Whether a name in a state dict is that of a weight which conversion added."""
    return f".{ATTRIBUTE}." in f".{name}"


def plain(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights that are the host's own."""
    return {name: tensor for name, tensor in weights.items() if not is_site(name)}


def fill_sites(net: nn.Module, source: Path) -> None:
    """Reads the sites' weights of a converted network from a folder; :class:`StoredNetworkError` if they do not fit."""
    try:
        weights = load_file(source / WEIGHTS)
    except (OSError, SafetensorError) as error:
        raise unreadable(source, error) from error
    expected = {name: tensor.shape for name, tensor in net.state_dict().items() if is_site(name)}
    stored = {name: tensor.shape for name, tensor in weights.items()}
    differing = [name for name in sorted(expected | stored) if expected.get(name) != stored.get(name)]
    if differing:
        raise StoredNetworkError(
            f"{source}: {len(differing)} site parameters in {WEIGHTS} do not fit {FILE}, {differing[0]} first"
        )
    net.load_state_dict(weights, strict=False)
