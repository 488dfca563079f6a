"""MCAN: questions about images (Yu et al., CVPR 2019).

Importing :mod:`probattn.models` makes the network known to transformers, so that ``AutoModel``,
``AutoModelForVisualQuestionAnswering`` and ``from_pretrained`` find it by the configuration in a folder.
"""

from transformers import AutoConfig, AutoModel, AutoModelForVisualQuestionAnswering

from probattn.models.mcan.configuration import McanConfig
from probattn.models.mcan.network import McanForQuestionAnswering, McanOutput
from probattn.models.mcan.program import VisualQuestionProgram

__all__ = ["McanConfig", "McanForQuestionAnswering", "McanOutput", "VisualQuestionProgram"]

AutoConfig.register(McanConfig.model_type, McanConfig, exist_ok=True)
AutoModel.register(McanConfig, McanForQuestionAnswering, exist_ok=True)
AutoModelForVisualQuestionAnswering.register(McanConfig, McanForQuestionAnswering, exist_ok=True)
