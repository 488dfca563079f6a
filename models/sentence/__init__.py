"""The self-attentive sentence classifier (Lin et al. 2017): a bidirectional LSTM read by several heads of attention.

Importing :mod:`probattn.models` makes both networks known to transformers, so that ``AutoModel``,
``AutoModelForSequenceClassification`` and ``from_pretrained`` find them by the configuration in a folder.
"""

from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification

from probattn.models.sentence.configuration import SelfAttentiveConfig
from probattn.models.sentence.network import SelfAttentiveForSequenceClassification, SelfAttentiveModel

__all__ = ["SelfAttentiveConfig", "SelfAttentiveForSequenceClassification", "SelfAttentiveModel"]

AutoConfig.register(SelfAttentiveConfig.model_type, SelfAttentiveConfig, exist_ok=True)
AutoModel.register(SelfAttentiveConfig, SelfAttentiveModel, exist_ok=True)
AutoModelForSequenceClassification.register(
    SelfAttentiveConfig, SelfAttentiveForSequenceClassification, exist_ok=True
)
