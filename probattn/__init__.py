"""Probabilistic attention: attention weights as latent variables of a Pyro program."""

__version__ = "0.1.0"

__all__ = ["__version__"]
