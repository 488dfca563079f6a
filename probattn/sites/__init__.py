"""Attention as a probabilistic program: scores, masks, edges, latent sites and their options."""

from probattn.sites.alignment import AlignmentAttention
from probattn.sites.alignment_factor import AlignmentFactor
from probattn.sites.bayesian import BayesianAttention
from probattn.sites.deferred import announce
from probattn.sites.disagreement import DisagreementAttention, DisagreementFactor
from probattn.sites.edge_site import EdgeAttentionSite, EdgePosterior
from probattn.sites.edges import Edges
from probattn.sites.head_penalties import (
    cosine_agreement,
    frobenius_penalty,
    parameter_agreement,
    position_agreement,
)
from probattn.sites.masks import AttentionMask
from probattn.sites.method import Method, RecipeKeys
from probattn.sites.methods import METHODS, MethodRegistry
from probattn.sites.noise import GlobalNoise, Noise, PlacedNoise, SeededNoise
from probattn.sites.posterior import SitePosterior
from probattn.sites.recomputing import checkpoint_contexts
from probattn.sites.scores import attention_scores
from probattn.sites.site import AttentionSite, SiteSpec
from probattn.sites.threads import give_threads_their_handlers
from probattn.sites.tiled_posterior import Attending, TiledPosterior
from probattn.sites.upward import UpwardChain

__all__ = [
    "AlignmentAttention",
    "AlignmentFactor",
    "Attending",
    "AttentionMask",
    "AttentionSite",
    "BayesianAttention",
    "DisagreementAttention",
    "DisagreementFactor",
    "EdgeAttentionSite",
    "EdgePosterior",
    "Edges",
    "GlobalNoise",
    "METHODS",
    "Method",
    "MethodRegistry",
    "Noise",
    "PlacedNoise",
    "RecipeKeys",
    "SeededNoise",
    "SitePosterior",
    "SiteSpec",
    "TiledPosterior",
    "UpwardChain",
    "announce",
    "attention_scores",
    "checkpoint_contexts",
    "cosine_agreement",
    "frobenius_penalty",
    "parameter_agreement",
    "position_agreement",
]

give_threads_their_handlers()
