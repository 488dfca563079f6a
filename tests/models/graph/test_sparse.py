"""Sparse features beside the same features dense."""

from dataclasses import replace

import pytest
import torch

from probattn.inference.elbo import AttentionELBO
from probattn.inference.guide import AttentionGuide

pytest.importorskip("torch_geometric", reason="needs torch-geometric (the extra 'graph')")

from probattn.models.graph import GATOptions, GraphAttentionNetwork, NodeClassifier
from probattn.models.graph.layer import drop, is_mostly_zero, project


def few(rows=50, columns=40, share=0.1):
    generator = torch.Generator().manual_seed(0)
    kept = torch.rand(rows, columns, generator=generator) < share
    return torch.randn(rows, columns, generator=generator) * kept


def test_products_and_their_gradients_are_those_of_dense_features():
    features, weight = few(), torch.randn(6, 40, requires_grad=True)
    found, expected = project(features.to_sparse().coalesce(), weight), features @ weight.t()
    torch.testing.assert_close(found, expected)
    target = torch.randn_like(expected)
    ours, theirs = (torch.autograd.grad((out * target).sum(), weight)[0] for out in (found, expected))
    torch.testing.assert_close(ours, theirs)


def test_dropout_keeps_its_share_and_scales_the_rest():
    features = torch.ones(300, 300).to_sparse().coalesce()
    dropped = drop(features, 0.6, training=True).to_dense()
    assert set(dropped.unique().tolist()) == {0.0, 2.5}
    assert dropped.mean().item() == pytest.approx(1.0, abs=0.02)
    assert drop(features, 0.6, training=False) is features


def test_a_program_on_sparse_features_answers_as_on_dense_ones(graph, monkeypatch):
    torch.manual_seed(0)
    graph = replace(graph, features=few(13, 20, 0.15))
    assert is_mostly_zero(graph.features)
    net = GraphAttentionNetwork(20, 2, GATOptions(dropout=0.0, attention_dropout=0.0))
    sparse = NodeClassifier(net, graph)
    assert sparse.features.is_sparse
    monkeypatch.setattr("probattn.models.graph.layer.SPARSE_BELOW", 0.0)
    dense = NodeClassifier(net, graph)
    assert not dense.features.is_sparse
    losses = [
        AttentionELBO()(model, AttentionGuide(model))(graph.rows("train")).loss for model in (sparse, dense)
    ]
    torch.testing.assert_close(losses[0], losses[1])
    for ours, theirs in zip(*(torch.autograd.grad(loss, net.parameters()) for loss in losses), strict=True):
        torch.testing.assert_close(ours, theirs)
