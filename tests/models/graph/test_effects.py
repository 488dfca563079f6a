"""What a node's prediction owes to each node that others attend to: against graphs without its edges."""

from dataclasses import replace

import pytest
import torch

from probattn import BayesianAttention
from probattn.inference import attention_effects

pytest.importorskip("torch_geometric", reason="needs torch-geometric (the extra 'graph')")

from probattn.models.graph import GATOptions, GraphAttentionNetwork, NodeClassifier
from probattn.sites import Edges

SMALL = GATOptions(heads=2, features=3, dropout=0.0, attention_dropout=0.0)
METHODS = {"plain": None, "bam": BayesianAttention.bam(prior="constant"), "babn": BayesianAttention()}


def build(graph, method):
    torch.manual_seed(0)
    net = GraphAttentionNetwork(graph.num_features, graph.num_classes, SMALL, attention=method)
    return NodeClassifier(net.double(), replace(graph, features=graph.features.double())).eval()


def log_odds(logits, answer):
    others = torch.cat([logits[:answer], logits[answer + 1 :]])
    return logits[answer] - others.logsumexp(0)


@pytest.mark.parametrize("name", ["plain", "bam"])
def test_a_knock_out_is_a_graph_without_the_edges_that_leave_the_node(graph, name):
    model = build(graph, METHODS[name])
    nodes = torch.tensor([3, 12])
    effects = attention_effects(model, {"nodes": nodes}, method="knockout")
    assert effects.effect.shape == (2, graph.num_nodes)
    assert (model.net.hidden.latent is None) == (name == "plain")
    with torch.no_grad():
        whole = model({"nodes": nodes})
        answers = whole.argmax(1)
        changes = torch.zeros(2, graph.num_nodes, dtype=torch.float64)
        for source in range(graph.num_nodes):
            kept = graph.edge_index[:, graph.edge_index[0] != source]
            features = graph.features.double()
            logits = model.net(features, Edges(kept, graph.num_nodes))[nodes]
            for row, answer in enumerate(answers.tolist()):
                changes[row, source] = log_odds(whole[row], answer) - log_odds(logits[row], answer)
    assert changes.abs().max() > 1e-3
    torch.testing.assert_close(effects.effect, changes, rtol=0.0, atol=1e-9)
    far = changes == 0
    assert far.any() and (effects.effect[far] == 0).all()  # beyond two steps nothing is read
    assert effects.answer.equal(answers)


@pytest.mark.parametrize("name", METHODS)
def test_slopes_are_those_of_finite_differences(graph, name, monkeypatch):
    model = build(graph, METHODS[name])
    rows = {"nodes": torch.tensor([3])}
    effects = attention_effects(model, rows, method="slope", target=1)
    assert sum(item.sum() for item in effects.by_site.values()) == pytest.approx(float(effects.effect.sum()))
    weights, source, step = Edges.softmax, int(effects.effect[0].abs().argmax()), 1e-5

    def at(bias):
        def softmax(edges, scores):
            w = weights(edges, scores) * (bias * (edges.source == source).double()).exp()
            return w / edges.sum(w).index_select(-1, edges.target)

        with monkeypatch.context() as patch, torch.no_grad():
            patch.setattr(Edges, "weights", softmax)
            if name == "plain":
                patch.setattr(Edges, "softmax", softmax)
            return float(log_odds(model(rows)[0], 1))

    difference = (at(step) - at(-step)) / (2 * step)
    assert float(effects.effect[0, source]) == pytest.approx(difference, rel=1e-5)
    assert abs(difference) > 1e-4


def test_a_node_whose_edges_are_all_gone_has_no_nan():
    edges = Edges(torch.tensor([[0, 1, 0], [0, 0, 2]]), num_nodes=3).without(
        torch.tensor([True, False, False])
    )
    assert edges.weights(torch.tensor([5.0, -1.0, 2.0])).tolist() == [0.0, 1.0, 0.0]


def test_draws_of_a_graph_are_refused(graph):
    model = build(graph, METHODS["bam"])
    with pytest.raises(ValueError, match="expected no num_samples for a model of one draw a pass"):
        attention_effects(model, {"nodes": torch.tensor([3])}, num_samples=2)
    with pytest.raises(ValueError, match="expected latent attention in all layers"):
        attention_effects(build(graph, None), {"nodes": torch.tensor([3])}, num_samples=1)
