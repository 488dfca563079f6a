"""Hugging Face's ``Trainer`` for networks whose attention is latent."""

from probattn.trainer.evaluation import compute_uncertainty
from probattn.trainer.trainer import ProbabilisticTrainer
from probattn.trainer.training_free import TrainingFree, training_free

__all__ = ["ProbabilisticTrainer", "TrainingFree", "compute_uncertainty", "training_free"]
