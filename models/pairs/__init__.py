"""Networks of two texts, built from nothing: decomposable attention (Parikh et al. 2016), ESIM (Chen et al. 2017).

Importing it makes the networks known to transformers' Auto classes, which find them by a folder's configuration.
"""

from probattn.models.pairs.networks import (
    DecomposableConfig,
    DecomposableForSequenceClassification,
    EsimConfig,
    EsimForSequenceClassification,
)

__all__ = [
    "DecomposableConfig",
    "DecomposableForSequenceClassification",
    "EsimConfig",
    "EsimForSequenceClassification",
]
