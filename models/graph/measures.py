"""How far attention over edges is from uniform, and how large its queries and keys are."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from probattn.models.graph.network import GraphAttentionNetwork
from probattn.sites import Edges


@dataclass(frozen=True)
class LayerMeasures:
    """What one layer's attention looks like on a graph, means over heads and edges or nodes.

    Attributes:
        site: name of the attention site.
        from_uniform: mean of ``|weight * degree - 1|`` over edges and heads, degree the number of incoming edges of the
            target: 0 for uniform attention.
        query_norm: mean 2-norm of the nodes' queries.
        key_norm: mean 2-norm of the nodes' keys.
        value_norm: mean 2-norm of the nodes' values, the scale to see the other two at.
    """

    site: str
    from_uniform: float
    query_norm: float
    key_norm: float
    value_norm: float


def distance_from_uniform(weights: Tensor, edges: Edges) -> Tensor:
    """Mean of ``|weight * degree - 1|``.

    Args:
        weights: ``[E, H]``.
        edges: E edges.

    Returns:
        A number.

    Example:
        >>> edges = Edges(torch.tensor([[0, 1, 1], [0, 0, 1]]), num_nodes=2)
        >>> distance_from_uniform(torch.tensor([[0.75], [0.25], [1.0]]), edges)
        tensor(0.3333)
    """
    return (weights * edges.degree[edges.target].unsqueeze(1) - 1).abs().mean()


@torch.no_grad()
def measure_attention(net: GraphAttentionNetwork, features: Tensor, edges: Edges) -> list[LayerMeasures]:
    """Measures both layers in evaluation mode; latent weights at their posterior expectation.

    Args:
        net: the network.
        features: ``[N, F]``, dense or sparse.
        edges: between the N nodes.

    Returns:
        One record a layer, the hidden one first.
    """
    records = []
    for layer, (site, inputs, weights) in zip(
        (net.hidden, net.output), net.passes(features, edges), strict=True
    ):
        value, query, key = layer.features(inputs)
        norms = (float(item.norm(dim=-1).mean()) for item in (query, key, value))
        records.append(LayerMeasures(site, float(distance_from_uniform(weights, edges)), *norms))
    return records
