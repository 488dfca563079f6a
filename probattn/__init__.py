"""Probabilistic attention: attention weights as latent variables of a Pyro program.

Importing this package also registers the Kullback-Leibler divergences between its distributions.
"""

from probattn.sites.alignment import AlignmentAttention
from probattn.sites.bayesian import BayesianAttention
from probattn.sites.disagreement import DisagreementAttention
from probattn.sites.functional import attention as attention
from probattn.sites.masks import AttentionMask
from probattn.sites.multihead import MultiheadAttention, link
from probattn.sites.repulsive import RepulsiveAttention

__version__ = "0.1.0"

__all__ = [
    "AlignmentAttention",
    "AttentionMask",
    "BayesianAttention",
    "DisagreementAttention",
    "MultiheadAttention",
    "RepulsiveAttention",
    "__version__",
    "attention",
    "link",
]
