"""Graph attention on torch-geometric (the extra ``graph``): layer, network and Pyro program.

It is not imported with :mod:`probattn.models`, so that nothing else needs torch-geometric.
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
