"""Classes of networks by their names."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import transformers
from transformers import PretrainedConfig, PreTrainedModel

MAPPINGS = (
    "MODEL_MAPPING",
    "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING",
    "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING",
)
"""Where ``AutoModel.register`` and its like keep networks that are not transformers' own."""

SYSTEMS: Mapping[str, str] = {
    "probattn_decomposable": "pairs",
    "probattn_esim": "pairs",
    "probattn_graphwriter": "graphwriter",
    "probattn_mcan": "mcan",
    "probattn_recurrent_translation": "translation",
    "probattn_self_attentive": "sentence",
}
"""Packages of ``probattn.models`` by the ``model_type`` that they register with transformers' Auto classes."""


def register_system(config: Mapping[str, Any]) -> None:
    """Imports the package whose networks have a configuration's ``model_type``; nothing for networks of others."""
    package = SYSTEMS.get(str(config.get("model_type")))
    if package is not None:
        import_module(f"probattn.models.{package}")


def network_class(name: str, config: PretrainedConfig) -> type[PreTrainedModel] | None:
    """The network class of a name in ``architectures``, None where there is none.

    Classes that are not transformers' own are those registered with an auto class for the configuration's type.
    """
    registered = (getattr(transformers, mapping).get(type(config), None) for mapping in MAPPINGS)
    for candidate in (getattr(transformers, name, None), *registered):
        if (
            isinstance(candidate, type)
            and issubclass(candidate, PreTrainedModel)
            and candidate.__name__ == name
        ):
            return candidate
    return None
