"""What is said of a network's attention, beside loops."""

import pytest
import torch

from probattn import BayesianAttention
from probattn.sites import Edges

pytest.importorskip("torch_geometric", reason="needs torch-geometric (the extra 'graph')")

from probattn.models.graph import (
    GATOptions,
    GraphAttentionNetwork,
    NodeClassifier,
    distance_from_uniform,
    measure_attention,
)


def test_uniform_attention_is_at_0():
    edges = Edges(torch.tensor([[0, 1, 2, 1], [0, 0, 0, 2]]), 3)
    weights = edges.softmax(torch.zeros(2, 4)).t()
    assert distance_from_uniform(weights, edges).item() == pytest.approx(0, abs=1e-6)
    assert distance_from_uniform(torch.tensor([[1.0], [0.0], [0.0], [1.0]]), edges).item() == pytest.approx(
        1.0
    )


@pytest.mark.parametrize("method", [None, BayesianAttention()], ids=["deterministic", "latent"])
def test_measures_are_means_over_heads_and_nodes(graph, method):
    torch.manual_seed(0)
    model = NodeClassifier(
        GraphAttentionNetwork(4, 2, GATOptions(heads=2, features=3), attention=method), graph
    )
    net, edges = model.net, model.edges
    first, second = measure_attention(net, model.features, edges)
    assert model.training and net.hidden.training
    weights = net.attention(model.features, edges)["hidden.attention"]
    total = 0.0
    for edge, target in enumerate(edges.target.tolist()):
        degree = edges.target.tolist().count(target)
        total += sum(abs(weights[edge, head].item() * degree - 1) for head in range(2))
    assert first.from_uniform == pytest.approx(total / (2 * len(edges)))
    _, query, key = net.hidden.features(model.features)
    for tensor, norm in ((query, first.query_norm), (key, first.key_norm)):
        assert norm == pytest.approx(tensor.square().sum(-1).sqrt().mean().item(), rel=1e-5)
    assert second.site == "output.attention"
