"""Hugging Face's ``Trainer`` for networks whose attention is latent."""

from probattn.trainer.trainer import ProbabilisticTrainer
from probattn.trainer.uncertainty import compute_uncertainty

__all__ = ["ProbabilisticTrainer", "compute_uncertainty"]
