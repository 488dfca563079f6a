"""Pre-training of text encoders on texts without labels, by ELECTRA's replaced token detection."""

from probattn.tasks.pretraining.results import PredictedToken, PretrainingResults
from probattn.tasks.pretraining.task import Pretraining

__all__ = ["PredictedToken", "Pretraining", "PretrainingResults"]
