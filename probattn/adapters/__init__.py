"""Adapters to other packages: scikit-learn, ArviZ, bertviz, shap, captum and datasets, imported when used first."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from probattn.adapters.attention_views import attention_layers
    from probattn.adapters.columns import add_predictions
    from probattn.adapters.effect_views import AttentionAttribution, to_shap
    from probattn.adapters.inference_data import to_inference_data
    from probattn.adapters.text_classifier import ProbabilisticTextClassifier

__all__ = ["AttentionAttribution", "ProbabilisticTextClassifier", "add_predictions", "attention_layers"]
__all__ += ["to_inference_data", "to_shap"]

_MODULES = {
    "AttentionAttribution": ("effect_views", None, None),
    "ProbabilisticTextClassifier": ("text_classifier", "sklearn", "scikit-learn"),
    "add_predictions": ("columns", "datasets", "datasets"),
    "attention_layers": ("attention_views", None, None),
    "to_inference_data": ("inference_data", "arviz", "'arviz>=0.20,<1'"),
    "to_shap": ("effect_views", None, None),
}
"""Module of each name, the package that it needs, and what pip calls that."""


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'probattn.adapters' has no attribute {name!r}")
    module, package, requirement = _MODULES[name]
    try:
        value = globals()[name] = getattr(import_module(f"probattn.adapters.{module}"), name)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        raise ImportError(f"{name}: needs {package}; install it: pip install {requirement}") from error
    return value


def __dir__() -> list[str]:
    return sorted(globals() | _MODULES)
