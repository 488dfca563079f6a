"""Networks of two texts, built from nothing: decomposable attention (Parikh et al. 2016), ESIM (Chen et al. 2017).

Importing :mod:`probattn.models` makes them known to transformers, so that ``AutoModelForSequenceClassification`` and
``from_pretrained`` find them by the configuration in a folder.
"""

from transformers import AutoConfig, AutoModelForSequenceClassification

from probattn.models.pairs.decomposable import DecomposableConfig, DecomposableForSequenceClassification
from probattn.models.pairs.esim import EsimConfig, EsimForSequenceClassification

__all__ = [
    "DecomposableConfig",
    "DecomposableForSequenceClassification",
    "EsimConfig",
    "EsimForSequenceClassification",
]

AutoConfig.register(DecomposableConfig.model_type, DecomposableConfig, exist_ok=True)
AutoConfig.register(EsimConfig.model_type, EsimConfig, exist_ok=True)
AutoModelForSequenceClassification.register(
    DecomposableConfig, DecomposableForSequenceClassification, exist_ok=True
)
AutoModelForSequenceClassification.register(EsimConfig, EsimForSequenceClassification, exist_ok=True)
