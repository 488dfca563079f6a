"""Hosts: networks and probabilistic programs whose attention goes through sites."""

if __name__ != "probattn.models":
    raise ImportError(
        f"this folder is a part of probattn and no package called {__name__!r}: write `import probattn.models`"
    )

from probattn.models.choosing import program_for
from probattn.models.electra import ElectraProgram
from probattn.models.graphwriter import (
    GraphTextProgram,
    GraphWriterConfig,
    GraphWriterForGeneration,
    WritingOptions,
    write_texts,
)
from probattn.models.heads import (
    CausalLanguageModel,
    Classifier,
    MaskedLanguageModel,
    MultiLabelClassifier,
    MultipleChoice,
    Regressor,
    SpanExtractor,
    TokenClassifier,
)
from probattn.models.hosts import (
    AttentionCall,
    AttentionCalls,
    CapturedCall,
    HeadRedundancy,
    StoredNetworkError,
    capture,
    convert,
    describe,
    from_pretrained,
    head_redundancy,
    inspect,
    load,
    masked_heads,
    revert,
    save,
)
from probattn.models.mcan import McanConfig, McanForQuestionAnswering, VisualQuestionProgram
from probattn.models.pairs import (
    DecomposableConfig,
    DecomposableForSequenceClassification,
    EsimConfig,
    EsimForSequenceClassification,
)
from probattn.models.rating import ProxyProgram, RatedWords, WordRatings, own_head, rate_words, word_saliency
from probattn.models.sentence import (
    SelfAttentiveConfig,
    SelfAttentiveForSequenceClassification,
    SelfAttentiveModel,
)
from probattn.models.translation import (
    AlignmentGuide,
    RecurrentForTranslation,
    RecurrentModel,
    RecurrentTranslationConfig,
    SearchOptions,
    TransformerSize,
    Translator,
    VariationalTranslator,
    build_transformer,
    translate,
)

__all__ = [
    "AlignmentGuide",
    "AttentionCall",
    "AttentionCalls",
    "CapturedCall",
    "CausalLanguageModel",
    "Classifier",
    "DecomposableConfig",
    "DecomposableForSequenceClassification",
    "ElectraProgram",
    "EsimConfig",
    "EsimForSequenceClassification",
    "GraphTextProgram",
    "GraphWriterConfig",
    "GraphWriterForGeneration",
    "HeadRedundancy",
    "MaskedLanguageModel",
    "McanConfig",
    "McanForQuestionAnswering",
    "MultiLabelClassifier",
    "MultipleChoice",
    "ProxyProgram",
    "RatedWords",
    "RecurrentForTranslation",
    "RecurrentModel",
    "RecurrentTranslationConfig",
    "Regressor",
    "SearchOptions",
    "SelfAttentiveConfig",
    "SelfAttentiveForSequenceClassification",
    "SelfAttentiveModel",
    "SpanExtractor",
    "StoredNetworkError",
    "TokenClassifier",
    "TransformerSize",
    "Translator",
    "VariationalTranslator",
    "VisualQuestionProgram",
    "WordRatings",
    "WritingOptions",
    "build_transformer",
    "capture",
    "convert",
    "describe",
    "from_pretrained",
    "head_redundancy",
    "inspect",
    "load",
    "masked_heads",
    "own_head",
    "program_for",
    "rate_words",
    "revert",
    "save",
    "translate",
    "word_saliency",
    "write_texts",
]
