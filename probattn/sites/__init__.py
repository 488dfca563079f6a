"""Attention as a probabilistic program: scores, masks, edges, latent sites and their options."""

from probattn.sites.alignment import AlignmentAttention, AlignmentFactor
from probattn.sites.answers import Attending, TiledPosterior
from probattn.sites.bayesian import BayesianAttention
from probattn.sites.disagreement import (
    DisagreementAttention,
    DisagreementFactor,
    cosine_agreement,
    frobenius_penalty,
    parameter_agreement,
    position_agreement,
)
from probattn.sites.edges import EdgeAttentionSite, EdgePosterior, Edges
from probattn.sites.handlers import announce, checkpoint_contexts, give_threads_their_handlers
from probattn.sites.masks import AttentionMask
from probattn.sites.method import Method, MethodRegistry, RecipeKeys
from probattn.sites.noise import GlobalNoise, Noise, PlacedNoise, SeededNoise
from probattn.sites.particle_layers import ParticleLayers
from probattn.sites.posterior import SitePosterior
from probattn.sites.repulsive import RepulsiveAttention
from probattn.sites.scores import attention_scores
from probattn.sites.site import AttentionSite, SiteSpec
from probattn.sites.upward import UpwardChain

__all__ = ["AlignmentAttention", "AlignmentFactor", "Attending", "AttentionMask", "AttentionSite"]
__all__ += ["BayesianAttention", "DisagreementAttention", "DisagreementFactor", "EdgeAttentionSite"]
__all__ += ["EdgePosterior", "Edges", "GlobalNoise", "METHODS", "Method", "MethodRegistry", "Noise"]
__all__ += ["PlacedNoise", "RecipeKeys", "SeededNoise", "SitePosterior", "SiteSpec", "TiledPosterior"]
__all__ += ["UpwardChain", "announce", "attention_scores", "checkpoint_contexts", "cosine_agreement"]
__all__ += ["frobenius_penalty", "parameter_agreement", "position_agreement"]

METHODS = MethodRegistry(
    [BayesianAttention, AlignmentAttention, RepulsiveAttention, DisagreementAttention, ParticleLayers]
)
"""The registered attention methods; if a network has several, the first one gives its name in records."""

give_threads_their_handlers()
