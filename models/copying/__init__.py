"""Small LSTM models on synthetic tasks, with many training runs in one batched module (Snell et al. 2021).

Shapes on this page: R runs, B sentences, L input and T output words (T = L in copying), V words, K heads, width D.
"""

from probattn.models.copying.measures import (
    KeywordMeasures,
    copying_probe,
    keyword_measures,
    share_at,
    token_accuracy,
)
from probattn.models.copying.network import (
    CopyingOptions,
    CopyingOutput,
    CopyingRuns,
    KeywordOutput,
    KeywordRuns,
)
from probattn.models.copying.tasks import CopyBatch, CopyTask, KeywordBatch, KeywordTask

__all__ = ["KeywordMeasures", "copying_probe", "keyword_measures", "share_at", "token_accuracy"]
__all__ += ["CopyingOptions", "CopyingOutput", "CopyingRuns", "KeywordOutput", "KeywordRuns"]
__all__ += ["CopyBatch", "CopyTask", "KeywordBatch", "KeywordTask"]
