"""MCAN: questions about images (Yu et al., CVPR 2019).

Importing it makes the networks known to transformers' Auto classes, which find them by a folder's configuration.
"""

from probattn.models.mcan.layers import McanConfig
from probattn.models.mcan.network import McanForQuestionAnswering, McanOutput, VisualQuestionProgram

__all__ = ["McanConfig", "McanForQuestionAnswering", "McanOutput", "VisualQuestionProgram"]
