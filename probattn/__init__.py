"""Probabilistic attention: attention weights as latent variables of a Pyro program.

The names of this package are imported when they are used first, so that the command line answers at once.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from probattn.inference.sampling import sampling
    from probattn.models.hosts.store import from_pretrained
    from probattn.sites.alignment import AlignmentAttention
    from probattn.sites.bayesian import BayesianAttention
    from probattn.sites.disagreement import DisagreementAttention
    from probattn.sites.fused import compile_sites
    from probattn.sites.masks import AttentionMask
    from probattn.sites.multihead import MultiheadAttention, link
    from probattn.sites.particle_layers import ParticleLayers
    from probattn.sites.repulsive import RepulsiveAttention
    from probattn.sites.site import attention
    from probattn.trainer import ProbabilisticTrainer

__version__ = "0.1.0"

__all__ = [
    "AlignmentAttention",
    "AttentionMask",
    "BayesianAttention",
    "DisagreementAttention",
    "MultiheadAttention",
    "ParticleLayers",
    "ProbabilisticTrainer",
    "RepulsiveAttention",
    "__version__",
    "attention",
    "compile_sites",
    "from_pretrained",
    "link",
    "sampling",
]

_MODULES = {
    "AlignmentAttention": "sites.alignment",
    "AttentionMask": "sites.masks",
    "BayesianAttention": "sites.bayesian",
    "DisagreementAttention": "sites.disagreement",
    "MultiheadAttention": "sites.multihead",
    "ParticleLayers": "sites.particle_layers",
    "ProbabilisticTrainer": "trainer",
    "RepulsiveAttention": "sites.repulsive",
    "attention": "sites.site",
    "compile_sites": "sites.fused",
    "from_pretrained": "models.hosts.store",
    "link": "sites.multihead",
    "sampling": "inference.sampling",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'probattn' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"probattn.{_MODULES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted(globals() | _MODULES)
