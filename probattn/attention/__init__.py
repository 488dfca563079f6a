"""Attention as a probabilistic program: scores, masks, the latent site and its options."""

from probattn.attention.bayesian import BayesianAttention
from probattn.attention.masks import AttentionMask
from probattn.attention.noise import GlobalNoise, Noise, SeededNoise
from probattn.attention.posterior import SitePosterior
from probattn.attention.scores import attention_scores
from probattn.attention.site import AttentionSite, SiteSpec
from probattn.attention.upward import UpwardChain

__all__ = [
    "AttentionMask",
    "AttentionSite",
    "BayesianAttention",
    "GlobalNoise",
    "Noise",
    "SeededNoise",
    "SitePosterior",
    "SiteSpec",
    "UpwardChain",
    "attention_scores",
]
