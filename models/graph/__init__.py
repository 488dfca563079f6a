"""Graph attention on torch-geometric (``pip install 'probattn[graph]'``): layer, network and Pyro program.

Import this module itself; :mod:`probattn.models` does not. Shapes: N nodes with F features, E edges, H attention heads.
"""

from probattn.models.gat_options import GATOptions
from probattn.models.graph.layer import GraphAttention
from probattn.models.graph.network import (
    GraphAttentionNetwork,
    LayerMeasures,
    LayerPass,
    NodeClassifier,
    distance_from_uniform,
    measure_attention,
)

__all__ = ["GATOptions", "GraphAttention"]
__all__ += ["GraphAttentionNetwork", "LayerMeasures", "LayerPass", "NodeClassifier", "distance_from_uniform"]
__all__ += ["measure_attention"]
