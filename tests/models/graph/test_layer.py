"""The layer beside torch_geometric's GATConv, and what must not depend on how nodes and edges are numbered."""

import pytest
import torch

from probattn import BayesianAttention
from probattn.inference.guide import AttentionGuide
from probattn.sites import Edges

pytest.importorskip("torch_geometric.nn", reason="needs torch-geometric (the extra 'graph')")

from torch_geometric.nn import GATConv

from probattn.models.graph import GraphAttention

NODES, FEATURES = 9, 5


def random_graph(seed=0, edges=25):
    generator = torch.Generator().manual_seed(seed)
    others = torch.randint(NODES, (2, edges), generator=generator)
    others = others[:, others[0] != others[1]].unique(dim=1)
    loops = torch.arange(NODES).repeat(2, 1)
    return Edges(torch.cat([others, loops], dim=1), NODES), torch.randn(NODES, FEATURES, generator=generator)


def twin(layer):
    """GATConv with the layer's weights."""
    conv = GATConv(
        layer.in_features,
        layer.out_features,
        layer.heads,
        concat=layer.concat,
        negative_slope=layer.negative_slope,
        add_self_loops=False,
    )
    with torch.no_grad():
        conv.lin.weight.copy_(layer.weight)
        conv.att_src.copy_(layer.attend_source[None])
        conv.att_dst.copy_(layer.attend_target[None])
        conv.bias.copy_(layer.bias.normal_())
    return conv


@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("concat", [True, False])
def test_deterministic_attention_is_gatconv(heads, concat):
    torch.manual_seed(heads)
    edges, nodes = random_graph()
    layer = GraphAttention(FEATURES, 4, heads, concat=concat)
    conv = twin(layer)
    ours, theirs = nodes.clone().requires_grad_(), nodes.clone().requires_grad_()
    output, weights = layer("layer", ours, edges)
    expected, (index, expected_weights) = conv(theirs, edges.index, return_attention_weights=True)
    torch.testing.assert_close(output, expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(index, edges.index)
    torch.testing.assert_close(weights, expected_weights, atol=1e-5, rtol=0)
    target = torch.randn_like(output)
    (output * target).sum().backward()
    (expected * target).sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad, atol=1e-4, rtol=0)
    torch.testing.assert_close(layer.weight.grad, conv.lin.weight.grad, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(layer.attend_source.grad, conv.att_src.grad[0], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(layer.attend_target.grad, conv.att_dst.grad[0], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("method", [None, BayesianAttention(sigma=0.3)], ids=["deterministic", "latent"])
def test_renumbered_nodes_give_renumbered_outputs(method):
    torch.manual_seed(0)
    edges, nodes = random_graph()
    layer = GraphAttention(FEATURES, 4, 2, method=method).eval()
    order = torch.randperm(NODES)  # new node i is old node order[i]
    place = order.argsort()
    shuffled = torch.randperm(len(edges))
    renumbered = Edges(place[edges.index[:, shuffled]], NODES)
    output, weights = layer("layer", nodes, edges)
    moved, moved_weights = layer("layer", nodes[order], renumbered)
    torch.testing.assert_close(moved, output[order])
    torch.testing.assert_close(moved_weights, weights[shuffled])


@pytest.mark.parametrize("method", [None, BayesianAttention()], ids=["deterministic", "latent"])
def test_a_node_alone_keeps_its_own_value(method):
    edges = Edges(torch.tensor([[0, 1, 0], [0, 1, 1]]), 2)
    layer = GraphAttention(3, 4, 2, method=method).eval()
    nodes = torch.randn(2, 3)
    value, _, _ = layer.features(nodes)
    torch.testing.assert_close(layer("layer", nodes, edges)[0][0], value[0].flatten() + layer.bias)


def test_a_node_without_edges_gets_the_bias():
    layer = GraphAttention(3, 4)
    output, weights = layer("layer", torch.randn(2, 3), Edges(torch.zeros(2, 0, dtype=torch.int64), 2))
    torch.testing.assert_close(output, layer.bias.expand(2, 4))
    assert weights.shape == (0, 1)


def test_queries_and_keys_sum_to_the_score():
    edges, nodes = random_graph()
    layer = GraphAttention(FEATURES, 4, 2)
    _, query, key = layer.features(nodes)
    scores = torch.nn.functional.leaky_relu((query[edges.target] + key[edges.source]).sum(dim=-1), 0.2)
    torch.testing.assert_close(layer("layer", nodes, edges)[1], edges.softmax(scores.t()).t())


@pytest.mark.parametrize("method", [None, BayesianAttention.bam(1e6)], ids=["deterministic", "latent"])
def test_dropout_is_of_weights_after_they_are_normalised(method):
    edges = Edges(torch.tensor([[0] * 4000, list(range(4000))]), 4000)
    layer = GraphAttention(1, 1, dropout=0.75, method=method)
    with torch.no_grad(), AttentionGuide(lambda: layer("layer", torch.ones(4000, 1), edges)) as guide:
        output, weights = guide.model()
    value = layer.features(torch.ones(1, 1))[0].item()
    kept = output[:, 0] / value
    assert set(kept.round().tolist()) == {0.0, 4.0}
    assert kept.mean().item() == pytest.approx(1.0, abs=0.15)
    torch.testing.assert_close(weights, torch.ones(4000, 1))


def test_weights_start_as_glorot_has_it():
    torch.manual_seed(0)
    layer = GraphAttention(1000, 8, 8)
    bound = (6 / 1064) ** 0.5
    assert layer.weight.abs().max().item() == pytest.approx(bound, rel=1e-3)
    assert layer.weight.std().item() == pytest.approx(bound / 3**0.5, rel=0.02)
    assert layer.bias.abs().max() == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heads": 0}, "GraphAttention.heads: expected an integer >= 1, got 0"),
        ({"dropout": 1.0}, r"GraphAttention.dropout: expected a number in \[0, 1\), got 1.0"),
        ({"method": BayesianAttention.paper(max_positions=9)}, "use upward='heads'"),
    ],
)
def test_options_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        GraphAttention(3, 4, **options)


def test_features_of_the_wrong_width_are_refused():
    with pytest.raises(ValueError, match=r"first: expected features \[9, 5\] of nodes, got \[9, 6\]"):
        GraphAttention(FEATURES, 4)("first", torch.zeros(NODES, 6), random_graph()[0])
