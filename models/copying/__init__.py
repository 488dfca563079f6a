"""Small LSTM models on synthetic tasks, many runs as one batched program (Snell et al. 2021)."""

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
