"""Probabilistic attention: attention weights as latent variables of a Pyro program.

The names and modules of this package are imported when they are used first, so that the command line answers at once.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from probattn.inference.effects import attention_effects
    from probattn.inference.expansion import posterior_moments
    from probattn.inference.explaining import explain
    from probattn.inference.predictive import posterior_predict
    from probattn.inference.sampling import sampling
    from probattn.models.hosts.convert import convert
    from probattn.models.hosts.store import from_pretrained, load
    from probattn.sites.alignment import AlignmentAttention
    from probattn.sites.bayesian import BayesianAttention
    from probattn.sites.disagreement import DisagreementAttention
    from probattn.sites.fused import compile_sites
    from probattn.sites.masks import AttentionMask
    from probattn.sites.multihead import MultiheadAttention, link
    from probattn.sites.particle_layers import ParticleLayers
    from probattn.sites.repulsive import RepulsiveAttention
    from probattn.sites.site import attention
    from probattn.trainer import ProbabilisticTrainer, training_free

__version__ = "0.1.0"

__all__ = ["__version__", "convert", "from_pretrained", "load"]
# Methods
__all__ += ["BayesianAttention", "AlignmentAttention", "DisagreementAttention"]
__all__ += ["RepulsiveAttention", "ParticleLayers"]
# Networks of one's own
__all__ += ["AttentionMask", "MultiheadAttention", "attention", "compile_sites", "link"]
# Training and prediction
__all__ += ["ProbabilisticTrainer", "training_free", "sampling"]
__all__ += ["posterior_predict", "posterior_moments", "attention_effects", "explain"]

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
    "attention_effects": "inference.effects",
    "compile_sites": "sites.fused",
    "convert": "models.hosts.convert",
    "explain": "inference.explaining",
    "from_pretrained": "models.hosts.store",
    "link": "sites.multihead",
    "load": "models.hosts.store",
    "posterior_moments": "inference.expansion",
    "posterior_predict": "inference.predictive",
    "sampling": "inference.sampling",
    "training_free": "trainer",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        if name.startswith("_") or not name.isidentifier() or find_spec(f"probattn.{name}") is None:
            raise AttributeError(f"module 'probattn' has no attribute {name!r}")
        return import_module(f"probattn.{name}")
    value = globals()[name] = getattr(import_module(f"probattn.{_MODULES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted(globals() | _MODULES)
