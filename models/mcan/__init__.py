"""MCAN, a modular co-attention network that answers questions about images (Yu et al., CVPR 2019).

Importing this module registers the network with transformers' Auto classes.
"""

from probattn.models.mcan.layers import McanConfig
from probattn.models.mcan.network import McanForQuestionAnswering, McanOutput, VisualQuestionProgram

__all__ = ["McanConfig", "McanForQuestionAnswering", "McanOutput", "VisualQuestionProgram"]
