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
