"""Copies of one model as particles of one posterior over its parameters."""

from probattn.inference.ensembles.ensemble import ParticleEnsemble, log_mean_probabilities
from probattn.inference.ensembles.particles import EnsembleObjective, EnsembleOptions, EnsembleParticles

__all__ = ["ParticleEnsemble", "log_mean_probabilities"]
__all__ += ["EnsembleObjective", "EnsembleOptions", "EnsembleParticles"]
