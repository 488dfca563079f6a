"""Networks with attention sites, and their Pyro programs.

Networks of single papers are imported, and registered with Auto classes, at the first use of a name or such a folder.
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
from probattn.models.hosts.convert import convert, inspect, particle, revert
from probattn.models.hosts.description import describe
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

__all__ = ["program_for", "Classifier", "MultiLabelClassifier", "MultipleChoice", "Regressor", "Translator"]
__all__ += ["CausalLanguageModel", "MaskedLanguageModel", "SpanExtractor", "TokenClassifier"]
__all__ += ["AttentionCall", "AttentionCalls"]
__all__ += ["CapturedCall", "HeadRedundancy", "capture", "head_redundancy", "masked_heads"]
__all__ += ["convert", "inspect", "particle", "revert", "describe", "StoredNetworkError", "save"]
__all__ += ["from_pretrained", "load", "ElectraProgram"]
__all__ += ["GraphTextProgram", "GraphWriterConfig", "GraphWriterForGeneration", "WritingOptions"]
__all__ += ["write_texts", "McanConfig", "McanForQuestionAnswering", "VisualQuestionProgram"]
__all__ += ["DecomposableConfig", "DecomposableForSequenceClassification", "EsimConfig"]
__all__ += ["EsimForSequenceClassification"]
__all__ += ["ProxyProgram", "RatedWords", "WordRatings", "own_head", "rate_words", "word_saliency"]
__all__ += ["SelfAttentiveConfig", "SelfAttentiveForSequenceClassification", "SelfAttentiveModel"]
__all__ += ["AlignmentGuide", "RecurrentForTranslation", "RecurrentModel", "RecurrentTranslationConfig"]
__all__ += ["SearchOptions", "TransformerSize", "VariationalTranslator", "build_transformer", "translate"]

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
