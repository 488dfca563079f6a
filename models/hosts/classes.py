"""Classes of networks by their names."""

from __future__ import annotations

import transformers
from transformers import PretrainedConfig, PreTrainedModel

MAPPINGS = (
    "MODEL_MAPPING",
    "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING",
    "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING",
)
"""Where ``AutoModel.register`` and its like keep networks that are not transformers' own."""


def network_class(name: str, config: PretrainedConfig) -> type[PreTrainedModel] | None:
    """The network class of this name.

    Args:
        name: as ``config.json`` lists it under ``architectures``.
        config: the network's configuration; classes that are not transformers' own are found by its type.

    Returns:
        One of transformers, or one that an auto class of it was told of; None where there is none.

    Example:
        >>> from transformers import BertConfig
        >>> network_class("BertModel", BertConfig()).__name__
        'BertModel'
        >>> from probattn.models import SelfAttentiveConfig
        >>> network_class("SelfAttentiveModel", SelfAttentiveConfig()).__name__
        'SelfAttentiveModel'
    """
    registered = (getattr(transformers, mapping).get(type(config), None) for mapping in MAPPINGS)
    for found in (getattr(transformers, name, None), *registered):
        if isinstance(found, type) and issubclass(found, PreTrainedModel) and found.__name__ == name:
            return found
    return None
