"""The self-attentive sentence classifier (Lin et al. 2017): a bidirectional LSTM read by several heads of attention.

Importing it makes the networks known to transformers' Auto classes, which find them by a folder's configuration.
"""

from probattn.models.sentence.network import (
    SelfAttentiveConfig,
    SelfAttentiveForSequenceClassification,
    SelfAttentiveModel,
)

__all__ = ["SelfAttentiveConfig", "SelfAttentiveForSequenceClassification", "SelfAttentiveModel"]
