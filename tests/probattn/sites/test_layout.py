"""Pairs, masks and edges are the same layout where they hold the same entries."""

import pytest
import torch

from probattn.sites import AttentionMask, Edges
from probattn.sites.layout import PAIRS

NODES, HEADS = 4, 3
MAPS = ("softmax", "log_softmax", "weights", "zero_forbidden", "zero_empty", "total")


def complete():
    """Every node to every node, in the order of a flattened map of targets by sources."""
    target, source = torch.meshgrid(torch.arange(NODES), torch.arange(NODES), indexing="ij")
    return Edges(torch.stack([source.flatten(), target.flatten()]), NODES)


def normal(*shape, dtype):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("queries", [None, torch.ones(2, NODES, dtype=torch.bool)], ids=["", "named"])
def test_a_mask_that_forbids_nothing_is_all_pairs(dtype, queries):
    mask = AttentionMask(torch.ones(2, 1, NODES, NODES, dtype=torch.bool), queries)
    scores, values = normal(2, HEADS, NODES, NODES, dtype=dtype), normal(2, 1, NODES, dtype=dtype)
    for name in MAPS:
        torch.testing.assert_close(getattr(mask, name)(scores), getattr(PAIRS, name)(scores), msg=name)
    torch.testing.assert_close(mask.over_keys(values, HEADS), PAIRS.over_keys(values, HEADS))
    for reduction in ("sum", "mean", "keys"):
        factor = torch.as_tensor(mask.reduction_factor(reduction, scores.shape, dtype))
        expected = pytest.approx([PAIRS.reduction_factor(reduction, scores.shape, dtype)] * 2)
        assert factor.expand(2).tolist() == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_edges_of_a_complete_graph_are_all_pairs(dtype):
    edges, scores = complete(), normal(1, HEADS, NODES, NODES, dtype=dtype)
    flat = scores.view(1, HEADS, 1, -1)
    for name in MAPS:
        expected = getattr(PAIRS, name)(scores)
        torch.testing.assert_close(getattr(edges, name)(flat).view(expected.shape), expected, msg=name)
    values = normal(NODES, HEADS, dtype=dtype)
    rows = PAIRS.over_keys(values.t()[None], HEADS).expand(scores.shape)
    torch.testing.assert_close(edges.over_keys(values, HEADS).view(scores.shape), rows)
    for reduction in ("sum", "mean", "keys"):
        factor = edges.reduction_factor(reduction, flat.shape, dtype, 7)
        assert factor == PAIRS.reduction_factor(reduction, scores.shape, dtype, 7)
