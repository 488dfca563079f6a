"""The LSTM encoder-decoder with dot attention (Luong et al. 2015; Snell et al. 2021).

Importing :mod:`probattn.models` makes both networks known to transformers, so that ``AutoModel``,
``AutoModelForSeq2SeqLM`` and ``from_pretrained`` find them by the configuration in a folder.
"""

from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM

from probattn.models.translation.recurrent.configuration import RecurrentTranslationConfig
from probattn.models.translation.recurrent.network import (
    RecurrentForTranslation,
    RecurrentModel,
    RecurrentModelOutput,
    RecurrentTranslationOutput,
)

__all__ = [
    "RecurrentForTranslation",
    "RecurrentModel",
    "RecurrentModelOutput",
    "RecurrentTranslationConfig",
    "RecurrentTranslationOutput",
]

AutoConfig.register(RecurrentTranslationConfig.model_type, RecurrentTranslationConfig, exist_ok=True)
AutoModel.register(RecurrentTranslationConfig, RecurrentModel, exist_ok=True)
AutoModelForSeq2SeqLM.register(RecurrentTranslationConfig, RecurrentForTranslation, exist_ok=True)
