"""Pre-training of text encoders on texts without labels, by ELECTRA's replaced tokens."""

from probattn.tasks.pretraining.results import JudgedToken, PretrainingResults
from probattn.tasks.pretraining.task import Pretraining

__all__ = ["JudgedToken", "Pretraining", "PretrainingResults"]
