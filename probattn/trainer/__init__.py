"""Hugging Face's ``Trainer`` for networks whose attention is latent."""

from probattn.trainer.evaluation import compute_uncertainty
from probattn.trainer.trainer import ProbabilisticTrainer

__all__ = ["ProbabilisticTrainer", "compute_uncertainty"]
