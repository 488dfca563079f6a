"""Hosts: networks and probabilistic programs whose attention goes through sites.

The networks and programs of single papers are imported when one of their names is used first, or a folder with such a
network is loaded. ``import probattn.models.sentence`` and the like make them known to transformers' Auto classes.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if __name__ != "probattn.models":
    raise ImportError(
        f"this folder is a part of probattn and no package called {__name__!r}: write `import probattn.models`"
    )

from probattn.models.choosing import program_for
from probattn.models.heads.classification import Classifier, MultiLabelClassifier, MultipleChoice, Regressor
from probattn.models.heads.sequences import Translator
from probattn.models.heads.tokens import (
    CausalLanguageModel,
    MaskedLanguageModel,
    SpanExtractor,
    TokenClassifier,
)
from probattn.models.hosts.calls import AttentionCall, AttentionCalls
from probattn.models.hosts.capture import CapturedCall, HeadRedundancy, capture, head_redundancy, masked_heads
from probattn.models.hosts.card import describe
from probattn.models.hosts.convert import convert, inspect, revert
from probattn.models.hosts.pretrained import StoredNetworkError
from probattn.models.hosts.saving import save
from probattn.models.hosts.store import from_pretrained, load

if TYPE_CHECKING:
    from probattn.models.electra import ElectraProgram
    from probattn.models.graphwriter import (
        GraphTextProgram,
        GraphWriterConfig,
        GraphWriterForGeneration,
        WritingOptions,
        write_texts,
    )
    from probattn.models.mcan import McanConfig, McanForQuestionAnswering, VisualQuestionProgram
    from probattn.models.pairs import (
        DecomposableConfig,
        DecomposableForSequenceClassification,
        EsimConfig,
        EsimForSequenceClassification,
    )
    from probattn.models.rating import (
        ProxyProgram,
        RatedWords,
        WordRatings,
        own_head,
        rate_words,
        word_saliency,
    )
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

_SYSTEMS = {
    "electra": "ElectraProgram",
    "graphwriter": "GraphTextProgram GraphWriterConfig GraphWriterForGeneration WritingOptions write_texts",
    "mcan": "McanConfig McanForQuestionAnswering VisualQuestionProgram",
    "pairs": "DecomposableConfig DecomposableForSequenceClassification EsimConfig EsimForSequenceClassification",
    "rating": "ProxyProgram RatedWords WordRatings own_head rate_words word_saliency",
    "sentence": "SelfAttentiveConfig SelfAttentiveForSequenceClassification SelfAttentiveModel",
    "translation": """AlignmentGuide RecurrentForTranslation RecurrentModel RecurrentTranslationConfig SearchOptions
        TransformerSize VariationalTranslator build_transformer translate""",
}
"""Names by the package that is imported with the first of them."""


def __getattr__(name: str) -> Any:
    for package, names in _SYSTEMS.items():
        if name in names.split():
            value = globals()[name] = getattr(import_module(f"{__name__}.{package}"), name)
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(globals() | dict.fromkeys(__all__))
