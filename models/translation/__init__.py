"""Translation: Transformer and LSTM encoder-decoders, their Pyro programs, and beam search."""

from probattn.models.heads.sequences import Translator, token_measures
from probattn.models.translation.network import SearchOptions, TransformerSize, build_transformer, translate
from probattn.models.translation.recurrent.lstms import RecurrentTranslationConfig
from probattn.models.translation.recurrent.network import RecurrentForTranslation, RecurrentModel
from probattn.models.translation.variational import AlignmentGuide, VariationalTranslator

__all__ = ["Translator", "token_measures"]
__all__ += ["SearchOptions", "TransformerSize", "build_transformer", "translate"]
__all__ += ["RecurrentTranslationConfig", "RecurrentForTranslation", "RecurrentModel"]
__all__ += ["AlignmentGuide", "VariationalTranslator"]
